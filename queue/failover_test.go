package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// replicated is a master with a replica that can be cut off.
type replicated struct {
	server, replica *redistest.Server
	link            *redistest.Proxy
	master, copied  *redis.Client
}

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	server := redistest.Real(t, "--appendonly", "no")
	r := &replicated{server: server, replica: server.Replica(t), link: redistest.NewProxy(t, server.Addr())}
	// WAIT asks about the writes of its own connection, so there is only one.
	o := redistest.Options(server.Addr())
	o.PoolSize = 1
	r.master = redis.NewClient(o)
	closeAtEnd(t, r.master)
	r.copied = clientOf(t, r.replica)
	host, port, err := net.SplitHostPort(r.link.Addr())
	must(t, err)
	must(t, r.copied.Do(t.Context(), "replicaof", host, port).Err())
	awaitThat(t, "the replica confirms", func() bool {
		must(t, r.master.Incr(t.Context(), "confirmed").Err())
		return r.confirmed(t, 100*time.Millisecond)
	})
	return r
}

// confirmed reports whether the replica has all writes.
func (r *replicated) confirmed(t *testing.T, within time.Duration) bool {
	t.Helper()
	n, err := r.master.Wait(t.Context(), 1, within).Result()
	must(t, err)
	return n == 1
}

// TestRun_Failover: a master dies and its replica, which lacks the last writes, is promoted.
// Exactly the tasks that WAIT had confirmed are handled. A leased task is delivered as the
// second attempt when its lease ends, even if it was acknowledged after the replica's last
// write. The ids of the lost tasks are free, and the queue is consistent.
func TestRun_Failover(t *testing.T) {
	t.Parallel()
	r, prefix := newReplicated(t), redistest.Prefix(t)
	cfg := queue.Config{Prefix: prefix, Lease: processLease}
	q := newQueue(t, r.master, cfg)
	want := make(map[string]int) // id -> the attempt that runs after the failover
	add := func(first, n int) (ids []string) {
		tasks := make([]queue.Task, n)
		for i := range tasks {
			tasks[i].ID = fmt.Sprintf("t%03d", first+i)
			ids = append(ids, tasks[i].ID)
		}
		enqueue(t, q, tasks...)
		return ids
	}
	confirmed := func(ids []string, attempt int) {
		t.Helper()
		awaitThat(t, "the replica confirms", func() bool { return r.confirmed(t, time.Second) })
		for _, id := range ids {
			want[id] = attempt
		}
	}
	confirmed(add(0, 30), 2)
	leased := dequeue(t, q, 30).Tasks
	confirmed(nil, 0)
	ack(t, q, leased[:10]...)
	confirmed(nil, 0)
	for _, task := range leased[:10] {
		delete(want, task.ID) // these are done for good
	}
	confirmed(add(100, 50), 1)
	// From now on the replica gets no writes.
	r.link.Blackhole(true)
	lost := add(200, 40)
	ack(t, q, leased[10:20]...)
	if r.confirmed(t, 100*time.Millisecond) {
		t.Fatal("the replica confirms what it cannot know")
	}
	must(t, r.server.Kill())
	r.link.Sever()
	must(t, r.copied.Do(t.Context(), "replicaof", "no", "one").Err())

	promoted := newQueue(t, r.copied, cfg)
	for _, id := range lost {
		wantGone(t, promoted, id)
	}
	var seen attempts
	stop := start(t, promoted, seen.handle, queue.RunConfig{MaxIdle: never, OnError: onlyTimeouts(t)})
	awaitStats(t, promoted, queue.Stats{})
	enqueue(t, promoted, queue.Task{ID: lost[0]})
	want[lost[0]] = 1
	awaitStats(t, promoted, queue.Stats{})
	stop()
	for id, attempt := range want {
		if runs := seen.runs[id]; len(runs) != 1 || runs[attempt] != 1 {
			t.Errorf("%s ran as %v, want attempt %d once", id, runs, attempt)
		}
	}
	if seen.distinct() != len(want) {
		t.Errorf("%d tasks ran, want %d", seen.distinct(), len(want))
	}
	wantClean(t, promoted)
}

// TestRunAll_SlotsMove: queues in three slots of a cluster are under load while each slot
// moves to a second and then to a third master. Every confirmed task is handled, and no
// attempt twice.
func TestRunAll_SlotsMove(t *testing.T) {
	t.Parallel()
	servers := redistest.OwnCluster(t)
	const partitions = 3
	var (
		sources   []queue.Source
		queues    []*queue.Queue
		producers []*producer
		slots     []int
		seen      [partitions]attempts
	)
	worker, adder, observer := servers.Client(t), servers.Client(t), servers.Client(t)
	for i := range partitions {
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: processLease, MaxLength: 100}
		slot, err := servers.SlotOf(t.Context(), cfg.Prefix)
		must(t, err)
		slots = append(slots, slot)
		queues = append(queues, newQueue(t, observer, cfg))
		sources = append(sources, queue.Source{
			Queue: newQueue(t, worker, cfg),
			Handler: func(_ context.Context, tasks []queue.Leased) []error {
				seen[i].add(tasks)
				return nil
			},
		})
		producers = append(producers, produce(t, newQueue(t, adder, cfg), fmt.Sprintf("p%d", i), func(error) {}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- queue.RunAll(ctx, sources, queue.RunConfig{Batch: 8, MaxIdle: time.Second})
	}()
	work := func() {
		for i, p := range producers {
			added, handled := p.confirmed.Load(), seen[i].distinct()
			awaitThat(t, "they work", func() bool { return p.confirmed.Load() > added+20 && seen[i].distinct() > handled+20 })
		}
	}
	for range 2 {
		for i, slot := range slots {
			work()
			before, err := servers.Owner(t.Context(), slot)
			must(t, err)
			moving, end := context.WithTimeout(t.Context(), patience)
			err = servers.MoveSlot(moving, slot, func() {
				failed, added := producers[i].failures.Load(), producers[i].confirmed.Load()
				awaitThat(t, "the load meets the open slot", func() bool {
					return producers[i].failures.Load() > failed || producers[i].confirmed.Load() > added+20
				})
			})
			end()
			must(t, err)
			if after, err := servers.Owner(t.Context(), slot); err != nil || after == before {
				t.Fatalf("the slot did not move: %v", err)
			}
		}
	}
	work()
	for i, p := range producers {
		p.end()
		awaitThat(t, "all is done", func() bool {
			return stats(t, queues[i]) == queue.Stats{}
		})
	}
	cancel()
	if err := receive(t, "RunAll ends", ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for i, p := range producers {
		seen[i].check(t, p)
		wantClean(t, queues[i])
	}
}
