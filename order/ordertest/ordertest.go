// Package ordertest makes tasks, items and databases for tests, and checks what must hold of
// the tables at every instant.
package ordertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"flashsale/internal/pause"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store/database"
	"flashsale/queue"
)

// Limit is the timeout for expected events; it is long because it only delays a failure.
const Limit = 5 * time.Minute

// PatientLocks keeps locks from expiring during a test, and calls from timing out on a busy
// machine, which may leave a lock behind until it expires.
var PatientLocks = lock.Config{TTL: 2 * time.Minute, ClaimTTL: time.Minute, Liveness: time.Minute, CallTimeout: 2 * time.Minute}

// Database is what fixtures need of a store.
type Database interface {
	Reader() *gorm.DB
	Writer() *gorm.DB
	Path() string
	URL() string
	Postgres() bool
}

// migrated is the file of an empty, migrated database. Migrations are most of the work of a
// small test under the race detector, so they run once.
var migrated = sync.OnceValues(func() (empty []byte, err error) {
	dir, err := os.MkdirTemp("", "order-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "empty.db")
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	m, err := migrations.New(db, "sqlite")
	if err == nil {
		_, err = m.Up(ctx)
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

// NewFile writes an empty, migrated database to path.
func NewFile(t testing.TB, path string) {
	t.Helper()
	empty, err := migrated()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, empty, 0o600); err != nil {
		t.Fatal(err)
	}
}

// NewItem describes an item on sale.
func NewItem(id string, stock, perUser int64) order.NewItem {
	return order.NewItem{ID: id, Name: "Thing", PriceMinor: 1999, Currency: "EUR", Stock: stock, PerUserLimit: perUser}
}

// Bought is the task of an accepted purchase.
func Bought(id, item, user, key string, quantity int64) order.Task {
	return order.Task{
		ID: id, ItemID: item, UserID: user, Quantity: quantity, UnitPriceMinor: 1999, Currency: "EUR",
		CreatedAt: 1_790_000_000_000, IdempotencyKey: key,
	}
}

// Distinct returns n tasks of n buyers.
func Distinct(prefix, item string, n int) []order.Task {
	tasks := make([]order.Task, n)
	for i := range tasks {
		tasks[i] = Bought(fmt.Sprintf("%s%04d", prefix, i), item, fmt.Sprintf("%su%d", prefix, i), "k", 1)
	}
	return tasks
}

// AllRows reads all orders, by id.
func AllRows(t testing.TB, s Database) map[string]schema.Order {
	t.Helper()
	var list []schema.Order
	if err := s.Reader().WithContext(await.Context(t)).Find(&list).Error; err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]schema.Order, len(list))
	for _, r := range list {
		rows[r.ID] = r
	}
	return rows
}

// ItemOf reads an item's row.
func ItemOf(t testing.TB, s Database, id string) schema.Item {
	t.Helper()
	var row schema.Item
	if err := s.Reader().WithContext(await.Context(t)).Where("id = ?", id).Take(&row).Error; err != nil {
		t.Fatal(err)
	}
	return row
}

// BuyersOf reads the units that each buyer holds of an item.
func BuyersOf(t testing.TB, s Database, item string) map[string]int64 {
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

// AuditStore checks the invariants of the tables: for each item sum(held orders) = sold <=
// total, each buyer's count is the sum of the buyer's orders and within the limit, and
// there is one row per buyer, item and key.
func AuditStore(t testing.TB, s Database) {
	t.Helper()
	sold := map[string]int64{}
	due := map[string]int64{}
	held := map[string]map[string]int64{}
	keys := map[string]string{}
	for id, r := range AllRows(t, s) {
		k := r.UserID + " " + r.ItemID + " " + r.IdempotencyKey
		if other, ok := keys[k]; ok {
			t.Errorf("orders %s and %s share a buyer, item and key", id, other)
		}
		keys[k] = id
		if !r.Holds() {
			continue
		}
		sold[r.ItemID] += r.Quantity
		if r.Status == string(order.StatusConfirmed) && r.ExpiresAt > 0 {
			due[r.ItemID] += r.Quantity
		}
		if held[r.ItemID] == nil {
			held[r.ItemID] = map[string]int64{}
		}
		held[r.ItemID][r.UserID] += r.Quantity
	}
	var items []schema.Item
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
		counts := BuyersOf(t, s, it.ID)
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

// RandomName returns a name that no parallel test has, usable as an item's id.
func RandomName(t testing.TB) string {
	return strings.NewReplacer("t:{", "", "}:", "").Replace(redistest.Prefix(t))
}

// NewQueue returns the test's own queue in the only partition.
func NewQueue(t testing.TB, rdb redis.UniversalClient, cfg queue.Config) *queue.Queue {
	t.Helper()
	cfg.Prefix = "fs:{p0}:t" + RandomName(t) + ":"
	q, err := queue.New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// ErrTest is the error that tests inject.
var ErrTest = errors.New("the test ended it")

// Clock is a store's clock that the test sets, in Unix milliseconds.
type Clock struct{ atomic.Int64 }

// NewClock returns a clock that shows the present.
func NewClock() *Clock {
	c := new(Clock)
	c.Store(time.Now().UnixMilli())
	return c
}

// Now makes it the clock of a store.
func (c *Clock) Now() time.Time { return time.UnixMilli(c.Load()) }

// ClockFunc makes a function the clock of a store.
type ClockFunc func() time.Time

// Now calls the function.
func (f ClockFunc) Now() time.Time { return f() }

// ItemNow calls the function.
func (f ClockFunc) ItemNow(string) time.Time { return f() }

// ItemNow is Now.
func (c *Clock) ItemNow(string) time.Time { return c.Now() }

// Asking is an item with a payment window.
func Asking(id string, stock, perUser int64, window time.Duration) order.NewItem {
	n := NewItem(id, stock, perUser)
	n.PaymentWindow = window
	return n
}

// Money is a payment of an order with that quantity.
func Money(reference string, quantity int64) order.Payment {
	return order.Payment{Reference: reference, AmountMinor: 1999 * quantity, Currency: "EUR"}
}

// PaymentsOf reads outcome and order of every payment by reference.
func PaymentsOf(t testing.TB, s Database) map[string]string {
	t.Helper()
	var list []struct {
		Reference, OrderID, Outcome, ReceivedAs, Currency string
		AmountMinor, ReceivedAt, RefundedAt               int64
	}
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT * FROM payments").Scan(&list).Error; err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string, len(list))
	for _, p := range list {
		out[p.Reference] = p.OrderID + " " + p.Outcome
		if p.AmountMinor <= 0 || p.ReceivedAt <= 0 || (p.Outcome != p.ReceivedAs) != (p.RefundedAt > 0) {
			t.Errorf("payment %+v", p)
		}
	}
	return out
}

// ReleasesOf reads the orders with pending releases.
func ReleasesOf(t testing.TB, s Database) []string {
	t.Helper()
	var ids []string
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT order_id FROM releases ORDER BY order_id").Scan(&ids).Error; err != nil {
		t.Fatal(err)
	}
	return ids
}

// Root is the author of the changes of these tests.
var Root = order.By{Actor: "root", RequestID: "r-1"}

// Busy reports whether a call failed because the machine is busy, so that it can be repeated.
func Busy(err error) bool {
	return errors.Is(err, inventory.ErrUnavailable) || errors.Is(err, inventory.ErrRebuilding) || errors.Is(err, database.ErrUnavailable)
}

// Retried repeats a call that failed because the machine is busy.
func Retried[T any](t testing.TB, what func() (T, error)) (T, error) {
	t.Helper()
	ctx := await.Context(t)
	for {
		v, err := what()
		if !Busy(err) || !pause.For(ctx, 5*time.Millisecond) {
			return v, err
		}
	}
}

// AuditLog reads the audit log of an item, oldest first, each entry as one line.
func AuditLog(t testing.TB, s Database, item string) []string {
	t.Helper()
	var lines []string
	err := s.Reader().WithContext(await.Context(t)).Raw(
		"SELECT actor || ' ' || request_id || ' ' || action || ' ' || before || ' -> ' || after FROM audit WHERE item_id = ? ORDER BY id", item,
	).Scan(&lines).Error
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// StockLedger checks that an item's initial stock and its restocks add up to its total, and
// returns the number of restocks.
func StockLedger(t testing.TB, s Database, item string) int {
	t.Helper()
	var rows []struct {
		Quantity, TotalAfter, At int64
		Actor, Reason            string
	}
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT * FROM stock_changes WHERE item_id = ? ORDER BY id", item).Scan(&rows).Error; err != nil {
		t.Fatal(err)
	}
	row := ItemOf(t, s, item)
	total := row.Initial
	for _, r := range rows {
		total += r.Quantity
		if r.TotalAfter != total || r.Actor == "" || r.Reason == "" || r.At <= 0 {
			t.Errorf("after %d units follows %+v", total, r)
		}
	}
	if total != row.Total {
		t.Errorf("the ledger adds up to %d, the total is %d", total, row.Total)
	}
	return len(rows)
}

// Ptr returns a pointer to v.
func Ptr[T any](v T) *T { return &v }

// Long is a wait that only the commit ends.
const Long = Limit

// Leased returns tasks as a worker gets them.
func Leased(tasks ...order.Task) []queue.Leased {
	out := make([]queue.Leased, len(tasks))
	for i := range tasks {
		out[i] = queue.Leased{ID: tasks[i].ID, Payload: order.AppendTask(nil, &tasks[i]), Attempt: 1}
	}
	return out
}

// MustEnqueue queues tasks.
func MustEnqueue(t *testing.T, q *queue.Queue, list []queue.Leased) {
	t.Helper()
	tasks := make([]queue.Task, len(list))
	for i, l := range list {
		tasks[i] = queue.Task{ID: l.ID, Payload: l.Payload}
	}
	status, err := q.Enqueue(await.Context(t), tasks...)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range status {
		if s != queue.StatusOK {
			t.Fatalf("enqueue %s: %v", tasks[i].ID, s)
		}
	}
}

// StatsOf reads the lengths of a queue.
func StatsOf(t *testing.T, q *queue.Queue) queue.Stats {
	t.Helper()
	st, err := q.Stats(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return queue.Stats{Ready: st.Ready, Delayed: st.Delayed, Leased: st.Leased, Dead: st.Dead, Paused: st.Paused}
}

// Followed reports whether a verdict adds one task.
func Followed(err error) bool {
	return err != nil && err.Error() == queue.Then(queue.Task{}).Error()
}

// Verdicts are the outcomes in short: "confirmed", or "rejected" with the reason.
func Verdicts(out []order.Outcome) []string {
	var v []string
	for _, o := range out {
		v = append(v, strings.TrimSpace(string(o.Status)+" "+o.Reason))
	}
	return v
}

// WantVerdicts compares outcomes in short.
func WantVerdicts(t *testing.T, out []order.Outcome, want ...string) {
	t.Helper()
	if got := Verdicts(out); !slices.Equal(got, want) {
		t.Errorf("verdicts are %q, want %q", got, want)
	}
}

// RejectedPrefix begins the verdict of a rejected order, before its reason.
const RejectedPrefix = "rejected "

// Ignore drops an error that the change must return.
func Ignore(err, want error) error {
	if fmt.Sprint(err) == want.Error() {
		return nil
	}
	return fmt.Errorf("got %w, want %w", err, want)
}

// Expiries are expiry tasks as a worker gets them.
func Expiries(ids ...string) []queue.Leased {
	out := make([]queue.Leased, len(ids))
	for i, id := range ids {
		tk := order.ExpiryTask(id, "item", 1, id)
		out[i] = queue.Leased{ID: tk.ID, Payload: tk.Payload, Attempt: 1, Options: queue.Options{Type: tk.Type}}
	}
	return out
}

// PaymentIDs reads the ids of the payments by reference.
func PaymentIDs(t testing.TB, s Database) map[string]int64 {
	t.Helper()
	var list []struct {
		ID        int64
		Reference string
	}
	if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT id, reference FROM payments").Scan(&list).Error; err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]int64, len(list))
	for _, p := range list {
		ids[p.Reference] = p.ID
	}
	return ids
}

// SubscribeAll adds a webhook endpoint with all subscriptions, so that every event is written,
// and returns a function that counts the events.
func SubscribeAll(t *testing.T, s Database) func() int {
	t.Helper()
	var all []string
	for _, kind := range order.EventTypes {
		all = append(all, string(kind))
	}
	err := s.Writer().Exec(`INSERT INTO webhook_endpoints (id, url, events, secret, created_at, updated_at)
		VALUES ('we_1', 'http://127.0.0.1:1/', ?, 's', 1, 1)`, strings.Join(all, " ")).Error
	if err != nil {
		t.Fatal(err)
	}
	return func() int {
		var n int
		if err := s.Reader().Raw("SELECT count(*) FROM webhook_events").Scan(&n).Error; err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// Plan returns SQLite's plan for a statement, a line per step. On Postgres it skips the test:
// plans depend on the data there.
func Plan(t *testing.T, s Database, query string, args ...any) string {
	t.Helper()
	NeedSQLite(t)
	db, err := s.Reader().DB()
	if err != nil {
		t.Fatal(err)
	}
	rows, err := db.QueryContext(await.Context(t), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close() //nolint:errcheck // what is only read loses nothing
	var lines []string
	for rows.Next() {
		var id, parent, unused int
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
