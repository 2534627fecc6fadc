package reconcile

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestMend_Refunded: the repair of counts and a refund agree on which orders hold units.
func TestMend_Refunded(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 9, time.Hour))
	for _, id := range []string{"back", "kept", "undone"} {
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u", id, 2))
		if _, err := s.Pay(await.Context(t), id, ordertest.Money(id, 2)); err != nil {
			t.Fatal(err)
		}
	}
	for id, restock := range map[string]bool{"back": true, "kept": false} {
		if _, _, err := checkout.RefundInStore(await.Context(t), s, id, checkout.Refund{Restock: restock, By: ordertest.Root}); err != nil {
			t.Fatal(err)
		}
	}
	for _, spoil := range []string{"UPDATE items SET sold = 1", "UPDATE buyers SET quantity = 1", "DELETE FROM buyers"} {
		if err := s.Writer().Exec(spoil).Error; err != nil {
			t.Fatal(err)
		}
		if err := repairCounts(await.Context(t), s, "item", mustReadBooks(t, s, "item"), "root", "r"); err != nil {
			t.Fatal(err)
		}
		if b := mustReadBooks(t, s, "item"); len(b.drifts()) != 0 || b.held != 4 || b.due != 0 {
			t.Errorf("after %s: %+v", spoil, b)
		}
		ordertest.AuditStore(t, s)
	}
}
