package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// startEach is start for a handler of single tasks.
func startEach(t testing.TB, q *queue.Queue, h queue.Handler, cfg queue.RunConfig) (stop func()) {
	t.Helper()
	return stopping(t, launchEach(t, q, h, cfg))
}

// launchEach is launch for a handler of single tasks.
func launchEach(t testing.TB, q *queue.Queue, h queue.Handler, cfg queue.RunConfig) (end func() error) {
	t.Helper()
	return launched(func(ctx context.Context) error { return runEach(ctx, q, h, cfg) })
}

func runEach(ctx context.Context, q *queue.Queue, h queue.Handler, cfg queue.RunConfig) error {
	return q.RunEach(ctx, h, cfg)
}

// TestRunEach_Concurrency: RunConfig.Workers tasks run concurrently, each in its own call.
func TestRunEach_Concurrency(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const workers = 10
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, numbered(2*workers)...)
		var active, most atomic.Int32
		arrived, release := make(chan string, 2*workers), make(chan struct{})
		stop := startEach(t, q, func(_ context.Context, task queue.Leased) error {
			n := active.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			arrived <- task.ID
			<-release
			active.Add(-1)
			return nil
		}, queue.RunConfig{Workers: workers})
		for range 2 {
			for range workers {
				receive(t, "a concurrent task", arrived)
			}
			for range workers {
				release <- struct{}{}
			}
		}
		awaitStats(t, q, queue.Stats{})
		stop()
		if n := most.Load(); n != workers {
			t.Errorf("%d tasks ran concurrently, want %d", n, workers)
		}
	})
}

// TestRunEach_AcksCollected: tasks that finish while an acknowledgement is under way are acknowledged by one call.
func TestRunEach_AcksCollected(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const total = 31
		admin := newQueue(t, rdb, queue.Config{})
		load(t, admin)
		var calls atomic.Int32
		done := make(chan struct{})
		q := process(t, rdb, queue.Config{Prefix: admin.Prefix()}, script{at: func(_ context.Context, hash string) {
			if hash == queue.AckHash && calls.Add(1) == 1 {
				<-done
			}
		}})
		enqueue(t, admin, numbered(total)...)
		var handled atomic.Int32
		stop := startEach(t, q, func(context.Context, queue.Leased) error {
			if handled.Add(1) == total {
				close(done)
			}
			return nil
		}, queue.RunConfig{Workers: 10})
		awaitStats(t, admin, queue.Stats{})
		stop()
		// The last handler may return after the second call has begun.
		if n := calls.Load(); n > 3 {
			t.Errorf("%d calls acknowledged %d tasks, want at most 3", n, total)
		}
	})
}

// TestRunEach_StopAcknowledges: tasks that finished before a stop are acknowledged even if
// others hang.
func TestRunEach_StopAcknowledges(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		tasks := numbered(13)
		enqueue(t, q, tasks...)
		var seen attempts
		hanging, release := make(chan struct{}, len(tasks)), make(chan struct{})
		defer close(release)
		end := launchEach(t, q, func(_ context.Context, task queue.Leased) error {
			seen.add([]queue.Leased{task})
			if task.ID <= tasks[6].ID { // the names descend: the first six finish
				hanging <- struct{}{}
				<-release
			}
			return nil
		}, queue.RunConfig{Workers: 2, Drain: 10 * time.Millisecond})
		receive(t, "the first task that hangs", hanging)
		wantErr(t, end(), queue.ErrAbandoned)
		for _, task := range tasks[:6] {
			wantGone(t, q, task.ID)
		}
		wantStats(t, q, queue.Stats{Ready: 7})
		for i, task := range dequeue(t, q, 7).Tasks {
			if task.ID != tasks[6+i].ID || task.Attempt != 1 {
				t.Errorf("number %d is %s at attempt %d, want %s at 1", i, task.ID, task.Attempt, tasks[6+i].ID)
			}
		}
	})
}

// TestRunEach_StopStartsNothing: no task starts after the context of Run has ended; fetched
// tasks are handed back in order, uncounted.
func TestRunEach_StopStartsNothing(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		tasks := numbered(50)
		enqueue(t, q, tasks...)
		var seen attempts
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- runEach(ctx, q, func(_ context.Context, task queue.Leased) error {
				seen.add([]queue.Leased{task})
				if task.ID == tasks[10].ID {
					cancel()
				}
				return nil
			}, queue.RunConfig{Workers: 1, Ahead: farAhead})
		}()
		must(t, receive(t, "the end", ended))
		if n := seen.distinct(); n != 11 {
			t.Errorf("%d tasks ran, want the 11 up to the stop", n)
		}
		wantStats(t, q, queue.Stats{Ready: 39})
		for i, task := range dequeue(t, q, 39).Tasks {
			if task.ID != tasks[11+i].ID || task.Attempt != 1 {
				t.Errorf("number %d is %s at attempt %d, want %s at 1", i, task.ID, task.Attempt, tasks[11+i].ID)
			}
		}
	})
}

// TestRunEach_CancelOne: the loss of one task's lease ends the context of that task only.
func TestRunEach_CancelOne(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const n = 8
		// The renewer, which must be in time on a busy machine, finds the loss after a third.
		q := newQueue(t, rdb, queue.Config{Lease: 9 * time.Second})
		tasks := numbered(n)
		enqueue(t, q, tasks...)
		var seen attempts
		running, cancelled, release := make(chan struct{}, n), make(chan error, n), make(chan struct{})
		stop := startEach(t, q, func(ctx context.Context, task queue.Leased) error {
			seen.add([]queue.Leased{task})
			running <- struct{}{}
			if task.ID == tasks[3].ID {
				<-ctx.Done()
				cancelled <- context.Cause(ctx)
				return ctx.Err()
			}
			<-release
			if ctx.Err() != nil {
				t.Errorf("the context of %s ended: %v", task.ID, context.Cause(ctx))
			}
			return ctx.Err()
		}, queue.RunConfig{Workers: n})
		for range n {
			receive(t, "a task", running)
		}
		if _, err := q.Cancel(await.Context(t), tasks[3].ID); err != nil {
			t.Fatal(err)
		}
		wantErr(t, receive(t, "the cancelled task's end", cancelled), queue.ErrLeaseLost)
		close(release)
		awaitStats(t, q, queue.Stats{})
		stop()
		seen.wantOnce(t, n)
	})
}

// TestRunEach_Hanging: a handler that ignores its task's Timeout fails the task. It blocks
// neither a worker nor the acknowledgements of others.
func TestRunEach_Hanging(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		reported := make(chan error, 100)
		hangs := queue.Task{ID: "hangs", Timeout: 10 * time.Millisecond}
		enqueue(t, q, append([]queue.Task{hangs}, numbered(99)...)...)
		release, returned := make(chan struct{}), make(chan struct{})
		stop := startEach(t, q, func(_ context.Context, task queue.Leased) error {
			if task.ID == hangs.ID {
				defer close(returned)
				<-release
			}
			return nil
		}, queue.RunConfig{Workers: 1, OnError: sendErrors(reported)})
		awaitStats(t, q, queue.Stats{Dead: 1})
		if info := get(t, q, hangs.ID); info.Attempt != 1 || !strings.Contains(info.Reason, queue.ErrTimeout.Error()) {
			t.Errorf("the dead letter is %+v", info)
		}
		if err := receive(t, "the report", reported); !errors.Is(err, queue.ErrAbandoned) || !strings.Contains(err.Error(), hangs.ID) {
			t.Errorf("reported %v, want ErrAbandoned with the task's id", err)
		}
		// Its later verdict is ignored, and Run ends without an error once it has returned.
		close(release)
		receive(t, "the handler's end", returned)
		stop()
		wantStats(t, q, queue.Stats{Dead: 1})
	})
}

// TestRunEach_HangingAtStop: Run returns ErrAbandoned while a handler that was given up is
// still running.
func TestRunEach_HangingAtStop(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		var hang []queue.Task
		for i := range 3 {
			hang = append(hang, queue.Task{ID: fmt.Sprintf("hangs %d", i), Timeout: time.Millisecond})
		}
		enqueue(t, q, hang...)
		release := make(chan struct{})
		defer close(release)
		end := launchEach(t, q, func(context.Context, queue.Leased) error {
			<-release
			return nil
		}, queue.RunConfig{Workers: 2, Drain: time.Millisecond})
		awaitStats(t, q, queue.Stats{Dead: 3})
		if err := end(); !errors.Is(err, queue.ErrAbandoned) || !strings.Contains(err.Error(), "3 of them") {
			t.Fatalf("%v, want ErrAbandoned with 3 of them", err)
		}
		wantStats(t, q, queue.Stats{Dead: 3})
	})
}

// TestRunEach_Timeout: a task's context ends after its Timeout; a task without a Timeout has
// no deadline. The dead letter has both ErrTimeout and the handler's error.
func TestRunEach_Timeout(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		enqueue(t, q, queue.Task{ID: "slow", Timeout: 20 * time.Millisecond},
			queue.Task{ID: "done late", Timeout: time.Millisecond}, queue.Task{ID: "unlimited"})
		stop := startEach(t, q, func(ctx context.Context, task queue.Leased) error {
			if task.ID == "unlimited" {
				if _, limited := ctx.Deadline(); limited {
					t.Error("a task without a timeout has a deadline")
				}
				return nil
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), queue.ErrTimeout) {
				t.Errorf("%s ended with %v", task.ID, context.Cause(ctx))
			}
			if task.ID == "done late" {
				return nil
			}
			return fmt.Errorf("query: %w", ctx.Err())
		}, queue.RunConfig{Workers: 4})
		awaitStats(t, q, queue.Stats{Dead: 1})
		stop()
		if info := get(t, q, "slow"); !strings.Contains(info.Reason, queue.ErrTimeout.Error()) ||
			!strings.Contains(info.Reason, context.DeadlineExceeded.Error()) {
			t.Fatalf("the dead letter is %+v", info)
		}
	})
}

// TestRunEach_Poison: one of a hundred panics; the others are done.
func TestRunEach_Poison(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 2, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		tasks := numbered(100)
		poison := tasks[42].ID
		enqueue(t, q, tasks...)
		var seen attempts
		stop := startEach(t, q, func(_ context.Context, task queue.Leased) error {
			seen.add([]queue.Leased{task})
			if task.ID == poison {
				explode()
			}
			return nil
		}, queue.RunConfig{Workers: 8})
		awaitStats(t, q, queue.Stats{Dead: 1})
		stop()
		if info := get(t, q, poison); info.Attempt != 2 || !strings.Contains(info.Reason, "the order is odd") ||
			!strings.Contains(info.Reason, "queue_test.explode") {
			t.Fatalf("dead letter %+v", info)
		}
		for _, task := range tasks {
			if n, want := seen.times(task.ID), map[bool]int{true: 2, false: 1}[task.ID == poison]; n != want {
				t.Fatalf("%s ran %d times, want %d", task.ID, n, want)
			}
		}
	})
}

// TestRunAll_EachAndBatch: a source of single tasks and one of batches share the workers.
func TestRunAll_EachAndBatch(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		single, batched := newQueue(t, rdb, queue.Config{}), newQueue(t, rdb, queue.Config{})
		enqueue(t, single, numbered(40)...)
		enqueue(t, batched, numbered(40)...)
		var mu sync.Mutex
		var sizes []int
		var seen attempts
		stop := startAll(t, queue.RunConfig{Batch: 8, Workers: 3},
			queue.Source{Queue: single, Each: func(_ context.Context, task queue.Leased) error {
				seen.add([]queue.Leased{task})
				return nil
			}},
			queue.Source{Queue: batched, Handler: func(_ context.Context, tasks []queue.Leased) []error {
				mu.Lock()
				defer mu.Unlock()
				sizes = append(sizes, len(tasks))
				return nil
			}})
		waitFor(t, func() bool { return stats(t, single) == queue.Stats{} && stats(t, batched) == queue.Stats{} })
		stop()
		seen.wantOnce(t, 40)
		if most := slices.Max(sizes); most < 2 || most > 8 {
			t.Errorf("batches of %v; want up to 8", sizes)
		}
	})
}

// TestRun_Hold: a process that fetches nothing for a while passes its wake-ups on, and the tasks that it
// returns go to another one, without counting the attempt.
func TestRun_Hold(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, numbered(3)...)
		returned := make(chan string, 3)
		var holding atomic.Bool
		held := make(chan struct{}, 100)
		startEach(t, q, func(_ context.Context, task queue.Leased) error {
			holding.Store(true)
			returned <- task.ID
			return queue.Return(errors.New("not here"))
		}, queue.RunConfig{Workers: 1, Hold: func() time.Duration {
			if !holding.Load() {
				return 0
			}
			held <- struct{}{}
			return time.Hour
		}})
		receive(t, "the first task", returned)
		receive(t, "the process to hold", held)
		done := make(chan queue.Leased, 6)
		startEach(t, q, func(_ context.Context, task queue.Leased) error {
			done <- task
			return nil
		}, queue.RunConfig{Workers: 1, MaxIdle: time.Hour})
		for range 3 {
			if got := receive(t, "a task", done); got.Attempt != 1 {
				t.Errorf("task %s at attempt %d, want 1", got.ID, got.Attempt)
			}
		}
		enqueue(t, q, queue.Task{ID: "later"}) // its wake-up may reach the process that holds
		if got := receive(t, "the later task", done); got.ID != "later" {
			t.Errorf("task %s, want the later one", got.ID)
		}
	})
}
