package queue_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestWorker_Broken: a handler that panics or ends its goroutine fails its tasks; the number of
// workers stays the same.
func TestWorker_Broken(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panic": explode, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
				q := newQueue(t, rdb, queue.Config{MaxAttempts: 1})
				enqueue(t, q, numbered(12)...)
				reported := make(chan error, 100)
				var active, most atomic.Int32
				arrived, release := make(chan struct{}, 100), make(chan struct{})
				stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
					if tasks[0].Type != "well" {
						end()
					}
					if n := active.Add(1); n > most.Load() {
						most.Store(n)
					}
					arrived <- struct{}{}
					<-release
					active.Add(-1)
					return nil
				}, queue.RunConfig{Batch: 2, Workers: 3, OnError: sendErrors(reported)})
				for range 6 {
					if err := receive(t, "a failure", reported); err == nil {
						t.Error("no failure was reported")
					}
				}
				awaitStats(t, q, queue.Stats{Dead: 12})
				for i := range 12 {
					enqueue(t, q, queue.Task{ID: "well " + string(rune('a'+i)), Type: "well"})
				}
				for range 3 {
					receive(t, "one of three workers", arrived)
				}
				close(release)
				awaitStats(t, q, queue.Stats{Dead: 12})
				stop()
				if n := most.Load(); n != 3 {
					t.Errorf("%d handlers ran at once, want 3", n)
				}
			})
		})
	}
}

// TestWorker_Abandoned: an abandoned handler can change nothing later, even if its tasks could not
// be handed back; their leases are not extended.
func TestWorker_Abandoned(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		for _, handedBack := range []bool{true, false} {
			cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: time.Hour}
			admin := newQueue(t, rdb, cfg)
			load(t, admin)
			if !handedBack {
				cfg.Lease = 2 * time.Second // the test waits for its end
			}
			rejects := refusal{hash: queue.RejectHash}
			rejects.on.Store(!handedBack)
			enqueue(t, admin, queue.Task{ID: "a"}, queue.Task{ID: "b"})
			running, release, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
			end := launch(t, process(t, rdb, cfg, rejects.hook()), func(context.Context, []queue.Leased) []error {
				defer close(returned)
				close(running)
				<-release
				return []error{nil, queue.Discard(errors.New("late"))}
			}, queue.RunConfig{Workers: 1, Drain: time.Millisecond})
			receive(t, "the handler", running)
			wantErr(t, end(), queue.ErrAbandoned)
			if handedBack {
				wantStats(t, admin, queue.Stats{Ready: 2})
			} else {
				wantStats(t, admin, queue.Stats{Leased: 2})
			}
			got := take(t, admin, "a", "b") // waits for the leases to end
			want := map[bool]int{true: 1, false: 2}[handedBack]
			if got[0].Attempt != want || got[1].Attempt != want {
				t.Errorf("handed back %v: attempts %d and %d, want %d", handedBack, got[0].Attempt, got[1].Attempt, want)
			}
			close(release)
			receive(t, "the handler's end", returned)
			if status := ack(t, admin, got...); status[0] != queue.StatusOK || status[1] != queue.StatusOK {
				t.Errorf("handed back %v: the abandoned handler changed something: %v", handedBack, status)
			}
		}
	})
}

// TestWorker_OwnsTasks: a handler may reorder its tasks; its verdicts follow the new order.
func TestWorker_OwnsTasks(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: 9 * time.Second, MaxAttempts: 1})
		enqueue(t, q, numbered(20)...)
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			began := serverTime(t, rdb)
			waitFor(t, func() bool { // while the renewer extends
				for i, j := 0, len(tasks)-1; i < j; i, j = i+1, j-1 {
					tasks[i], tasks[j] = tasks[j], tasks[i]
				}
				return serverTime(t, rdb).Sub(began) > 3500*time.Millisecond
			})
			errs := make([]error, len(tasks))
			for i := range tasks {
				if tasks[i].ID < "t000011" {
					errs[i] = queue.Discard(errors.New("small"))
				}
			}
			return errs
		}, queue.RunConfig{Workers: 1, OnError: failOn(t)})
		awaitStats(t, q, queue.Stats{Dead: 10})
		stop()
		for _, info := range list(t, q, queue.StateDead) {
			if info.ID >= "t000011" {
				t.Errorf("%s is dead", info.ID)
			}
		}
	})
}
