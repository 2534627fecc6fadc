package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestDrain_Order: at the end of Run, waiting tasks are handed back in order, and the
// tasks still running after Drain in front of them, all uncounted.
func TestDrain_Order(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
		rest := numbered(700)
		enqueue(t, q, slices.Concat(numbered(1400)[:400], []queue.Task{{ID: "slow"}}, rest)...)
		blocked := make(chan struct{})
		end := launch(t, q, func(ctx context.Context, tasks []queue.Leased) []error {
			if tasks[0].ID == "slow" {
				close(blocked)
				<-ctx.Done()
				return []error{ctx.Err()}
			}
			return nil
		}, queue.RunConfig{Batch: 1, Workers: 1, Ahead: farAhead, Drain: time.Second})
		receive(t, "the slow task", blocked)
		waitFor(t, func() bool { return stats(t, q).Leased > 100 }) // of more than one fetch
		must(t, end())
		wantStats(t, q, queue.Stats{Ready: 701})
		got := append(dequeue(t, q, 400).Tasks, dequeue(t, q, 400).Tasks...)
		for i, task := range got {
			want := "slow"
			if i > 0 {
				want = rest[i-1].ID
			}
			if task.ID != want || task.Attempt != 1 {
				t.Fatalf("number %d is %s at attempt %d, want %s at 1", i, task.ID, task.Attempt, want)
			}
		}
	})
}

// TestDrain_FetchUnderWay: tasks fetched after the end of Run are handed back behind the
// waiting ones, and no handler begins.
func TestDrain_FetchUnderWay(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		cfg := queue.Config{Prefix: redistest.Prefix(t), MaxAttempts: 1}
		admin := newQueue(t, rdb, cfg)
		load(t, admin)
		fetched, release := make(chan struct{}), make(chan struct{})
		var armed atomic.Bool
		q := process(t, rdb, cfg, script{after: func(hash string) {
			if hash == queue.DequeueHash && armed.Load() && stats(t, admin).Leased > 0 && armed.CompareAndSwap(true, false) {
				close(fetched)
				<-release
			}
		}})
		armed.Store(true)
		enqueue(t, admin, numbered(20)...)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(_ context.Context, tasks []queue.Leased) []error {
				t.Errorf("handled %v", names(tasks))
				return nil
			}, queue.RunConfig{Batch: 8})
		}()
		receive(t, "the fetch", fetched)
		cancel()
		close(release)
		must(t, receive(t, "the end", ended))
		want := idsOf(numbered(20))
		for _, task := range take(t, admin, want...) {
			if task.Attempt != 1 {
				t.Errorf("%s is at attempt %d", task.ID, task.Attempt)
			}
		}
	})
}

// labelled counts the goroutines that carry a label.
func labelled(t testing.TB, label string) (n int, stacks string) {
	t.Helper()
	var b bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	for group := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(group, label) {
			n++
			stacks += group + "\n"
		}
	}
	return n, stacks
}

// TestDrain_NoGoroutines: Run leaves no goroutines behind, whatever it was doing.
func TestDrain_NoGoroutines(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		label := fmt.Sprintf("run-%d", rand.Uint64())
		for i, tasks := range []int{0, 1, 2000} {
			q, asleep := sleeper(t, rdb, queue.Config{})
			var seen attempts
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go pprof.Do(ctx, pprof.Labels("test", label), func(ctx context.Context) {
				ended <- q.Run(ctx, seen.handle, queue.RunConfig{Batch: 4, Workers: 8})
			})
			receive(t, "Run", asleep)
			if n, _ := labelled(t, label); n == 0 {
				t.Fatal("the label is not seen")
			}
			if tasks > 0 {
				enqueue(t, q, numbered(tasks)...)
				waitFor(t, func() bool { return seen.distinct() >= tasks/2 })
			}
			cancel()
			must(t, receive(t, "the end", ended))
			// The last of them may take a moment to end.
			waitFor(t, func() bool {
				n, stacks := labelled(t, label)
				if n > 0 && await.Context(t).Err() != nil {
					t.Logf("run %d: %s", i, stacks)
				}
				return n == 0
			})
		}
	})
}

// TestDrain_Cycles: Runs that start and stop under load lose no task and repeat none.
func TestDrain_Cycles(t *testing.T) {
	t.Parallel()
	testCycles(t, 30)
}

func TestDrain_Cycles_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testCycles(t, 400)
}

func testCycles(t *testing.T, cycles int) {
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const per = 20
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: 10 * time.Minute, MaxAttempts: 1}
		admin, q := newQueue(t, rdb, cfg), process(t, rdb, cfg)
		produced := make(chan error, 1)
		var seen attempts
		go func() {
			for i := range cycles {
				tasks := make([]queue.Task, per)
				for j := range tasks {
					tasks[j].ID = fmt.Sprintf("%d of %d", j, i)
				}
				if _, err := admin.Enqueue(t.Context(), tasks...); err != nil {
					produced <- err
					return
				}
			}
			produced <- nil
		}()
		cycle := func(batch, workers int, ahead time.Duration) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var calls atomic.Int32
			enough := 1 + rand.Int32N(20)
			began := make(chan struct{})
			ended := make(chan error, 1)
			go func() {
				ended <- q.Run(ctx, func(_ context.Context, tasks []queue.Leased) []error {
					seen.add(tasks)
					if calls.Add(1) == enough {
						close(began)
					}
					return nil
				}, queue.RunConfig{Batch: batch, Workers: workers, Ahead: ahead, OnError: failOn(t)})
			}()
			select {
			case <-began:
			case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
			}
			cancel()
			if err := receive(t, "the end", ended); err != nil {
				t.Error(err)
			}
		}
		for range cycles {
			cycle(1+rand.IntN(40), 1+rand.IntN(4), []time.Duration{-1, 0, 0, farAhead}[rand.IntN(4)])
		}
		must(t, receive(t, "the producer", produced))
		stop := start(t, q, seen.handle, queue.RunConfig{})
		awaitStats(t, admin, queue.Stats{})
		stop()
		seen.wantOnce(t, cycles*per)
	})
}

// TestDrain_RedisGone: Run ends although Redis is gone.
func TestDrain_RedisGone(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{Lease: time.Hour})
	enqueue(t, q, numbered(600)...)
	running := make(chan struct{}, 10)
	release := make(chan struct{})
	end := launch(t, q, func(context.Context, []queue.Leased) []error {
		running <- struct{}{}
		<-release
		return nil
	}, queue.RunConfig{Workers: 2, Drain: 50 * time.Millisecond})
	receive(t, "a handler", running)
	receive(t, "a handler", running)
	must(t, srv.Kill())
	close(release)
	if err := end(); err != nil && !errors.Is(err, queue.ErrAbandoned) {
		t.Fatal(err)
	}
}
