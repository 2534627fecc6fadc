package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// start runs the queue in the background; the returned function stops it and fails the test
// if Run returns an error.
func start(t testing.TB, q *queue.Queue, h queue.BatchHandler, cfg queue.RunConfig) (stop func()) {
	t.Helper()
	return stopping(t, launch(t, q, h, cfg))
}

// stopping wraps the end of a Run and fails the test if it returns an error.
func stopping(t testing.TB, end func() error) (stop func()) {
	t.Helper()
	stop = sync.OnceFunc(func() {
		if err := end(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// launch is start for a Run that may end with an error.
func launch(t testing.TB, q *queue.Queue, h queue.BatchHandler, cfg queue.RunConfig) (end func() error) {
	t.Helper()
	return launched(func(ctx context.Context) error { return q.Run(ctx, h, cfg) })
}

// launched runs in the background until the returned function is called.
func launched(run func(ctx context.Context) error) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	return func() error {
		cancel()
		select {
		case err := <-result:
			return err
		case <-time.After(limit):
			return errors.New("did not end")
		}
	}
}

func TestRun_All(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		var seen attempts
		stop := start(t, q, seen.handle, queue.RunConfig{Batch: 64, Workers: 3, Linger: func([]queue.Leased) time.Duration { return time.Millisecond }, OnError: failOn(t)})
		enqueue(t, q, numbered(3000)...)
		awaitStats(t, q, queue.Stats{})
		stop()
		seen.wantOnce(t, 3000)
		wantKeys(t, rdb, q.Prefix(), "clock", "wake")
	})
}

func TestRun_Verdicts(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{BackoffBase: time.Hour, MaxAttempts: 2})
		broken := errors.New("broken")
		attempts := make(chan string, 100)
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i, task := range tasks {
				attempts <- fmt.Sprintf("%s %d", task.ID, task.Attempt)
				switch task.ID {
				case "discard":
					errs[i] = fmt.Errorf("wrapped: %w", queue.Discard(broken))
				case "retry":
					errs[i] = queue.RetryIn(time.Millisecond, broken)
				case "snooze":
					errs[i] = queue.Snooze(time.Hour)
				case "fail":
					errs[i] = broken
				case "then":
					errs[i] = queue.Then(queue.Task{ID: "next", Due: time.Now().Add(time.Hour)})
				case "wrapped":
					errs[i] = fmt.Errorf("see: %w", queue.Then(queue.Task{ID: "next 2", Due: time.Now().Add(time.Hour)}))
				case "nothing":
					errs[i] = queue.Then()
				}
			}
			return errs
		}, queue.RunConfig{})
		enqueue(t, q, queue.Task{ID: "discard"}, queue.Task{ID: "retry"}, queue.Task{ID: "snooze"}, queue.Task{ID: "fail"},
			queue.Task{ID: "fine"}, queue.Task{ID: "then"}, queue.Task{ID: "wrapped"}, queue.Task{ID: "nothing"})
		awaitStats(t, q, queue.Stats{Delayed: 4, Dead: 2})
		stop()
		got := collect(attempts)
		slices.Sort(got)
		want := []string{"discard 1", "fail 1", "fine 1", "nothing 1", "retry 1", "retry 2", "snooze 1", "then 1", "wrapped 1"}
		if !slices.Equal(got, want) {
			t.Fatalf("handled %v, want %v", got, want)
		}
		for id, want := range map[string]queue.TaskInfo{
			"discard": {State: queue.StateDead, Attempt: 1, Reason: "wrapped: broken"},
			"retry":   {State: queue.StateDead, Attempt: 2, Reason: "broken"},
			"snooze":  {State: queue.StateDelayed, Attempt: 0, Reason: "snoozed for 1h0m0s"},
			"fail":    {State: queue.StateDelayed, Attempt: 1, Reason: "broken"},
			"next":    {State: queue.StateDelayed},
			"next 2":  {State: queue.StateDelayed},
		} {
			got := get(t, q, id)
			if got.State != want.State || got.Attempt != want.Attempt || got.Reason != want.Reason {
				t.Errorf("%s: %+v, want %+v", id, got, want)
			}
		}
		for _, id := range []string{"fine", "then", "wrapped", "nothing"} {
			wantGone(t, q, id)
		}
	})
}

// TestRun_HandlerLength: a handler that returns another number of errors than it got tasks fails them, and the worker
// continues.
func TestRun_HandlerLength(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		reported := make(chan error, 2)
		stop := start(t, q, func(context.Context, []queue.Leased) []error { return make([]error, 7) },
			queue.RunConfig{OnError: sendErrors(reported)})
		for _, id := range []string{"a", "b"} {
			enqueue(t, q, queue.Task{ID: id})
			const want = "7 errors for 1 task"
			if err := receive(t, "the error", reported); !strings.HasSuffix(err.Error(), want) {
				t.Errorf("OnError got %q, want %q", err, want)
			}
			waitFor(t, func() bool { return get(t, q, id).State == queue.StateDead })
			if info := get(t, q, id); !strings.HasSuffix(info.Reason, want) {
				t.Errorf("reason is %q, want %q", info.Reason, want)
			}
		}
		stop()
	})
}

func explode() { panic("the order is odd") }

func TestRun_DrainFinishes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		running, finish := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(ctx context.Context, _ []queue.Leased) []error {
				close(running)
				select {
				case <-finish:
				case <-ctx.Done():
					t.Error("the context ended before the drain was over")
				}
				return nil
			}, queue.RunConfig{Batch: 1, Workers: 1, Drain: time.Hour})
		}()
		<-running
		cancel()
		// The batch continues although Run's context has ended; then it is acknowledged.
		select {
		case err := <-ended:
			t.Fatalf("Run ended before its handler: %v", err)
		default:
		}
		close(finish)
		must(t, <-ended)
		wantGone(t, q, "a")
		if info := get(t, q, "b"); info.State != queue.StateReady || info.Attempt != 0 {
			t.Fatalf("not fetched: %+v", info)
		}
	})
}

func TestRun_DrainSpent(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		for _, obedient := range []bool{true, false} {
			q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
			enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"})
			running, release := make(chan struct{}), make(chan struct{})
			end := launch(t, q, func(ctx context.Context, tasks []queue.Leased) []error {
				close(running)
				if !obedient {
					<-release
					return nil
				}
				<-ctx.Done()
				if !errors.Is(context.Cause(ctx), queue.ErrDraining) {
					t.Errorf("cause %v, want ErrDraining", context.Cause(ctx))
				}
				return []error{nil, ctx.Err(), fmt.Errorf("query: %w", ctx.Err())}
			}, queue.RunConfig{Workers: 1, Drain: 10 * time.Millisecond})
			<-running
			err := end()
			close(release)
			left := []string{"a", "b", "c"}
			if obedient {
				must(t, err)
				wantGone(t, q, "a")
				left = left[1:]
			} else if !errors.Is(err, queue.ErrAbandoned) {
				t.Fatalf("%v, want ErrAbandoned", err)
			}
			for _, id := range left {
				if info := get(t, q, id); info.State != queue.StateReady || info.Attempt != 0 {
					t.Fatalf("obedient %v: task is %+v, want ready with no attempt", obedient, info)
				}
			}
			take(t, q, left...)
		}
	})
}

// TestRenewer_Many: leases are extended whatever their number.
func TestRenewer_Many(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const lease = 3 * time.Second
		q := newQueue(t, rdb, queue.Config{Lease: lease})
		enqueue(t, q, numbered(1200)...)
		running, release := make(chan struct{}, 3), make(chan struct{})
		stop := start(t, q, func(ctx context.Context, tasks []queue.Leased) []error {
			running <- struct{}{}
			<-release
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return nil
		}, queue.RunConfig{Batch: 400, Workers: 3, OnError: failOn(t)})
		for range 3 {
			receive(t, "a handler", running)
		}
		began := serverTime(t, rdb)
		waitFor(t, func() bool { return serverTime(t, rdb).Sub(began) > lease*3/2 })
		// Tasks that no handler has yet may be delivered, but none a second time.
		f := dequeue(t, q, 512)
		for _, task := range f.Tasks {
			if task.Attempt > 1 {
				t.Errorf("%s was redelivered", task.ID)
			}
		}
		ack(t, q, f.Tasks...)
		close(release)
		awaitStats(t, q, queue.Stats{})
		stop()
	})
}
