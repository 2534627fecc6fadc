package database_test

import (
	"testing"

	"flashsale/order/ordertest"
)

func TestMain(m *testing.M) { ordertest.Main(m) }
