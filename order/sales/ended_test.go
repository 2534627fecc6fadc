package sales_test

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
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/privacy"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
)

// TestEnded_FromDatabase: a sale that has ended and is not loaded answers from the
// database and the queue, and no request loads it.
func TestEnded_FromDatabase(t *testing.T) {
	t.Parallel()
	for name, end := range shoptest.Endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
				stop := s.Work()
				committed := s.MustPlace(s.Purchase("alice", "k1", 2, ordertest.Long)).Order
				s.Drained()
				stop()
				queued := s.MustPlace(s.Purchase("bob", "k", 3, 0)).Order
				end(s)
				if err := rdb.Del(await.Context(t), s.SaleKeys()...).Err(); err != nil {
					t.Fatal(err)
				}
				answersEnded(s, committed, queued)
				changesEnded(s)
				stop = s.Work()
				placed := s.MustPlace(s.Purchase("bob", "k", 3, ordertest.Long))
				if !placed.Replayed || !placed.Committed || placed.Order.ID != queued.ID {
					t.Errorf("a repeat after the commit: %+v, want order %s", placed, queued.ID)
				}
				s.Drained()
				stop()
				if _, err := s.Service.Cancel(await.Context(t), committed.ID, order.Canceller{UserID: "alice"}); err != nil {
					t.Fatal(err)
				}
				s.Unloaded("a cancellation")
				if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 10, Restocked: 5, Left: 12, Sold: 3}) {
					t.Errorf("ledger in the end: %+v", l)
				}
				s.Unloaded("the ledger")
				if erased, err := (&privacy.Service{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Queued: accepted.NewIndex(s.Rdb, s.Queue), Renamer: s.Stock}).EraseBuyer(await.Context(t), "bob", privacy.Erasure{Actor: "admin"}); err != nil || erased.Orders != 1 {
					t.Errorf("erasure: %+v, %v", erased, err)
				}
				s.Unloaded("an erasure")
				ordertest.AuditStore(t, s.Store)
			})
		})
	}
}

// answersEnded makes the requests of buyers of an ended sale.
func answersEnded(s *shoptest.Shop, committed, queued order.Order) {
	s.T.Helper()
	placed := s.MustPlace(s.Purchase("alice", "k1", 2, ordertest.Long))
	if !placed.Replayed || !placed.Committed || placed.Order.ID != committed.ID {
		s.T.Errorf("a repeat: %+v, want order %s", placed, committed.ID)
	}
	placed = s.MustPlace(s.Purchase("bob", "k", 3, 0))
	if !placed.Replayed || placed.Committed || placed.Order.ID != queued.ID || placed.Order.Status != order.StatusQueued {
		s.T.Errorf("a repeat of a queued order: %+v, want order %s", placed, queued.ID)
	}
	for want, p := range map[error][]order.Purchase{
		inventory.ErrKeyReused: {s.Purchase("alice", "k1", 1, 0), s.Purchase("bob", "k", 1, 0)},
		inventory.ErrClosed:    {s.Purchase("alice", "k2", 1, 0), s.Purchase("bob", "k1", 3, 0), s.Purchase("carol", "k1", 2, 0)},
	} {
		for _, p := range p {
			if _, err := s.Service.Place(await.Context(s.T), p); !errors.Is(err, want) {
				s.T.Errorf("purchase of %s with key %s: %v, want %v", p.UserID, p.IdempotencyKey, err, want)
			}
		}
	}
	s.Unloaded("purchases")
}

// changesEnded makes the requests of admins for an ended sale of 10 units, of which 2
// are sold and 3 queued.
func changesEnded(s *shoptest.Shop) {
	s.T.Helper()
	ctx := await.Context(s.T)
	if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 10, Left: 5, Held: 3, Sold: 2}) {
		s.T.Errorf("ledger: %+v", l)
	}
	s.Unloaded("the ledger")
	name := "Another name"
	if item, err := s.Sales.ChangeItem(ctx, s.Item, items.Change{Name: &name}, order.By{Actor: "admin"}); err != nil || item.Name != name {
		s.T.Errorf("change: %+v, %v", item, err)
	}
	_, _, err := s.Sales.Restock(ctx, s.Item, items.Restock{Quantity: -6, IdempotencyKey: "r0"}, order.By{Actor: "admin"})
	if !errors.Is(err, inventory.ErrStockBelowSold) {
		s.T.Errorf("removal of more units than are left: %v", err)
	}
	if item, _, err := s.Sales.Restock(ctx, s.Item, items.Restock{Quantity: 5, IdempotencyKey: "r1"}, order.By{Actor: "admin"}); err != nil || item.StockTotal != 15 {
		s.T.Errorf("restock: %+v, %v", item, err)
	}
	if err := s.Stock.Reload(ctx, s.Item); err != nil {
		s.T.Errorf("reload: %v", err)
	}
	s.Unloaded("changes")
}

// TestEnded_Reopened: if the end of an ended sale is moved into the future, that change
// loads the sale, and the rest is sold.
func TestEnded_Reopened(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 3))
		s.Work()
		first := s.MustPlace(s.Purchase("alice", "k1", 2, ordertest.Long)).Order
		s.Drained()
		shoptest.Endings["Past"](s)
		if err := rdb.Del(await.Context(t), s.SaleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("bob", "k", 1, 0)); !errors.Is(err, inventory.ErrClosed) {
			t.Fatalf("before: %v", err)
		}
		later := time.Now().Add(time.Hour)
		if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{ClosesAt: &later}, order.By{Actor: "admin"}); err != nil {
			t.Fatal(err)
		}
		s.AwaitLoaded(3)
		if placed := s.MustPlace(s.Purchase("alice", "k1", 2, ordertest.Long)); placed.Order.ID != first.ID || !placed.Replayed {
			t.Errorf("a repeat: %+v", placed)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("alice", "k2", 2, 0)); !errors.Is(err, inventory.ErrUserLimit) {
			t.Errorf("over the limit: %v", err)
		}
		if placed := s.MustPlace(s.Purchase("bob", "k", 3, ordertest.Long)); placed.Replayed || !placed.Committed {
			t.Errorf("a purchase: %+v", placed)
		}
		if _, err := s.Service.Place(await.Context(t), s.Purchase("carol", "k", 1, 0)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Errorf("beyond the stock: %v", err)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestEnded_Crowd: for many requests of an ended sale, each batch costs the database one
// read of the item and one of the orders.
func TestEnded_Crowd(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const crowd, batch = 2000, 256 // the inventory's default
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 3))
		s.Work()
		known := s.MustPlace(s.Purchase("u7", "k", 2, ordertest.Long)).Order
		s.Drained()
		shoptest.Endings["Past"](s)
		if err := rdb.Del(await.Context(t), s.SaleKeys()...).Err(); err != nil {
			t.Fatal(err)
		}
		s.Archive.EndedLooks.Store(0)
		s.Archive.Gate = make(chan struct{})
		outcomes := make(chan inventory.Outcome, crowd)
		for i := range crowd {
			r := &inventory.Request{
				ItemID: s.Item, Buyer: fmt.Sprintf("u%d", i), IdempotencyKey: "k", Quantity: 2,
				OrderID: uuid.NewString(), Done: func(o inventory.Outcome) { outcomes <- o },
			}
			if err := s.Stock.Submit(r); err != nil {
				t.Fatal(err)
			}
		}
		close(s.Archive.Gate)
		replays := 0
		for range crowd {
			switch o := <-outcomes; {
			case o.ReplayOf == known.ID && o.Err == nil:
				replays++
			case !errors.Is(o.Err, inventory.ErrClosed):
				t.Fatalf("outcome %+v", o)
			}
		}
		ended, entries := s.Archive.EndedLooks.Load(), s.Archive.EntryLooks.Load()
		const most = crowd/batch + 2 // the first batch contains the requests from before its read
		if replays != 1 || ended > most || entries > most {
			t.Errorf("%d replays; %d reads of the item and %d of the orders for %d requests, want at most %d", replays, ended, entries, crowd, most)
		}
		t.Logf("%d statements for %d requests", ended+entries, crowd)
		s.Unloaded("the crowd")
	})
}
