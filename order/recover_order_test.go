package order

import (
	"context"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
)

// TestRecoverOrder_Paid: after the restore of a backup, Redis has released a paid order's
// units. An operator must find out whether the payment was refunded.
func TestRecoverOrder_Paid(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, asking("item", 9, 9, time.Hour))
	mustCommit(t, s, bought("paid", "item", "u", "paid", 2), bought("open", "item", "u", "open", 1))
	if _, err := s.pay(await.Context(t), "paid", money("psp", 2)); err != nil {
		t.Fatal(err)
	}
	row := itemOf(t, s, "item")
	for range 2 { // a repeat changes nothing
		err := s.transition(await.Context(t), "recover", func(ctx context.Context, c conn, now int64) error {
			for id, quantity := range map[string]int64{"paid": 2, "open": 1} {
				e := inventory.Entry{EntryKey: inventory.EntryKey{Buyer: "u", IdempotencyKey: id}, Known: true, OrderID: id, Quantity: quantity, Returned: true}
				if err := recoverOrder(ctx, c, &row, &contradiction{entry: e}, now); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		rows := allRows(t, s)
		if r := rows["paid"]; r.Status != string(StatusCancelled) || r.Restocked || r.Reason != reasonRecovered || r.ClosedAt == 0 || r.PaidAt == 0 {
			t.Errorf("the paid order is %+v", r)
		}
		if r := rows["open"]; r.Status != string(StatusCancelled) || r.Restocked || r.Reason != reasonRecovered {
			t.Errorf("the unpaid order is %+v", r)
		}
		if got := payments(t, s)["psp"]; got != "paid late" {
			t.Errorf("the payment is %s", got)
		}
		auditStore(t, s)
	}
}
