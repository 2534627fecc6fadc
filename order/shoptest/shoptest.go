// Package shoptest connects the parts of a shop, from the purchase to the worker, for tests.
package shoptest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/subscription"
	"flashsale/internal/testing/await"
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
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// Shop is a complete system: a service, its inventory and queue, and workers that the test
// starts.
type Shop struct {
	T         *testing.T
	Rdb       *redis.Client
	Store     *store.Store
	Queue     *queue.Queue
	Stock     *inventory.Inventory
	Items     *catalog.Catalog
	Waiters   *checkout.Waiters
	Service   *checkout.Service
	Sales     *items.Service
	Fulfiller *worker.Fulfiller
	Archive   *watchedArchive
	Item      string

	cfg inventory.Config // of Stock

	Mu     sync.Mutex
	Errors []error
}

// CollectError collects the errors of background work.
func (s *Shop) CollectError(err error) {
	if errors.Is(err, subscription.ErrSilent) {
		return // the machine is too busy for a heartbeat in time
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.Errors = append(s.Errors, err)
}

// New builds the system as a process does, without a worker and with an item of the
// given stock on sale.
func New(t *testing.T, rdb *redis.Client, volatile bool, n order.NewItem) *Shop {
	t.Helper()
	s := NewWith(t, rdb, n, inventory.Config{})
	s.Service.Volatile = volatile
	return s
}

// NewWith is New with other settings of the inventory.
func NewWith(t *testing.T, rdb *redis.Client, n order.NewItem, cfg inventory.Config) *Shop {
	t.Helper()
	return NewOn(t, ordertest.NewQueue(t, rdb, queue.Config{}), rdb, n, cfg)
}

// NewOn is NewWith with another queue.
func NewOn(t *testing.T, q *queue.Queue, rdb *redis.Client, n order.NewItem, cfg inventory.Config) *Shop {
	t.Helper()
	s := &Shop{T: t, Rdb: rdb, Queue: q, Store: storetest.New(t), Waiters: checkout.NewWaiters(), Item: "item-" + ordertest.RandomName(t)}
	s.Archive = &watchedArchive{Archive: sales.NewEndedSales(s.Store, accepted.NewIndex(rdb, q), onePartition)}
	s.cfg = cfg
	t.Cleanup(s.logErrors)
	s.start()
	t.Cleanup(s.stop)
	n.ID = s.Item
	if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
		t.Fatal(err)
	}
	return s
}

// logErrors shows the errors of background work beside the failure that they may explain.
func (s *Shop) logErrors() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for _, err := range s.Errors {
		if s.T.Failed() {
			s.T.Log("background work:", err)
		}
	}
}

func onePartition(string) int { return 0 }

// Restart replaces everything that the process remembers of the item, as a restart does.
func (s *Shop) Restart() {
	s.stop()
	s.start()
}

func (s *Shop) stop() {
	s.End(s.Items.Close)
	s.End(s.Stock.Close)
}

func (s *Shop) start() {
	s.T.Helper()
	ctx := await.Context(s.T)
	locks, err := lock.New(s.Rdb, ordertest.PatientLocks)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { s.End(locks.Close) })
	source := &sales.Source{Store: s.Store, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Partition: onePartition}
	cfg := s.cfg
	cfg.Patience, cfg.HoldLimit, cfg.SettleLimit = 20*time.Second, ordertest.Limit, ordertest.Limit
	cfg.OnError, cfg.Archive = s.CollectError, s.Archive
	cfg.MayLoad = func(ctx context.Context, items []string) (map[string]error, error) {
		return s.Store.HighWater().MayLoad(ctx, items)
	}
	if s.Stock, err = inventory.New(ctx, s.Rdb, locks, []*queue.Queue{s.Queue}, source, cfg); err != nil {
		s.T.Fatal(err)
	}
	if s.Items, err = catalog.New(ctx, s.Store, s.Stock, catalog.Config{OnError: s.CollectError, LoadTimeout: ordertest.Limit, Wait: ordertest.Limit}); err != nil {
		s.T.Fatal(err)
	}
	s.Sales = &items.Service{Store: s.Store, Stock: s.Stock, Catalog: s.Items, OnError: s.CollectError}
	s.Service = checkout.NewService(checkout.Config{
		Store: s.Store, Stock: s.Stock, Items: s.Items, Buckets: s.Sales, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Waiters: s.Waiters,
		Releaser: release.New(s.Store, s.Rdb, 1, s.Stock.DropSoldOutMark, s.CollectError), OnError: s.CollectError,
	})
	s.Fulfiller = worker.NewFulfiller(s.Store, s.Rdb, s.Waiters, s.CollectError)
}

// End calls a function that closes a part.
func (s *Shop) End(closer func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), ordertest.Limit)
	defer cancel()
	if err := closer(ctx); err != nil {
		s.T.Errorf("close: %v", err)
	}
}

// Work starts a worker; stop ends it and waits, and may be called repeatedly.
func (s *Shop) Work() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Fulfiller.Work(ctx, []*queue.Queue{s.Queue}, nil, queue.RunConfig{OnError: s.CollectError})
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					s.T.Errorf("worker: %v", err)
				}
			case <-time.After(ordertest.Limit):
				s.T.Error("the worker did not stop")
			}
		})
	}
	s.T.Cleanup(stop)
	return stop
}

// Purchase is one buyer's purchase of the shop's item.
func (s *Shop) Purchase(user, key string, quantity int64, wait time.Duration) order.Purchase {
	return order.Purchase{ItemID: s.Item, UserID: user, IdempotencyKey: key, Quantity: quantity, Wait: wait}
}

// MustPlace places a purchase.
func (s *Shop) MustPlace(p order.Purchase) order.Placed {
	s.T.Helper()
	placed, err := s.Service.Place(await.Context(s.T), p)
	if err != nil {
		s.T.Fatalf("place %+v: %v", p, err)
	}
	return placed
}

// Drained waits until every queued order has left the queue. Expiry tasks may remain.
func (s *Shop) Drained() {
	s.T.Helper()
	await.True(s.T, "the queue to drain", func() bool {
		delayed, err := s.Queue.List(await.Context(s.T), queue.Query{State: queue.StateDelayed, Limit: 512})
		if err != nil {
			s.T.Fatal(err)
		}
		for _, info := range delayed.Tasks {
			if order.IsPurchase(info.Type) {
				return false
			}
		}
		st, err := s.Queue.Stats(await.Context(s.T))
		if err != nil {
			s.T.Fatal(err)
		}
		return st.Ready+st.Leased == 0
	})
}

// Load loads the sale, if it is not loaded.
func (s *Shop) Load() {
	s.T.Helper()
	if err := s.Stock.Reload(await.Context(s.T), s.Item); err != nil {
		s.T.Fatal(err)
	}
}

// AwaitLoaded waits until a change has loaded the sale, with this number of units left. A change
// that could not load it on a busy machine has reported that; then the next purchase would load the
// sale, and here AwaitLoaded does.
func (s *Shop) AwaitLoaded(units int64) {
	s.T.Helper()
	ctx := await.Context(s.T)
	await.True(s.T, "the sale to be loaded", func() bool {
		left, err := s.Stock.Left(ctx, []string{s.Item})
		if err != nil {
			s.T.Fatal(err)
		}
		if left[0] == units {
			return true
		}
		s.Mu.Lock()
		late := slices.ContainsFunc(s.Errors, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded) || ordertest.Busy(err)
		})
		s.Mu.Unlock()
		if late {
			s.T.Log("the change could not load the sale in time")
			s.Load()
		}
		return false
	})
}

// Shelf is a Releaser that records releases by order. It accepts an order only once, as the
// script does.
type Shelf struct {
	mu       sync.Mutex
	Units    map[string]int64
	Calls    map[string]int
	answer   inventory.ReleaseStatus // replaces its own answer, unless 0
	err      error
	Dropped  []string
	DropFail error
}

func newShelf() *Shelf { return &Shelf{Units: map[string]int64{}, Calls: map[string]int{}} }

// Release records units.
func (s *Shelf) Release(_ context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := make([]inventory.ReleaseStatus, len(orders))
	for i, o := range orders {
		s.Calls[o.OrderID]++
		switch {
		case s.err != nil:
		case s.answer != 0:
			status[i] = s.answer
		case s.Units[o.OrderID] > 0:
			status[i] = inventory.ReleaseRepeated
		default:
			s.Units[o.OrderID] = o.Quantity
			status[i] = inventory.ReleaseDone
		}
	}
	return status, 0, s.err
}

// Invalidate records the item.
func (s *Shelf) Invalidate(_ context.Context, item string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Dropped = append(s.Dropped, item)
	return s.DropFail
}

// Unload records the item.
func (s *Shelf) Unload(ctx context.Context, item string) error { return s.Invalidate(ctx, item) }

// Set sets the answer to the next releases.
func (s *Shelf) Set(answer inventory.ReleaseStatus, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = answer, err
}

// OnShelf returns a worker's Fulfiller that releases units to a shelf.
func OnShelf(t *testing.T, s *store.Store) (*worker.Fulfiller, *Shelf) {
	t.Helper()
	f := worker.NewFulfiller(s, nil, nil, func(err error) { t.Logf("reported %v", err) })
	sh := newShelf()
	f.Releaser.Stock = sh
	return f, sh
}

// watchedArchive counts the reads for ended sales. Each is one statement.
type watchedArchive struct {
	inventory.Archive
	EndedLooks, EntryLooks atomic.Int64
	Gate                   chan struct{} // if not nil, the first read waits until it is closed
}

func (w *watchedArchive) Ended(ctx context.Context, item string) (bool, error) {
	if w.EndedLooks.Add(1) == 1 && w.Gate != nil {
		select {
		case <-w.Gate:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return w.Archive.Ended(ctx, item)
}

func (w *watchedArchive) Entries(ctx context.Context, item string, keys []inventory.EntryKey) ([]inventory.Entry, error) {
	w.EntryLooks.Add(1)
	return w.Archive.Entries(ctx, item, keys)
}

// SaleKeys are the keys of the shop's sale in Redis.
func (s *Shop) SaleKeys() []string {
	return []string{"fs:{p0}:sale:" + s.Item, "fs:{p0}:idempotency:" + s.Item, "fs:{p0}:buyers:" + s.Item}
}

// Unloaded fails the test if Redis holds anything of the sale.
func (s *Shop) Unloaded(after string) {
	s.T.Helper()
	if n, err := s.Rdb.Exists(await.Context(s.T), s.SaleKeys()...).Result(); err != nil || n != 0 {
		s.T.Errorf("after %s Redis holds %d keys of the sale, %v", after, n, err)
	}
}

// Endings are the ways in which a sale ends.
var Endings = map[string]func(s *Shop){
	"Closed": func(s *Shop) {
		s.T.Helper()
		if _, err := s.Sales.ControlItem(await.Context(s.T), s.Item, items.Control{To: catalog.ControlClosed}, order.By{Actor: "admin"}); err != nil {
			s.T.Fatal(err)
		}
	},
	"Past": func(s *Shop) {
		s.T.Helper()
		now := time.Now().UnixMilli()
		if err := s.Store.Writer().Exec("UPDATE items SET opens_at = ?, closes_at = ? WHERE id = ?", now-2000, now-1000, s.Item).Error; err != nil {
			s.T.Fatal(err)
		}
	},
}

// Restock restocks the shop's item.
func (s *Shop) Restock(quantity int64, key string) (catalog.Item, bool, error) {
	s.T.Helper()
	type answer struct {
		item     catalog.Item
		replayed bool
	}
	a, err := ordertest.Retried(s.T, func() (a answer, err error) {
		a.item, a.replayed, err = s.Sales.Restock(await.Context(s.T), s.Item, items.Restock{Quantity: quantity, Reason: "test", IdempotencyKey: key}, ordertest.Root)
		return a, err
	})
	return a.item, a.replayed, err
}

// MustRestock restocks the shop's item.
func (s *Shop) MustRestock(quantity int64, key string) catalog.Item {
	s.T.Helper()
	item, replayed, err := s.Restock(quantity, key)
	if err != nil || replayed {
		s.T.Fatalf("restock %d: replayed %v, %v", quantity, replayed, err)
	}
	return item
}

// Change changes the shop's item.
func (s *Shop) Change(c items.Change) (catalog.Item, error) {
	s.T.Helper()
	return ordertest.Retried(s.T, func() (catalog.Item, error) {
		return s.Sales.ChangeItem(await.Context(s.T), s.Item, c, ordertest.Root)
	})
}

// MustChange changes the shop's item.
func (s *Shop) MustChange(c items.Change) catalog.Item {
	s.T.Helper()
	item, err := s.Change(c)
	if err != nil {
		s.T.Fatalf("change %+v: %v", c, err)
	}
	return item
}

// Control pauses, resumes or closes the sale of the shop's item.
func (s *Shop) Control(to catalog.Control, m order.Match) (catalog.Item, error) {
	s.T.Helper()
	return ordertest.Retried(s.T, func() (catalog.Item, error) {
		return s.Sales.ControlItem(await.Context(s.T), s.Item, items.Control{To: to, Match: m}, ordertest.Root)
	})
}

// MustControl is Control, and fails the test on an error.
func (s *Shop) MustControl(to catalog.Control) catalog.Item {
	s.T.Helper()
	item, err := s.Control(to, nil)
	if err != nil {
		s.T.Fatalf("%s: %v", to, err)
	}
	return item
}

// Refused buys and expects an error.
func (s *Shop) Refused(p order.Purchase, want error) {
	s.T.Helper()
	if placed, err := s.Service.Place(await.Context(s.T), p); !errors.Is(err, want) {
		s.T.Errorf("%+v: %+v, %v, want %v", p, placed, err, want)
	}
}

// MustGet reads an order.
func (s *Shop) MustGet(id string) order.Order {
	s.T.Helper()
	o, err := s.Service.Get(await.Context(s.T), id)
	if err != nil {
		s.T.Fatalf("get order %s: %v", id, err)
	}
	return o
}

// MustPay buys units for a buyer and pays for them.
func (s *Shop) MustPay(user, key string, quantity int64) order.Order {
	s.T.Helper()
	o := s.MustPlace(s.Purchase(user, key, quantity, ordertest.Long)).Order
	o, err := s.Service.Pay(await.Context(s.T), o.ID, ordertest.Money("psp-"+o.ID, quantity))
	if err != nil || o.Status != order.StatusPaid {
		s.T.Fatalf("pay: %+v, %v", o, err)
	}
	return o
}

// MustSweep sweeps, and compares the result.
func MustSweep(t *testing.T, s *worker.Sweeper, want worker.Swept) {
	t.Helper()
	if got, err := s.Sweep(await.Context(t)); err != nil || got != want {
		t.Errorf("sweep %+v, %v, want %+v", got, err, want)
	}
}

// Kill makes dead letters of the ready tasks, and returns their number.
func (s *Shop) Kill(reason string) int {
	s.T.Helper()
	f, err := s.Queue.Dequeue(await.Context(s.T), 100)
	if err != nil {
		s.T.Fatal(err)
	}
	for i := range f.Tasks {
		status, err := s.Queue.Reject(await.Context(s.T), queue.Rejection{Task: f.Tasks[i], Dead: true, Reason: reason})
		if err != nil || status[0] != queue.StatusOK {
			s.T.Fatalf("reject: %v, %v", status, err)
		}
	}
	return len(f.Tasks)
}

// Backlog returns what administers the shop's queue.
func (s *Shop) Backlog() *worker.Backlog {
	return worker.NewBacklog(s.Store, s.Service.Releaser, nil, worker.NamedQueue{Name: "first", Queue: s.Queue})
}

// HighWater returns a new one for the shop, as that of another process.
func (s *Shop) HighWater() *store.HighWater {
	s.T.Helper()
	h, err := store.NewHighWater(await.Context(s.T), store.HighWaterConfig{
		Store: s.Store, Redis: s.Rdb, Partitions: 1, OnError: s.CollectError,
	})
	if err != nil {
		s.T.Fatal(err)
	}
	return h
}

// MustCheck compares all items, and returns those that are stopped.
func MustCheck(h *store.HighWater, t *testing.T) []store.Behind {
	t.Helper()
	if err := h.Check(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	return h.Stopped()
}

// RollBack sets an item's revision, as the restore of a backup does.
func (s *Shop) RollBack(revision int64) {
	s.T.Helper()
	if err := s.Store.Writer().Exec("UPDATE items SET revision = ? WHERE id = ?", revision, s.Item).Error; err != nil {
		s.T.Fatal(err)
	}
}

// OnOwnEngine runs fn on its own engine of each kind, because a recovery reads all data in Redis.
func OnOwnEngine(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	for name, start := range map[string]func() *redis.Client{
		"embedded": func() *redis.Client { return redistest.Embedded(t) },
		"redis": func() *redis.Client {
			rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
			t.Cleanup(func() {
				if err := rdb.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			return rdb
		},
	} {
		t.Run(name, func(t *testing.T) { fn(t, start()) })
	}
}

// SaleKey is the key of the shop's item in Redis.
func (s *Shop) SaleKey(kind string) string { return "fs:{p0}:" + kind + ":" + s.Item }

// RedisState returns all of Redis's data of the shop's sale.
func (s *Shop) RedisState() string {
	s.T.Helper()
	out := ""
	for _, kind := range []string{"sale", "idempotency", "buyers"} {
		all, err := s.Rdb.HGetAll(await.Context(s.T), s.SaleKey(kind)).Result()
		if err != nil {
			s.T.Fatal(err)
		}
		out += fmt.Sprintln(kind, all) // fmt sorts the keys
	}
	return out
}

// Exec runs a statement on the database.
func (s *Shop) Exec(text string, args ...any) {
	s.T.Helper()
	if err := s.Store.Writer().WithContext(await.Context(s.T)).Exec(text, args...).Error; err != nil {
		s.T.Fatal(err)
	}
}

// Hset sets a field of a hash of the shop's sale.
func (s *Shop) Hset(kind string, values ...any) {
	s.T.Helper()
	if err := s.Rdb.HSet(await.Context(s.T), s.SaleKey(kind), values...).Err(); err != nil {
		s.T.Fatal(err)
	}
}

// SetUnits sets the units that the sale records for a buyer.
func (s *Shop) SetUnits(buyer string, units int) {
	s.T.Helper()
	value, err := s.Rdb.HGet(await.Context(s.T), s.SaleKey("buyers"), buyer).Result()
	if err != nil {
		s.T.Fatal(err)
	}
	_, order, _ := strings.Cut(value, " ")
	s.Hset("buyers", buyer, fmt.Sprint(units, " ", order))
}

// Hdel deletes a field of a hash of the shop's sale.
func (s *Shop) Hdel(kind string, fields ...string) {
	s.T.Helper()
	if err := s.Rdb.HDel(await.Context(s.T), s.SaleKey(kind), fields...).Err(); err != nil {
		s.T.Fatal(err)
	}
}
