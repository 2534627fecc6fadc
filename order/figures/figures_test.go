package figures

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// every is the interval of the tests' events.
const every = 20 * time.Millisecond

// member is one process of a test's deployment.
type member struct {
	*Figures
	t        *testing.T
	counters *Counters
	wanted   Wanted
	stop     func() // ends Run; may be called twice
}

// join starts the figures of a process.
func join(t *testing.T, rdb redis.UniversalClient, kind string, change ...func(*Config)) *member {
	t.Helper()
	m := &member{t: t, counters: NewCounters([]string{"sold_out"}), wanted: NewWanted()}
	cfg := Config{
		Redis: rdb, Counters: m.counters, Wanted: m.wanted, Every: every,
		Process: Process{Kind: kind, Host: "host:1", Version: "v1"},
		OnError: func(err error) { t.Errorf("%s: %v", kind, err) },
		// A busy machine may need longer for a round than a service's events can wait.
		roundLimit: await.Limit,
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if m.Figures, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	m.stop = func() { cancel(); running.Wait() }
	t.Cleanup(m.stop)
	return m
}

// reader reads the events of one watcher.
type reader struct {
	t    *testing.T
	look func() ([]byte, error)
	stop func()
	woke chan struct{}
}

func (m *member) watch(items ...string) *reader {
	m.t.Helper()
	r := &reader{t: m.t, woke: make(chan struct{}, 1)}
	var err error
	r.look, r.stop, err = m.Watch(items, func() {
		select {
		case r.woke <- struct{}{}:
		default:
		}
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(r.stop)
	return r
}

// shown is an event as a client reads it.
type shown struct {
	Complete bool
	Accepted *float64 `json:"accepted_per_second"`
	Totals   struct {
		Accepted, Committed, Refused int64
	}
	Queue     *Queue
	Breakers  struct{ Open *int64 }
	Latency   map[string]map[string]*float64
	Items     []item
	Processes []process
}

// next returns the next event.
func (r *reader) next() (shown, error) {
	r.t.Helper()
	limit := await.Context(r.t)
	for {
		b, err := r.look()
		if b == nil && err == nil {
			select {
			case <-r.woke:
				continue
			case <-limit.Done():
				r.t.Fatal("waited in vain for an event")
			}
		}
		if err != nil {
			return shown{}, err
		}
		var e shown
		body, ok := strings.CutPrefix(string(b), eventHead)
		if body, ok2 := strings.CutSuffix(body, eventTail); !ok || !ok2 || strings.Contains(body, "\n") || json.Unmarshal([]byte(body), &e) != nil {
			r.t.Fatalf("event %q", b)
		}
		return e, nil
	}
}

// until reads events until one is as expected.
func (r *reader) until(what string, ok func(*shown) bool) shown {
	r.t.Helper()
	began := time.Now()
	for {
		e, err := r.next()
		if err != nil {
			r.t.Fatalf("waiting for %s: %v", what, err)
		}
		if ok(&e) {
			return e
		}
		if time.Since(began) > await.Limit {
			r.t.Fatalf("waited in vain for %s, last %s", what, text(e))
		}
	}
}

// closeAtEnd closes a client at the end of the test.
func closeAtEnd(t *testing.T, rdb *redis.Client) {
	t.Helper()
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
}

// engines runs a test on the embedded Redis, a server of its own and a cluster.
func engines(t *testing.T, fn func(t *testing.T, rdb redis.UniversalClient)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { t.Parallel(); fn(t, redistest.Embedded(t)) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		rdb := redis.NewClient(redistest.Options(redistest.Real(t).Addr()))
		closeAtEnd(t, rdb)
		fn(t, rdb)
	})
	t.Run("cluster", func(t *testing.T) { t.Parallel(); fn(t, redistest.OwnCluster(t).Client(t)) })
}

// Two API processes and a worker: the process that is watched adds up what all of them count.
// A process that leaves disappears at once, and its counts stay in the totals.
func TestFigures_SumOfAllProcesses(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, rdb redis.UniversalClient) {
		shows, sells, works := join(t, rdb, "api"), join(t, rdb, "api"), join(t, rdb, "worker")
		shows.counters.Accepted("before", 1000) // before any client watched
		r := shows.watch()
		r.until("its own figures", func(e *shown) bool { return len(e.Processes) == 1 && e.Accepted != nil })
		for _, m := range []*member{sells, works} {
			m.wanted.Set() // the key exists now
		}
		r.until("all processes", func(e *shown) bool { return len(e.Processes) == 3 && e.Complete })
		shows.counters.Accepted("x", 3)
		sells.counters.Accepted("x", 4)
		sells.counters.Refused("sold_out")
		sells.counters.Answered(201, 10*time.Millisecond)
		shows.counters.Answered(201, 20*time.Millisecond)
		works.counters.Committed(7)
		e := r.until("the sums", func(e *shown) bool {
			return e.Totals.Accepted >= 7 && e.Totals.Committed >= 7 && e.Totals.Refused >= 1
		})
		if e.Totals.Accepted != 7 || e.Totals.Committed != 7 || e.Totals.Refused != 1 {
			t.Errorf("totals %+v", e.Totals)
		}
		sells.stop()
		e = r.until("two processes", func(e *shown) bool { return len(e.Processes) == 2 })
		if !e.Complete || e.Totals.Accepted != 7 {
			t.Errorf("after a process has left: complete %v, totals %+v", e.Complete, e.Totals)
		}
		r.stop()
		await.True(t, "the keys to expire", func() bool {
			n, err := rdb.Exists(await.Context(t), reportsKey, WatchedKey).Result()
			return err == nil && n == 0
		})
	})
}

// counter counts the commands that a client sends.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmds)
	}
}

// A hundred watchers get the same bytes from one loop: one command per event, however many watch.
// Without watchers there are no commands.
func TestFigures_ManyWatchersCostOneLoop(t *testing.T) {
	t.Parallel()
	rdb, count := redistest.Embedded(t), &counter{}
	rdb.AddHook(count)
	m := join(t, rdb, "api")
	if n := count.n.Load(); n != 0 {
		t.Errorf("%d commands without a watcher", n)
	}
	readers := make([]*reader, defaultWatchers)
	for i := range readers {
		readers[i] = m.watch()
	}
	if _, _, err := m.Watch(nil, nil); !errors.Is(err, ErrTooManyWatchers) {
		t.Errorf("one watcher more: %v", err)
	}
	for _, r := range readers {
		r.until("an event", func(*shown) bool { return true })
	}
	before, events := count.n.Load(), int64(0)
	for range 20 {
		if _, err := readers[0].next(); err != nil {
			t.Fatal(err)
		}
		events++
	}
	// An event may have been skipped by the reader, but not twenty times a hundred.
	if n := count.n.Load() - before; n > 10*events {
		t.Errorf("%d commands for %d events", n, events)
	}
	for _, r := range readers[1:] {
		<-r.woke
	}
	m.mu.Lock()
	var first []byte
	for _, v := range m.views {
		for w := range v.watchers {
			if w.frame == nil {
				continue
			}
			if first == nil {
				first = w.frame
			}
			if &first[0] != &w.frame[0] {
				t.Error("watchers have copies")
			}
		}
	}
	m.mu.Unlock()
	for _, r := range readers {
		r.stop()
		r.stop() // has no effect
	}
	if n := m.Watchers(); n != 0 {
		t.Errorf("%d watchers left", n)
	}
	await.True(t, "the end of the loop", func() bool { return !m.counters.counting.Load() })
	quiet := count.n.Load()
	if m.watch().until("an event", func(*shown) bool { return true }); count.n.Load() == quiet {
		t.Error("no command for a new watcher")
	}
}

// A reader that does not look gets the newest event, and no others.
func TestFigures_SlowReaderGetsTheNewest(t *testing.T) {
	t.Parallel()
	m := join(t, redistest.Embedded(t), "serve")
	slow, quick := m.watch(), m.watch()
	slow.until("an event", func(*shown) bool { return true })
	quick.until("own figures", func(e *shown) bool { return e.Accepted != nil })
	m.counters.Accepted("x", 5)
	quick.until("the order", func(e *shown) bool { return e.Totals.Accepted == 5 })
	e, err := slow.next()
	if err != nil || e.Totals.Accepted != 5 {
		t.Errorf("%+v, %v", e.Totals, err)
	}
}

// sources serve two items, one of which is not loaded.
func sources() Sources {
	return Sources{
		Queues:  func(context.Context) (*Queue, *Queue, error) { return &Queue{Orders: 3}, &Queue{}, nil },
		Workers: func() *Workers { return &Workers{Live: 1} },
		Item: func(_ context.Context, id string) (catalog.Item, error) {
			return catalog.Item{ID: id, Name: "Name of " + id, StockTotal: 10, Control: catalog.ControlOpen}, nil
		},
		Left: func(_ context.Context, ids []string) ([]int64, error) {
			left := make([]int64, len(ids))
			for i, id := range ids {
				if left[i] = 4; id == "cold" {
					left[i] = -1
				}
			}
			return left, nil
		},
		Lock: func(context.Context, string) (*Lock, error) { return &Lock{Fence: 8}, nil },
		Now:  func(string) time.Time { return start },
	}
}

// A watcher sees the busiest items, or those that it selects.
func TestFigures_Items(t *testing.T) {
	t.Parallel()
	m := join(t, redistest.Embedded(t), "serve", func(c *Config) { c.Sources = sources() })
	all, chosen := m.watch(), m.watch("cold", "hot")
	all.until("own figures", func(e *shown) bool { return e.Accepted != nil })
	m.counters.Accepted("hot", 5)
	m.counters.Accepted("warm", 1)
	e := all.until("the items", func(e *shown) bool { return len(e.Items) > 0 })
	if len(e.Items) != 2 || e.Items[0].ID != "hot" || e.Items[1].ID != "warm" || *e.Items[0].StockLeft != 4 || *e.Items[0].State != "open" ||
		e.Items[0].Lock.Fence != 8 || e.Items[0].Lock.Holder != nil || *e.Items[0].Name != "Name of hot" || *e.Items[0].Accepted <= 0 {
		t.Errorf("the busiest: %s", text(e.Items))
	}
	if e.Queue == nil || e.Queue.Orders != 3 {
		t.Errorf("queue %+v", e.Queue)
	}
	e = chosen.until("the selection", func(e *shown) bool { return len(e.Items) == 2 })
	if e.Items[0].ID != "cold" || e.Items[1].ID != "hot" || e.Items[0].StockLeft != nil || e.Items[0].State != nil {
		t.Errorf("the selection: %s", text(e.Items))
	}
	var many []string
	for i := range maxSelected {
		many = append(many, strings.Repeat("i", i+1))
	}
	if _, _, err := m.Watch(many, nil); !errors.Is(err, ErrTooManyItems) {
		t.Errorf("too many items: %v", err)
	}
}

// While Redis does not answer, events go on with what this process knows; the rest is null.
func TestFigures_RedisAway(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := redis.NewClient(redistest.Options(proxy.Addr()))
	closeAtEnd(t, rdb)
	src := sources()
	src.Queues = func(ctx context.Context) (*Queue, *Queue, error) {
		return &Queue{Orders: 3}, &Queue{}, rdb.Ping(ctx).Err()
	}
	var reported atomic.Int64
	m := join(t, rdb, "api", func(c *Config) {
		c.Sources, c.OnError = src, func(error) { reported.Add(1) }
		c.Process.State = func() State { return State{BreakersOpen: 1} }
	})
	r := m.watch()
	r.until("figures", func(e *shown) bool { return e.Complete && e.Queue != nil })
	proxy.Refuse(true)
	proxy.Sever()
	m.counters.Accepted("x", 2)
	e := r.until("own figures", func(e *shown) bool { return !e.Complete && e.Queue == nil && e.Totals.Accepted == 2 })
	if len(e.Processes) != 1 || e.Breakers.Open == nil || *e.Breakers.Open != 1 {
		t.Errorf("%s", text(e))
	}
	proxy.Refuse(false)
	r.until("figures", func(e *shown) bool { return e.Complete && e.Queue != nil })
	if reported.Load() == 0 {
		t.Error("no error was reported")
	}
}

// A source that fails in every round is reported once, although Redis answers each time.
func TestFigures_ErrorsOfSourcesOnce(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	item := func(context.Context, string) (catalog.Item, error) { return catalog.Item{}, boom }
	for name, change := range map[string]func(*Sources){
		"queues": func(s *Sources) {
			s.Queues = func(context.Context) (*Queue, *Queue, error) { return nil, nil, boom }
		},
		"stock": func(s *Sources) { s.Left = func(context.Context, []string) ([]int64, error) { return nil, boom } },
		"item":  func(s *Sources) { s.Item = item },
		"lock":  func(s *Sources) { s.Lock = func(context.Context, string) (*Lock, error) { return nil, boom } },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := sources()
			change(&src)
			var reported atomic.Int64
			var m *member
			m = join(t, redistest.Embedded(t), "serve", func(c *Config) {
				c.Sources = src
				c.OnError = func(err error) {
					m.Watchers() // is not called under the mutex
					if reported.Add(1); !errors.Is(err, boom) {
						t.Error(err)
					}
				}
			})
			r := m.watch("hot")
			for range 5 {
				if _, err := r.next(); err != nil {
					t.Fatal(err)
				}
			}
			if n := reported.Load(); n != 1 {
				t.Errorf("reported %d times", n)
			}
		})
	}
}

// failFirst fails the first commands of a client.
type failFirst struct {
	counter
	fail int64
}

func (c *failFirst) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c.n.Add(1) <= c.fail {
			cmd.SetErr(errors.New("not sent"))
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

// The items of a report that was not sent are in the next one, and count once in the own figures.
func TestFigures_UnsentItems(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	rdb.AddHook(&failFirst{fail: 1})
	f, err := New(Config{Redis: rdb, Counters: NewCounters(nil)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, d := await.Context(t), newDeployment(f.started)
	f.cfg.Counters.countItems(true)
	f.cfg.Counters.Accepted("x", 5)
	if _, err := f.round(ctx, d, f.started.Add(time.Second)); err == nil {
		t.Fatal("no error")
	}
	f.cfg.Counters.Accepted("x", 3)
	f.cfg.Counters.Accepted("y", 1)
	if _, err := f.round(ctx, d, f.started.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	reports, _, _, err := parseExchangeOf(ctx, f)
	if err != nil || len(reports) != 1 || reports[0].Items["x"] != 8 || reports[0].Items["y"] != 1 {
		t.Errorf("%+v, %v", reports, err)
	}
	if rate := d.rateOf("x"); rate == nil || *rate != 3 {
		t.Errorf("own rate %s", text(rate))
	}
	if f.unsent != nil {
		t.Error("items are left")
	}
}

// parseExchangeOf reads the reports without replacing that of f.
func parseExchangeOf(ctx context.Context, f *Figures) ([]stamped, time.Time, bool, error) {
	other := &Figures{cfg: f.cfg, id: "reader"}
	return other.exchange(ctx, nil, true)
}

// A report that cannot be read is skipped; a full list takes no further processes.
func TestFigures_StrangeReports(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	ctx := await.Context(t)
	if err := rdb.HSet(ctx, reportsKey, "odd", "no report", "old", "5 {}").Err(); err != nil {
		t.Fatal(err)
	}
	m := join(t, rdb, "serve")
	r := m.watch()
	r.until("itself alone", func(e *shown) bool { return e.Complete && len(e.Processes) == 1 })
	if n, err := rdb.HLen(ctx, reportsKey).Result(); err != nil || n != 1 {
		t.Errorf("%d entries, %v; want only its own", n, err)
	}
	for _, reply := range [][]any{nil, {int64(1)}, {"x", int64(1)}, {int64(1), int64(1), "id"}, {int64(1), int64(1), "id", int64(3)}} {
		if _, _, _, err := parseExchange(reply); !errors.Is(err, errReply) {
			t.Errorf("%v: %v", reply, err)
		}
	}
}

// Close ends the watchers and Wait waits for them.
func TestFigures_Close(t *testing.T) {
	t.Parallel()
	m := join(t, redistest.Embedded(t), "serve")
	if err := m.Wait(await.Context(t)); err != nil {
		t.Errorf("without watchers: %v", err)
	}
	a, b := m.watch(), m.watch("x")
	a.until("an event", func(*shown) bool { return true })
	for range 2 {
		if err := m.Close(await.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*reader{a, b} {
		for err := error(nil); err == nil; {
			if _, err = r.next(); err != nil && !errors.Is(err, ErrClosed) {
				t.Errorf("%v", err)
			}
		}
	}
	if _, _, err := m.Watch(nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	a.stop()
	over, cancel := context.WithCancel(await.Context(t))
	cancel()
	if err := m.Wait(over); !errors.Is(err, context.Canceled) {
		t.Errorf("with a watcher left: %v", err)
	}
	b.stop()
	if err := m.Wait(await.Context(t)); err != nil {
		t.Errorf("after the last watcher: %v", err)
	}
}

func TestNew_Err(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, cfg := range map[string]Config{
		"redis": {Counters: NewCounters(nil)}, "counters": {Redis: rdb},
		"interval": {Redis: rdb, Counters: NewCounters(nil), Every: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
