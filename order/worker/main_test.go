package worker

import (
	"testing"

	"flashsale/order/ordertest"
)

func TestMain(m *testing.M) {
	ordertest.Main(m)
}
