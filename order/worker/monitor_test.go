package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/registry"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order/ordertest"
	"flashsale/queue"
)

// monitored is the test's own Redis with a queue of orders, another queue, and a registry
// of workers whose entries end only with a clean stop.
type monitored struct {
	server   *miniredis.Miniredis
	rdb      *redis.Client
	orders   *queue.Queue
	others   *queue.Queue
	registry *registry.Registry
	cfg      MonitorConfig
	alarms   []string // the texts that OnAlarm received, "" for the end
	errs     atomic.Int64
}

func watch(t *testing.T) *monitored {
	t.Helper()
	server := miniredis.RunT(t)
	w := watchOn(t, server.Addr())
	w.server = server
	return w
}

// watchOn is watch on the Redis at addr.
func watchOn(t *testing.T, addr string) *monitored {
	t.Helper()
	w := &monitored{rdb: redis.NewClient(redistest.Options(addr))}
	t.Cleanup(func() {
		if err := w.rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	w.orders, w.others = ordertest.NewQueue(t, w.rdb, queue.Config{}), ordertest.NewQueue(t, w.rdb, queue.Config{})
	var err error
	w.registry, err = registry.New(w.rdb, registry.Config{Key: WorkersKey, Every: 10 * time.Millisecond, Silence: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = MonitorConfig{
		Redis: w.rdb, Workers: w.registry, Every: time.Hour,
		Orders: []NamedQueue{{"orders-0", w.orders}}, Others: []NamedQueue{{"expiries-0", w.others}},
		OnAlarm: func(a *Alarm) {
			if a == nil {
				w.alarms = append(w.alarms, "")
				return
			}
			w.alarms = append(w.alarms, fmt.Sprintf("%d %s", a.Waiting, a.Workers))
		},
		OnError: func(error) { w.errs.Add(1) },
	}
	return w
}

// round makes the monitor read again.
func (w *monitored) round(t *testing.T, m *Monitor) {
	t.Helper()
	w.server.FastForward(time.Hour) // the previous result, and the turn, have expired
	m.round(await.Context(t))
}

// join registers a worker, and returns a function that removes it.
func (w *monitored) join(t *testing.T) (g *registry.Registration, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	g = w.registry.Register("host", "v1")
	var running sync.WaitGroup
	running.Go(func() { g.Run(ctx, func(err error) { t.Error(err) }) })
	leave = func() { cancel(); running.Wait() }
	t.Cleanup(leave)
	await.True(t, "the worker is listed", func() bool {
		l, err := w.registry.List(await.Context(t))
		return err == nil && len(l.Live) == 1
	})
	return g, leave
}

func put(t *testing.T, q *queue.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := q.Enqueue(await.Context(t), queue.Task{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMonitor_Snapshot: the figures of every queue and of the workers; only orders count as
// waiting, each order of a batch, and no dead letters.
func TestMonitor_Snapshot(t *testing.T) {
	t.Parallel()
	w := watch(t)
	m := NewMonitor(w.cfg)
	if m.Last() != nil {
		t.Error("it has data before its first read")
	}
	put(t, w.orders, "a", "b", "c", "d")
	put(t, w.others, "e")
	ctx := await.Context(t)
	if _, err := w.orders.Enqueue(ctx, queue.Task{ID: "batch", Entries: 5}); err != nil {
		t.Fatal(err)
	}
	f, err := w.orders.Dequeue(ctx, 2)
	if err != nil || len(f.Tasks) != 2 {
		t.Fatalf("%d tasks, %v", len(f.Tasks), err)
	}
	if _, err := w.orders.Reject(ctx, queue.Rejection{Task: f.Tasks[0], Dead: true, Reason: "r"}); err != nil {
		t.Fatal(err)
	}
	w.join(t)
	w.round(t, m)
	l := m.Last()
	if l == nil || l.Waiting != 8 || len(l.Queues) != 2 || len(l.Workers.Live) != 1 {
		t.Fatalf("saw %+v", l)
	}
	if q := l.Queues[0]; q.Name != "orders-0" || q.Orders != 9 || q.Ready != 3 || q.Leased != 1 || q.Dead != 1 || q.Died != 1 || q.OldestReady <= 0 {
		t.Errorf("orders: %+v", q)
	}
	if q := l.Queues[1]; q.Name != "expiries-0" || q.Ready != 1 {
		t.Errorf("expiries: %+v", q)
	}
	if one := l.Workers.Live[0]; one.Host != "host" || one.Version != "v1" || one.SeenAt.IsZero() {
		t.Errorf("worker: %+v", one)
	}
}

// scripts counts the scripts that its client runs.
type scripts struct{ n atomic.Int64 }

func (s *scripts) DialHook(next redis.DialHook) redis.DialHook { return next }
func (s *scripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (s *scripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			s.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

// TestMonitor_OneReadForAll: of any number of processes one reads the state, and the others
// read its result; its death delays the others only briefly.
func TestMonitor_OneReadForAll(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.cfg.Every = 0 // the default
	put(t, w.orders, "a")
	var ran scripts
	w.rdb.AddHook(&ran)
	monitors := make([]*Monitor, 20)
	for i := range monitors {
		monitors[i] = NewMonitor(w.cfg)
		monitors[i].round(await.Context(t))
	}
	const cost = 3 // two queues and the registry
	if n := ran.n.Load(); n != cost {
		t.Errorf("%d scripts for %d processes, want %d", n, len(monitors), cost)
	}
	for i, m := range monitors {
		if l := m.Last(); l == nil || l.Waiting != 1 || l.Queues[0].Ready != 1 || l.Workers.Now.IsZero() {
			t.Errorf("process %d saw %+v", i, l)
		}
	}
	// A process has started to read, and died.
	w.server.FastForward(time.Hour)
	put(t, w.orders, "b")
	if err := w.rdb.Set(await.Context(t), backlogTurnKey, 1, readLimit).Err(); err != nil {
		t.Fatal(err)
	}
	m := monitors[0]
	m.round(await.Context(t))
	if l := m.Last(); l == nil || l.Waiting != 1 {
		t.Errorf("while another process reads: %+v", l)
	}
	w.server.FastForward(readLimit)
	m.round(await.Context(t))
	if l := m.Last(); l == nil || l.Waiting != 2 {
		t.Errorf("after its turn has ended: %+v", l)
	}
	for _, key := range w.server.Keys() {
		if (key == backlogKey || key == backlogTurnKey) && w.server.TTL(key) <= 0 {
			t.Errorf("%s has no end", key)
		}
	}
	if w.errs.Load() != 0 {
		t.Errorf("%d errors", w.errs.Load())
	}
}

// TestMonitor_ClockSetBack: after the clock of Redis was set back, its keys live longer by the difference. Neither an
// old result nor an old turn then stops the reading for that time.
func TestMonitor_ClockSetBack(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"the result of another process": false, "its own result": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watch(t)
			w.cfg.Every = 0 // the default
			reads, next := NewMonitor(w.cfg), NewMonitor(w.cfg)
			put(t, w.orders, "a")
			ctx := await.Context(t)
			reads.round(ctx)
			if own {
				next = reads
			} else {
				next.round(ctx)
			}
			for _, key := range []string{backlogKey, backlogTurnKey} {
				w.server.SetTTL(key, w.server.TTL(key)+time.Hour)
			}
			put(t, w.orders, "b")
			next.round(ctx)
			if l := next.Last(); l == nil || l.Waiting != 2 {
				t.Errorf("with the keys of before: %+v", l)
			}
			for _, key := range []string{backlogKey, backlogTurnKey} {
				if ttl := w.server.TTL(key); ttl <= 0 || ttl > time.Minute {
					t.Errorf("%s still lives for %v", key, ttl)
				}
			}
		})
	}
}

// commands counts all commands of its client.
type commands struct{ n atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}

// TestMonitor_WatchKey: the read of the shared state also finds out whether a key exists, and
// stays a single command.
func TestMonitor_WatchKey(t *testing.T) {
	t.Parallel()
	w := watch(t)
	watched := 0
	w.cfg.WatchKey, w.cfg.OnWatch = "fs:{p0}:watched", func() { watched++ }
	reads, shares := NewMonitor(w.cfg), NewMonitor(w.cfg)
	w.round(t, reads)
	var sent commands
	w.rdb.AddHook(&sent)
	shares.round(await.Context(t))
	if n := sent.n.Load(); n != 1 || watched != 0 || shares.Last() == nil {
		t.Errorf("%d commands, called %d times", n, watched)
	}
	if err := w.rdb.Set(await.Context(t), w.cfg.WatchKey, 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.round(t, reads) // which finds no shared state
	shares.round(await.Context(t))
	if watched != 2 {
		t.Errorf("called %d times, want 2", watched)
	}
}

// TestMonitor_Alarm: the alarm is raised once when orders wait without a worker, and
// cleared once.
func TestMonitor_Alarm(t *testing.T) {
	t.Parallel()
	w := watch(t)
	m := NewMonitor(w.cfg)
	want := func(what string, all ...string) {
		t.Helper()
		if !slices.Equal(w.alarms, all) {
			t.Fatalf("%s: alarms %q, want %q", what, w.alarms, all)
		}
	}
	put(t, w.others, "an expiry")
	w.round(t, m)
	w.round(t, m)
	want("no order waits")
	put(t, w.orders, "a", "b")
	w.round(t, m)
	want("at one look")
	const first = "2 none has ever registered"
	for range 5 {
		w.round(t, m)
		want("at more looks", first)
	}
	_, leave := w.join(t)
	for range 3 {
		w.round(t, m)
		want("with a worker", first, "")
	}
	leave()
	w.round(t, m)
	want("the worker is restarted", first, "")
	_, leave = w.join(t)
	w.round(t, m)
	want("the worker is back", first, "")
	leave()
	for range 3 {
		w.round(t, m)
	}
	if len(w.alarms) != 3 || w.alarms[2][:19] != "2 none live since 2" {
		t.Fatalf("alarms %q", w.alarms)
	}
	if f, err := w.orders.Dequeue(await.Context(t), 2); err != nil || len(f.Tasks) != 2 {
		t.Fatal(err)
	} else if _, err := w.orders.Ack(await.Context(t), f.Tasks...); err != nil {
		t.Fatal(err)
	}
	w.round(t, m)
	if len(w.alarms) != 4 || w.alarms[3] != "" {
		t.Fatalf("after all orders were committed: %q", w.alarms)
	}
}

// TestMonitor_RedisAway: the last result is dropped when Redis cannot be read, and an
// outage is reported once.
func TestMonitor_RedisAway(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.cfg.Every = 10 * time.Millisecond
	m := NewMonitor(w.cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	// A result is forgotten after three intervals, and miniredis expires no turn on its own.
	read := func() bool {
		w.server.FastForward(readLimit)
		return m.Last() != nil
	}
	await.True(t, "a read", read)
	w.server.SetError("LOADING the test says so")
	await.True(t, "it is forgotten", func() bool { return m.Last() == nil })
	await.True(t, "the error", func() bool { return w.errs.Load() > 0 })
	if n := w.errs.Load(); n != 1 {
		t.Errorf("%d errors of one outage", n)
	}
	w.server.SetError("")
	await.True(t, "a read after the outage", read)
}

// TestMonitor_WritesRefused: while Redis answers but refuses writes, each process has current figures,
// and nothing is reported as an error.
func TestMonitor_WritesRefused(t *testing.T) {
	t.Parallel()
	w := watchOn(t, redistest.Real(t).Addr())
	rdb := w.rdb
	put(t, w.orders, "a", "b")
	monitors := []*Monitor{NewMonitor(w.cfg), NewMonitor(w.cfg)}
	for setting, value := range map[string]string{"min-replicas-to-write": "1", "maxmemory": "1"} {
		if err := rdb.ConfigSet(t.Context(), setting, value).Err(); err != nil {
			t.Fatal(err)
		}
		for i, m := range monitors {
			m.last.Store(nil)
			m.round(await.Context(t))
			if l := m.Last(); l == nil || l.Waiting != 2 {
				t.Errorf("%s, process %d: %+v", setting, i, l)
			}
		}
		if err := rdb.ConfigSet(t.Context(), setting, "0").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if n := w.errs.Load(); n != 0 {
		t.Errorf("%d errors", n)
	}
	// Then one of them reads for both again.
	monitors[0].round(await.Context(t))
	if text, err := rdb.Get(t.Context(), backlogKey).Result(); err != nil || text == "" {
		t.Errorf("the shared result is %q, %v", text, err)
	}
}

func TestWorkerTrouble(t *testing.T) {
	t.Parallel()
	now := someNow
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	live := func(started time.Duration) []registry.Worker { return []registry.Worker{{StartedAt: ago(started)}} }
	at := ago(time.Hour).Format(time.RFC3339)
	for want, w := range map[string]registry.Workers{
		"none has ever registered":                 {Now: now},
		"none live since " + at:                    {Now: now, SeenAt: ago(time.Hour), FetchedAt: ago(2 * time.Hour)},
		"1 live, and none has ever fetched":        {Now: now, SeenAt: now, Live: live(time.Minute)},
		"1 live, and none has fetched since " + at: {Now: now, SeenAt: now, Live: live(2 * time.Hour), FetchedAt: ago(time.Hour)},
		"2 live, and none has fetched since " + at: {Now: now, SeenAt: now, Live: append(live(2*time.Hour), live(time.Minute)...), FetchedAt: ago(time.Hour)},
	} {
		if got := Trouble(w); got != want {
			t.Errorf("%+v: %q, want %q", w, got, want)
		}
	}
	for name, w := range map[string]registry.Workers{
		"fetches":                       {Now: now, SeenAt: now, Live: live(time.Hour), FetchedAt: ago(FetchStale)},
		"has started":                   {Now: now, SeenAt: now, Live: live(FetchStale)},
		"has started after a long time": {Now: now, SeenAt: now, Live: live(time.Second), FetchedAt: ago(time.Hour)},
	} {
		if got := Trouble(w); got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

var someNow = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
