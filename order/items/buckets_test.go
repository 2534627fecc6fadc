package items_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
)

// divided returns a shop whose item has its stock in eight buckets.
func divided(t *testing.T, rdb *redis.Client, stock, limit int64) *shoptest.Shop {
	t.Helper()
	n := ordertest.NewItem("", stock, limit)
	n.Buckets = 8
	// A restock reaches all buckets however busy the machine is.
	s := shoptest.NewWith(t, rdb, n, inventory.Config{MoveWait: await.Limit, HoldLimit: await.Limit})
	s.Work()
	return s
}

// ofBucket returns n buyers whose bucket has this number.
func ofBucket(s *shoptest.Shop, number, n int) []string {
	var buyers []string
	for i := 0; len(buyers) < n; i++ {
		buyer := fmt.Sprintf("buyer-%d", i)
		if bucket.Home(s.Item, buyer, 8) == bucket.ID(s.Item, number) {
			buyers = append(buyers, buyer)
		}
	}
	return buyers
}

// wantLedger checks the equation of the item, whose buckets must also balance.
func wantLedger(s *shoptest.Shop, want order.Ledger) {
	s.T.Helper()
	s.Drained()
	got := reconciletest.LedgerOf(s)
	if !got.Balanced() || got.Initial != want.Initial || got.Restocked != want.Restocked || got.Left != want.Left || got.Sold != want.Sold {
		s.T.Errorf("ledger %+v, want %+v", got, want)
	}
	ordertest.AuditStore(s.T, s.Store)
}

// TestBuckets_OneBucketSellsAll: the units of all buckets can be bought by the buyers of one.
func TestBuckets_OneBucketSellsAll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 8, 1)
		buyers := ofBucket(s, 3, 9)
		for _, buyer := range buyers[:8] {
			if p := s.MustPlace(s.Purchase(buyer, "k", 1, ordertest.Long)); !p.Committed {
				t.Errorf("%s: %+v", buyer, p)
			}
		}
		for _, buyer := range []string{buyers[8], ofBucket(s, 0, 1)[0], ofBucket(s, 7, 1)[0]} {
			if _, err := s.Service.Place(await.Context(t), s.Purchase(buyer, "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrSoldOut) {
				t.Errorf("%s after the last unit: %v", buyer, err)
			}
		}
		wantLedger(s, order.Ledger{Initial: 8, Sold: 8})
	})
}

// TestBuckets_Quantity: units of several buckets make up one order, and too few are refused.
func TestBuckets_Quantity(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 8, 10)
		buyer := ofBucket(s, 5, 1)[0]
		if _, err := s.Service.Place(await.Context(t), s.Purchase(buyer, "nine", 9, ordertest.Long)); !errors.Is(err, inventory.ErrSoldOut) {
			t.Errorf("9 of 8 units: %v", err)
		}
		s.MustPlace(s.Purchase(buyer, "seven", 7, ordertest.Long))
		s.MustPlace(s.Purchase(ofBucket(s, 2, 1)[0], "one", 1, ordertest.Long))
		wantLedger(s, order.Ledger{Initial: 8, Sold: 8})
	})
}

// TestBuckets_LimitAndKey: the limit per buyer and the idempotency key hold for the whole item.
func TestBuckets_LimitAndKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 2)
		for number := range 8 {
			buyer := ofBucket(s, number, 1)[0]
			first := s.MustPlace(s.Purchase(buyer, "a", 2, ordertest.Long))
			again := s.MustPlace(s.Purchase(buyer, "a", 2, ordertest.Long))
			if !again.Replayed || again.Order.ID != first.Order.ID {
				t.Errorf("repeat of %s: %+v, want %s", buyer, again, first.Order.ID)
			}
			if _, err := s.Service.Place(await.Context(t), s.Purchase(buyer, "b", 1, ordertest.Long)); !errors.Is(err, inventory.ErrUserLimit) {
				t.Errorf("a third unit for %s: %v", buyer, err)
			}
			if _, err := s.Service.Place(await.Context(t), s.Purchase(buyer, "a", 1, ordertest.Long)); !errors.Is(err, inventory.ErrKeyReused) {
				t.Errorf("the key of %s for another quantity: %v", buyer, err)
			}
		}
		wantLedger(s, order.Ledger{Initial: 80, Left: 64, Sold: 16})
	})
}

// TestBuckets_Returned: a unit that returns to one bucket can be bought by the buyer of another,
// although all buckets were known to be sold out.
func TestBuckets_Returned(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 8, 1)
		n.Buckets, n.PaymentWindow = 8, time.Hour
		s := shoptest.New(t, rdb, false, n)
		s.Work()
		var orders []order.Order
		for number := range 8 {
			orders = append(orders, s.MustPlace(s.Purchase(ofBucket(s, number, 1)[0], "k", 1, ordertest.Long)).Order)
		}
		await.True(t, "all buckets to be known as sold out", func() bool {
			for number := range 8 {
				if _, err := s.Service.Place(await.Context(t), s.Purchase(ofBucket(s, number, 2)[1], "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrSoldOut) {
					t.Fatalf("bucket %d: %v", number, err)
				}
			}
			return s.Stock.SoldOut(bucket.IDs(s.Item, 8))
		})
		if _, err := s.Service.Cancel(await.Context(t), orders[6].ID, order.Canceller{UserID: orders[6].UserID}); err != nil {
			t.Fatal(err)
		}
		s.MustPlace(s.Purchase(ofBucket(s, 1, 3)[2], "k", 1, ordertest.Long))
		s.Drained()
		if l := reconciletest.LedgerOf(s); !l.Balanced() || l.Left != 0 || l.Held != 8 {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestBuckets_Contended: many buyers at once get exactly the stock.
func TestBuckets_Contended(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 100, 1)
		winners := contend(s, "w", 400)
		if len(winners) != 100 {
			t.Errorf("%d buyers got a unit, want 100", len(winners))
		}
		wantLedger(s, order.Ledger{Initial: 100, Sold: 100})
	})
}

// TestBuckets_Restock adds units to all buckets, and takes units back from all.
func TestBuckets_Restock(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 16, 1)
		s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long))
		item := s.MustRestock(17, "a")
		if item.StockTotal != 33 || item.StockInitial != 16 || item.StockLeft != 32 {
			t.Errorf("after 17 more: %+v", item)
		}
		for _, id := range bucket.IDs(s.Item, 8) {
			if row := ordertest.ItemOf(t, s.Store, id); row.Total < 4 {
				t.Errorf("bucket %s has %d units", id, row.Total)
			}
		}
		if _, _, err := s.Restock(-33, "b"); !errors.Is(err, inventory.ErrStockBelowSold) {
			t.Errorf("33 of 32 units back: %v", err)
		}
		item = s.MustRestock(-30, "c")
		if item.StockTotal != 3 || item.StockLeft != 2 {
			t.Errorf("after 30 back: %+v", item)
		}
		for _, r := range []items.Restock{
			{Quantity: 17, Reason: "test", IdempotencyKey: "a"}, {Quantity: -30, Reason: "test", IdempotencyKey: "c"},
		} {
			if item, replayed, err := s.Sales.Restock(await.Context(t), s.Item, r, ordertest.Root); err != nil || !replayed || item.StockTotal != 3 {
				t.Errorf("repeat of %+v: %+v, %v, %v", r, item, replayed, err)
			}
		}
		stale := items.Restock{Quantity: 1, Reason: "test", IdempotencyKey: "d", Match: order.Match{1}}
		if _, _, err := s.Sales.Restock(await.Context(t), s.Item, stale, ordertest.Root); !errors.Is(err, order.ErrVersion) {
			t.Errorf("restock of an old version: %v", err)
		}
		wantLedger(s, order.Ledger{Initial: 16, Restocked: -13, Left: 2, Sold: 1})
	})
}

// TestBuckets_Change: a change of the item holds in every bucket, and is finished by a repeat or by
// Align.
func TestBuckets_Change(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 800, 1)
		price, limit := int64(77), int64(2)
		item, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &price, PerUserLimit: &limit, Match: order.Match{1}}, ordertest.Root)
		if err != nil || item.PriceMinor != 77 || item.StockTotal != 800 || item.StockLeft != 800 || item.Version != 2 {
			t.Fatalf("%+v, %v", item, err)
		}
		for number := range 8 {
			p := s.MustPlace(s.Purchase(ofBucket(s, number, 1)[0], "k", 2, ordertest.Long))
			if p.Order.UnitPriceMinor != 77 {
				t.Errorf("bucket %d sold for %d", number, p.Order.UnitPriceMinor)
			}
		}
		if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &price, Match: order.Match{1}}, ordertest.Root); !errors.Is(err, order.ErrVersion) {
			t.Errorf("change of an old version: %v", err)
		}
		for what, finish := range map[string]func() error{
			"a repeat": func() error {
				_, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &price}, ordertest.Root)
				return err
			},
			"Align": func() error { return s.Sales.Align(await.Context(t), time.Time{}) },
		} {
			// A process died before it had changed this bucket.
			if err := s.Store.Writer().Exec("UPDATE items SET price_minor = 1, version = version + 1 WHERE id = ?", bucket.ID(s.Item, 5)).Error; err != nil {
				t.Fatal(err)
			}
			if err := finish(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			for _, id := range bucket.IDs(s.Item, 8) {
				if row := ordertest.ItemOf(t, s.Store, id); row.PriceMinor != 77 {
					t.Errorf("after %s %s costs %d", what, id, row.PriceMinor)
				}
			}
		}
		if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: catalog.ControlClosed}, ordertest.Root); err != nil {
			t.Fatal(err)
		}
		for number := range 8 {
			if _, err := s.Service.Place(await.Context(t), s.Purchase(ofBucket(s, number, 2)[1], "k", 1, ordertest.Long)); !errors.Is(err, inventory.ErrClosed) {
				t.Errorf("bucket %d after the close: %v", number, err)
			}
		}
		wantLedger(s, order.Ledger{Initial: 800, Left: 784, Sold: 16})
	})
}

// TestBuckets_Lists: the orders of all buckets are listed as those of the item.
func TestBuckets_Lists(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 5)
		want := make(map[string]bool)
		for i := range 25 {
			want[s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long)).Order.ID] = true
		}
		seen := make(map[string]bool)
		last := ""
		for f := (order.Filter{ItemID: s.Item, Buckets: 8, Limit: 7}); ; {
			orders, next, err := s.Service.List(await.Context(t), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range orders {
				if last != "" && o.ID >= last || seen[o.ID] {
					t.Errorf("order %s follows %s", o.ID, last)
				}
				last, seen[o.ID] = o.ID, true
			}
			if f.Before = next; next == "" {
				break
			}
		}
		if len(seen) != len(want) {
			t.Errorf("%d orders are listed, want %d", len(seen), len(want))
		}
		buyer, _, err := s.Service.List(await.Context(t), order.Filter{UserID: "u3", ItemID: s.Item, Buckets: 8, Limit: 7})
		if err != nil || len(buyer) != 1 {
			t.Errorf("orders of one buyer: %+v, %v", buyer, err)
		}
		list, err := s.Items.List(await.Context(t))
		if err != nil || len(list.Items) != 1 || list.Items[0].StockTotal != 80 || list.Items[0].Buckets != 8 {
			t.Errorf("items %+v, %v", list, err)
		}
	})
}

// TestBuckets_SpreadAfterSales: buyers may take the units of a restock before they are spread, which
// is no failure.
func TestBuckets_SpreadAfterSales(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 8, 1)
		var failures []error
		seller := &items.Service{Store: s.Store, Stock: s.Stock, Catalog: s.Items, OnError: func(err error) { failures = append(failures, err) }}
		seller.Spread(await.Context(t), bucket.IDs(s.Item, 8), 80)
		if len(failures) > 0 {
			t.Errorf("reported: %v", failures)
		}
		wantLedger(s, order.Ledger{Initial: 8, Left: 8})
	})
}
