package order

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
)

func TestService_Restock(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 10))
		s.work()
		s.mustPlace(s.purchase("u", "k", 3, long))
		item := s.mustRestock(10, "a")
		if item.StockTotal != 15 || item.StockInitial != 5 || item.StockLeft != 12 || item.Version != 2 {
			t.Errorf("after 10 more: %+v", item)
		}
		item = s.mustRestock(-12, "b")
		if item.StockTotal != 3 || item.StockLeft != 0 || item.Version != 3 {
			t.Errorf("after all unsold units were removed: %+v", item)
		}
		for i, quantity := range []int64{10, -12} { // neither could be made again
			item, replayed, err := s.restock(quantity, string(rune('a'+i)))
			if err != nil || !replayed || item.Version != 3 || item.StockTotal != 3 {
				t.Errorf("repeat of %d: %+v, replayed %v, %v", quantity, item, replayed, err)
			}
		}
		for _, c := range []struct {
			r    Restock
			want error
		}{
			{Restock{Quantity: 11, Reason: "test", IdempotencyKey: "a"}, ErrRestockReused},
			{Restock{Quantity: 10, Reason: "other", IdempotencyKey: "a"}, ErrRestockReused},
			{Restock{Quantity: -1, Reason: "test", IdempotencyKey: "c"}, inventory.ErrStockBelowSold},
			{Restock{Quantity: MaxStock - 2, Reason: "test", IdempotencyKey: "c"}, ErrStockRange},
			{Restock{Quantity: 1, Reason: "test", IdempotencyKey: "c", Match: Match{1, 2}}, ErrVersion},
			{Restock{Quantity: 1, Reason: "test", IdempotencyKey: "c", Match: Match{}}, ErrVersion},
		} {
			got, _, err := s.sales.Restock(await.Context(t), s.item, c.r, root)
			if !errors.Is(err, c.want) || got != (catalog.Item{}) {
				t.Errorf("%+v: %+v, %v, want %v", c.r, got, err, c.want)
			}
		}
		for _, q := range []int64{0, MaxStock + 1, -MaxStock - 1} {
			if _, _, err := s.sales.Restock(await.Context(t), s.item, Restock{Quantity: q, Reason: "test", IdempotencyKey: "d"}, root); err == nil {
				t.Errorf("restock of %d: no error", q)
			}
		}
		if _, _, err := s.sales.Restock(await.Context(t), "none", Restock{Quantity: 1, Reason: "test", IdempotencyKey: "a"}, root); !errors.Is(err, catalog.ErrItemNotFound) {
			t.Errorf("restock of no item: %v", err)
		}
		if item := s.mustRestock(MaxStock-3, "c"); item.StockTotal != MaxStock { // refused restocks have not used their keys
			t.Errorf("after the most: %+v", item)
		}
		if n := stockLedger(t, s.store, s.item); n != 3 {
			t.Errorf("%d restocks are recorded, want 3", n)
		}
		if l := ledgerOf(s); !l.Balanced() || l.Initial != 5 || l.Restocked != MaxStock-5 || l.Sold != 3 {
			t.Errorf("ledger %+v", l)
		}
		want := []string{
			`root r-1 item.restock {"stock_total":5} -> {"reason":"test","stock_total":15}`,
			`root r-1 item.restock {"stock_total":15} -> {"reason":"test","stock_total":3}`,
			`root r-1 item.restock {"stock_total":3} -> {"reason":"test","stock_total":1000000000}`,
		}
		if got := trail(t, s.store, s.item); len(got) != 4 || fmt.Sprint(got[1:]) != fmt.Sprint(want) {
			t.Errorf("audit %q, want %q", got, want)
		}
		auditStore(t, s.store)
	})
}

// contend makes n buyers concurrently buy one unit each, and returns those who got one.
func (s *site) contend(name string, n int) (winners []string) {
	s.t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan int)
	for range 64 {
		wg.Go(func() {
			for i := range next {
				user := fmt.Sprintf("%s%d", name, i)
				_, err := insisted(s.t, func() (Placed, error) {
					return s.service.Place(await.Context(s.t), s.purchase(user, "k", 1, long))
				})
				switch {
				case err == nil:
					mu.Lock()
					winners = append(winners, user)
					mu.Unlock()
				case !errors.Is(err, inventory.ErrSoldOut):
					s.t.Errorf("%s: %v", user, err)
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
		s := newSite(t, rdb, false, newItem("", 1, 1))
		s.work()
		first := s.mustPlace(s.purchase("winner", "k", 1, long))
		if got := s.contend("early", 5000); len(got) != 0 {
			t.Fatalf("%v bought sold units", got)
		}
		if _, err := s.service.Cancel(await.Context(t), first.Order.ID, Canceller{UserID: "winner"}); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the message that the unit is back", func() bool {
			_, err := s.service.Place(await.Context(t), s.purchase("second", "k", 1, long))
			if err != nil && !errors.Is(err, inventory.ErrSoldOut) {
				t.Fatal(err)
			}
			return err == nil
		})
		if got := s.contend("late", 50); len(got) != 0 {
			t.Fatalf("%v bought units that were sold again", got)
		}
		s.mustRestock(1, "one")
		if got := s.contend("last", 50); len(got) != 1 {
			t.Errorf("the added unit went to %v", got)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 1, Restocked: 1, Sold: 2}) {
			t.Errorf("ledger %+v", l)
		}
		stockLedger(t, s.store, s.item)
		auditStore(t, s.store)
	})
}

// TestService_Restock_Queued: units of orders that are not committed yet are sold, and
// cannot be removed.
func TestService_Restock_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 60, 1))
		for i := range 50 {
			s.mustPlace(s.purchase(fmt.Sprint("u", i), "k", 1, 0))
		}
		if _, _, err := s.restock(-11, "a"); !errors.Is(err, inventory.ErrStockBelowSold) {
			t.Errorf("taking back 11 of the 10 that are unsold: %v", err)
		}
		if item := s.mustRestock(-10, "b"); item.StockTotal != 50 || item.StockLeft != 0 {
			t.Errorf("after 10 were removed: %+v", item)
		}
		if _, _, err := s.restock(-1, "c"); !errors.Is(err, inventory.ErrStockBelowSold) {
			t.Errorf("removal of queued units: %v", err)
		}
		s.work()
		s.drained()
		for id, r := range allRows(t, s.store) {
			if r.Status != string(StatusConfirmed) {
				t.Errorf("order %s was accepted and is %s", id, r.Status)
			}
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 60, Restocked: -10, Sold: 50}) {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
	})
}

// TestService_Restock_SameKey: of identical concurrent requests one is made, and the others
// get its result, even where a second restock would be refused.
func TestService_Restock_SameKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 7, 1))
		for _, quantity := range []int64{5, -12, MaxStock} {
			var wg sync.WaitGroup
			var made atomic.Int64
			for range 8 {
				wg.Go(func() {
					_, replayed, err := s.restock(quantity, fmt.Sprint("k", quantity))
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
		if n := stockLedger(t, s.store, s.item); n != 3 {
			t.Errorf("%d restocks are recorded, want 3", n)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 7, Restocked: MaxStock - 7, Left: MaxStock}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestService_Restock_Burst adds and removes units while buyers buy and cancel. No unit is
// lost, none is sold twice, and the ledger of the total balances.
func TestService_Restock_Burst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 2))
		s.work()
		var wg sync.WaitGroup
		for a := range 3 {
			wg.Go(func() {
				for k := range 8 {
					quantity := int64(5)
					if k%3 == 2 {
						quantity = -4
					}
					_, _, err := s.restock(quantity, fmt.Sprintf("a%dk%d", a, k))
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
					placed, err := insisted(t, func() (Placed, error) {
						return s.service.Place(await.Context(t), s.purchase(user, fmt.Sprint("k", k), 1, long))
					})
					switch {
					case errors.Is(err, inventory.ErrSoldOut) || errors.Is(err, inventory.ErrUserLimit):
					case err != nil:
						t.Errorf("%s: %v", user, err)
					case k%2 == 0:
						if _, err := s.service.Cancel(await.Context(t), placed.Order.ID, Canceller{UserID: user}); err != nil {
							t.Errorf("%s: %v", user, err)
						}
					}
				}
			})
		}
		wg.Wait()
		s.drained()
		for id, r := range allRows(t, s.store) {
			if r.Status == string(StatusRejected) {
				t.Errorf("order %s was accepted and is rejected: %s", id, r.Reason)
			}
		}
		stockLedger(t, s.store, s.item)
		auditStore(t, s.store)
		l := ledgerOf(s)
		if !l.Balanced() {
			t.Errorf("ledger %+v", l)
		}
		if got := s.contend("rest", int(l.Left)+5); int64(len(got)) != l.Left {
			t.Errorf("%d buyers got a unit of the %d that were left", len(got), l.Left)
		}
		row := itemOf(t, s.store, s.item)
		if row.Sold != row.Total {
			t.Errorf("%d of %d sold", row.Sold, row.Total)
		}
	})
}

// TestStore_ChangeItem_Outcome: a change whose transaction did not reach its commit returns
// ErrUnchanged.
func TestStore_ChangeItem_Outcome(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, newItem("item", 5, 1))
	before := itemOf(t, s, "item")
	r := &Restock{Quantity: 5, Reason: "test", IdempotencyKey: "k"}
	ended, cancel := context.WithCancel(await.Context(t))
	cancel()
	if _, err := s.changeItem(ended, "item", r.edit("item", root)); !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("a change with an ended context: %v", err)
	}
	failing := r.edit("item", root)
	failing.note = nil
	if err := s.Writer().Exec("CREATE TRIGGER no_audit BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no'); END").Error; err != nil {
		t.Fatal(err)
	}
	if _, err := s.changeItem(await.Context(t), "item", failing); !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("a change without its audit: %v", err)
	}
	if after := itemOf(t, s, "item"); after != before {
		t.Errorf("changed %+v to %+v", before, after)
	}
	if n := stockLedger(t, s, "item"); n != 0 {
		t.Errorf("%d restocks are recorded", n)
	}
	if err := s.Writer().Exec("DROP TRIGGER no_audit").Error; err != nil {
		t.Fatal(err)
	}
	if row, err := s.changeItem(await.Context(t), "item", r.edit("item", root)); err != nil || row.Total != 10 || row.Version != 2 {
		t.Errorf("restock: %+v, %v", row, err)
	}
	// On this path the key was not searched for before.
	if _, err := s.changeItem(await.Context(t), "item", r.edit("item", root)); !errors.Is(err, errRestocked) || !errors.Is(err, inventory.ErrUnchanged) {
		t.Errorf("the same restock again: %v", err)
	}
}
