package items_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
)

// between is a Stock that calls then before the change of one bucket.
type between struct {
	items.Stock
	id   string
	then func()
}

func (b *between) Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (int64, error)) error {
	if item == b.id && b.then != nil {
		then := b.then
		b.then = nil
		then()
	}
	return b.Stock.Change(ctx, item, c, commit)
}

func other(s *shoptest.Shop, stock items.Stock) *items.Service {
	return &items.Service{Store: s.Store, Stock: stock, Catalog: s.Items, OnError: s.CollectError}
}

// TestBuckets_RefusedChange: a change that is refused for its version changes no bucket.
func TestBuckets_RefusedChange(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 1)
		ten, twenty := int64(10), int64(20)
		var refused error
		slow := &between{Stock: s.Stock, id: bucket.ID(s.Item, 4), then: func() {
			if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &ten, Match: order.Match{1}}, ordertest.Root); err != nil {
				refused = err
			}
		}}
		if _, err := other(s, slow).ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &twenty, Match: order.Match{1}}, ordertest.Root); err != nil {
			t.Error(err)
		}
		if !errors.Is(refused, order.ErrVersion) {
			t.Errorf("the second change of version 1: %v", refused)
		}
		for _, id := range bucket.IDs(s.Item, 8) {
			if row := ordertest.ItemOf(t, s.Store, id); row.PriceMinor != 20 {
				t.Errorf("%s costs %d", id, row.PriceMinor)
			}
		}
	})
}

// TestBuckets_Interleaved: two changes without If-Match leave all buckets equal.
func TestBuckets_Interleaved(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 1)
		ten, twenty := int64(10), int64(20)
		slow := &between{Stock: s.Stock, id: bucket.ID(s.Item, 4), then: func() {
			if _, err := s.Sales.ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &ten}, ordertest.Root); err != nil {
				t.Error(err)
			}
		}}
		_, err := other(s, slow).ChangeItem(await.Context(t), s.Item, items.Change{PriceMinor: &twenty}, ordertest.Root)
		t.Logf("the slow change: %v", err)
		want := ordertest.ItemOf(t, s.Store, s.Item).PriceMinor
		for _, id := range bucket.IDs(s.Item, 8) {
			if row := ordertest.ItemOf(t, s.Store, id); row.PriceMinor != want {
				t.Errorf("%s costs %d, the item %d", id, row.PriceMinor, want)
			}
		}
	})
}

// TestBuckets_RefusedClose: a close that is refused because a refill moved units closes no bucket.
func TestBuckets_RefusedClose(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 10)
		slow := &between{Stock: s.Stock, id: s.Item, then: func() {
			if _, err := s.Sales.Refill(await.Context(t), &catalog.Item{ID: s.Item, Buckets: 8}, s.Item, 11); err != nil {
				t.Error(err)
			}
		}}
		_, err := other(s, slow).ControlItem(await.Context(t), s.Item, items.Control{To: catalog.ControlClosed, Match: order.Match{1}}, ordertest.Root)
		t.Logf("close: %v", err)
		if errors.Is(err, order.ErrVersion) {
			item, err := s.Sales.Item(await.Context(t), s.Item)
			t.Logf("%+v %v", item.Control, err)
			for _, id := range bucket.IDs(s.Item, 8) {
				if row := ordertest.ItemOf(t, s.Store, id); row.Control != "open" {
					t.Errorf("refused, and %s is %s", id, row.Control)
				}
			}
			if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: catalog.ControlPaused}, ordertest.Root); err != nil {
				t.Errorf("pause: %v", err)
			}
		}
	})
}

// TestBuckets_RestockMatch: of two restocks of the same version, one is refused.
func TestBuckets_RestockMatch(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 10)
		slow := &between{Stock: s.Stock, id: s.Item, then: func() {
			if _, _, err := s.Sales.Restock(await.Context(t), s.Item, items.Restock{Quantity: 8, Reason: "a", IdempotencyKey: "a", Match: order.Match{1}}, ordertest.Root); err != nil {
				t.Error(err)
			}
		}}
		_, _, err := other(s, slow).Restock(await.Context(t), s.Item, items.Restock{Quantity: 8, Reason: "b", IdempotencyKey: "b", Match: order.Match{1}}, ordertest.Root)
		if !errors.Is(err, order.ErrVersion) {
			t.Errorf("second restock of version 1: %v", err)
		}
	})
}

func soldOutEvents(t *testing.T, s *shoptest.Shop) (n int) {
	if err := s.Store.Reader().Raw("SELECT count(*) FROM webhook_events WHERE type = ?", string(order.EventSoldOut)).Scan(&n).Error; err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBuckets_SoldOutOnce: the batch that sells the last units of two buckets makes one event.
func TestBuckets_SoldOutOnce(t *testing.T) {
	t.Parallel()
	st := storetest.New(t)
	ordertest.SubscribeAll(t, st)
	n := ordertest.NewItem("item", 2, 1)
	n.Buckets = 2
	storetest.MustInsert(t, st, n)
	storetest.MustCommit(t, st, ordertest.Bought("o1", "item", "u1", "k", 1), ordertest.Bought("o2", "item.1", "u2", "k", 1))
	if got := soldOutEvents(t, &shoptest.Shop{Store: st}); got != 1 {
		t.Errorf("%d events", got)
	}
}

// TestBuckets_SoldOutLost: two transactions at once sell out the last two buckets: one event.
func TestBuckets_SoldOutLost(t *testing.T) {
	t.Parallel()
	st := storetest.New(t)
	ordertest.SubscribeAll(t, st)
	lost, twice := 0, 0
	for i := range 40 {
		n := ordertest.NewItem("item"+string(rune('a'+i%26))+string(rune('a'+i/26)), 2, 1)
		n.Buckets = 2
		storetest.MustInsert(t, st, n)
		before := soldOutEvents(t, &shoptest.Shop{Store: st})
		done := make(chan error, 2)
		for _, b := range []string{"", ".1"} {
			go func() {
				_, err := st.Commit(context.Background(), []order.Task{ordertest.Bought(n.ID+b, n.ID+b, "u"+b, "k", 1)})
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		switch got := soldOutEvents(t, &shoptest.Shop{Store: st}) - before; {
		case got == 0:
			lost++
		case got > 1:
			twice++
		}
	}
	if lost+twice > 0 {
		t.Errorf("of 40 items that were sold out, %d have no event and %d have two", lost, twice)
	}
}

// TestBuckets_SamePrice: every bucket accepts purchases from before a change that kept the price, and none
// from before another price.
func TestBuckets_SamePrice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 2)
		samePrice := func(want string) {
			t.Helper()
			for _, id := range bucket.IDs(s.Item, 8) {
				if got := rdb.HGet(await.Context(t), saleKey(id), "same_price").Val(); got != want {
					t.Errorf("bucket %s has the same price in %q, want %q", id, got, want)
				}
			}
		}
		for _, to := range []catalog.Control{catalog.ControlPaused, catalog.ControlOpen} {
			if _, err := s.Sales.ControlItem(await.Context(t), s.Item, items.Control{To: to}, ordertest.Root); err != nil {
				t.Fatal(err)
			}
		}
		samePrice("1-3")
		s.MustChange(items.Change{PriceMinor: ordertest.Ptr(int64(5))}) // version 4, and the field no longer applies
		samePrice("1-3")
		s.MustChange(items.Change{PerUserLimit: ordertest.Ptr(int64(3))})
		samePrice("4-5")
	})
}
