package checkout

import (
	"testing"

	"flashsale/internal/testing/longtest"
	"flashsale/order/ordertest"
)

func TestMain(m *testing.M) {
	// The models use the database, where a check takes a fraction of a second. Each run
	// draws other checks; -rapid.checks on the command line takes precedence.
	longtest.Checks(25)
	ordertest.Main(m)
}
