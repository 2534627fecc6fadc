package items_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
)

func TestService_Restock(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 10))
		s.Work()
		s.MustPlace(s.Purchase("u", "k", 3, ordertest.Long))
		item := s.MustRestock(10, "a")
		if item.StockTotal != 15 || item.StockInitial != 5 || item.StockLeft != 12 || item.Version != 2 {
			t.Errorf("after 10 more: %+v", item)
		}
		item = s.MustRestock(-12, "b")
		if item.StockTotal != 3 || item.StockLeft != 0 || item.Version != 3 {
			t.Errorf("after all unsold units were removed: %+v", item)
		}
		for i, quantity := range []int64{10, -12} { // neither could be made again
			item, replayed, err := s.Restock(quantity, string(rune('a'+i)))
			if err != nil || !replayed || item.Version != 3 || item.StockTotal != 3 {
				t.Errorf("repeat of %d: %+v, replayed %v, %v", quantity, item, replayed, err)
			}
		}
		for _, c := range []struct {
			r    items.Restock
			want error
		}{
			{items.Restock{Quantity: 11, Reason: "test", IdempotencyKey: "a"}, items.ErrRestockReused},
			{items.Restock{Quantity: 10, Reason: "other", IdempotencyKey: "a"}, items.ErrRestockReused},
			{items.Restock{Quantity: -1, Reason: "test", IdempotencyKey: "c"}, inventory.ErrStockBelowSold},
			{items.Restock{Quantity: items.MaxStock - 2, Reason: "test", IdempotencyKey: "c"}, items.ErrStockRange},
			{items.Restock{Quantity: 1, Reason: "test", IdempotencyKey: "c", Match: order.Match{1, 2}}, order.ErrVersion},
			{items.Restock{Quantity: 1, Reason: "test", IdempotencyKey: "c", Match: order.Match{}}, order.ErrVersion},
		} {
			got, _, err := s.Sales.Restock(await.Context(t), s.Item, c.r, ordertest.Root)
			if !errors.Is(err, c.want) || got != (catalog.Item{}) {
				t.Errorf("%+v: %+v, %v, want %v", c.r, got, err, c.want)
			}
		}
		for _, q := range []int64{0, items.MaxStock + 1, -items.MaxStock - 1} {
			if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: q, Reason: "test", IdempotencyKey: "d"}, ordertest.Root); err == nil {
				t.Errorf("restock of %d: no error", q)
			}
		}
		if _, _, err := s.Sales.Restock(await.Context(t), "none", items.Restock{Quantity: 1, Reason: "test", IdempotencyKey: "a"}, ordertest.Root); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("restock of no item: %v", err)
		}
		if item := s.MustRestock(items.MaxStock-3, "c"); item.StockTotal != items.MaxStock { // refused restocks have not used their keys
			t.Errorf("after the most: %+v", item)
		}
		if n := ordertest.StockLedger(t, s.Store, s.Item); n != 3 {
			t.Errorf("%d restocks are recorded, want 3", n)
		}
		if l := reconciletest.LedgerOf(s); !l.Balanced() || l.Initial != 5 || l.Restocked != items.MaxStock-5 || l.Sold != 3 {
			t.Errorf("ledger %+v", l)
		}
		want := []string{
			`root r-1 item.restock {"stock_total":5} -> {"reason":"test","stock_total":15}`,
			`root r-1 item.restock {"stock_total":15} -> {"reason":"test","stock_total":3}`,
			`root r-1 item.restock {"stock_total":3} -> {"reason":"test","stock_total":1000000000}`,
		}
		if got := ordertest.AuditLog(t, s.Store, s.Item); len(got) != 4 || fmt.Sprint(got[1:]) != fmt.Sprint(want) {
			t.Errorf("audit %q, want %q", got, want)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// contend makes n buyers concurrently buy one unit each, and returns those who got one.
func contend(s *shoptest.Shop, name string, n int) (winners []string) {
	s.T.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				user := fmt.Sprintf("%s%d", name, i)
				_, err := ordertest.Retried(s.T, func() (order.Placed, error) {
					return s.Service.Place(await.Context(s.T), s.Purchase(user, "k", 1, ordertest.Long))
				})
				switch {
				case err == nil:
					mu.Lock()
					winners = append(winners, user)
					mu.Unlock()
				case !errors.Is(err, inventory.ErrSoldOut):
					s.T.Errorf("%s: %v", user, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return winners
}

// TestService_Restock_AfterRefusals: refused purchases do not consume a unit that is
// released or added later.
func TestService_Restock_AfterRefusals(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 1, 1))
		s.Work()
		first := s.MustPlace(s.Purchase("winner", "k", 1, ordertest.Long))
		if got := contend(s, "early", 5000); len(got) != 0 {
			t.Fatalf("%v bought sold units", got)
		}
		if _, err := s.Service.Cancel(await.Context(t), first.Order.ID, order.Canceller{UserID: "winner"}); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the message that the unit is back", func() bool {
			_, err := s.Service.Place(await.Context(t), s.Purchase("second", "k", 1, ordertest.Long))
			if err != nil && !errors.Is(err, inventory.ErrSoldOut) {
				t.Fatal(err)
			}
			return err == nil
		})
		if got := contend(s, "late", 50); len(got) != 0 {
			t.Fatalf("%v bought units that were sold again", got)
		}
		s.MustRestock(1, "one")
		if got := contend(s, "last", 50); len(got) != 1 {
			t.Errorf("the added unit went to %v", got)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 1, Restocked: 1, Sold: 2}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.StockLedger(t, s.Store, s.Item)
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Restock_Queued: units of orders that are not committed yet are sold, and
// cannot be removed.
func TestService_Restock_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 60, 1))
		for i := range 50 {
			s.MustPlace(s.Purchase(fmt.Sprint("u", i), "k", 1, 0))
		}
		if _, _, err := s.Restock(-11, "a"); !errors.Is(err, inventory.ErrStockBelowSold) {
			t.Errorf("taking back 11 of the 10 that are unsold: %v", err)
		}
		if item := s.MustRestock(-10, "b"); item.StockTotal != 50 || item.StockLeft != 0 {
			t.Errorf("after 10 were removed: %+v", item)
		}
		if _, _, err := s.Restock(-1, "c"); !errors.Is(err, inventory.ErrStockBelowSold) {
			t.Errorf("removal of queued units: %v", err)
		}
		s.Work()
		s.Drained()
		for id, r := range ordertest.AllRows(t, s.Store) {
			if r.Status != string(order.StatusConfirmed) {
				t.Errorf("order %s was accepted and is %s", id, r.Status)
			}
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 60, Restocked: -10, Sold: 50}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Restock_SameKey: of identical concurrent requests one is made, and the others
// get its result, even where a second restock would be refused.
func TestService_Restock_SameKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 7, 1))
		for _, quantity := range []int64{5, -12, items.MaxStock} {
			var wg sync.WaitGroup
			var made atomic.Int64
			for range 8 {
				wg.Go(func() {
					_, replayed, err := s.Restock(quantity, fmt.Sprint("k", quantity))
					if err != nil {
						t.Errorf("restock %d: %v", quantity, err)
					}
					if !replayed {
						made.Add(1)
					}
				})
			}
			wg.Wait()
			if n := made.Load(); n != 1 {
				t.Errorf("%d of 8 say that they were the first to restock %d", n, quantity)
			}
		}
		if n := ordertest.StockLedger(t, s.Store, s.Item); n != 3 {
			t.Errorf("%d restocks are recorded, want 3", n)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 7, Restocked: items.MaxStock - 7, Left: items.MaxStock}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestService_Restock_Burst adds and removes units while buyers buy and cancel. No unit is
// lost, none is sold twice, and the ledger of the total balances.
func TestService_Restock_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 2))
		s.Work()
		var wg sync.WaitGroup
		for a := range 3 {
			wg.Go(func() {
				for k := range 8 {
					quantity := int64(5)
					if k%3 == 2 {
						quantity = -4
					}
					_, _, err := s.Restock(quantity, fmt.Sprintf("a%dk%d", a, k))
					if err != nil && !(quantity < 0 && errors.Is(err, inventory.ErrStockBelowSold)) {
						t.Errorf("restock %d: %v", quantity, err)
					}
				}
			})
		}
		for b := range 16 {
			wg.Go(func() {
				user := fmt.Sprintf("u%d", b)
				for k := range 10 {
					placed, err := ordertest.Retried(t, func() (order.Placed, error) {
						return s.Service.Place(await.Context(t), s.Purchase(user, fmt.Sprint("k", k), 1, ordertest.Long))
					})
					switch {
					case errors.Is(err, inventory.ErrSoldOut) || errors.Is(err, inventory.ErrUserLimit):
					case err != nil:
						t.Errorf("%s: %v", user, err)
					case k%2 == 0:
						if _, err := s.Service.Cancel(await.Context(t), placed.Order.ID, order.Canceller{UserID: user}); err != nil {
							t.Errorf("%s: %v", user, err)
						}
					}
				}
			})
		}
		wg.Wait()
		s.Drained()
		for id, r := range ordertest.AllRows(t, s.Store) {
			if r.Status == string(order.StatusRejected) {
				t.Errorf("order %s was accepted and is rejected: %s", id, r.Reason)
			}
		}
		ordertest.StockLedger(t, s.Store, s.Item)
		ordertest.AuditStore(t, s.Store)
		l := reconciletest.LedgerOf(s)
		if !l.Balanced() {
			t.Errorf("ledger %+v", l)
		}
		if got := contend(s, "rest", int(l.Left)+5); int64(len(got)) != l.Left {
			t.Errorf("%d buyers got a unit of the %d that were left", len(got), l.Left)
		}
		row := ordertest.ItemOf(t, s.Store, s.Item)
		if row.Sold != row.Total {
			t.Errorf("%d of %d sold", row.Sold, row.Total)
		}
	})
}

// TestStore_ChangeItem_Outcome: a change whose transaction did not reach its commit returns
// ErrUnchanged.
func TestStore_ChangeItem_Outcome(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 5, 1))
	before := ordertest.ItemOf(t, s, "item")
	r := &items.Restock{Quantity: 5, Reason: "test", IdempotencyKey: "k"}
	ended, cancel := context.WithCancel(await.Context(t))
	cancel()
	if _, err := items.ChangeItem(ended, s, "item", r.Edit("item", ordertest.Root)); !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("a change with an ended context: %v", err)
	}
	failing := r.Edit("item", ordertest.Root)
	failing.WithoutNote()
	accept := ordertest.Refuse(t, s, "INSERT", "audit", "")
	if _, err := items.ChangeItem(await.Context(t), s, "item", failing); !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("a change without its audit: %v", err)
	}
	if after := ordertest.ItemOf(t, s, "item"); after != before {
		t.Errorf("changed %+v to %+v", before, after)
	}
	if n := ordertest.StockLedger(t, s, "item"); n != 0 {
		t.Errorf("%d restocks are recorded", n)
	}
	accept()
	if row, err := items.ChangeItem(await.Context(t), s, "item", r.Edit("item", ordertest.Root)); err != nil || row.Total != 10 || row.Version != 2 {
		t.Errorf("restock: %+v, %v", row, err)
	}
	// On this path the key was not searched for before.
	if _, err := items.ChangeItem(await.Context(t), s, "item", r.Edit("item", ordertest.Root)); !errors.Is(err, *items.ErrRestocked) || !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("the same restock again: %v", err)
	}
}
