package queue_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// refusal is a switch that makes a client's calls of one script fail.
type refusal struct {
	hash    string
	on      atomic.Bool
	refused atomic.Int32
}

func (r *refusal) hook() redis.Hook {
	return script{before: func(hash string) error {
		if hash == r.hash && r.on.Load() {
			r.refused.Add(1)
			return errRefused
		}
		return nil
	}}
}

// TestAcker_Bounded: while outcomes cannot be sent, fetching stops; no task is lost
// when Redis is back.
func TestAcker_Bounded(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: 10 * time.Minute}
		admin := newQueue(t, rdb, cfg)
		load(t, admin)
		acks := refusal{hash: queue.AckHash}
		acks.on.Store(true)
		q := process(t, rdb, cfg, acks.hook())
		const total = 6000
		enqueue(t, admin, numbered(total)...)
		var seen attempts
		h := seen.handle
		other := newQueue(t, rdb, queue.Config{})
		handled := make(chan string, 1)
		// The first queue fetches next whenever it may have tasks.
		stop := startAll(t, queue.RunConfig{Batch: 128, Workers: 2}, queue.Source{Queue: q, Handler: h, Weight: 1000},
			queue.Source{Queue: other, Handler: sendIDs(handled)})
		waitFor(t, func() bool { return acks.refused.Load() >= 6 })
		// One set of outcomes that is being sent, one that waits, and the tasks fetched meanwhile.
		if n := seen.distinct(); n > 3*queue.MaxUnsettled {
			t.Errorf("%d tasks were handled, none of them acknowledged", n)
		}
		// The workers are free for other sources.
		for i := range 5 {
			enqueue(t, other, queue.Task{ID: strconv.Itoa(i)})
			receive(t, "a task of the other queue", handled)
		}
		acks.on.Store(false)
		awaitStats(t, admin, queue.Stats{})
		stop()
		seen.wantOnce(t, total)
	})
}

// TestAcker_BoundedWakeUp: a worker that must not fetch because its outcomes cannot be sent passes its wake-up on.
func TestAcker_BoundedWakeUp(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: never}
		admin := newQueue(t, rdb, cfg)
		load(t, admin)
		acks := refusal{hash: queue.AckHash}
		acks.on.Store(true)
		var sleeps, wakes atomic.Int32
		q := process(t, rdb, cfg, acks.hook(), tap{seen: func(name string) {
			if name == "blpop" {
				sleeps.Add(1)
			}
		}, lose: func(name string) bool {
			if name == "blpop" {
				wakes.Add(1)
			}
			return false
		}})
		const workers, batch = 4, 512
		enqueue(t, admin, numbered((workers-1)*batch)...)
		release, settled := make(chan struct{}), make(chan struct{}, workers)
		stop := start(t, q, func(ctx context.Context, _ []queue.Leased) []error {
			context.AfterFunc(ctx, func() { settled <- struct{}{} })
			<-release
			return nil
		}, queue.RunConfig{Batch: batch, Workers: workers, MaxIdle: never, Drain: time.Millisecond, OnError: ignore})
		// Given a worker that sleeps while its handlers have all tasks, and then has more outcomes than it may have.
		tokens := func() int64 { return rdb.LLen(await.Context(t), cfg.Prefix+"wake").Val() }
		before := int32(0)
		waitFor(t, func() bool {
			before = wakes.Load()
			return stats(t, admin) == queue.Stats{Leased: (workers - 1) * batch} && tokens() == 0 && sleeps.Load() == before+1
		})
		release <- struct{}{}
		waitFor(t, func() bool { return acks.refused.Load() > 0 }) // the others wait behind this set
		close(release)
		for range workers - 1 {
			receive(t, "an outcome", settled)
		}
		// When a task wakes it, then another worker can be woken for that task.
		enqueue(t, admin, queue.Task{ID: "next"})
		waitFor(t, func() bool { return wakes.Load() > before })
		waitFor(t, func() bool { return tokens() == 1 })
		take(t, admin, "next")
		stop()
	})
}

// TestAcker_BoundedShutdown: Run ends although the acker is full.
func TestAcker_BoundedShutdown(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: 10 * time.Minute}
		admin := newQueue(t, rdb, cfg)
		load(t, admin)
		acks := refusal{hash: queue.AckHash}
		acks.on.Store(true)
		enqueue(t, admin, numbered(3000)...)
		var handled atomic.Int32
		stop := start(t, process(t, rdb, cfg, acks.hook()), func(_ context.Context, tasks []queue.Leased) []error {
			handled.Add(int32(len(tasks))) //nolint:gosec // at most Batch
			return nil
		}, queue.RunConfig{Batch: 256, Workers: 4, Drain: 100 * time.Millisecond})
		waitFor(t, func() bool { return acks.refused.Load() >= 3 && handled.Load() > queue.MaxUnsettled })
		stop()
		// Tasks whose outcome was not sent keep their leases, as may the rest of their call.
		if s := stats(t, admin); s.Leased < int(handled.Load()) || s.Ready+s.Leased != 3000 {
			t.Fatalf("%+v with %d handled", s, handled.Load())
		}
	})
}

// TestAcker_ThenNoRoom: if there is no room for a follow-up task, the task is handled
// again, uncounted.
func TestAcker_ThenNoRoom(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxLength: 2, MaxAttempts: 1, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "full"})
		var tries atomic.Int32
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i, task := range tasks {
				switch task.ID {
				case "a":
					if task.Attempt != 1 {
						t.Errorf("attempt %d, want 1", task.Attempt)
					}
					tries.Add(1)
					errs[i] = queue.Then(queue.Task{ID: "b"}, queue.Task{ID: "c"})
				case "full":
					if tries.Load() < 3 {
						errs[i] = queue.Snooze(time.Millisecond)
					}
				default:
					errs[i] = queue.Snooze(time.Hour)
				}
			}
			return errs
		}, queue.RunConfig{Batch: 1, OnError: failOn(t)})
		waitFor(t, func() bool {
			return lookUp(t, q, "b")[0].State != "" && stats(t, q) == queue.Stats{Delayed: 2}
		})
		stop()
		wantGone(t, q, "a")
		get(t, q, "c")
	})
}

// TestAcker_ThenNoRoom_Backoff: until there may be room for the follow-up task, the task waits for the queue's backoff.
func TestAcker_ThenNoRoom_Backoff(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const many = 100
		q := newQueue(t, rdb, queue.Config{MaxLength: 1, BackoffBase: time.Hour})
		enqueue(t, q, queue.Task{ID: "a"})
		var calls atomic.Int32
		stop := start(t, q, func(context.Context, []queue.Leased) []error {
			calls.Add(1)
			return []error{queue.Then(queue.Task{ID: "b"}, queue.Task{ID: "c"})}
		}, queue.RunConfig{})
		waitFor(t, func() bool { return calls.Load() >= many || stats(t, q) == queue.Stats{Delayed: 1} })
		stop()
		if n := calls.Load(); n >= many {
			t.Errorf("handled %d times", n)
		}
	})
}

// TestAcker_ThenInvalid: an invalid follow-up task makes the task a dead letter at once, with the reason.
func TestAcker_ThenInvalid(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"}, queue.Task{ID: "fine"})
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i, task := range tasks {
				switch task.ID {
				case "a":
					errs[i] = queue.Then(queue.Task{ID: "ok"}, queue.Task{ID: ""})
				case "b":
					errs[i] = queue.Then(numbered(65)...)
				case "c":
					errs[i] = queue.Split([]queue.Task{{ID: "half", Priority: 10}}, queue.Task{ID: "ok"})
				default:
					errs[i] = queue.Then(queue.Task{ID: "next", Due: time.Now().Add(time.Hour)})
				}
			}
			return errs
		}, queue.RunConfig{})
		awaitStats(t, q, queue.Stats{Delayed: 1, Dead: 3})
		stop()
		for id, want := range map[string]string{"a": "want 1 to 255", "b": "65 tasks follow", "c": "want 0 to 9"} {
			if info := get(t, q, id); !strings.HasPrefix(info.Reason, "follow-up: ") || !strings.Contains(info.Reason, want) {
				t.Errorf("%s is dead because %q", id, info.Reason)
			}
		}
	})
}

// TestAcker_Stale: OnError reports lost leases for every verdict.
func TestAcker_Stale(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]error{
		"done": nil, "then": queue.Then(queue.Task{ID: "next"}), "back": errors.New("broken"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
				q := newQueue(t, rdb, queue.Config{})
				enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
				reported := make(chan error, 10)
				stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
					for _, task := range tasks {
						if err := rdb.HSet(await.Context(t), q.EnqueueKeys()[4], task.ID, "2,0;Lother").Err(); err != nil {
							t.Error(err)
						}
					}
					return []error{verdict, verdict}
				}, queue.RunConfig{Workers: 1, OnError: sendErrors(reported)})
				if err := receive(t, "the loss", reported); !errors.Is(err, queue.ErrLeaseLost) || !strings.HasSuffix(err.Error(), ": 2 of them") {
					t.Fatalf("reported %v, want the loss of two leases", err)
				}
				wantStats(t, q, queue.Stats{Leased: 2})
				stop()
			})
		})
	}
}

// TestAcker_BackTwice: a lost reply to a rejection is not reported as a lost lease.
func TestAcker_BackTwice(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		admin := newQueue(t, rdb, queue.Config{})
		load(t, admin)
		var lost, again atomic.Bool
		q := process(t, rdb, queue.Config{Prefix: admin.Prefix()}, tap{lose: func(name string) bool {
			return name == "evalsha" && lost.CompareAndSwap(true, false)
		}}, script{after: func(hash string) {
			if hash == queue.RejectHash {
				lost.Store(!again.Swap(true))
			}
		}})
		enqueue(t, admin, queue.Task{ID: "a"})
		reported := make(chan error, 10)
		stop := start(t, q, func(context.Context, []queue.Leased) []error {
			return []error{queue.RetryIn(time.Hour, errors.New("broken"))}
		}, queue.RunConfig{OnError: sendErrors(reported)})
		wantErr(t, receive(t, "the lost reply", reported), errLost)
		stop()
		wantStats(t, admin, queue.Stats{Delayed: 1})
		for len(reported) > 0 {
			t.Errorf("reported %v", <-reported)
		}
	})
}

// TestAcker_ThenSlowly: many follow-up tasks take many calls, which have several time
// limits: on a slow link one limit for all of them would be too short.
func TestAcker_ThenSlowly(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		load(t, q)
		var mu sync.Mutex
		limits := make(map[time.Time]int)
		slow := process(t, rdb, queue.Config{Prefix: q.Prefix()}, script{at: func(ctx context.Context, hash string) {
			if hash != queue.CompleteHash {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			until, ok := ctx.Deadline()
			if !ok {
				t.Error("a call without a limit")
			}
			limits[until]++
		}})
		enqueue(t, q, numbered(300)...)
		stop := start(t, slow, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i := range errs {
				errs[i] = queue.Then()
			}
			return errs
		}, queue.RunConfig{Batch: 300, Workers: 1, OnError: failOn(t)})
		awaitStats(t, q, queue.Stats{})
		stop()
		mu.Lock()
		defer mu.Unlock()
		for _, n := range limits {
			if n > 4 {
				t.Errorf("%d calls share one time limit", n)
			}
		}
		if len(limits) < 5 {
			t.Errorf("%d limits for 19 calls", len(limits))
		}
	})
}

// TestAcker_Order: tasks handed back together are in front and in order, whatever their
// number.
func TestAcker_Order(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		tasks := numbered(1300)
		want := idsOf(tasks)
		enqueue(t, q, tasks...)
		ready, release := make(chan struct{}, 3), make(chan struct{})
		defer close(release)
		// Three batches of 433, which are handed back at the end of the drain.
		end := launch(t, q, func(context.Context, []queue.Leased) []error {
			ready <- struct{}{}
			<-release
			return nil
		}, queue.RunConfig{Batch: 433, Workers: 3, Drain: time.Millisecond})
		for range 3 {
			receive(t, "a handler", ready)
		}
		wantErr(t, end(), queue.ErrAbandoned)
		var got []string
		for range 3 {
			got = append(got, names(dequeue(t, q, 512).Tasks)...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d tasks are back out of order", len(got))
		}
	})
}
