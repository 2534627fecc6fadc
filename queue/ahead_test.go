package queue_test

import (
	"context"
	"errors"
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

// farAhead makes a Run prefetch the maximum, however slow the machine.
const farAhead = time.Hour

// blockOn is a handler that records its tasks and blocks at the named one.
type blockOn struct {
	id      string
	blocked chan struct{} // closed when that began
	release chan struct{} // to be closed
	mu      sync.Mutex
	seen    []queue.Leased
}

func newBlockOn(id string) *blockOn {
	return &blockOn{id: id, blocked: make(chan struct{}), release: make(chan struct{})}
}

func (b *blockOn) handle(_ context.Context, tasks []queue.Leased) []error {
	b.mu.Lock()
	b.seen = append(b.seen, tasks...)
	b.mu.Unlock()
	if slices.Contains(names(tasks), b.id) {
		close(b.blocked)
		<-b.release
	}
	return nil
}

func (b *blockOn) handled() []queue.Leased {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.seen)
}

// TestAhead_HandedBack: when the handler becomes slow, prefetched tasks are handed back
// in order, uncounted, and another process handles them.
func TestAhead_HandedBack(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		quick := numbered(200)
		rest := numbered(230)[:30]
		enqueue(t, q, slices.Concat(quick, []queue.Task{{ID: "slow"}}, rest)...)
		h := newBlockOn("slow")
		// The test must see them before they are handed back, also on a busy machine.
		stop := start(t, q, h.handle, queue.WithPatience(queue.RunConfig{
			Batch: 1, Workers: 1, Ahead: farAhead, OnError: failOn(t),
		}, 5*time.Second))
		receive(t, "the slow task", h.blocked)
		waitFor(t, func() bool { return stats(t, q).Leased == 1+len(rest) })

		second := newBlockOn("")
		var all sync.WaitGroup
		all.Add(len(rest))
		stopSecond := start(t, process(t, rdb, queue.Config{Prefix: prefix}), func(ctx context.Context, tasks []queue.Leased) []error {
			defer all.Add(-len(tasks))
			return second.handle(ctx, tasks)
		}, queue.RunConfig{Batch: 1, Workers: 1, MaxIdle: time.Hour})
		all.Wait()
		for i, task := range second.handled() {
			if task.ID != rest[i].ID || task.Attempt != 1 {
				t.Fatalf("number %d is %s at attempt %d, want %s at 1", i, task.ID, task.Attempt, rest[i].ID)
			}
		}
		stopSecond()
		close(h.release)
		awaitStats(t, q, queue.Stats{})
		stop()
		if n := len(h.handled()); n != 201 {
			t.Errorf("the first handled %d, want 201", n)
		}
	})
}

// TestAhead_None: a negative Ahead fetches only tasks for which a worker is free.
func TestAhead_None(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q, admin := process(t, rdb, queue.Config{Prefix: prefix}), newQueue(t, rdb, queue.Config{Prefix: prefix})
		enqueue(t, admin, numbered(60)...)
		var most, returned atomic.Int32
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			// Those that were handled may still be leased, until they are acknowledged.
			fetched := int32(60 - stats(t, admin).Ready) //nolint:gosec // at most 60
			if n := fetched - returned.Load(); n > most.Load() {
				most.Store(n)
			}
			returned.Add(int32(len(tasks))) //nolint:gosec // at most Batch
			return nil
		}, queue.RunConfig{Batch: 2, Workers: 3, Ahead: -1})
		awaitStats(t, admin, queue.Stats{})
		stop()
		if n := most.Load(); n > 6 {
			t.Errorf("%d tasks are leased, want at most the 6 of three batches", n)
		}
	})
}

// TestAhead_Default: while a handler is slow, Run fetches no tasks for it.
func TestAhead_Default(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		h := newBlockOn("slow")
		stop := start(t, q, h.handle, queue.RunConfig{Batch: 100, Workers: 1})
		enqueue(t, q, queue.Task{ID: "slow"})
		receive(t, "the slow task", h.blocked)
		enqueue(t, q, numbered(10)...)
		second := newBlockOn("")
		stopSecond := start(t, process(t, rdb, queue.Config{Prefix: prefix}), second.handle, queue.RunConfig{})
		waitFor(t, func() bool { return len(second.handled()) == 10 })
		stopSecond()
		close(h.release)
		stop()
		if got := names(h.handled()); len(got) != 1 {
			t.Errorf("the first handled %v", got)
		}
	})
}

// TestAhead_Extended: leases are extended also while a task waits for its worker.
func TestAhead_Extended(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: 3 * time.Second})
		admin := process(t, rdb, queue.Config{Prefix: prefix, Lease: time.Minute})
		enqueue(t, q, slices.Concat(numbered(5), []queue.Task{{ID: "slow"}, {ID: "a"}, {ID: "b"}})...)
		h := newBlockOn("slow")
		// They are handed back after the first end of the lease. Until then no other worker
		// gets them.
		stop := start(t, q, h.handle, queue.WithPatience(queue.RunConfig{
			Batch: 1, Workers: 1, Ahead: farAhead, OnError: failOn(t),
		}, 4*time.Second))
		receive(t, "the slow task", h.blocked)
		waitFor(t, func() bool { return stats(t, q).Leased == 3 })
		var got []queue.Leased
		waitFor(t, func() bool {
			got = append(got, dequeue(t, admin, 10).Tasks...)
			return len(got) == 2
		})
		for i, id := range []string{"a", "b"} {
			if got[i].ID != id || got[i].Attempt != 1 {
				t.Errorf("got %s at attempt %d, want %s at 1: its lease ran out", got[i].ID, got[i].Attempt, id)
			}
		}
		ack(t, admin, got...)
		close(h.release)
		awaitStats(t, q, queue.Stats{})
		stop()
	})
}

// TestAhead_LeaseLost: a task that another worker has by now is not handled.
func TestAhead_LeaseLost(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		// The renewer, which must be in time on a busy machine, finds the loss after a third.
		q := newQueue(t, rdb, queue.Config{Lease: 9 * time.Second})
		enqueue(t, q, slices.Concat(numbered(5), []queue.Task{{ID: "slow"}, {ID: "a"}, {ID: "lost"}, {ID: "b"}})...)
		h := newBlockOn("slow")
		reported := make(chan error, 100)
		stop := start(t, q, h.handle, queue.WithPatience(queue.RunConfig{
			Batch: 1, Workers: 1, Ahead: farAhead, OnError: sendErrors(reported),
		}, limit))
		receive(t, "the slow task", h.blocked)
		waitFor(t, func() bool { return stats(t, q).Leased == 4 })
		ctx := await.Context(t)
		keys := q.EnqueueKeys()
		if err := rdb.HSet(ctx, keys[4], "lost", "2,0;Lother").Err(); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, "the loss", reported); !errors.Is(err, queue.ErrLeaseLost) || !strings.HasSuffix(err.Error(), ": 1 of them") {
			t.Fatalf("reported %v, want the loss of one lease", err)
		}
		// While the other worker holds it, no worker gets it.
		must(t, rdb.ZAdd(ctx, keys[2], redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "lost"}).Err())
		close(h.release)
		awaitStats(t, q, queue.Stats{Leased: 1})
		stop()
		got := names(h.handled())
		if slices.Contains(got, "lost") {
			t.Fatalf("handled %v", got)
		}
		if info := get(t, q, "lost"); info.State != queue.StateLeased || info.Attempt != 2 {
			t.Fatalf("the other worker's task is %+v", info)
		}
	})
}
