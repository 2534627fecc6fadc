package order

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
)

// TestEnded_FromDatabase: a sale that has ended and is not loaded answers from the
// database and the queue, and no request loads it.
func TestEnded_FromDatabase(t *testing.T) {
	t.Parallel()
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := newSite(t, rdb, false, newItem("", 10, 3))
				stop := s.work()
				committed := s.mustPlace(s.purchase("alice", "k1", 2, long)).Order
				s.drained()
				stop()
				queued := s.mustPlace(s.purchase("bob", "k", 3, 0)).Order
				end(s)
				if err := rdb.Del(await.Context(t), s.saleKeys()...).Err(); err != nil {
					t.Fatal(err)
				}
				s.answersEnded(committed, queued)
				s.changesEnded()
				stop = s.work()
				placed := s.mustPlace(s.purchase("bob", "k", 3, long))
				if !placed.Replayed || !placed.Committed || placed.Order.ID != queued.ID {
					t.Errorf("a repeat after the commit: %+v, want order %s", placed, queued.ID)
				}
				s.drained()
				stop()
				if _, err := s.service.Cancel(await.Context(t), committed.ID, Canceller{UserID: "alice"}); err != nil {
					t.Fatal(err)
				}
				s.unloaded("a cancellation")
				if l := ledgerOf(s); l != (Ledger{Initial: 10, Restocked: 5, Left: 12, Sold: 3}) {
					t.Errorf("ledger in the end: %+v", l)
				}
				s.unloaded("the ledger")
				if erased, err := buyerService(s).EraseBuyer(await.Context(t), "bob", Erasure{Actor: "admin"}); err != nil || erased.Orders != 1 {
					t.Errorf("erasure: %+v, %v", erased, err)
				}
				s.unloaded("an erasure")
				auditStore(t, s.store)
			})
		})
	}
}

// answersEnded makes the requests of buyers of an ended sale.
func (s *site) answersEnded(committed, queued Order) {
	s.t.Helper()
	placed := s.mustPlace(s.purchase("alice", "k1", 2, long))
	if !placed.Replayed || !placed.Committed || placed.Order.ID != committed.ID {
		s.t.Errorf("a repeat: %+v, want order %s", placed, committed.ID)
	}
	placed = s.mustPlace(s.purchase("bob", "k", 3, 0))
	if !placed.Replayed || placed.Committed || placed.Order.ID != queued.ID || placed.Order.Status != StatusQueued {
		s.t.Errorf("a repeat of a queued order: %+v, want order %s", placed, queued.ID)
	}
	for want, p := range map[error][]Purchase{
		inventory.ErrKeyReused: {s.purchase("alice", "k1", 1, 0), s.purchase("bob", "k", 1, 0)},
		inventory.ErrClosed:    {s.purchase("alice", "k2", 1, 0), s.purchase("bob", "k1", 3, 0), s.purchase("carol", "k1", 2, 0)},
	} {
		for _, p := range p {
			if _, err := s.service.Place(await.Context(s.t), p); !errors.Is(err, want) {
				s.t.Errorf("purchase of %s with key %s: %v, want %v", p.UserID, p.IdempotencyKey, err, want)
			}
		}
	}
	s.unloaded("purchases")
}

// changesEnded makes the requests of admins for an ended sale of 10 units, of which 2
// are sold and 3 queued.
func (s *site) changesEnded() {
	s.t.Helper()
	ctx := await.Context(s.t)
	if l := ledgerOf(s); l != (Ledger{Initial: 10, Left: 5, Held: 3, Sold: 2}) {
		s.t.Errorf("ledger: %+v", l)
	}
	s.unloaded("the ledger")
	name := "Another name"
	if item, err := s.sales.ChangeItem(ctx, s.item, ItemChange{Name: &name}, By{Actor: "admin"}); err != nil || item.Name != name {
		s.t.Errorf("change: %+v, %v", item, err)
	}
	_, _, err := s.sales.Restock(ctx, s.item, Restock{Quantity: -6, IdempotencyKey: "r0"}, By{Actor: "admin"})
	if !errors.Is(err, inventory.ErrStockBelowSold) {
		s.t.Errorf("removal of more units than are left: %v", err)
	}
	if item, _, err := s.sales.Restock(ctx, s.item, Restock{Quantity: 5, IdempotencyKey: "r1"}, By{Actor: "admin"}); err != nil || item.StockTotal != 15 {
		s.t.Errorf("restock: %+v, %v", item, err)
	}
	if err := s.stock.Reload(ctx, s.item); err != nil {
		s.t.Errorf("reload: %v", err)
	}
	s.unloaded("changes")
}

// TestEnded_Reopened: if the end of an ended sale is moved into the future, that change
// loads the sale, and the rest is sold.
func TestEnded_Reopened(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 3))
		s.work()
		first := s.mustPlace(s.purchase("alice", "k1", 2, long)).Order
		s.drained()
		endings["Past"](s)
		if err := rdb.Del(await.Context(t), s.saleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("bob", "k", 1, 0)); !errors.Is(err, inventory.ErrClosed) {
			t.Fatalf("before: %v", err)
		}
		later := time.Now().Add(time.Hour)
		if _, err := s.sales.ChangeItem(await.Context(t), s.item, ItemChange{ClosesAt: &later}, By{Actor: "admin"}); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the sale to be loaded", func() bool {
			left, err := s.stock.Left(await.Context(t), []string{s.item})
			if err != nil {
				t.Fatal(err)
			}
			return left[0] == 3
		})
		if placed := s.mustPlace(s.purchase("alice", "k1", 2, long)); placed.Order.ID != first.ID || !placed.Replayed {
			t.Errorf("a repeat: %+v", placed)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("alice", "k2", 2, 0)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("over the limit: %v", err)
		}
		if placed := s.mustPlace(s.purchase("bob", "k", 3, long)); placed.Replayed || !placed.Committed {
			t.Errorf("a purchase: %+v", placed)
		}
		if _, err := s.service.Place(await.Context(t), s.purchase("carol", "k", 1, 0)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Errorf("beyond the stock: %v", err)
		}
		auditStore(t, s.store)
	})
}

// TestEnded_Crowd: for many requests of an ended sale, each batch costs the database one
// read of the item and one of the orders.
func TestEnded_Crowd(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const crowd, batch = 2000, 256 // the inventory's default
		s := newSite(t, rdb, false, newItem("", 10, 3))
		s.work()
		known := s.mustPlace(s.purchase("u7", "k", 2, long)).Order
		s.drained()
		endings["Past"](s)
		if err := rdb.Del(await.Context(t), s.saleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		s.archive.ended.Store(0)
		s.archive.gate = make(chan struct{})
		outcomes := make(chan inventory.Outcome, crowd)
		for i := range crowd {
			r := &inventory.Request{
				ItemID: s.item, Buyer: fmt.Sprintf("u%d", i), IdempotencyKey: "k", Quantity: 2,
				OrderID: uuid.NewString(), Done: func(o inventory.Outcome) { outcomes <- o },
			}
			if err := s.stock.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		close(s.archive.gate)
		replays := 0
		for range crowd {
			switch o := <-outcomes; {
			case o.ReplayOf == known.ID && o.Err == nil:
				replays++
			case !errors.Is(o.Err, inventory.ErrClosed):
				t.Fatalf("outcome %+v", o)
			}
		}
		ended, entries := s.archive.ended.Load(), s.archive.entries.Load()
		const most = crowd/batch + 2 // the first batch contains the requests from before its read
		if replays != 1 || ended > most || entries > most {
			t.Errorf("%d replays; %d reads of the item and %d of the orders for %d requests, want at most %d", replays, ended, entries, crowd, most)
		}
		t.Logf("%d statements for %d requests", ended+entries, crowd)
		s.unloaded("the crowd")
	})
}
