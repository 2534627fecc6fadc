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
	text := ordertest.Plan(t, storetest.New(t), entriesByKey, "item", "[]")
	if !strings.Contains(text, "INDEX") || strings.Contains(text, "SCAN o") || strings.Contains(text, "TEMP B-TREE") {
		t.Errorf("plan of %s:\n%s", entriesByKey, text)
	}
}
