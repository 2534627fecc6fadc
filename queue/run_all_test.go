package queue_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// startAll is start for several queues.
func startAll(t testing.TB, cfg queue.RunConfig, sources ...queue.Source) (stop func()) {
	t.Helper()
	return stopping(t, launched(func(ctx context.Context) error { return queue.RunAll(ctx, sources, cfg) }))
}

// script is a hook that observes a client's script calls, by hash.
type script struct {
	before func(hash string) error // its error is returned instead of making the call
	after  func(hash string)       // called after a successful call
	at     func(context.Context, string)
}

func (script) DialHook(next redis.DialHook) redis.DialHook { return next }
func (script) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s script) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		hash := ""
		if cmd.Name() == "evalsha" {
			if sha, ok := cmd.Args()[1].(string); ok {
				hash = sha
			}
		}
		if s.at != nil && hash != "" {
			s.at(ctx, hash)
		}
		if s.before != nil && hash != "" {
			if err := s.before(hash); err != nil {
				cmd.SetErr(err)
				return err
			}
		}
		err := next(ctx, cmd)
		if s.after != nil && hash != "" && err == nil {
			s.after(hash)
		}
		return err
	}
}

var errRefused = errors.New("refused by the test")

// process is a queue on its own client, as in another process.
func process(t testing.TB, rdb redis.UniversalClient, cfg queue.Config, hooks ...redis.Hook) *queue.Queue {
	t.Helper()
	other := redistest.Second(t, rdb)
	for _, h := range hooks {
		other.AddHook(h)
	}
	return newQueue(t, other, cfg)
}

// load loads every script into the server, so that a hook sees each by its hash.
func load(t testing.TB, q *queue.Queue) {
	t.Helper()
	ctx := await.Context(t)
	enqueue(t, q, queue.Task{ID: "load"}, queue.Task{ID: "load 2"}, queue.Task{ID: "load 3"})
	l := take(t, q, "load", "load 2", "load 3")
	if _, err := q.Extend(ctx, l...); err != nil {
		t.Fatal(err)
	}
	ack(t, q, l[0])
	wantComplete(t, q, queue.StatusOK, l[1])
	reject(t, q, queue.Rejection{Task: l[2], Dead: true})
	if _, err := q.DeleteDead(ctx, "load 3"); err != nil {
		t.Fatal(err)
	}
}

func TestRunAll_Weights(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ahead time.Duration
		off   int
	}{"none ahead": {-1, 20}, "ahead": {0, 150}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
				a, b := newQueue(t, rdb, queue.Config{}), newQueue(t, rdb, queue.Config{})
				enqueue(t, a, numbered(900)...)
				enqueue(t, b, numbered(400)...)
				var mu sync.Mutex
				var order []string
				count := func(name string) queue.BatchHandler {
					return func(_ context.Context, tasks []queue.Leased) []error {
						mu.Lock()
						defer mu.Unlock()
						for range tasks {
							order = append(order, name)
						}
						return nil
					}
				}
				stop := startAll(t, queue.WithPatience(queue.RunConfig{Batch: 1, Workers: 1, Ahead: tt.ahead}, never),
					queue.Source{Queue: a, Handler: count("a"), Weight: 3}, queue.Source{Queue: b, Handler: count("b")})
				waitFor(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(order) >= 1000 })
				stop()
				n := 0
				for _, name := range order[:1000] {
					if name == "a" {
						n++
					}
				}
				if n < 750-tt.off || n > 750+tt.off {
					t.Errorf("%d of the first 1000 belong to the queue with weight 3 of 4", n)
				}
			})
		})
	}
}

// TestRunAll_NewTask: a task that arrives in an idle queue runs right after the tasks already
// fetched, however many the other queue has.
func TestRunAll_NewTask(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		asked, armed := make(chan struct{}, 1), atomic.Bool{}
		producer := newQueue(t, rdb, queue.Config{})
		a := process(t, rdb, queue.Config{Prefix: producer.Prefix()}, script{at: func(_ context.Context, hash string) {
			if hash == queue.PassHash && armed.CompareAndSwap(true, false) {
				asked <- struct{}{}
			}
		}})
		b := newQueue(t, rdb, queue.Config{})
		enqueue(t, b, numbered(50)...)
		order := make(chan string, 100)
		n := 0
		stop := startAll(t, queue.RunConfig{Batch: 1, Workers: 1, Ahead: -1},
			queue.Source{Queue: a, Handler: func(context.Context, []queue.Leased) []error {
				order <- "new"
				return nil
			}},
			queue.Source{Queue: b, Handler: func(context.Context, []queue.Leased) []error {
				if n++; n == 20 {
					armed.Store(true)
					enqueue(t, producer, queue.Task{ID: "new"})
					receive(t, "the wake-up", asked)
				}
				order <- "old"
				return nil
			}})
		var got []string
		for range 51 {
			got = append(got, receive(t, "a task", order))
		}
		stop()
		if at := slices.Index(got, "new"); at != 20 {
			t.Fatalf("the new task was number %d, want 20", at)
		}
	})
}

// TestRunAll_Empty: an empty queue is not polled and takes no turns.
func TestRunAll_Empty(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		var sent, handled atomic.Int32
		a := process(t, rdb, queue.Config{}, tap{seen: func(string) { sent.Add(1) }})
		b := newQueue(t, rdb, queue.Config{})
		enqueue(t, b, numbered(500)...)
		h := func(_ context.Context, tasks []queue.Leased) []error {
			handled.Add(int32(len(tasks))) //nolint:gosec // at most Batch
			return nil
		}
		startAll(t, queue.RunConfig{Batch: 1, Workers: 1, Ahead: -1, MaxIdle: time.Hour},
			queue.Source{Queue: a, Handler: h}, queue.Source{Queue: b, Handler: h})
		waitFor(t, func() bool { return handled.Load() == 500 })
		// The connection's handshake, one fetch by EVALSHA and EVAL, and the blocking pop.
		if n := sent.Load(); n > 8 {
			t.Errorf("an empty queue was sent %d commands besides 500 tasks of the other", n)
		}
	})
}

// TestRunAll_OneRedisAway: a queue whose server is gone or does not answer stops no other
// queue, and continues when the server is back.
func TestRunAll_OneRedisAway(t *testing.T) {
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		t.Run(map[bool]string{false: "killed", true: "frozen"}[frozen], func(t *testing.T) {
			t.Parallel()
			srv := redistest.Real(t)
			options := redistest.Options(srv.Addr())
			options.ReadTimeout = time.Minute // it fails when the server is killed
			far := redis.NewClient(options)
			closeAtEnd(t, far)
			a, b := newQueue(t, far, queue.Config{}), newQueue(t, redistest.Redis(t), queue.Config{})
			enqueue(t, a, numbered(10)...)
			away := srv.Kill
			if frozen {
				away = srv.Pause
			}
			must(t, away())
			failed := make(chan error, 1000)
			handled := make(chan string, 100)
			h := sendIDs(handled)
			stop := startAll(t, queue.WithPatience(queue.RunConfig{
				Workers: 1, MaxIdle: time.Hour, OnError: sendErrors(failed),
			}, 500*time.Millisecond),
				queue.Source{Queue: a, Handler: h, Weight: 1000}, queue.Source{Queue: b, Handler: h})
			for i := range 20 {
				enqueue(t, b, queue.Task{ID: strconv.Itoa(i)})
				if got := receive(t, "a task of the healthy queue", handled); got != strconv.Itoa(i) {
					t.Fatalf("handled %s, want %d", got, i)
				}
			}
			if frozen {
				// Its fetch has not even failed yet.
				if n := len(failed); n > 0 {
					t.Errorf("the other queue had to wait for %d failures: %v", n, <-failed)
				}
				must(t, srv.Kill())
			}
			if err := receive(t, "a failure", failed); err == nil {
				t.Error("no failure was reported")
			}
			must(t, srv.Start())
			awaitStats(t, a, queue.Stats{})
			stop()
		})
	}
}

// TestRunAll_WakeUpPassedOn: a process whose workers are busy with another queue passes a
// wake-up on, for a ready task as well as for a delayed one.
func TestRunAll_WakeUpPassedOn(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		producer := newQueue(t, rdb, queue.Config{})
		a, asleep := sleeper(t, rdb, queue.Config{Prefix: producer.Prefix()})
		b := newQueue(t, rdb, queue.Config{})
		release, busy := make(chan struct{}), make(chan struct{}, 1)
		stopBusy := startAll(t, queue.RunConfig{Workers: 1, MaxIdle: 10 * time.Minute},
			queue.Source{Queue: a, Handler: func(_ context.Context, tasks []queue.Leased) []error {
				t.Errorf("the busy process handled %v", names(tasks))
				return nil
			}},
			queue.Source{Queue: b, Handler: func(context.Context, []queue.Leased) []error {
				busy <- struct{}{}
				<-release
				return nil
			}})
		receive(t, "a listens", asleep) // the first to listen, and so the first to be woken
		enqueue(t, b, queue.Task{ID: "long"})
		receive(t, "b's handler", busy)

		idle, idleAsleep := sleeper(t, rdb, queue.Config{Prefix: producer.Prefix()})
		handled := make(chan string, 10)
		stopIdle := start(t, idle, sendIDs(handled), queue.RunConfig{Workers: 1, MaxIdle: 10 * time.Minute})
		receive(t, "the idle one sleeps", idleAsleep)
		enqueue(t, producer, queue.Task{ID: "later", Due: serverTime(t, rdb).Add(200 * time.Millisecond)})
		if got := receive(t, "the delayed task", handled); got != "later" {
			t.Fatalf("handled %s", got)
		}
		for i := range 5 {
			enqueue(t, producer, queue.Task{ID: strconv.Itoa(i)})
			if got := receive(t, "a task of a", handled); got != strconv.Itoa(i) {
				t.Fatalf("handled %s, want %d", got, i)
			}
		}
		stopIdle()
		close(release)
		stopBusy()
	})
}

func TestRunAll_Config(t *testing.T) {
	t.Parallel()
	q := newQueue(t, redistest.Embedded(t), queue.Config{})
	h := succeed
	good := queue.Source{Queue: q, Handler: h}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		cfg     queue.RunConfig
		sources []queue.Source
	}{
		"none":             {},
		"no queue":         {sources: []queue.Source{good, {Handler: h}}},
		"handler":          {sources: []queue.Source{good, {Queue: q}}},
		"negative weight":  {sources: []queue.Source{good, {Queue: q, Handler: h, Weight: -1}}},
		"weight":           {sources: []queue.Source{good, {Queue: q, Handler: h, Weight: 1001}}},
		"batch":            {queue.RunConfig{Batch: 513}, []queue.Source{good}},
		"negative workers": {queue.RunConfig{Workers: -1}, []queue.Source{good}},
		"negative drain":   {queue.RunConfig{Drain: -1}, []queue.Source{good}},
		"idle":             {queue.RunConfig{MaxIdle: time.Millisecond}, []queue.Source{good}},
	} {
		if err := queue.RunAll(ended, tt.sources, tt.cfg); !errors.Is(err, queue.ErrConfig) {
			t.Errorf("%s: %v, want ErrConfig", name, err)
		}
	}
	good.Weight = 1000
	if err := queue.RunAll(ended, []queue.Source{good}, queue.RunConfig{}); err != nil {
		t.Errorf("a weight of 1000: %v", err)
	}
}

// TestRunAll_IdleCost: an idle Run sends one command per blocking pop, whatever the number of
// workers.
func TestRunAll_IdleCost(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		var pops, others atomic.Int32
		count := tap{seen: func(name string) {
			if name == "blpop" {
				pops.Add(1)
			} else if pops.Load() > 0 { // the start does not count
				others.Add(1)
			}
		}}
		a := process(t, rdb, queue.Config{}, count)
		var none int
		h := func(_ context.Context, tasks []queue.Leased) []error { none += len(tasks); return nil }
		startAll(t, queue.RunConfig{Workers: 8, MaxIdle: time.Second}, queue.Source{Queue: a, Handler: h})
		waitFor(t, func() bool { return pops.Load() == 4 })
		if n := others.Load(); n > 4 {
			t.Errorf("%d commands besides 3 pops of a second", n)
		}
	})
}
