package checkout_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// refundOften refunds an order many times at once, and checks every response and what
// remains of the order.
func refundOften(t *testing.T, s *shoptest.Shop, o order.Order, restock bool) {
	t.Helper()
	var wg sync.WaitGroup
	var first atomic.Pointer[order.Order]
	for range 20 {
		wg.Go(func() {
			got, err := s.Service.Refund(await.Context(t), o.ID, checkout.Refund{Restock: restock, By: ordertest.Root})
			if err != nil || got.Status != order.StatusRefunded || got.Restocked != restock || got.ClosedAt.IsZero() || !got.PaidAt.Equal(o.PaidAt) {
				t.Errorf("refund: %+v, %v", got, err)
			}
			if !first.CompareAndSwap(nil, &got) && *first.Load() != got {
				t.Errorf("one refund answered %+v, another %+v", *first.Load(), got)
			}
		})
	}
	wg.Wait()
	if got, err := s.Service.Refund(await.Context(t), o.ID, checkout.Refund{Restock: !restock, By: ordertest.Root}); !errors.Is(err, checkout.ErrRefundDiffers) || got != *first.Load() {
		t.Errorf("refunded otherwise: %+v, %v, want ErrRefundDiffers", got, err)
	}
	for _, by := range []order.Canceller{{UserID: o.UserID}, {UserID: "root", Admin: true}} {
		if got, err := s.Service.Cancel(await.Context(t), o.ID, by); !errors.Is(err, order.ErrOrderFinal) || got.Status != order.StatusRefunded {
			t.Errorf("cancel of a refunded order: %+v, %v, want ErrOrderFinal", got, err)
		}
	}
	if again := s.MustPlace(s.Purchase(o.UserID, "k", o.Quantity, ordertest.Long)); again.Order != *first.Load() || !again.Replayed {
		t.Errorf("replay of the purchase: %+v", again)
	}
	if got, err := s.Service.Pay(await.Context(t), o.ID, ordertest.Money("psp-"+o.ID, o.Quantity)); err != nil || got.Status != order.StatusRefunded {
		t.Errorf("repeat of the payment: %+v, %v", got, err)
	}
	if _, err := s.Service.Pay(await.Context(t), o.ID, ordertest.Money("late-"+o.ID, o.Quantity)); !errors.Is(err, order.ErrOrderExpired) {
		t.Errorf("another payment of a refunded order: %v, want ErrOrderExpired", err)
	}
	if got := ordertest.PaymentsOf(t, s.Store); got["psp-"+o.ID] != o.ID+" refunded" || got["late-"+o.ID] != o.ID+" late" {
		t.Errorf("payments %v", got)
	}
	ordertest.AuditStore(t, s.Store)
}

// TestService_Refund refunds with and without a restock, many times concurrently: the units
// are released exactly once or not at all, and so is the buyer's limit.
func TestService_Refund(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 5, 3, time.Hour))
		s.Work()
		back, kept := s.MustPay("u", "k", 3), s.MustPay("v", "k", 2)
		if _, err := s.Service.Place(await.Context(t), s.Purchase("w", "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Fatalf("beyond the stock: %v", err)
		}
		refundOften(t, s, kept, false)
		if l := reconciletest.Clean(s, "kept", reconcile.RepairNothing); l != (order.Ledger{Initial: 5, Sold: 5}) {
			t.Errorf("ledger without a restock: %+v", l)
		}
		refundOften(t, s, back, true)
		if l := reconciletest.Clean(s, "back", reconcile.RepairNothing); l != (order.Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a restock: %+v", l)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a restock: %+v", l)
		}
		if pending := ordertest.ReleasesOf(t, s.Store); len(pending) != 0 {
			t.Errorf("pending releases: %v", pending)
		}
		// A load of the sale must give the same counts.
		before := redisCounts(s)
		if err := s.Service.Releaser.Stock.Invalidate(await.Context(t), s.Item); err != nil {
			t.Fatal(err)
		}
		s.Load()
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a load: %+v", l)
		}
		if after := redisCounts(s); after != before {
			t.Errorf("a load made %s of %s", after, before)
		}
		// Units that stay sold count for the limit of their buyer; restocked ones do not.
		if _, err := s.Service.Place(await.Context(t), s.Purchase("v", "k2", 2, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("beyond the limit: %v", err)
		}
		s.MustPay("u", "k2", 3)
		if l := reconciletest.Clean(s, "at the end", reconcile.RepairNothing); l != (order.Ledger{Initial: 5, Sold: 5}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// redisCounts returns the counts of the site's sale: units left, and by order and buyer.
func redisCounts(s *shoptest.Shop) string {
	s.T.Helper()
	left, err := s.Rdb.HGet(await.Context(s.T), s.SaleKey("sale"), "left").Result()
	if err != nil {
		s.T.Fatal(err)
	}
	out := "left " + left
	for _, kind := range []string{"idempotency", "buyers"} {
		all, err := s.Rdb.HGetAll(await.Context(s.T), s.SaleKey(kind)).Result()
		if err != nil {
			s.T.Fatal(err)
		}
		out += fmt.Sprint(" ", kind, " ", all) // fmt sorts the keys
	}
	return out
}

// TestService_Refund_Refused: only a paid order can be refunded.
func TestService_Refund_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 9, 9, time.Hour))
		queued := s.MustPlace(s.Purchase("u", "queued", 1, 0)).Order
		r := checkout.Refund{Restock: true, By: ordertest.Root}
		if o, err := s.Service.Refund(await.Context(t), queued.ID, r); !errors.Is(err, checkout.ErrNotPaid) || o.Status != order.StatusQueued {
			t.Errorf("a queued order: %+v, %v, want ErrNotPaid", o, err)
		}
		s.Work()
		confirmed := s.MustPlace(s.Purchase("u", "confirmed", 1, ordertest.Long)).Order
		cancelled := s.MustPlace(s.Purchase("u", "cancelled", 1, ordertest.Long)).Order
		if _, err := s.Service.Cancel(await.Context(t), cancelled.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		before := reconciletest.LedgerOf(s)
		for id, want := range map[string]order.Status{confirmed.ID: order.StatusConfirmed, cancelled.ID: order.StatusCancelled} {
			if o, err := s.Service.Refund(await.Context(t), id, r); !errors.Is(err, checkout.ErrNotPaid) || o.Status != want {
				t.Errorf("refund of a %s order: %+v, %v, want ErrNotPaid", want, o, err)
			}
		}
		if _, err := s.Service.Refund(await.Context(t), "none", r); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("no order: %v, want ErrNotFound", err)
		}
		if l := reconciletest.LedgerOf(s); l != before {
			t.Errorf("ledger %+v, before %+v", l, before)
		}
		entries, _, err := s.Store.Audit(await.Context(t), order.AuditFilter{Limit: 100})
		if err != nil || len(entries) != 1 { // the item's creation
			t.Errorf("audit %+v, %v", entries, err)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestStore_refund checks the rows that a refund changes, and that a failed one changes
// none.
func TestStore_refund(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 9, 9, time.Hour))
	for _, id := range []string{"back", "kept", "undone"} {
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u", id, 2))
		if _, err := s.Pay(await.Context(t), id, ordertest.Money(id, 2)); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(time.Hour.Milliseconds())
	now := c.Load()
	for _, tt := range []struct {
		id      string
		restock bool
		sold    int64
		pending int
	}{{"kept", false, 6, 0}, {"back", true, 4, 1}} {
		for range 2 { // the release is pending until they are released
			o, pending, err := checkout.RefundInStore(await.Context(t), s, tt.id, checkout.Refund{Restock: tt.restock, By: ordertest.Root})
			if err != nil || o.ClosedAt.UnixMilli() != now || len(pending) != tt.pending || tt.pending > 0 && pending[0] != (store.Release{OrderID: tt.id, ItemID: "item", UserID: "u", IdempotencyKey: tt.id, Quantity: 2, CreatedAt: now}) {
				t.Errorf("%s: %+v, %+v, %v", tt.id, o, pending, err)
			}
		}
		if sold, held := ordertest.ItemOf(t, s, "item").Sold, ordertest.BuyersOf(t, s, "item")["u"]; sold != tt.sold || held != tt.sold {
			t.Errorf("%s: %d sold, %d held, want %d", tt.id, sold, held, tt.sold)
		}
		// Its window is over, which has no effect any more.
		if results, _, err := s.Expire(await.Context(t), []string{tt.id}); err != nil || results[tt.id].Status != order.StatusRefunded {
			t.Errorf("expiry of a refunded order: %+v, %v", results, err)
		}
		entries, _, err := s.Audit(await.Context(t), order.AuditFilter{OrderID: tt.id, Limit: 10})
		if err != nil || len(entries) != 1 || entries[0].Action != "order.refund" || entries[0].Actor != ordertest.Root.Actor || entries[0].RequestID != ordertest.Root.RequestID ||
			entries[0].Before != `{"status":"paid"}` || entries[0].After != fmt.Sprintf(`{"restocked":%v,"status":"refunded"}`, tt.restock) {
			t.Errorf("audit %+v, %v", entries, err)
		}
		ordertest.AuditStore(t, s)
	}
	// If the audit entry cannot be written, the order is not refunded.
	ordertest.Refuse(t, s, "INSERT", "audit", "")
	if _, _, err := checkout.RefundInStore(await.Context(t), s, "undone", checkout.Refund{Restock: true, By: ordertest.Root}); err == nil {
		t.Error("a refund without its entry in the audit")
	}
	if r := ordertest.AllRows(t, s)["undone"]; r.Status != string(order.StatusPaid) || ordertest.PaymentsOf(t, s)["undone"] != "undone accepted" {
		t.Errorf("half a refund: %+v", r)
	}
	ordertest.AuditStore(t, s)
}
