package order

import (
	"testing"
	"time"

	"flashsale/internal/testing/await"
)

// TestMend_Refunded: the repair of counts and a refund agree on which orders hold units.
func TestMend_Refunded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, asking("item", 9, 9, time.Hour))
	for _, id := range []string{"back", "kept", "undone"} {
		mustCommit(t, s, bought(id, "item", "u", id, 2))
		if _, err := s.pay(await.Context(t), id, money(id, 2)); err != nil {
			t.Fatal(err)
		}
	}
	for id, restock := range map[string]bool{"back": true, "kept": false} {
		if _, _, err := s.refund(await.Context(t), id, Refund{Restock: restock, By: root}); err != nil {
			t.Fatal(err)
		}
	}
	for _, spoil := range []string{"UPDATE items SET sold = 1", "UPDATE buyers SET quantity = 1", "DELETE FROM buyers"} {
		if err := s.Writer().Exec(spoil).Error; err != nil {
			t.Fatal(err)
		}
		if err := s.mend(await.Context(t), "item", mustReadBooks(t, s, "item"), "root", "r"); err != nil {
			t.Fatal(err)
		}
		if b := mustReadBooks(t, s, "item"); len(b.drifts()) != 0 || b.held != 4 || b.due != 0 {
			t.Errorf("after %s: %+v", spoil, b)
		}
		auditStore(t, s)
	}
}
