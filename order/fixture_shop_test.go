package order

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
	"flashsale/internal/subscription"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/queue"
)

// site is a complete system: a service, its inventory and queue, and workers that the test
// starts.
type site struct {
	t         *testing.T
	rdb       *redis.Client
	store     *Store
	queue     *queue.Queue
	stock     *inventory.Inventory
	items     *catalog.Catalog
	waiters   *Waiters
	service   *Service
	sales     *ItemService
	fulfiller *Fulfiller
	archive   *watchedArchive
	item      string

	mu     sync.Mutex
	errors []error
}

func (s *site) heard(err error) {
	if errors.Is(err, subscription.ErrSilent) {
		return // the machine is too busy for a heartbeat in time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, err)
}

// newSite builds the system as a process does, without a worker and with an item of the
// given stock on sale.
func newSite(t *testing.T, rdb *redis.Client, volatile bool, n NewItem) *site {
	t.Helper()
	s := newSiteWith(t, rdb, n, inventory.Config{})
	s.service.Volatile = volatile
	return s
}

// newSiteWith is newSite with other settings of the inventory.
func newSiteWith(t *testing.T, rdb *redis.Client, n NewItem, cfg inventory.Config) *site {
	t.Helper()
	return newSiteOn(t, newQueue(t, rdb, queue.Config{}), rdb, n, cfg)
}

// newSiteOn is newSiteWith with another queue.
func newSiteOn(t *testing.T, q *queue.Queue, rdb *redis.Client, n NewItem, cfg inventory.Config) *site {
	t.Helper()
	s := &site{t: t, rdb: rdb, queue: q, store: newStore(t), waiters: NewWaiters(), item: "item-" + randomName(t)}
	locks, err := lock.New(rdb, patientLocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(locks.Close) })
	source := &Sales{Store: s.store, Tasks: []Tasks{s.queue}, Partition: func(string) int { return 0 }}
	cfg.Patience, cfg.LookLimit, cfg.OnError = 20*time.Second, limit, s.heard
	s.archive = &watchedArchive{Archive: NewEndedSales(s.store, inventory.NewQueuedIndex(rdb, q))}
	cfg.Archive = s.archive
	cfg.MayLoad = func(ctx context.Context, items []string) (map[string]error, error) {
		return s.store.HighWater().MayLoad(ctx, items)
	}
	s.stock, err = inventory.New(await.Context(t), rdb, locks, []*queue.Queue{s.queue}, source, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(s.stock.Close) })
	s.items, err = catalog.New(await.Context(t), s.store, s.stock, catalog.Config{OnError: s.heard, LoadTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(s.items.Close) })
	s.service = NewService(Config{
		Store: s.store, Stock: s.stock, Items: s.items, Tasks: []Tasks{s.queue}, Waiters: s.waiters,
		Returns: NewReturns(s.store, rdb, 1, s.stock.Returned, s.heard), OnError: s.heard,
	})
	s.sales = &ItemService{Store: s.store, Stock: s.stock, Catalog: s.items, OnError: s.heard}
	s.fulfiller = NewFulfiller(s.store, rdb, s.waiters, s.heard)
	n.ID = s.item
	if _, err := s.sales.CreateItem(await.Context(t), n); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) end(closer func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := closer(ctx); err != nil {
		s.t.Errorf("close: %v", err)
	}
}

// work starts a worker; stop ends it and waits, and may be called repeatedly.
func (s *site) work() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.fulfiller.Work(ctx, []*queue.Queue{s.queue}, nil, queue.RunConfig{OnError: s.heard})
	}()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					s.t.Errorf("worker: %v", err)
				}
			case <-time.After(limit):
				s.t.Error("the worker did not stop")
			}
		})
	}
	s.t.Cleanup(stop)
	return stop
}

// purchase is one buyer's purchase of the site's item.
func (s *site) purchase(user, key string, quantity int64, wait time.Duration) Purchase {
	return Purchase{ItemID: s.item, UserID: user, IdempotencyKey: key, Quantity: quantity, Wait: wait}
}

func (s *site) mustPlace(p Purchase) Placed {
	s.t.Helper()
	placed, err := s.service.Place(await.Context(s.t), p)
	if err != nil {
		s.t.Fatalf("place %+v: %v", p, err)
	}
	return placed
}

// drained waits until every queued order has left the queue. Expiry tasks may remain.
func (s *site) drained() {
	s.t.Helper()
	await.True(s.t, "the queue to drain", func() bool {
		delayed, err := s.queue.List(await.Context(s.t), queue.StateDelayed, 0, 512)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, info := range delayed {
			if info.Type == purchaseType {
				return false
			}
		}
		st, err := s.queue.Stats(await.Context(s.t))
		if err != nil {
			s.t.Fatal(err)
		}
		return st.Ready+st.Leased == 0
	})
}

// load loads the sale, if it is not loaded.
func (s *site) load() {
	s.t.Helper()
	if err := s.stock.Reload(await.Context(s.t), s.item); err != nil {
		s.t.Fatal(err)
	}
}

// shelf is a Releaser that records releases by order. It accepts an order only once, as the
// script does.
type shelf struct {
	mu       sync.Mutex
	units    map[string]int64
	calls    map[string]int
	answer   inventory.ReleaseStatus // replaces its own answer, unless 0
	err      error
	dropped  []string
	dropFail error
}

func newShelf() *shelf { return &shelf{units: map[string]int64{}, calls: map[string]int{}} }

func (s *shelf) Release(_ context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := make([]inventory.ReleaseStatus, len(orders))
	for i, o := range orders {
		s.calls[o.OrderID]++
		switch {
		case s.err != nil:
		case s.answer != 0:
			status[i] = s.answer
		case s.units[o.OrderID] > 0:
			status[i] = inventory.ReleaseRepeated
		default:
			s.units[o.OrderID] = o.Quantity
			status[i] = inventory.ReleaseDone
		}
	}
	return status, 0, s.err
}

func (s *shelf) Distrust(_ context.Context, item string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped = append(s.dropped, item)
	return s.dropFail
}

func (s *shelf) Unload(ctx context.Context, item string) error { return s.Distrust(ctx, item) }

func (s *shelf) set(answer inventory.ReleaseStatus, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = answer, err
}

// onShelf returns a worker's Fulfiller that releases units to a shelf.
func onShelf(t *testing.T, s *Store) (*Fulfiller, *shelf) {
	t.Helper()
	f := NewFulfiller(s, nil, nil, func(err error) { t.Logf("reported %v", err) })
	sh := newShelf()
	f.returns.stock = sh
	return f, sh
}

// watchedArchive counts the reads for ended sales. Each is one statement.
type watchedArchive struct {
	inventory.Archive
	ended, entries atomic.Int64
	gate           chan struct{} // if not nil, the first read waits until it is closed
}

func (w *watchedArchive) Ended(ctx context.Context, item string) (bool, error) {
	if w.ended.Add(1) == 1 && w.gate != nil {
		select {
		case <-w.gate:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return w.Archive.Ended(ctx, item)
}

func (w *watchedArchive) Entries(ctx context.Context, item string, keys []inventory.EntryKey) ([]inventory.Entry, error) {
	w.entries.Add(1)
	return w.Archive.Entries(ctx, item, keys)
}

// saleKeys are the keys of the site's sale in Redis.
func (s *site) saleKeys() []string {
	return []string{"fs:{p0}:sale:" + s.item, "fs:{p0}:idempotency:" + s.item, "fs:{p0}:buyers:" + s.item}
}

// unloaded fails the test if Redis holds anything of the sale.
func (s *site) unloaded(after string) {
	s.t.Helper()
	if n, err := s.rdb.Exists(await.Context(s.t), s.saleKeys()...).Result(); err != nil || n != 0 {
		s.t.Errorf("after %s Redis holds %d keys of the sale, %v", after, n, err)
	}
}

// endings are the ways in which a sale ends.
var endings = map[string]func(s *site){
	"Closed": func(s *site) {
		s.t.Helper()
		if _, err := s.sales.ControlItem(await.Context(s.t), s.item, ItemControl{To: catalog.ControlClosed}, By{Actor: "admin"}); err != nil {
			s.t.Fatal(err)
		}
	},
	"Past": func(s *site) {
		s.t.Helper()
		now := time.Now().UnixMilli()
		if err := s.store.Writer().Exec("UPDATE items SET opens_at = ?, closes_at = ? WHERE id = ?", now-2000, now-1000, s.item).Error; err != nil {
			s.t.Fatal(err)
		}
	},
}

// restock restocks the site's item.
func (s *site) restock(quantity int64, key string) (catalog.Item, bool, error) {
	s.t.Helper()
	type answer struct {
		item     catalog.Item
		replayed bool
	}
	a, err := insisted(s.t, func() (a answer, err error) {
		a.item, a.replayed, err = s.sales.Restock(await.Context(s.t), s.item, Restock{Quantity: quantity, Reason: "test", IdempotencyKey: key}, root)
		return a, err
	})
	return a.item, a.replayed, err
}

func (s *site) mustRestock(quantity int64, key string) catalog.Item {
	s.t.Helper()
	item, replayed, err := s.restock(quantity, key)
	if err != nil || replayed {
		s.t.Fatalf("restock %d: replayed %v, %v", quantity, replayed, err)
	}
	return item
}

// change changes the site's item.
func (s *site) change(c ItemChange) (catalog.Item, error) {
	s.t.Helper()
	return insisted(s.t, func() (catalog.Item, error) {
		return s.sales.ChangeItem(await.Context(s.t), s.item, c, root)
	})
}

func (s *site) mustChange(c ItemChange) catalog.Item {
	s.t.Helper()
	item, err := s.change(c)
	if err != nil {
		s.t.Fatalf("change %+v: %v", c, err)
	}
	return item
}

func (s *site) control(to catalog.Control, m Match) (catalog.Item, error) {
	s.t.Helper()
	return insisted(s.t, func() (catalog.Item, error) {
		return s.sales.ControlItem(await.Context(s.t), s.item, ItemControl{To: to, Match: m}, root)
	})
}

func (s *site) mustControl(to catalog.Control) catalog.Item {
	s.t.Helper()
	item, err := s.control(to, nil)
	if err != nil {
		s.t.Fatalf("%s: %v", to, err)
	}
	return item
}

// refused buys and expects an error.
func (s *site) refused(p Purchase, want error) {
	s.t.Helper()
	if placed, err := s.service.Place(await.Context(s.t), p); !errors.Is(err, want) {
		s.t.Errorf("%+v: %+v, %v, want %v", p, placed, err, want)
	}
}

func (s *site) mustGet(id string) Order {
	s.t.Helper()
	o, err := s.service.Get(await.Context(s.t), id)
	if err != nil {
		s.t.Fatalf("get order %s: %v", id, err)
	}
	return o
}

// mustPay buys units for a buyer and pays for them.
func (s *site) mustPay(user, key string, quantity int64) Order {
	s.t.Helper()
	o := s.mustPlace(s.purchase(user, key, quantity, long)).Order
	o, err := s.service.Pay(await.Context(s.t), o.ID, money("psp-"+o.ID, quantity))
	if err != nil || o.Status != StatusPaid {
		s.t.Fatalf("pay: %+v, %v", o, err)
	}
	return o
}

// runWorker starts a worker on q; stop ends it and returns Run's error.
func runWorker(t *testing.T, f *Fulfiller, q *queue.Queue, cfg queue.RunConfig) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Work(ctx, []*queue.Queue{q}, nil, cfg) }()
	done := false
	stop = func() error {
		if done {
			return nil
		}
		done = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(limit):
			return errors.New("the worker did not stop")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	return stop
}

func mustSweep(t *testing.T, s *Sweeper, want Swept) {
	t.Helper()
	if got, err := s.Sweep(await.Context(t)); err != nil || got != want {
		t.Errorf("sweep %+v, %v, want %+v", got, err, want)
	}
}

// kill makes dead letters of the ready tasks, and returns their number.
func (s *site) kill(reason string) int {
	s.t.Helper()
	f, err := s.queue.Dequeue(await.Context(s.t), 100)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range f.Tasks {
		status, err := s.queue.Reject(await.Context(s.t), queue.Rejection{Task: f.Tasks[i], Dead: true, Reason: reason})
		if err != nil || status[0] != queue.StatusOK {
			s.t.Fatalf("reject: %v, %v", status, err)
		}
	}
	return len(f.Tasks)
}

func (s *site) backlog() *Backlog {
	return NewBacklog(s.store, s.service.Returns, nil, NamedQueue{"first", s.queue})
}

// highWater returns a new one for a site, as that of another process.
func (s *site) highWater() *HighWater {
	s.t.Helper()
	h, err := NewHighWater(await.Context(s.t), HighWaterConfig{Store: s.store, Redis: s.rdb, Partitions: 1, OnError: s.heard})
	if err != nil {
		s.t.Fatal(err)
	}
	return h
}

// mustCheck compares all items, and returns those that are stopped.
func (h *HighWater) mustCheck(t *testing.T) []Behind {
	t.Helper()
	if err := h.Check(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	return h.Stopped()
}

// rollBack sets an item's revision, as the restore of a backup does.
func (s *site) rollBack(revision int64) {
	s.t.Helper()
	if err := s.store.Writer().Exec("UPDATE items SET revision = ? WHERE id = ?", revision, s.item).Error; err != nil {
		s.t.Fatal(err)
	}
}

// alone runs fn on its own engine of each kind, because a recovery reads all data in Redis.
func alone(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
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

// saleKey is the key of the site's item in Redis.
func (s *site) saleKey(kind string) string { return "fs:{p0}:" + kind + ":" + s.item }

// redisState returns all of Redis's data of the site's sale.
func (s *site) redisState() string {
	s.t.Helper()
	out := ""
	for _, kind := range []string{"sale", "idempotency", "buyers"} {
		all, err := s.rdb.HGetAll(await.Context(s.t), s.saleKey(kind)).Result()
		if err != nil {
			s.t.Fatal(err)
		}
		out += fmt.Sprintln(kind, all) // fmt sorts the keys
	}
	return out
}

func (s *site) exec(text string, args ...any) {
	s.t.Helper()
	if err := s.store.Writer().WithContext(await.Context(s.t)).Exec(text, args...).Error; err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) hset(kind string, values ...any) {
	s.t.Helper()
	if err := s.rdb.HSet(await.Context(s.t), s.saleKey(kind), values...).Err(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) hdel(kind string, fields ...string) {
	s.t.Helper()
	if err := s.rdb.HDel(await.Context(s.t), s.saleKey(kind), fields...).Err(); err != nil {
		s.t.Fatal(err)
	}
}
