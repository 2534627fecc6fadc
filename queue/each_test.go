package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

func leasedTasks(n int) []queue.Leased {
	tasks := make([]queue.Leased, n)
	for i := range tasks {
		tasks[i].ID = fmt.Sprint(i)
	}
	return tasks
}

// TestEach_Parallel: exactly so many at once as allowed and needed.
func TestEach_Parallel(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ parallel, tasks, want int }{
		{3, 9, 3}, {1, 4, 1}, {0, 4, 1}, {-1, 4, 1}, {8, 3, 3}, {4, 1, 1}, {2, 0, 0},
	} {
		t.Run(fmt.Sprintf("%d of %d", tt.parallel, tt.tasks), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var active, handled atomic.Int32
				release := make(chan struct{})
				h := queue.Each(tt.parallel, func(_ context.Context, task queue.Leased) error {
					active.Add(1)
					<-release
					active.Add(-1)
					handled.Add(1)
					return errors.New(task.ID)
				})
				result := make(chan []error, 1)
				go func() { result <- h(t.Context(), leasedTasks(tt.tasks)) }()
				for left := tt.tasks; left > 0; left-- {
					synctest.Wait()
					if n := int(active.Load()); n != min(tt.want, left) {
						t.Errorf("%d at once with %d left, want %d", n, left, min(tt.want, left))
					}
					release <- struct{}{}
				}
				errs := <-result
				if len(errs) != tt.tasks || int(handled.Load()) != tt.tasks {
					t.Fatalf("%d errors, %d handled, want %d", len(errs), handled.Load(), tt.tasks)
				}
				for i, err := range errs {
					if err.Error() != fmt.Sprint(i) {
						t.Errorf("task %d has the error of %v", i, err)
					}
				}
			})
		})
	}
}

func TestEach_Middleware(t *testing.T) {
	t.Parallel()
	var order []string
	note := func(name string) queue.Middleware {
		return func(next queue.Handler) queue.Handler {
			return func(ctx context.Context, task queue.Leased) error {
				order = append(order, name+" in")
				defer func() { order = append(order, name+" out") }()
				return next(ctx, task)
			}
		}
	}
	refuse := func(next queue.Handler) queue.Handler {
		return func(ctx context.Context, task queue.Leased) error {
			if task.ID == "1" {
				return errors.New("refused")
			}
			return next(ctx, task)
		}
	}
	h := queue.Each(1, func(context.Context, queue.Leased) error { order = append(order, "handler"); return nil },
		note("outer"), refuse, note("inner"))
	errs := h(t.Context(), leasedTasks(2))
	want := []string{"outer in", "inner in", "handler", "inner out", "outer out", "outer in", "outer out"}
	if !slices.Equal(order, want) {
		t.Fatalf("%q, want %q", order, want)
	}
	if errs[0] != nil || errs[1] == nil || errs[1].Error() != "refused" {
		t.Fatalf("%v", errs)
	}
}

// TestEach_Timeout: each task has its own time, from its own beginning.
func TestEach_Timeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tasks := leasedTasks(4)
		for i := range tasks[:3] {
			tasks[i].Timeout = time.Hour
		}
		failed := errors.New("failed early")
		errs := queue.Each(1, func(ctx context.Context, task queue.Leased) error {
			began := time.Now()
			switch task.ID {
			case "2":
				return failed
			case "3":
				if _, limited := ctx.Deadline(); limited {
					t.Error("a task without a timeout has a deadline")
				}
				return nil
			}
			<-ctx.Done()
			if took := time.Since(began); took != time.Hour || !errors.Is(context.Cause(ctx), queue.ErrTimeout) {
				t.Errorf("task %s ended after %v with %v", task.ID, took, context.Cause(ctx))
			}
			return fmt.Errorf("query: %w", ctx.Err())
		})(t.Context(), tasks)
		for _, err := range errs[:2] {
			if !errors.Is(err, queue.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, want ErrTimeout and its own error", err)
			}
		}
		if !errors.Is(errs[2], failed) || errors.Is(errs[2], queue.ErrTimeout) || errs[3] != nil {
			t.Errorf("%v", errs[2:])
		}
	})
}

// TestEach_Interrupted: what had not begun when the context ended is not begun.
func TestEach_Interrupted(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{1, 2} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var began atomic.Int32
		errs := queue.Each(parallel, func(ctx context.Context, _ queue.Leased) error {
			if began.Add(1) == int32(parallel) {
				cancel(queue.ErrLeaseLost)
			}
			<-ctx.Done()
			return ctx.Err()
		})(ctx, leasedTasks(9))
		if n := int(began.Load()); n != parallel {
			t.Fatalf("%d began, want %d", n, parallel)
		}
		lost := 0
		for _, err := range errs {
			if err == nil {
				t.Fatalf("done without having begun: %v", errs)
			}
			if errors.Is(err, queue.ErrLeaseLost) {
				lost++
			}
		}
		if lost != 9-parallel {
			t.Fatalf("%d say why they did not begin, want %d: %v", lost, 9-parallel, errs)
		}
	}
}

// TestEach_Goexit: a handler that ends its goroutine has not done its task, and stops no other.
func TestEach_Goexit(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{2, 4} {
		result := make(chan []error, 1)
		go func() {
			result <- queue.Each(parallel, func(_ context.Context, task queue.Leased) error {
				if task.ID < "4" {
					runtime.Goexit()
				}
				return nil
			})(t.Context(), leasedTasks(8))
		}()
		select {
		case errs := <-result:
			for i, err := range errs {
				if (err != nil) != (i < 4) {
					t.Fatalf("parallel %d, task %d: %v", parallel, i, err)
				}
			}
		case <-time.After(2 * time.Second):
			t.Fatalf("parallel %d: the batch never ends", parallel)
		}
	}
}

// TestEach_Poison: one of a hundred panics; the others are done.
func TestEach_Poison(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		for _, parallel := range []int{1, 8} {
			q := newQueue(t, rdb, queue.Config{MaxAttempts: 2, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
			tasks := numbered(100)
			poison := tasks[42].ID
			enqueue(t, q, tasks...)
			var mu sync.Mutex
			runs := make(map[string]int)
			stop := start(t, q, queue.Each(parallel, func(_ context.Context, task queue.Leased) error {
				mu.Lock()
				runs[task.ID]++
				mu.Unlock()
				if task.ID == poison {
					explode()
				}
				return nil
			}), queue.RunConfig{})
			waitFor(t, func() bool { return stats(t, q) == queue.Stats{Dead: 1} })
			stop()
			letter := dead(t, q)[0]
			if letter.ID != poison || letter.Attempt != 2 || !strings.Contains(letter.Reason, "the order is odd") ||
				!strings.Contains(letter.Reason, "queue_test.explode") {
				t.Fatalf("dead letter %+v", letter)
			}
			for _, task := range tasks {
				if want := map[bool]int{true: 2, false: 1}[task.ID == poison]; runs[task.ID] != want {
					t.Fatalf("%s ran %d times, want %d", task.ID, runs[task.ID], want)
				}
			}
		}
	})
}

// TestEach_TimeoutDead: the reason of the dead letter says that it was the timeout.
func TestEach_TimeoutDead(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "slow", Timeout: 20 * time.Millisecond, MaxAttempts: 1}, queue.Task{ID: "fast", Timeout: time.Hour})
		stop := start(t, q, queue.Each(4, func(ctx context.Context, task queue.Leased) error {
			if task.ID == "fast" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}), queue.RunConfig{})
		waitFor(t, func() bool { return stats(t, q) == queue.Stats{Dead: 1} })
		stop()
		if letter := dead(t, q)[0]; letter.ID != "slow" || !strings.Contains(letter.Reason, queue.ErrTimeout.Error()) ||
			!strings.Contains(letter.Reason, context.DeadlineExceeded.Error()) {
			t.Fatalf("dead letter %+v", letter)
		}
	})
}
