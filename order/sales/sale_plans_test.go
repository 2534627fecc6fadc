package sales

import (
	"strings"
	"testing"

	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestEntriesByKey_Plan: the orders of an ended sale are found by their keys.
func TestEntriesByKey_Plan(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	text := ordertest.Plan(t, storetest.New(t), entriesByKey, "item", "[]")
	if !strings.Contains(text, "INDEX") || strings.Contains(text, "SCAN o") || strings.Contains(text, "TEMP B-TREE") {
		t.Errorf("plan of %s:\n%s", entriesByKey, text)
	}
}

// TestHoldingsOfItem_Plan: the load of a sale reads the item's orders, oldest first, and sorts
// nothing.
func TestHoldingsOfItem_Plan(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	text := ordertest.Plan(t, storetest.New(t), holdingsOfItem, "item")
	if !strings.Contains(text, "INDEX orders_item (item_id=?)") || strings.Contains(text, "SCAN") || strings.Contains(text, "TEMP B-TREE") {
		t.Errorf("plan of %s:\n%s", holdingsOfItem, text)
	}
}
