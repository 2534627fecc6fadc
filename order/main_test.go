package order

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"flashsale/catalog"
	"flashsale/internal/subscription"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/migrations"
	"flashsale/queue"
)

// TestMain also checks that services, workers and listeners leave no goroutine behind.
func TestMain(m *testing.M) {
	// The models are driven over the database, where a check takes a part of a
	// second. Each run draws other checks; -rapid.checks on the command line wins.
	longtest.Checks(25)
	// Most of the tests wait for a disk or for each other. The command line overrides this.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	// What one of these cuts off comes later, or is refused; that is tested where
	// the database or Redis is away, which takes no time to notice.
	// Groups of changes are bounded by their number alone.
	groupTime, groupLeast = limit, limit
	for _, timeout := range []*time.Duration{&readTimeout, &writeTimeout, &showTimeout, &giveTimeout, &tellTimeout, &ringTimeout, &lookHold} {
		*timeout = limit
	}
	redistest.Main(m,
		// gorm's cache of statements runs a goroutine that closing does not end,
		// and the catalogue's cache one that lives as long as the process.
		goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"),
		goleak.IgnoreTopFunction("github.com/maypok86/otter/v2.periodicCleanUp[...]"))
}

// limit bounds what must happen; it is long because it only delays a failure.
const limit = 5 * time.Minute

// patientLocks lets nothing expire by the passing of time within a test, and gives
// up no call because a busy machine is slow: that may leave a lock behind for as long.
var patientLocks = lock.Config{TTL: 2 * time.Minute, ClaimTTL: time.Minute, Liveness: time.Minute, CallTimeout: 2 * time.Minute}

// migrated is the file of an empty, migrated database. Migrating is most of the
// work of a small test under the race detector, so it is done once.
var migrated = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "order-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left is a temporary file
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	path := filepath.Join(dir, "empty.db")
	s, err := OpenStore(ctx, "sqlite:"+path)
	if err != nil {
		return nil, err
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Close(); err != nil { // the log becomes a part of the file
		return nil, err
	}
	return os.ReadFile(path)
})

func (s *Store) migrate(ctx context.Context) error {
	db, err := s.Writer().DB()
	if err != nil {
		return err
	}
	m, err := migrations.New(db, "sqlite")
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return err
}

// newStore returns a store on a migrated database file of the test's own.
func newStore(t testing.TB) *Store {
	t.Helper()
	return newStoreAt(t, filepath.Join(t.TempDir(), "shop.db"))
}

// newStoreAt returns a store on a migrated database at path.
func newStoreAt(t testing.TB, path string) *Store {
	t.Helper()
	empty, err := migrated()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, empty, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(await.Context(t), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return s
}

// newItem describes an item on sale.
func newItem(id string, stock, perUser int64) NewItem {
	return NewItem{ID: id, Name: "Thing", PriceMinor: 1999, Currency: "EUR", Stock: stock, PerUserLimit: perUser}
}

func mustInsert(t testing.TB, s *Store, n NewItem) {
	t.Helper()
	if _, err := s.InsertItem(await.Context(t), n); err != nil {
		t.Fatal(err)
	}
}

// bought is a task as an accepted purchase makes it.
func bought(id, item, user, key string, quantity int64) task {
	return task{
		ID: id, ItemID: item, UserID: user, Quantity: quantity, UnitPriceMinor: 1999, Currency: "EUR",
		CreatedAt: 1_790_000_000_000, IdempotencyKey: key,
	}
}

// distinct are n tasks of as many buyers.
func distinct(prefix, item string, n int) []task {
	tasks := make([]task, n)
	for i := range tasks {
		tasks[i] = bought(fmt.Sprintf("%s%04d", prefix, i), item, fmt.Sprintf("%su%d", prefix, i), "k", 1)
	}
	return tasks
}

// allRows reads every order by id.
func allRows(t testing.TB, s *Store) map[string]orderRow {
	t.Helper()
	var list []orderRow
	if err := s.Reader().WithContext(await.Context(t)).Find(&list).Error; err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]orderRow, len(list))
	for _, r := range list {
		rows[r.ID] = r
	}
	return rows
}

func itemOf(t testing.TB, s *Store, id string) itemRow {
	t.Helper()
	var row itemRow
	if err := s.Reader().WithContext(await.Context(t)).Where("id = ?", id).Take(&row).Error; err != nil {
		t.Fatal(err)
	}
	return row
}

// buyersOf reads the table of what each buyer holds of an item.
func buyersOf(t testing.TB, s *Store, item string) map[string]int64 {
	t.Helper()
	var list []struct {
		UserID   string
		Quantity int64
	}
	err := s.Reader().WithContext(await.Context(t)).Raw("SELECT user_id, quantity FROM buyers WHERE item_id = ?", item).Scan(&list).Error
	if err != nil {
		t.Fatal(err)
	}
	held := make(map[string]int64, len(list))
	for _, b := range list {
		held[b.UserID] = b.Quantity
	}
	return held
}

// auditStore checks what must hold of the tables at every instant: for each
// item sum(held orders) = sold <= total, each buyer's count is the sum of the
// buyer's orders and within the limit, and one row per buyer, item and key.
func auditStore(t testing.TB, s *Store) {
	t.Helper()
	sold := map[string]int64{}
	due := map[string]int64{}
	held := map[string]map[string]int64{}
	keys := map[string]string{}
	for id, r := range allRows(t, s) {
		k := r.UserID + " " + r.ItemID + " " + r.IdempotencyKey
		if other, ok := keys[k]; ok {
			t.Errorf("orders %s and %s share a buyer, item and key", id, other)
		}
		keys[k] = id
		if !r.holds() {
			continue
		}
		sold[r.ItemID] += r.Quantity
		if r.Status == string(StatusConfirmed) && r.ExpiresAt > 0 {
			due[r.ItemID] += r.Quantity
		}
		if held[r.ItemID] == nil {
			held[r.ItemID] = map[string]int64{}
		}
		held[r.ItemID][r.UserID] += r.Quantity
	}
	var items []itemRow
	if err := s.Reader().WithContext(await.Context(t)).Find(&items).Error; err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if it.Sold != sold[it.ID] || it.Sold > it.Total {
			t.Errorf("item %s: sold %d of %d, and its orders hold %d", it.ID, it.Sold, it.Total, sold[it.ID])
		}
		if it.Awaiting != due[it.ID] {
			t.Errorf("item %s: %d await payment, and its orders say %d", it.ID, it.Awaiting, due[it.ID])
		}
		counts := buyersOf(t, s, it.ID)
		for user, n := range held[it.ID] {
			if counts[user] != n || n > it.PerUserLimit {
				t.Errorf("item %s: %s holds %d, counted %d, limit %d", it.ID, user, n, counts[user], it.PerUserLimit)
			}
			delete(counts, user)
		}
		for user, n := range counts {
			if n != 0 {
				t.Errorf("item %s: %s is counted with %d and holds nothing", it.ID, user, n)
			}
		}
	}
}

// site is the whole room at work: a service, its inventory and queue, and
// workers as a test starts them.
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
		return // the machine is too busy for a sign of life in time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errors = append(s.errors, err)
}

// randomName is a name no parallel test has, usable as an item's id.
func randomName(t testing.TB) string {
	return strings.NewReplacer("t:{", "", "}:", "").Replace(redistest.Prefix(t))
}

// newQueue returns a queue of the test's own in the one partition.
func newQueue(t testing.TB, rdb redis.UniversalClient, cfg queue.Config) *queue.Queue {
	t.Helper()
	cfg.Prefix = "fs:{p0}:t" + randomName(t) + ":"
	q, err := queue.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// newSite builds the room as a process does, without a worker and with an
// item of the given stock on sale.
func newSite(t *testing.T, rdb *redis.Client, volatile bool, n NewItem) *site {
	t.Helper()
	s := newSiteWith(t, rdb, n, inventory.Config{})
	s.service.Volatile = volatile
	return s
}

// newSiteWith is newSite with an inventory of the test's own settings.
func newSiteWith(t *testing.T, rdb *redis.Client, n NewItem, cfg inventory.Config) *site {
	t.Helper()
	return newSiteOn(t, newQueue(t, rdb, queue.Config{}), rdb, n, cfg)
}

// newSiteOn is newSiteWith with a queue of the test's own settings.
func newSiteOn(t *testing.T, q *queue.Queue, rdb *redis.Client, n NewItem, cfg inventory.Config) *site {
	t.Helper()
	s := &site{t: t, rdb: rdb, queue: q, store: newStore(t), waiters: NewWaiters(), item: "item-" + randomName(t)}
	locks, err := lock.New(rdb, patientLocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(locks.Close) })
	sales := &Sales{Store: s.store, Tasks: []Tasks{s.queue}, Partition: func(string) int { return 0 }}
	cfg.Patience, cfg.LookLimit, cfg.OnError = 20*time.Second, limit, s.heard
	s.archive = &watchedArchive{Archive: NewEndedSales(s.store, inventory.NewQueuedIndex(rdb, q))}
	cfg.Archive = s.archive
	cfg.MayLoad = func(ctx context.Context, items []string) (map[string]error, error) {
		return s.store.HighWater().MayLoad(ctx, items)
	}
	s.stock, err = inventory.New(await.Context(t), rdb, locks, []*queue.Queue{s.queue}, sales, cfg)
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

// work starts a worker; stop ends it and waits, and may be called again.
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

// purchase is one buyer's wish for the site's item.
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

// drained waits until every queued order has left the queue, and only those
// are in it that wait for the time at which an order expires.
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

var errTest = errors.New("the test ended it")
