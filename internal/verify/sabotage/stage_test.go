//go:build chaos && unix

package sabotage

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/mattn/go-sqlite3"    // the driver sqlite3
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/postgrestest"
	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
	"flashsale/internal/verify/history"
	"flashsale/internal/wire"
)

const (
	item    = "lamp"
	stock   = 200
	perUser = 4
	width   = 32 // concurrent buyers
	secret  = "sabotage-secret-of-more-than-32-bytes"
	// patience bounds every wait, and lookEvery is the pause between two checks.
	patience  = 2 * time.Minute
	lookEvery = 2 * time.Millisecond
	// askAgain is the pause before a purchase without a definite answer is repeated.
	askAgain = 50 * time.Millisecond
)

// stage is one sale of one item, with real processes and its own Redis and database.
type stage struct {
	t      *testing.T
	ctx    context.Context
	binary string
	dir    string
	server *redistest.Server
	rdb    *redis.Client
	db     *sql.DB
	url    string // of the database on Postgres; empty: SQLite
	apis   []*process.P
	rec    *history.Recorder
	path   string // the file of the history
	final  history.Final

	buyers  int // the number of buyers so far
	strikes int
	// askFor is how long a buyer repeats a purchase; gaveUp counts the buyers who never learned
	// the outcome.
	askFor  time.Duration
	gaveUp  atomic.Int64
	answers atomic.Int64
	mu      sync.Mutex
	idle    map[string][]*wire.Conn // by address
}

func newStage(t *testing.T, binary string) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	s := &stage{
		t: t, ctx: ctx, binary: binary, dir: t.TempDir(), askFor: patience, idle: make(map[string][]*wire.Conn),
		// The machine does not lose power in these tests.
		server: redistest.Real(t, "--appendfsync", "everysec"),
	}
	s.rdb = redis.NewClient(redistest.Options(s.server.Addr()))
	s.path = filepath.Join(s.dir, "history.jsonl")
	var err error
	if s.rec, err = history.Create(s.path); err != nil {
		t.Fatal(err)
	}
	if *database == "postgres" {
		s.url = postgrestest.NewDatabase(t)
	}
	s.openDB()
	t.Cleanup(func() {
		for _, conns := range s.idle {
			for _, c := range conns {
				_ = c.Close() //nolint:errcheck // everything was read from it
			}
		}
		s.must(errors.Join(s.rdb.Close(), s.db.Close()))
	})
	args := append([]string{"up"}, s.settings("")...)
	if r := process.Run(t, process.Spec{Binary: binary, Command: "migrate", Args: args, Dir: s.dir}); r.Code != 0 {
		t.Fatalf("migrate up: exit code %d\n%s", r.Code, r.Output)
	}
	return s
}

func (s *stage) openDB() {
	s.t.Helper()
	driver, dsn := "sqlite3", "file:"+s.dbPath()+"?_busy_timeout=10000"
	if s.url != "" {
		driver, dsn = "pgx", s.url
	}
	var err error
	if s.db, err = sql.Open(driver, dsn); err != nil {
		s.t.Fatal(err)
	}
}

// command runs a command of the service that must succeed.
func (s *stage) command(args ...string) {
	s.t.Helper()
	r := process.Run(s.t, process.Spec{
		Binary: s.binary, Command: args[0], Args: append(args[1:], s.settings("")...), Dir: s.dir,
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	})
	if r.Code != 0 {
		s.t.Fatalf("%s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Output)
	}
}

func (s *stage) dbPath() string { return filepath.Join(s.dir, "shop.db") }

func (s *stage) settings(redisAddr string) []string {
	if redisAddr == "" {
		redisAddr = s.server.Addr()
	}
	db := s.url
	if db == "" {
		db = "sqlite:" + s.dbPath()
	}
	return []string{"--db", db, "--data-dir", s.dir, "--log-format", "json", "--redis", "redis://" + redisAddr + "/0"}
}

func (s *stage) start(command, redisAddr string, args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, process.Spec{
		Binary: s.binary, Command: command, Args: append(s.settings(redisAddr), args...), Dir: s.dir,
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
	})
}

func (s *stage) worker() *process.P {
	s.t.Helper()
	return s.start("worker", "", "--lease", "1s")
}

// startAPI starts an API process that reaches Redis at an address ("": directly). It only
// reconciles if args say so, because damage must remain until the checker runs. A process whose
// sales are stopped is not ready.
func (s *stage) startAPI(redisAddr string, args ...string) *process.P {
	s.t.Helper()
	return process.Start(s.t, process.Spec{
		Binary: s.binary, Command: "api", Dir: s.dir, ReadyPath: "/healthz", Env: []string{"FLASHSALE_JWT_SECRET=" + secret},
		Args: append(s.settings(redisAddr), append([]string{"--rate-buyer", "-1", "--reconcile-every", "0"}, args...)...),
	})
}

// open starts API processes and puts the item on sale.
func (s *stage) open(apis int, redisAddr string, args ...string) {
	s.t.Helper()
	for range apis {
		s.apis = append(s.apis, s.startAPI(redisAddr, args...))
	}
	body := fmt.Sprintf(`{"id":%q,"name":"Lamp","price_minor":990,"currency":"EUR","stock":%d,"per_user_limit":%d}`, item, stock, perUser)
	status, text, err := s.send(0, "POST", "/v1/admin/items", "root", "admin", body)
	if err != nil || status != 201 {
		s.t.Fatalf("create item: %d %s %v", status, text, err)
	}
}

// key is a Redis key of the single partition, as documented in docs/ARCHITECTURE.md.
func (s *stage) key(name string) string { return "fs:{p0}:" + name }

func (s *stage) hget(name, field string) int64 {
	n, err := s.rdb.HGet(s.ctx, s.key(name), field).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		s.t.Errorf("read %s of %s: %v", field, name, err)
	}
	return n
}

func (s *stage) zcard(name string) int64 {
	n, err := s.rdb.ZCard(s.ctx, s.key(name)).Result()
	s.must(err)
	return n
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

func (s *stage) struck() { s.strikes++ }

// eventually waits for a condition, and fails the test if it does not become true in time.
func (s *stage) eventually(what string, ok func() bool) {
	s.t.Helper()
	if !s.within(patience, ok) {
		s.t.Errorf("waited in vain: %s", what)
	}
}

// within reports whether a condition became true in time.
func (s *stage) within(limit time.Duration, ok func() bool) bool {
	end := time.After(limit)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			return false
		case <-s.ctx.Done():
			return false
		}
	}
	return true
}

func (s *stage) lasts(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

// answered waits for n more answers.
func (s *stage) answered(n int64) {
	s.t.Helper()
	want := s.answers.Load() + n
	s.eventually(fmt.Sprintf("%d more answers", n), func() bool { return s.answers.Load() >= want })
}

// send sends one request. After an error its outcome is unknown.
func (s *stage) send(api int, method, path, user, role, body string, headers ...string) (status int, text []byte, err error) {
	claims := jwt.MapClaims{"sub": user, "role": role, "aud": "flashsale", "exp": time.Now().Add(time.Hour).Unix()}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
	if err != nil {
		return 0, nil, err
	}
	addr := s.apis[api].URL()
	target, err := wire.ParseTarget(addr)
	if err != nil {
		return 0, nil, err
	}
	conn, err := s.conn(addr, target)
	if err != nil {
		return 0, nil, err
	}
	q := new(wire.Request).Start(method, target, path).Header("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		q.Header(headers[i], headers[i+1])
	}
	end := q.NoBody
	if body != "" {
		q.Header("Content-Type", "application/json")
		end = func() ([]byte, error) { return q.Body([]byte(body)) }
	}
	raw, err := end()
	if err != nil {
		return 0, nil, err
	}
	res, err := conn.Do(raw)
	if err != nil {
		return 0, nil, errors.Join(err, conn.Close())
	}
	text = append([]byte(nil), res.Body...)
	if string(res.Header("Idempotent-Replayed")) == "true" {
		status = replayed
	}
	status += res.Status
	if conn.Usable() {
		s.mu.Lock()
		s.idle[addr] = append(s.idle[addr], conn)
		s.mu.Unlock()
		return status, text, nil
	}
	return status, text, conn.Close()
}

// replayed is added to the status of an answer that is marked as a replay.
const replayed = 1000

// conn returns an idle connection, or opens one.
func (s *stage) conn(addr string, target wire.Target) (*wire.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if list := s.idle[addr]; len(list) > 0 {
		s.idle[addr] = list[:len(list)-1]
		return list[len(list)-1], nil
	}
	conn, err := wire.Dial(s.ctx, target)
	if err == nil {
		conn.Timeout = 20 * time.Second
	}
	return conn, err
}

// purchase is one purchase to make.
type purchase struct{ user, key string }

// fresh returns n purchases of new buyers.
func (s *stage) fresh(n int) []purchase {
	list := make([]purchase, n)
	for i := range list {
		s.buyers++
		list[i] = purchase{"buyer" + strconv.Itoa(s.buyers), "key" + strconv.Itoa(s.buyers)}
	}
	return list
}

// crowd makes purchases concurrently, each until its answer is definite, and repeats every
// third one. It calls meanwhile during the purchases.
func (s *stage) crowd(purchases []purchase, meanwhile ...func()) {
	s.t.Helper()
	var all sync.WaitGroup
	next := make(chan int, len(purchases))
	for i := range purchases {
		next <- i
	}
	close(next)
	for client := range min(width, len(purchases)) {
		all.Go(func() {
			for i := range next {
				s.settle(client, purchases[i])
				if i%3 == 0 {
					s.settle(client, purchases[i])
				}
			}
		})
	}
	for _, do := range meanwhile {
		do()
	}
	all.Wait()
}

// settle repeats a purchase until its answer is definite or its buyer gives up.
func (s *stage) settle(client int, w purchase) {
	end := time.Now().Add(s.askFor)
	for {
		c := s.buy(client, w)
		s.rec.Record(&c)
		s.answers.Add(1)
		if c.Known() || s.ctx.Err() != nil {
			return
		}
		if time.Now().After(end) {
			s.gaveUp.Add(1)
			return
		}
		s.lasts(askAgain)
	}
}

func (s *stage) buy(client int, w purchase) history.Call {
	c := history.Call{Client: client, Op: history.Buy, User: w.user, Item: item, Quantity: 1, Key: w.key, Start: s.rec.Now()}
	status, text, err := s.send(client%len(s.apis), "POST", "/v1/items/"+item+"/orders", w.user, "buyer", `{"quantity":1}`, "Idempotency-Key", w.key)
	c.End = s.rec.Now()
	if err != nil {
		c.Err = err.Error()
		return c
	}
	c.Status, c.Replayed = status%replayed, status >= replayed
	var fields struct{ ID, Status, Code string }
	if c.Status >= 400 {
		var problem struct{ Code string }
		err = json.Unmarshal(text, &problem)
		c.Code = problem.Code
	} else {
		err = json.Unmarshal(text, &fields)
		c.Order, c.State = fields.ID, fields.Status
	}
	if err != nil {
		s.t.Errorf("%s: %v", text, err)
	}
	return c
}

// lockDatabase prevents all other writes until unlock.
func (s *stage) lockDatabase() (unlock func()) {
	s.t.Helper()
	lock := "BEGIN EXCLUSIVE"
	if s.url != "" {
		lock = "BEGIN; LOCK TABLE orders IN EXCLUSIVE MODE"
	}
	conn, err := s.db.Conn(s.ctx)
	if err == nil {
		_, err = conn.ExecContext(s.ctx, lock)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		_, err := conn.ExecContext(context.WithoutCancel(s.ctx), "ROLLBACK")
		s.must(errors.Join(err, conn.Close()))
	})
}

// backUp copies the database, and returns a function that restores the copy while no process runs.
func (s *stage) backUp() (restore func()) {
	s.t.Helper()
	if s.url == "" {
		file := filepath.Join(s.dir, "backup.db")
		s.command("backup", file)
		return func() { s.command("restore", file) }
	}
	file := filepath.Join(s.dir, "backup.dump")
	s.tool("pg_dump", "--format=custom", "--file="+file, "--dbname="+s.url)
	return func() { s.tool("pg_restore", "--clean", "--if-exists", "--exit-on-error", "--dbname="+s.url, file) }
}

// tool runs a program of Postgres that must succeed.
func (s *stage) tool(name string, args ...string) {
	s.t.Helper()
	if text, err := exec.CommandContext(s.ctx, postgrestest.Program(s.t, name), args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

// watchFences samples the fencing tokens until stop.
func (s *stage) watchFences() (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			lock, err := s.rdb.Get(ctx, s.key("sale:"+item)+":lock:fence").Result()
			// "0w" is not a token: a process waits for a lock whose last token is unknown.
			if n, bad := strconv.ParseInt(strings.TrimSuffix(lock, "w"), 10, 64); err == nil && bad == nil && n > 0 {
				s.final.Fences = append(s.final.Fences, history.FenceSample{At: s.rec.Now(), Item: item, Source: history.SourceLock, Fence: n})
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// drained waits until no order waits for its commit.
func (s *stage) drained() {
	s.t.Helper()
	s.eventually("the queue is empty", func() bool {
		// In one step: a task moves from one set to another.
		var sets [3]*redis.IntCmd
		_, err := s.rdb.TxPipelined(s.ctx, func(p redis.Pipeliner) error {
			for i, set := range []string{"ready", "leased", "delayed"} {
				sets[i] = p.ZCard(s.ctx, s.key("q:orders:"+set))
			}
			return nil
		})
		s.must(err)
		return sets[0].Val()+sets[1].Val()+sets[2].Val() == 0
	})
}

// judge waits until all processing has ended, reads the final state, and judges the run.
func (s *stage) judge() history.Verdict {
	s.t.Helper()
	s.drained()
	s.must(s.rec.Close())
	it := history.Item{ID: item, Initial: stock, Limit: perUser, Exhausted: true}
	status, text, err := s.send(0, "GET", "/v1/admin/items/"+item+"/ledger", "root", "admin", "")
	if err != nil || status != 200 {
		s.t.Errorf("ledger: %d %s %v", status, text, err)
	} else if err := json.Unmarshal(text, &it.Ledger); err != nil {
		s.t.Errorf("ledger: %s: %v", text, err)
	}
	// A sale that was dropped is not compared, because its next purchase reloads it.
	it.Loaded = s.rdb.HExists(s.ctx, s.key("sale:"+item), "left").Val()
	it.Left, it.Fence = s.hget("sale:"+item, "left"), s.hget("sale:"+item, "fence")
	s.final.Items = []history.Item{it}
	s.final.Dead, err = history.DeadOrders(s.ctx, s.rdb, s.key("q:orders:"))
	s.must(err)
	rows, err := s.db.QueryContext(s.ctx, "SELECT id, user_id, item_id, quantity, idempotency_key, status, reason FROM orders")
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var o history.Order
		s.must(rows.Scan(&o.ID, &o.User, &o.Item, &o.Quantity, &o.Key, &o.Status, &o.Reason))
		s.final.Orders = append(s.final.Orders, o)
	}
	s.must(rows.Err())
	calls, err := history.ReadFile(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	return history.Check(calls, &s.final)
}
