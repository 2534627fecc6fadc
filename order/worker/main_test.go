package worker

import (
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/order/ordertest"
)

func TestMain(m *testing.M) {
	groupsTime = await.Limit // a busy machine may need longer
	ordertest.Main(m)
}
