package items_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/release"
	"flashsale/order/sales"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// TestBuckets_SoldOutLostBetweenProcesses: two processes at once sell out the last two buckets.
func TestBuckets_SoldOutLostBetweenProcesses(t *testing.T) {
	t.Parallel()
	if !postgrestest.Chosen(t) {
		t.Skip("SQLite has one writer")
	}
	a := storetest.New(t)
	b, err := store.Open(await.Context(t), ordertest.SettingOf(a))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	ordertest.SubscribeAll(t, a)
	lost, twice := 0, 0
	for i := range 200 {
		n := ordertest.NewItem(fmt.Sprintf("item%d", i), 2, 1)
		n.Buckets = 2
		storetest.MustInsert(t, a, n)
		before := soldOutEvents(t, &shoptest.Shop{Store: a})
		done := make(chan error, 2)
		for k, s := range []*store.Store{a, b} {
			go func() {
				id := bucket.ID(n.ID, k)
				_, err := s.Commit(context.Background(), []order.Task{ordertest.Bought(id, id, "u"+id, "k", 1)})
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		switch got := soldOutEvents(t, &shoptest.Shop{Store: a}) - before; {
		case got == 0:
			lost++
		case got > 1:
			twice++
		}
	}
	if lost+twice > 0 {
		t.Errorf("of 200 items that were sold out, %d have no event and %d have two", lost, twice)
	}
}

// refusing is a Stock that fails, or does something else, at the change that takes n units back.
type refusing struct {
	items.Stock
	take int64
	then func() error
}

func (b *refusing) Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (int64, error)) error {
	if c.AddLeft == -b.take && b.then != nil {
		then := b.then
		b.then = nil
		if err := then(); err != nil {
			return err
		}
	}
	return b.Stock.Change(ctx, item, c, commit)
}

// TestBuckets_RepeatedTakeBack: a take-back that failed can be repeated with the same If-Match.
func TestBuckets_RepeatedTakeBack(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 10)
		away := &refusing{Stock: s.Stock, take: 50, then: func() error { return inventory.ErrUnavailable }}
		o := other(s, away)
		r := items.Restock{Quantity: -50, Reason: "a", IdempotencyKey: "a", Match: order.Match{1}}
		_, _, err := o.Restock(await.Context(t), s.Item, r, ordertest.Root)
		t.Logf("first: %v", err)
		if item, _, err := o.Restock(await.Context(t), s.Item, r, ordertest.Root); err != nil {
			t.Errorf("repeat: %v; %+v", err, item)
		}
	})
}

// TestBuckets_TakeBackDuringRefill: 50 of 80 unsold units can be taken back although a bucket is
// refilled meanwhile.
func TestBuckets_TakeBackDuringRefill(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 10)
		busy := &refusing{Stock: s.Stock, take: 50, then: func() error {
			_, err := s.Sales.Refill(await.Context(t), &catalog.Item{ID: s.Item, Buckets: 8}, bucket.ID(s.Item, 1), 1)
			return err
		}}
		_, _, err := other(s, busy).Restock(await.Context(t), s.Item, items.Restock{Quantity: -50, Reason: "a", IdempotencyKey: "a"}, ordertest.Root)
		if err != nil {
			t.Error(err)
		}
	})
}

// process builds the selling parts of another process on the same database and Redis.
func process(t *testing.T, s *shoptest.Shop, rdb *redis.Client) *checkout.Service {
	t.Helper()
	own := redistest.Second(t, rdb)
	locks, err := lock.New(own, ordertest.PatientLocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.End(locks.Close) })
	source := &sales.Source{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Partition: func(string) int { return 0 }}
	stock, err := inventory.New(await.Context(t), own, locks, []*queue.Queue{s.Queue}, source, inventory.Config{
		Patience: 20 * time.Second, HoldLimit: ordertest.Limit, SettleLimit: ordertest.Limit, OnError: s.CollectError,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.End(stock.Close) })
	cat, err := catalog.New(await.Context(t), s.Store, stock, catalog.Config{OnError: s.CollectError, LoadTimeout: ordertest.Limit, Wait: ordertest.Limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.End(cat.Close) })
	admin := &items.Service{Store: s.Store, Stock: stock, Catalog: cat, OnError: s.CollectError}
	return checkout.NewService(checkout.Config{
		Store: s.Store, Stock: stock, Items: cat, Buckets: admin, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Waiters: checkout.NewWaiters(),
		Releaser: release.New(s.Store, own, 1, stock.DropSoldOutMark, s.CollectError), OnError: s.CollectError,
	})
}

// TestBuckets_Processes: many buyers of several processes get the stock, and the others an answer.
func TestBuckets_Processes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 100, 3)
		services := []*checkout.Service{s.Service, process(t, s, rdb), process(t, s, rdb)}
		var bought atomic.Int64
		var wg sync.WaitGroup
		next := make(chan int)
		for range 48 {
			wg.Go(func() {
				for i := range next {
					_, err := services[i%3].Place(await.Context(t), s.Purchase(fmt.Sprintf("p%d", i), "k", 3, 0))
					switch {
					case err == nil:
						bought.Add(1)
					case !errors.Is(err, inventory.ErrSoldOut):
						t.Errorf("buyer %d: %v", i, err)
					}
				}
			})
		}
		for i := range 600 {
			next <- i
		}
		close(next)
		wg.Wait()
		s.Drained()
		if n := bought.Load(); n != 33 { // a single unit is left
			t.Errorf("%d buyers got 3 of 100 units, want 33", n)
		}
		ordertest.AuditStore(t, s.Store)
	})
}
