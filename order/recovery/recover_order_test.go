package recovery

import (
	"context"
	"fmt"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
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
	mustExec(t, s, "INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at, refunded_at) VALUES ('paid', 'again', 1, 'EUR', 'duplicate', 'refunded', 1, 2)")
	row := ordertest.ItemOf(t, s, "item")
	for range 2 { // a repeat changes nothing
		err := s.Change(await.Context(t), "recover", func(ctx context.Context, c database.Conn, now int64) error {
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
		if got := ordertest.PaymentsOf(t, s)["again"]; got != "paid refunded" {
			t.Errorf("the refunded payment is %s", got)
		}
		ordertest.AuditStore(t, s)
	}
}

func mustExec(t *testing.T, s *store.Store, statement string) {
	t.Helper()
	if err := s.Writer().Exec(statement).Error; err != nil {
		t.Fatal(err)
	}
}

// TestRecoverOrder_Window: only an order of an item with a time to pay can expire.
func TestRecoverOrder_Window(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	for _, window := range []time.Duration{0, time.Hour} {
		item := "item-" + window.String()
		storetest.MustInsert(t, s, ordertest.Asking(item, 9, 9, window))
		row := ordertest.ItemOf(t, s, item)
		e := inventory.Entry{EntryKey: inventory.EntryKey{Buyer: "u", IdempotencyKey: item}, Known: true, OrderID: item, Quantity: 2}
		var until int64
		err := s.Change(await.Context(t), "recover", func(ctx context.Context, c database.Conn, now int64) error {
			if window > 0 {
				until = now + window.Milliseconds()
			}
			return recoverOrder(ctx, c, &row, &contradiction{entry: e}, now)
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := ordertest.AllRows(t, s)[item]; r.ExpiresAt != until || r.Status != string(order.StatusConfirmed) {
			t.Errorf("with %v to pay: %+v, want it to expire at %d", window, r, until)
		}
	}
	ordertest.AuditStore(t, s)
}

// TestRecover_Extend: every order that expires gets a day at least, and no other one expires.
func TestRecover_Extend(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	const orders, never, late = recoverPage + 2, "o0000", "o0001"
	storetest.MustInsert(t, s, ordertest.Asking("item", orders, 1, time.Hour))
	storetest.MustCommit(t, s, ordertest.Distinct("o", "item", orders)...)
	began := s.Now()
	week := began.Add(7 * 24 * time.Hour).UnixMilli()
	for _, change := range []string{
		"UPDATE orders SET expires_at = 0 WHERE id = '" + never + "'", fmt.Sprintf("UPDATE orders SET expires_at = %d WHERE id = '%s'", week, late),
		"UPDATE items SET behind = 1",
	} {
		mustExec(t, s, change)
	}
	row := ordertest.ItemOf(t, s, "item")
	x := &itemRecovery{Recoverer: NewRecoverer(RecovererConfig{Store: s})}
	x.sales = []*saleRecovery{{itemRecovery: x, behind: store.Behind{ItemID: "item"}}}
	if err := x.sales[0].extend(await.Context(t), &row); err != nil {
		t.Fatal(err)
	}
	for id, r := range ordertest.AllRows(t, s) {
		switch got := r.ExpiresAt; {
		case id == never && got != 0, id == late && got != week,
			id != never && got < began.Add(order.PayAgainWithin).UnixMilli():
			t.Fatalf("order %s expires at %d", id, got)
		}
	}
}
