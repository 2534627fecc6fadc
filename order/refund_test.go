package order

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
)

// TestService_Refund refunds with and without a restock, many times concurrently: the units
// are released exactly once or not at all, and so is the buyer's limit.
func TestService_Refund(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 5, 3, time.Hour))
		s.work()
		back, kept := s.mustPay("u", "k", 3), s.mustPay("v", "k", 2)
		if _, err := s.service.Place(await.Context(t), s.purchase("w", "k", 1, long)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Fatalf("beyond the stock: %v", err)
		}
		refund := func(o Order, restock bool) {
			t.Helper()
			var wg sync.WaitGroup
			var first atomic.Pointer[Order]
			for range 20 {
				wg.Go(func() {
					got, err := s.service.Refund(await.Context(t), o.ID, Refund{Restock: restock, By: root})
					if err != nil || got.Status != StatusRefunded || got.Restocked != restock || got.ClosedAt.IsZero() || !got.PaidAt.Equal(o.PaidAt) {
						t.Errorf("refund: %+v, %v", got, err)
					}
					if !first.CompareAndSwap(nil, &got) && *first.Load() != got {
						t.Errorf("one refund answered %+v, another %+v", *first.Load(), got)
					}
				})
			}
			wg.Wait()
			if got, err := s.service.Refund(await.Context(t), o.ID, Refund{Restock: !restock, By: root}); !errors.Is(err, ErrRefundDiffers) || got != *first.Load() {
				t.Errorf("refunded otherwise: %+v, %v, want ErrRefundDiffers", got, err)
			}
			for _, by := range []Canceller{{UserID: o.UserID}, {UserID: "root", Admin: true}} {
				if got, err := s.service.Cancel(await.Context(t), o.ID, by); !errors.Is(err, ErrOrderFinal) || got.Status != StatusRefunded {
					t.Errorf("cancel of a refunded order: %+v, %v, want ErrOrderFinal", got, err)
				}
			}
			if again := s.mustPlace(s.purchase(o.UserID, "k", o.Quantity, long)); again.Order != *first.Load() || !again.Replayed {
				t.Errorf("replay of the purchase: %+v", again)
			}
			if got, err := s.service.Pay(await.Context(t), o.ID, money("psp-"+o.ID, o.Quantity)); err != nil || got.Status != StatusRefunded {
				t.Errorf("repeat of the payment: %+v, %v", got, err)
			}
			if _, err := s.service.Pay(await.Context(t), o.ID, money("late-"+o.ID, o.Quantity)); !errors.Is(err, ErrOrderExpired) {
				t.Errorf("another payment of a refunded order: %v, want ErrOrderExpired", err)
			}
			if got := payments(t, s.store); got["psp-"+o.ID] != o.ID+" refunded" || got["late-"+o.ID] != o.ID+" late" {
				t.Errorf("payments %v", got)
			}
			auditStore(t, s.store)
		}
		refund(kept, false)
		if l := s.clean("kept", RepairNothing); l != (Ledger{Initial: 5, Sold: 5}) {
			t.Errorf("ledger without a restock: %+v", l)
		}
		refund(back, true)
		if l := s.clean("back", RepairNothing); l != (Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a restock: %+v", l)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a restock: %+v", l)
		}
		if owed := owedOf(t, s.store); len(owed) != 0 {
			t.Errorf("pending releases: %v", owed)
		}
		// A load of the sale must give the same counts.
		before := s.redisCounts()
		if err := s.service.Returns.stock.Distrust(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		s.load()
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 3, Sold: 2}) {
			t.Errorf("ledger after a load: %+v", l)
		}
		if after := s.redisCounts(); after != before {
			t.Errorf("a load made %s of %s", after, before)
		}
		// Units that stay sold count for the limit of their buyer; restocked ones do not.
		if _, err := s.service.Place(await.Context(t), s.purchase("v", "k2", 2, long)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("beyond the limit: %v", err)
		}
		s.mustPay("u", "k2", 3)
		if l := s.clean("at the end", RepairNothing); l != (Ledger{Initial: 5, Sold: 5}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		auditStore(t, s.store)
	})
}

// redisCounts returns the counts of the site's sale: units left, and by order and buyer.
func (s *site) redisCounts() string {
	s.t.Helper()
	left, err := s.rdb.HGet(await.Context(s.t), s.saleKey("sale"), "left").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	out := "left " + left
	for _, kind := range []string{"idempotency", "buyers"} {
		all, err := s.rdb.HGetAll(await.Context(s.t), s.saleKey(kind)).Result()
		if err != nil {
			s.t.Fatal(err)
		}
		out += fmt.Sprint(" ", kind, " ", all) // fmt sorts the keys
	}
	return out
}

// TestService_Refund_Refused: only a paid order can be refunded.
func TestService_Refund_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 9, 9, time.Hour))
		queued := s.mustPlace(s.purchase("u", "queued", 1, 0)).Order
		r := Refund{Restock: true, By: root}
		if o, err := s.service.Refund(await.Context(t), queued.ID, r); !errors.Is(err, ErrNotPaid) || o.Status != StatusQueued {
			t.Errorf("a queued order: %+v, %v, want ErrNotPaid", o, err)
		}
		s.work()
		confirmed := s.mustPlace(s.purchase("u", "confirmed", 1, long)).Order
		cancelled := s.mustPlace(s.purchase("u", "cancelled", 1, long)).Order
		if _, err := s.service.Cancel(await.Context(t), cancelled.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		before := ledgerOf(s)
		for id, want := range map[string]Status{confirmed.ID: StatusConfirmed, cancelled.ID: StatusCancelled} {
			if o, err := s.service.Refund(await.Context(t), id, r); !errors.Is(err, ErrNotPaid) || o.Status != want {
				t.Errorf("refund of a %s order: %+v, %v, want ErrNotPaid", want, o, err)
			}
		}
		if _, err := s.service.Refund(await.Context(t), "none", r); !errors.Is(err, ErrNotFound) {
			t.Errorf("no order: %v, want ErrNotFound", err)
		}
		if l := ledgerOf(s); l != before {
			t.Errorf("ledger %+v, before %+v", l, before)
		}
		entries, _, err := s.store.Audit(await.Context(t), AuditFilter{Limit: 100})
		if err != nil || len(entries) != 1 { // the item's creation
			t.Errorf("audit %+v, %v", entries, err)
		}
		auditStore(t, s.store)
	})
}

// TestStore_refund checks the rows that a refund changes, and that a failed one changes
// none.
func TestStore_refund(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	mustInsert(t, s, asking("item", 9, 9, time.Hour))
	for _, id := range []string{"back", "kept", "undone"} {
		mustCommit(t, s, bought(id, "item", "u", id, 2))
		if _, err := s.pay(await.Context(t), id, money(id, 2)); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(time.Hour.Milliseconds())
	now := c.Load()
	for _, tt := range []struct {
		id      string
		restock bool
		sold    int64
		owed    int
	}{{"kept", false, 6, 0}, {"back", true, 4, 1}} {
		for range 2 { // the units are owed until they are released
			o, owed, err := s.refund(await.Context(t), tt.id, Refund{Restock: tt.restock, By: root})
			if err != nil || o.ClosedAt.UnixMilli() != now || len(owed) != tt.owed || tt.owed > 0 && owed[0] != (returned{tt.id, "item", "u", tt.id, 2, now}) {
				t.Errorf("%s: %+v, %+v, %v", tt.id, o, owed, err)
			}
		}
		if sold, held := itemOf(t, s, "item").Sold, buyersOf(t, s, "item")["u"]; sold != tt.sold || held != tt.sold {
			t.Errorf("%s: %d sold, %d held, want %d", tt.id, sold, held, tt.sold)
		}
		// Its window is over, which has no effect any more.
		if stand, _, err := s.expire(await.Context(t), []string{tt.id}); err != nil || stand[tt.id].status != StatusRefunded {
			t.Errorf("expiry of a refunded order: %+v, %v", stand, err)
		}
		entries, _, err := s.Audit(await.Context(t), AuditFilter{OrderID: tt.id, Limit: 10})
		if err != nil || len(entries) != 1 || entries[0].Action != "order.refund" || entries[0].Actor != root.Actor || entries[0].RequestID != root.RequestID ||
			entries[0].Before != `{"status":"paid"}` || entries[0].After != fmt.Sprintf(`{"restocked":%v,"status":"refunded"}`, tt.restock) {
			t.Errorf("audit %+v, %v", entries, err)
		}
		auditStore(t, s)
	}
	// If the audit entry cannot be written, the order is not refunded.
	if err := s.Writer().Exec("CREATE TRIGGER no_audit BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no'); END").Error; err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.refund(await.Context(t), "undone", Refund{Restock: true, By: root}); err == nil {
		t.Error("a refund without its entry in the audit")
	}
	if r := allRows(t, s)["undone"]; r.Status != string(StatusPaid) || payments(t, s)["undone"] != "undone accepted" {
		t.Errorf("half a refund: %+v", r)
	}
	auditStore(t, s)
}
