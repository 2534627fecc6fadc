//go:build unix

package main_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order/store/postgres"
	"flashsale/queue"
)

// secret is the key that signs the tests' tokens.
const secret = "process-tests-secret-of-more-than-32-bytes"

// shop is one deployment: a directory with a database, possibly a Redis, and the processes that
// a test starts.
type shop struct {
	t      *testing.T
	dir    string
	dbPath string            // of the file; "": the database is on Postgres
	dbURL  string            // on Postgres
	server *redistest.Server // nil: the embedded engine
	rdb    *redis.Client     // nil: the embedded engine, which only its own process reaches
	tasks  *queue.Queue      // nil: the same
	db     *sql.DB
}

// newShop returns an empty directory for `flashsale serve` on embedded engines.
func newShop(t *testing.T) *shop {
	t.Helper()
	dir := t.TempDir()
	s := &shop{t: t, dir: dir}
	var db *sql.DB
	var err error
	if postgrestest.Chosen(t) {
		s.dbURL = postgrestest.NewDatabase(t)
		db, err = openServer(s.dbURL)
	} else {
		s.dbPath = filepath.Join(dir, "shop.db")
		db, err = sql.Open("sqlite3", "file:"+s.dbPath+"?_busy_timeout=10000&_query_only=true")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
	})
	s.db = db
	return s
}

// newRedisShop returns a migrated database with its own Redis, for api and worker. The machine
// does not lose power in these tests, so Redis syncs once a second: syncing each write would
// make the tests depend on the disk of a busy machine.
func newRedisShop(t *testing.T) *shop {
	t.Helper()
	return newShopOn(t, redistest.Real(t, "--appendfsync", "everysec"))
}

// newShopOn returns a migrated database with the given Redis.
func newShopOn(t *testing.T, server *redistest.Server) *shop {
	t.Helper()
	s := newShop(t)
	s.useRedis(server)
	if r := s.run("migrate", "up"); r.Code != 0 {
		t.Fatalf("migrate up: exit code %d\n%s", r.Code, r.Output)
	}
	return s
}

// useRedis sets the Redis of the processes that are started from now on.
func (s *shop) useRedis(server *redistest.Server) {
	s.t.Helper()
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	s.t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			s.t.Errorf("close redis client: %v", err)
		}
	})
	tasks, err := queue.New(rdb, queue.Config{Prefix: inventory.QueuePrefix(0, 1)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.server, s.rdb, s.tasks = server, rdb, tasks
}

// engines runs fn with both kinds of deployment: everything in one process on embedded engines,
// and separate api and worker processes on a real Redis. args are passed to the API.
func engines(t *testing.T, args []string, fn func(t *testing.T, s *shop, c *client)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := newShop(t)
		fn(t, s, dial(t, s.serve(args...)))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		s := newRedisShop(t)
		s.worker()
		fn(t, s, dial(t, s.api(args...)))
	})
}

// database is the setting of the shop's database.
func (s *shop) database() string {
	if s.dbURL != "" {
		return s.dbURL
	}
	return "sqlite:" + s.dbPath
}

// open opens the shop's database for changes by the test.
func (s *shop) open() (*sql.DB, error) {
	if s.dbURL != "" {
		return openServer(s.dbURL)
	}
	return sql.Open("sqlite3", "file:"+s.dbPath+"?_busy_timeout=10000")
}

// openServer opens a database on Postgres for statements with the placeholders of the service.
func openServer(url string) (*sql.DB, error) {
	db, err := postgres.Open(url, 4)
	if err != nil {
		return nil, err
	}
	return db.DB()
}

// needSQLite skips a test of SQLite's file if the tests use Postgres.
func needSQLite(t *testing.T) {
	t.Helper()
	if postgrestest.Chosen(t) {
		t.Skip("tests SQLite's file")
	}
}

// needSynced skips a test that expects the doctor to be content if the tests use Postgres: their
// server does not sync, which the doctor reports.
func needSynced(t *testing.T) {
	t.Helper()
	if postgrestest.Chosen(t) {
		t.Skip("the doctor refuses the tests' Postgres, which runs without fsync")
	}
}

// settings are the arguments of each process of the shop.
func (s *shop) settings(args ...string) []string {
	all := []string{"--db", s.database(), "--data-dir", s.dir, "--log-format", "json"}
	if s.server != nil {
		all = append(all, "--redis", "redis://"+s.server.Addr()+"/0")
	}
	return append(all, args...)
}

func (s *shop) spec(command string, args []string) process.Spec {
	s.t.Helper()
	return process.Spec{
		Binary:  process.Build(s.t),
		Command: command, Args: s.settings(args...), Dir: s.dir,
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	}
}

func (s *shop) serve(args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, s.spec("serve", append([]string{"--demo=false"}, args...)))
}

func (s *shop) api(args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, s.spec("api", args))
}

func (s *shop) worker(args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, s.spec("worker", args))
}

// faulty starts a process of the build with fault points that kills or stops itself at the
// point named by fault; see package faultpoint.
func (s *shop) faulty(fault, command string, args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, s.faultySpec(fault, command, args))
}

func (s *shop) faultySpec(fault, command string, args []string) process.Spec {
	s.t.Helper()
	spec := s.spec(command, args)
	spec.Binary = process.Build(s.t, "-tags", "faultpoint")
	spec.Env = append(spec.Env, "FAULTPOINT="+fault)
	return spec
}

// run runs a command of the service that ends without a signal, with the shop's settings. They are in
// the environment, because no command reads them all.
func (s *shop) run(args ...string) process.Result {
	s.t.Helper()
	return s.runWith([]string{"FLASHSALE_JWT_SECRET=" + secret}, args...)
}

// runWith is run with other variables than that of the key.
func (s *shop) runWith(env []string, args ...string) process.Result {
	s.t.Helper()
	env, settings := slices.Clip(env), s.settings()
	for i := 0; i < len(settings); i += 2 {
		env = append(env, config.EnvName(strings.TrimPrefix(settings[i], "--"))+"="+settings[i+1])
	}
	return process.Run(s.t, process.Spec{Args: args, Dir: s.dir, Env: env})
}

// struck waits until a process that was to kill itself has done so. Without this, a test could
// pass although its fault never happened.
func struck(t *testing.T, p *process.P) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("the fault never struck: %v", err)
	}
	if code != -1 {
		t.Fatalf("the process ended with code %d and not by the signal of its fault:\n%s", code, p.Log())
	}
}

// orderRow has the columns of the table orders that the tests check.
type orderRow struct {
	ID, User, Key, Status string
	Quantity              int64
}

// rows reads the orders of an item from the database.
func (s *shop) rows(item string) []orderRow {
	s.t.Helper()
	list, err := s.db.QueryContext(s.t.Context(),
		"SELECT id, user_id, idempotency_key, status, quantity FROM orders WHERE item_id = ?1", item)
	if err != nil {
		s.t.Fatalf("read orders: %v", err)
	}
	defer list.Close()
	var out []orderRow
	for list.Next() {
		var r orderRow
		if err := list.Scan(&r.ID, &r.User, &r.Key, &r.Status, &r.Quantity); err != nil {
			s.t.Fatalf("read orders: %v", err)
		}
		out = append(out, r)
	}
	if err := list.Err(); err != nil {
		s.t.Fatalf("read orders: %v", err)
	}
	return out
}

// sold is the count of sold units in the item's row.
func (s *shop) sold(item string) int64 {
	s.t.Helper()
	var n int64
	if err := s.db.QueryRowContext(s.t.Context(), "SELECT sold FROM items WHERE id = ?1", item).Scan(&n); err != nil {
		s.t.Fatalf("read item: %v", err)
	}
	return n
}

// stats counts the tasks of a shop on a real Redis: orders and expiries.
func (s *shop) stats() queue.Stats {
	s.t.Helper()
	st, err := s.tasks.Stats(s.t.Context())
	if err != nil {
		s.t.Fatalf("queue stats: %v", err)
	}
	more := s.expiries()
	st.Ready, st.Delayed, st.Leased, st.Dead = st.Ready+more.Ready, st.Delayed+more.Delayed, st.Leased+more.Leased, st.Dead+more.Dead
	return st
}

// expiries counts the tasks that expire orders.
func (s *shop) expiries() queue.Stats {
	s.t.Helper()
	q, err := queue.New(s.rdb, queue.Config{Prefix: inventory.ExpiryQueuePrefix(0, 1)})
	if err != nil {
		s.t.Fatal(err)
	}
	st, err := q.Stats(s.t.Context())
	if err != nil {
		s.t.Fatalf("queue stats: %v", err)
	}
	return st
}

// holder is the value of the item's lock; empty if no process holds it.
func (s *shop) holder(item string) string {
	s.t.Helper()
	v, err := s.rdb.Get(s.t.Context(), strings.TrimSuffix(inventory.QueuePrefix(0, 1), "q:orders:")+"sale:"+item+":lock").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Fatalf("read lock: %v", err)
	}
	return v
}

// lockDatabase takes the database's write lock from another connection, and returns a function
// that releases it.
func (s *shop) lockDatabase() (unlock func()) {
	s.t.Helper()
	locking := []string{"BEGIN EXCLUSIVE"}
	if s.dbURL != "" {
		// The check of writes needs no advisory lock.
		locking = []string{"BEGIN", fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", postgres.WriteLock), "LOCK TABLE meta IN EXCLUSIVE MODE"}
	}
	db, err := s.open()
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := db.Conn(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, text := range locking {
		if _, err := conn.ExecContext(s.t.Context(), text); err != nil {
			s.t.Fatalf("lock database: %v", err)
		}
	}
	open := true
	unlock = func() {
		if !open {
			return
		}
		open = false
		// The test's own context may have ended, but the lock must be released.
		if _, err := conn.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			s.t.Errorf("unlock database: %v", err)
		}
		if err := conn.Close(); err != nil {
			s.t.Errorf("unlock database: %v", err)
		}
		if err := db.Close(); err != nil {
			s.t.Errorf("unlock database: %v", err)
		}
	}
	s.t.Cleanup(unlock)
	return unlock
}

// newItem opens a sale through c and returns the item's id.
func (s *shop) newItem(c *client, stock, limit int64) string {
	s.t.Helper()
	id := "it-" + uuid.NewString()[:8]
	a := c.admin("POST", "/v1/admin/items", map[string]any{
		"id": id, "name": "Thing", "description": "d", "price_minor": 990, "currency": "EUR",
		"stock": stock, "per_user_limit": limit,
	})
	if a.Status != 201 {
		s.t.Fatalf("create item: %d %s", a.Status, a.Body)
	}
	return id
}

// ledger is the conservation equation of an item, as in the API.
type ledger struct {
	Initial, Restocked, Left, Held, Sold int64
	Balanced                             bool
}

func (s *shop) ledger(c *client, item string) ledger {
	s.t.Helper()
	var a answer
	eventually(s.t, "the ledger", soon, func() (bool, any) {
		a = c.admin("GET", "/v1/admin/items/"+item+"/ledger", nil)
		return a.Status != 503, a.Body
	})
	if a.Status != 200 {
		s.t.Fatalf("ledger: %d %s", a.Status, a.Body)
	}
	var l ledger
	a.decode(s.t, &l)
	if got := l.Initial + l.Restocked; !l.Balanced || got != l.Left+l.Held+l.Sold {
		s.t.Fatalf("the ledger does not balance: %+v", l)
	}
	return l
}

// audit waits until no order of the item is in progress, and then checks that each order
// answered 201 or 202 is one row with its buyer and key, that there are no other rows, that the
// database's count, the rows and the ledger match, and that no buyer exceeds the limit. It
// returns the rows.
func (s *shop) audit(c *client, item string, limit int64, accepted []purchase) []orderRow {
	s.t.Helper()
	var l ledger
	eventually(s.t, "every order is settled", soon, func() (bool, any) {
		l = s.ledger(c, item)
		return l.Held == 0, l
	})
	rows := s.rows(item)
	byID := make(map[string]orderRow, len(rows))
	keys := make(map[string]string, len(rows))
	units, held := int64(0), make(map[string]int64)
	for _, r := range rows {
		if other, double := keys[r.User+" "+r.Key]; double {
			s.t.Errorf("two rows for one key: %s and %s, buyer %s, key %s", other, r.ID, r.User, r.Key)
		}
		keys[r.User+" "+r.Key] = r.ID
		byID[r.ID] = r
		if r.Status != "confirmed" {
			s.t.Errorf("order %s of %s is %s: the stock let it through and the database did not", r.ID, r.User, r.Status)
			continue
		}
		units += r.Quantity
		if held[r.User] += r.Quantity; held[r.User] > limit {
			s.t.Errorf("buyer %s holds %d, the limit is %d", r.User, held[r.User], limit)
		}
	}
	if sold := s.sold(item); sold != units || l.Sold != units || l.Left != l.Initial-units {
		s.t.Errorf("rows hold %d units, the item's row says %d, the ledger %+v", units, sold, l)
	}
	for _, p := range accepted {
		r, there := byID[p.Order.ID]
		if !there || r.User != p.user || r.Key != p.key || r.Quantity != p.Order.Quantity {
			s.t.Errorf("answered %d with order %s to %s for key %s, and its row is %+v", p.Status, p.Order.ID, p.user, p.key, r)
		}
	}
	return rows
}

// ids returns the sorted ids of the rows.
func ids(rows []orderRow) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = r.ID
	}
	slices.Sort(out)
	return out
}

// lasting returns a channel that is closed after d, or at the end of the test.
func lasting(t *testing.T, d time.Duration) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx.Done()
}
