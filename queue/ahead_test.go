package queue_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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
		q := newQueue(t, rdb, queue.Config{})
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
		stopSecond := start(t, process(t, rdb, queue.Config{Prefix: q.Prefix()}), func(ctx context.Context, tasks []queue.Leased) []error {
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

// TestAhead_Extended: leases are extended also while a task waits for its worker.
func TestAhead_Extended(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: 3 * time.Second})
		admin := process(t, rdb, queue.Config{Prefix: q.Prefix(), Lease: time.Minute})
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
