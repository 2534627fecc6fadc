package inventory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// loadables adds items like the shop's to its source, and returns them all.
func (s *shop) loadables(n int) []Loadable {
	items := []Loadable{{Item: s.item}}
	s.source.set(func(src *stored) {
		for i := 1; i < n; i++ {
			it := Loadable{Item: fmt.Sprintf("%s-%d", s.item, i)}
			if i%7 == 0 {
				it.Orders = pageOrders
			}
			src.sales[it.Item] = src.sales[s.item]
			items = append(items, it)
		}
	})
	return items
}

// leftOf reads what is left of items; -1 where a sale is not loaded.
func leftOf(t testing.TB, v *Inventory, items []Loadable) []int64 {
	t.Helper()
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].Item
	}
	left, err := v.Left(await.Context(t), ids)
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// dropAll deletes sales with all their orders from Redis; the queue stays.
func dropAll(t testing.TB, v *Inventory, items []Loadable) {
	t.Helper()
	for _, it := range items {
		if err := v.rdb.Del(await.Context(t), v.keys.sale(it.Item), v.keys.idempotency(it.Item), v.keys.buyers(it.Item)).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// of is a request for another item than the shop's.
func (s *shop) of(item, buyer, key string, quantity int64) *Request {
	r := s.request(buyer, key, quantity)
	r.ItemID = item
	r.Payload = string(payload(r))
	return r
}

// scripts counts the calls that a client sends, by command; a pipeline is one.
type scripts struct {
	mu    sync.Mutex
	trips int
}

func (c *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" && cmd.Args()[1] == loadScript.Hash() {
			c.mu.Lock()
			c.trips++
			c.mu.Unlock()
		}
		return next(ctx, cmd)
	}
}

func (c *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" && cmds[0].Args()[1] == loadScript.Hash() {
			c.mu.Lock()
			c.trips++
			c.mu.Unlock()
		}
		return next(ctx, cmds)
	}
}

// TestInventory_ReloadAll: one read of the queue serves all sales of a rebuild, and small
// sales are written together. Queued orders count, and loaded sales are not touched.
func TestInventory_ReloadAll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 200
		s := newShop(t, rdb, open(10, 5), 0)
		items := s.loadables(n)
		v := s.inventory(t, Config{})
		orders := map[string]*Request{}
		for i := range n / 4 {
			item := items[4*i].Item
			orders[item] = s.of(item, "u", "k", 2)
			mustBuy(t, v, orders[item])
		}
		kept := items[4]
		dropAll(t, v, slices.DeleteFunc(slices.Clone(items), func(it Loadable) bool { return it == kept }))
		version := rdb.HGet(await.Context(t), v.keys.sale(kept.Item), "version").Val()
		// Another process, as after a loss: its sellers have released their locks by then.
		if err := v.Close(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		trips := &scripts{}
		client := redis.NewClient(rdb.Options())
		t.Cleanup(func() {
			if err := client.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		client.AddHook(trips)
		w := s.inventoryOn(t, client, newLocks(t, client, lockConfig), Config{})
		s.source.set(func(src *stored) { src.scans, src.loads = 0, 0 })
		loaded, err := w.ReloadAll(await.Context(t), items)
		if err != nil || loaded != n {
			t.Fatalf("%d loaded, %v, want %d", loaded, err, n)
		}
		s.source.set(func(src *stored) {
			if src.scans != 1 || src.loads != n-1 {
				t.Errorf("the queue was read %d times and %d sales were loaded, want 1 and %d", src.scans, src.loads, n-1)
			}
		})
		// Two pages of small sales and 28 large ones, each begun, written and opened; NOSCRIPT repeats a few.
		if trips.trips > 3*(2+n/7)+2*loadCalls {
			t.Errorf("%d round trips for %d sales", trips.trips, n)
		}
		if now := rdb.HGet(await.Context(t), v.keys.sale(kept.Item), "version").Val(); now != version {
			t.Errorf("the sale that was loaded has version %s, it had %s", now, version)
		}
		for i, left := range leftOf(t, w, items) {
			want := int64(10)
			if r := orders[items[i].Item]; r != nil {
				want = 8
				if o := buy(t, w, s.of(items[i].Item, "u", "k", 2)); o != (Outcome{ReplayOf: r.OrderID}) {
					t.Errorf("item %d: a repeat: %+v, want order %s", i, o, r.OrderID)
				}
			}
			if left != want {
				t.Errorf("item %d: %d left, want %d", i, left, want)
			}
		}
	})
}

// TestInventory_ReloadAll_Covered: if one read of the queue is not enough for all sales, the
// others get another, after a claim of their own.
func TestInventory_ReloadAll_Covered(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		items := s.loadables(10)
		v := s.inventory(t, Config{})
		s.source.set(func(src *stored) { src.covers = 4 })
		loaded, err := v.ReloadAll(await.Context(t), items)
		if err != nil || loaded != len(items) || s.source.scans != 3 {
			t.Errorf("%d loaded with %d looks at the queue, %v, want %d with 3", loaded, s.source.scans, err, len(items))
		}
		if left := leftOf(t, v, items); slices.ContainsFunc(left, func(n int64) bool { return n != 10 }) {
			t.Errorf("left %v, want 10 of each", left)
		}
	})
}

// TestInventory_ReloadAll_SoldMeanwhile: between the read of the queue and the load, another
// process loads a sale and sells, a sale is sold and dropped again, and one is only dropped.
// None of them may be loaded from the old read, which lacks the new orders: units would be
// sold twice.
func TestInventory_ReloadAll_SoldMeanwhile(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		items := s.loadables(4)
		v := s.inventory(t, Config{})
		other := s.inventory(t, Config{LockIdle: time.Millisecond})
		bought := map[string]*Request{}
		meanwhile := sync.OnceFunc(func() {
			for _, it := range items[:2] {
				bought[it.Item] = s.of(it.Item, "u", "k", 3)
				mustBuy(t, other, bought[it.Item])
			}
			if err := Invalidate(await.Context(t), rdb, 1, []string{items[1].Item, items[2].Item}); err != nil {
				t.Error(err)
			}
			// The other process releases its locks, so that only the claim keeps the rebuild
			// from its sales.
			await.True(t, "the other's locks to be free", func() bool {
				n, err := rdb.Exists(await.Context(t), v.keys.lockKey(items[0].Item), v.keys.lockKey(items[1].Item)).Result()
				return err == nil && n == 0
			})
		})
		v.source = lookThen{s.source, meanwhile}
		loaded, err := v.ReloadAll(await.Context(t), items)
		if err != nil || loaded != len(items) {
			t.Fatalf("%d loaded, %v, want %d", loaded, err, len(items))
		}
		if left := leftOf(t, v, items); !slices.Equal(left, []int64{7, 7, 10, 10}) {
			t.Errorf("left %v, want 7, 7, 10 and 10", left)
		}
		for item, r := range bought {
			if o := buy(t, v, s.of(item, "u", "k", 3)); o != (Outcome{ReplayOf: r.OrderID}) {
				t.Errorf("%s: a repeat: %+v, want order %s", item, o, r.OrderID)
			}
		}
	})
}

// lookThen is a source that calls a function after its first read of the queue.
type lookThen struct {
	Source
	do func()
}

func (l lookThen) Queued(ctx context.Context, items []string) (map[string]Queued, error) {
	found, err := l.Source.Queued(ctx, items)
	l.do()
	return found, err
}

// TestInventory_ReloadAll_Refused: a sale that must not be loaded keeps its data in Redis,
// also after a rebuild; a sale whose load fails does not affect the others.
func TestInventory_ReloadAll_Refused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 5), 0)
		items := s.loadables(3)
		stopped, missing := items[1].Item, items[2].Item
		v := s.inventory(t, Config{MayLoad: func(_ context.Context, asked []string) (map[string]error, error) {
			refused := map[string]error{}
			for _, item := range asked {
				if item == stopped || item == missing {
					refused[item] = fmt.Errorf("%s: %w", item, ErrStopped)
				}
			}
			return refused, nil
		}})
		if err := rdb.HSet(await.Context(t), v.keys.sale(stopped), "epoch", 1, "left", 3, "changing", stoppedMark).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.HSet(await.Context(t), v.keys.idempotency(missing), "u k", "1:order").Err(); err != nil {
			t.Fatal(err)
		}
		loaded, err := v.ReloadAll(await.Context(t), append(items, Loadable{Item: "none-" + s.item}))
		if !errors.Is(err, errNoItem) || loaded != 1 {
			t.Errorf("%d loaded, %v, want 1 and the error of the item that is none", loaded, err)
		}
		if got := rdb.HGetAll(await.Context(t), v.keys.sale(stopped)).Val(); !maps.Equal(got, map[string]string{"epoch": "1", "left": "3", "changing": stoppedMark}) {
			t.Errorf("the stopped sale is %v", got)
		}
		if got := rdb.HGet(await.Context(t), v.keys.idempotency(missing), "u k").Val(); got != "1:order" {
			t.Errorf("the orders of a sale that may not be loaded: %q", got)
		}
		// Its claim does not mean that those orders were deleted.
		if err := Stop(await.Context(t), rdb, 1, []string{missing}); err != nil {
			t.Fatal(err)
		}
		if found, err := StoppedSale(await.Context(t), rdb, 1, missing); found.Whole || err != nil {
			t.Errorf("the values of a sale that is missing: %v, %v, want none", found.Whole, err)
		}
		if left := leftOf(t, v, items[:1]); left[0] != 10 {
			t.Errorf("left %v, want 10", left)
		}
	})
}

// TestPagesOf: every item is on one page, and the pages keep their bounds.
func TestPagesOf(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, pageItems, pageItems + 1, 2 * pageItems} {
		for _, orders := range []int64{0, 1, pageOrders / 2, pageOrders/2 + 1, pageOrders} {
			var items, paged []Loadable
			for i := range n {
				items = append(items, Loadable{fmt.Sprint("item", i), orders})
			}
			for _, page := range pagesOf(items) {
				if len(page) == 0 || len(page) > pageItems || int64(len(page))*orders > pageOrders {
					t.Errorf("a page of %d items with %d orders each", len(page), orders)
				}
				paged = append(paged, page...)
			}
			if !slices.Equal(paged, items) {
				t.Errorf("%d of %d items with %d orders each are on pages", len(paged), n, orders)
			}
		}
	}
}

// TestReload_claim_OtherType: a sale whose key has another type is loaded on its own, and does not keep the others from
// being loaded together.
func TestReload_claim_OtherType(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		items := s.loadables(3)
		if err := rdb.Set(await.Context(t), v.keys.sale(items[1].Item), "foreign", 0).Err(); err != nil {
			t.Fatal(err)
		}
		r := &reload{v: v}
		claimed, err := r.claim(await.Context(t), claimPrefix+"test", items)
		if want := []Loadable{items[0], items[2]}; err != nil || !slices.Equal(claimed, want) {
			t.Errorf("claimed %v, %v; want %v", claimed, err, want)
		}
		if !slices.Equal(r.singles, items[1:2]) {
			t.Errorf("to be loaded on their own: %v, want %v", r.singles, items[1:2])
		}
	})
}
