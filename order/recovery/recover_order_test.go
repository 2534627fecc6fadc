package recovery

import (
	"context"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// TestRecoverOrder_Paid: after the restore of a backup, Redis has released a paid order's
// units. An operator must find out whether the payment was refunded.
func TestRecoverOrder_Paid(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 9, time.Hour))
	storetest.MustCommit(t, s, ordertest.Bought("paid", "item", "u", "paid", 2), ordertest.Bought("open", "item", "u", "open", 1))
	if _, err := s.Pay(await.Context(t), "paid", ordertest.Money("psp", 2)); err != nil {
		t.Fatal(err)
	}
	row := ordertest.ItemOf(t, s, "item")
	for range 2 { // a repeat changes nothing
		err := s.Transition(await.Context(t), "recover", func(ctx context.Context, c store.Conn, now int64) error {
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
		rows := ordertest.AllRows(t, s)
		if r := rows["paid"]; r.Status != string(order.StatusCancelled) || r.Restocked || r.Reason != order.ReasonRecovered || r.ClosedAt == 0 || r.PaidAt == 0 {
			t.Errorf("the paid order is %+v", r)
		}
		if r := rows["open"]; r.Status != string(order.StatusCancelled) || r.Restocked || r.Reason != order.ReasonRecovered {
			t.Errorf("the unpaid order is %+v", r)
		}
		if got := ordertest.PaymentsOf(t, s)["psp"]; got != "paid late" {
			t.Errorf("the payment is %s", got)
		}
		ordertest.AuditStore(t, s)
	}
}
