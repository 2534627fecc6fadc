package reconcile

import (
	"strings"
	"testing"

	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// TestSchema_Plans_OfItem: a page of an item's orders is found by an index, at the page's
// first order.
func TestSchema_Plans_OfItem(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for name, query := range map[string]string{
		"comparison": orderBooks, "repair": store.LastOrderOfPage, "missing buyers": addMissingBuyers,
	} {
		const want = "INDEX orders_item ((item_id,id)>(?,?) AND item_id<?)"
		got := ordertest.Plan(t, s, query, make([]any, 3)...)
		if !strings.Contains(got, want) || strings.Contains(got, "SCAN orders") {
			t.Errorf("%s:\n%s\nwant %s", name, got, want)
		}
	}
}
