package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// bench is a pool for which the test plays the sources and workers.
func bench(t *testing.T, cfg RunConfig, weights ...int) (*pool, []*source) {
	t.Helper()
	r := &runner{cfg: cfg, pool: newPool(cfg)}
	r.cfg.OnError = func(err error) { t.Error(err) }
	for _, w := range weights {
		s := &source{Source: Source{Queue: &Queue{}, Weight: w}, r: r, place: newPlace()}
		s.acker = newAcker(s)
		r.sources = append(r.sources, s)
	}
	r.pool.sources = r.sources
	return r.pool, r.sources
}

// granted is the number of tasks that the source may fetch; 0 without a grant.
func granted(s *source) int {
	select {
	case n := <-s.grant:
		return n
	default:
		return 0
	}
}

// leases returns n tasks as in a fetch, with consecutive numbers from the given one on.
func leases(name string, from, n int, until time.Time) []Leased {
	holds := make([]hold, n)
	tasks := make([]Leased, n)
	for i := range tasks {
		holds[i].end = until
		tasks[i] = Leased{
			ID: fmt.Sprintf("%s%d", name, from+i), Token: "token", Attempt: 1,
			LeaseUntil: until, FetchedAt: time.Now(), hold: &holds[i],
		}
	}
	return tasks
}

// brought is a fetch of n tasks.
func brought(name string, from, n int) []Leased {
	return leases(name, from, n, time.Now().Add(time.Hour))
}

// free makes the pool believe that n workers are idle.
func (p *pool) free(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle += n
	p.dispatch()
}

func ids(b *batch) string {
	var all []string
	for i := range b.given {
		all = append(all, b.given[i].ID)
	}
	return strings.Join(all, " ")
}

// TestPool_NoBurst: a source cannot catch up on the share that it did not use, even if it
// returns while the others are between two fetches.
func TestPool_NoBurst(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1, 1)
	a, b := s[0], s[1]
	p.withdraw(a)
	serve := func(from *source, soon bool) {
		p.fetched(from, brought("t", 0, 1), true, soon)
		p.mu.Lock()
		p.idle = 0
		p.mu.Unlock()
		p.take(t.Context())
	}
	for range 100 {
		p.ask(b)
		p.free(1)
		if granted(b) != 1 {
			t.Fatal("b got no grant while only b asked")
		}
		serve(b, false) // it lingers
	}
	p.ask(a)
	p.ask(b)
	var got [2]int
	for range 10 {
		p.free(1)
		for i := range s {
			if granted(s[i]) == 1 {
				got[i]++
				serve(s[i], true)
				p.ask(s[i])
			}
		}
	}
	if got[0] < 4 || got[0] > 6 || got[0]+got[1] != 10 {
		t.Fatalf("served %v of 10, want half each", got)
	}
}

// TestPool_WorkerSpokenFor: no tasks are fetched for a worker that is about to take a batch.
func TestPool_WorkerSpokenFor(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 8, Workers: 2}, 1, 1)
	p.ask(s[0])
	p.ask(s[1])
	p.free(1)
	if n := granted(s[0]); n != 8 {
		t.Fatalf("granted %d, want a batch", n)
	}
	p.fetched(s[0], brought("t", 0, 1), false, true)
	p.ask(s[0])
	if a, b := granted(s[0]), granted(s[1]); a+b != 0 {
		t.Fatalf("granted %d and %d, but the worker is about to be busy", a, b)
	}
	p.free(1)
	if a, b := granted(s[0]), granted(s[1]); a != 0 || b != 8 {
		t.Fatalf("granted %d and %d, want a batch for the second", a, b)
	}
}

// TestPool_SlowFetch: a source whose fetch hangs does not hold up the others for long.
func TestPool_SlowFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 4, Workers: 2}, 1, 1)
		p.ask(s[0])
		p.ask(s[1])
		p.free(1)
		if granted(s[0]) != 4 || granted(s[1]) != 0 {
			t.Fatal("the first was not the only one with a grant")
		}
		<-time.After(defaultFetchPatience - time.Nanosecond)
		synctest.Wait()
		if granted(s[1]) != 0 {
			t.Fatal("the first had no time")
		}
		<-time.After(time.Nanosecond)
		synctest.Wait()
		if granted(s[1]) != 4 {
			t.Fatal("the second waits for the first")
		}
		// Tasks that arrive late are still taken, and count once.
		p.fetched(s[0], brought("late", 0, 4), false, false)
		if p.reserved != 4 || p.queued != 4 {
			t.Fatalf("%d reserved and %d waiting, want 4 and 4", p.reserved, p.queued)
		}
		p.fetched(s[1], nil, false, false)
		// After a failure the others do not wait for it at all, until a fetch succeeds.
		p.failed(s[0])
		p.free(1)
		for _, failing := range []bool{true, false} {
			p.ask(s[0])
			if granted(s[0]) == 0 {
				t.Fatal("it got no grant")
			}
			p.ask(s[1])
			if got := granted(s[1]) > 0; got != failing {
				t.Fatalf("failing %v: the second got a grant: %v", failing, got)
			}
			p.fetched(s[0], nil, false, false)
			p.withdraw(s[1])
		}
		<-time.After(2 * defaultFetchPatience)
		synctest.Wait()
		if p.reserved != 0 {
			t.Fatalf("%d reserved, and no source fetches", p.reserved)
		}
	})
}

// TestPool_QuickFetch: the timer of one fetch does not end the next one.
func TestPool_QuickFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 4, Workers: 1}, 1, 1)
		p.withdraw(s[1])
		p.ask(s[0])
		p.free(1)
		for range 3 {
			if granted(s[0]) != 4 {
				t.Fatal("no leave")
			}
			<-time.After(defaultFetchPatience * 2 / 3)
			synctest.Wait()
			if p.reserved != 4 || !s[0].loaded {
				t.Fatal("given up too early")
			}
			p.fetched(s[0], nil, true, true)
			p.ask(s[0])
		}
		// Nor does it affect a source that is only asking.
		if granted(s[0]) != 4 {
			t.Fatal("no leave")
		}
		p.fetched(s[0], brought("t", 0, 4), true, true)
		p.ask(s[0])
		<-time.After(2 * defaultFetchPatience)
		synctest.Wait()
		p.free(1)
		if granted(s[0]) != 4 {
			t.Fatal("its request is lost")
		}
		p.withdraw(s[0])
		if p.reserved != 0 {
			t.Fatalf("%d reserved", p.reserved)
		}
	})
}

// TestPool_Newcomer: while prefetched tasks keep all workers busy, another source still gets
// its turn, although it does not know whether it has more tasks.
func TestPool_Newcomer(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1, 1)
	p.ahead = 8
	p.withdraw(s[0])
	p.ask(s[1])
	p.free(1)
	p.fetched(s[1], brought("b", 0, granted(s[1])), true, true)
	p.mu.Lock()
	p.idle = 0
	p.mu.Unlock()
	p.ask(s[1])
	p.ask(s[0])
	for turns := 0; granted(s[0]) == 0; turns++ {
		if turns == 20 {
			t.Fatal("no grant for the first")
		}
		if n := granted(s[1]); n > 0 {
			p.fetched(s[1], brought("b", 0, n), true, true)
			p.ask(s[1])
		}
		p.finished(p.take(t.Context()), results{}, time.Microsecond)
		p.mu.Lock()
		p.ahead = 8
		p.mu.Unlock()
	}
}

// TestPool_Fill: a batch is filled from several fetches, of one source.
func TestPool_Fill(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 5, Workers: 1}, 1, 1)
	p.fetched(s[0], brought("a", 0, 3), true, true)
	p.fetched(s[0], brought("a", 3, 3), true, true)
	p.fetched(s[1], brought("b", 0, 2), true, true)
	for _, want := range []string{"a0 a1 a2 a3 a4", "a5", "b0 b1"} {
		if got := ids(p.take(t.Context())); got != want {
			t.Fatalf("took %q, want %q", got, want)
		}
	}
	if p.queued != 0 || s[0].queued != 0 || s[1].queued != 0 {
		t.Fatalf("%d, %d and %d are waiting", p.queued, s[0].queued, s[1].queued)
	}
}

// TestPool_TakeOldest: tasks that have waited longest are taken first, whatever their source.
func TestPool_TakeOldest(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 5, Workers: 1}, 1, 1)
	later := brought("a", 0, 1)
	later[0].FetchedAt = later[0].FetchedAt.Add(time.Second)
	p.fetched(s[1], brought("b", 0, 1), true, true)
	p.fetched(s[0], later, true, true)
	if got := ids(p.take(t.Context())); got != "b0" {
		t.Fatalf("took %q, want b0", got)
	}
}

// TestPool_Ahead: the duration of handler calls determines how much is prefetched.
func TestPool_Ahead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		window, took time.Duration
		want         int
	}{
		{10 * time.Millisecond, time.Millisecond, 2 * 10 * 4},
		{10 * time.Millisecond, 100 * time.Microsecond, chunkTasks},
		{10 * time.Millisecond, time.Second, 0},
		{-1, time.Microsecond, 0},
	} {
		p, s := bench(t, RunConfig{Batch: 4, Workers: 2, Ahead: tt.window}, 1)
		for range 100 {
			p.finished(&batch{}, results{}, tt.took)
		}
		if n := p.aheadOf(s[0]); n != tt.want {
			t.Errorf("%v of %v: %d ahead, want %d", tt.took, tt.window, n, tt.want)
		}
	}
	// A single slow call lowers it; many quick ones raise it again.
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: 10 * time.Millisecond}, 1)
	p.finished(&batch{}, results{}, time.Microsecond)
	p.finished(&batch{}, results{}, 40*time.Millisecond)
	if n := p.aheadOf(s[0]); n != 0 {
		t.Errorf("%d ahead after a slow call", n)
	}
	for range 200 {
		p.finished(&batch{}, results{}, time.Microsecond)
	}
	if n := p.aheadOf(s[0]); n != chunkTasks {
		t.Errorf("%d ahead after many quick calls", n)
	}
}

// reasons lists the ids of the tasks that were handed back.
func reasons(s *source) string {
	var all []string
	for _, r := range s.acker.pending.back {
		if !r.Uncounted || r.Delay != 0 || !strings.HasPrefix(r.Reason, "handed back") {
			return fmt.Sprintf("%+v", r)
		}
		all = append(all, r.Task.ID)
	}
	return strings.Join(all, " ")
}

// TestQueue_Pass: a wake-up is passed on only if a task is ready.
func TestQueue_Pass(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q, err := New(rdb, Config{Prefix: redistest.Prefix(t), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		ctx := t.Context()
		want := func(ready bool, from, to time.Duration) {
			t.Helper()
			got, next, err := q.pass(ctx)
			if err != nil || got != ready || next < from || next > to {
				t.Fatalf("%v, %v, %v; want %v and %v to %v", got, next, err, ready, from, to)
			}
			n, err := rdb.Del(ctx, q.keys.wake).Result()
			if err != nil || n == 1 != ready {
				t.Fatalf("%d tokens, %v", n, err)
			}
		}
		add := func(task Task) {
			t.Helper()
			if _, err := q.Enqueue(ctx, task); err != nil {
				t.Fatal(err)
			}
			if err := rdb.Del(ctx, q.keys.wake).Err(); err != nil {
				t.Fatal(err)
			}
		}
		want(false, -time.Millisecond, -time.Millisecond)
		add(Task{ID: "later", Due: time.Now().Add(time.Hour)})
		want(false, 50*time.Minute, time.Hour+time.Second) // by Redis's clock, rounded up
		add(Task{ID: "now"})
		want(true, 0, 0)
		if err := q.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		want(false, -time.Millisecond, -time.Millisecond)
		if err := q.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		f, err := q.Dequeue(ctx, 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatalf("%v, %v", f, err)
		}
		if err := rdb.Del(ctx, q.keys.wake).Err(); err != nil {
			t.Fatal(err)
		}
		want(false, time.Second, time.Minute+time.Millisecond) // the lease, rounded up
		if err := rdb.ZAdd(ctx, q.keys.all[2], redis.Z{Score: 1, Member: "now"}).Err(); err != nil {
			t.Fatal(err)
		}
		want(true, 0, 0)
	})
}

// TestPool_OverdueAfterFetch: during a fetch, older tasks that have waited too long stay, so
// that both fetches are handed back in the order of arrival.
func TestPool_OverdueAfterFetch(t *testing.T) {
	t.Parallel()
	p, all := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: time.Hour}, 1)
	s := all[0]
	p.finished(&batch{}, results{}, time.Millisecond) // from now on tasks are prefetched
	p.free(1)
	p.ask(s)
	if granted(s) == 0 {
		t.Fatal("no fetch was granted")
	}
	p.free(-1) // its worker is busy with something else
	old := brought("old", 0, 3)
	old[0].FetchedAt = time.Now().Add(-time.Hour)
	p.fetched(s, old, true, true)
	p.ask(s)
	if granted(s) == 0 {
		t.Fatal("no second fetch was granted")
	}
	if p.returnOverdue(s); s.acker.pending.len() != 0 {
		t.Fatalf("%s were handed back during a fetch", reasons(s))
	}
	young := brought("young", 0, 2)
	p.fetched(s, young, true, true)
	p.ask(s)
	if n := granted(s); n != 0 {
		t.Errorf("another fetch of %d tasks was granted", n)
	}
	p.returnOverdue(s)
	if got := reasons(s); got != "old0 old1 old2 young0 young1" {
		t.Errorf("handed back %q, want both fetches in their order", got)
	}
}

// TestPool_TakeLost: a task that lost its lease while it waited is left out, whether or not the
// renewer has noticed.
func TestPool_TakeLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 9, Workers: 1}, 1)
		var reported []error
		s[0].r.cfg.OnError = func(err error) { reported = append(reported, err) }
		p.fetched(s[0], leases("a", 0, 2, time.Now().Add(time.Second)), true, true)
		p.fetched(s[0], brought("b", 0, 3), true, true)
		s[0].lose(func(l Leased) bool { return l.ID == "b1" })
		<-time.After(time.Second) // and the renewer has not noticed
		b := p.take(t.Context())
		if got := ids(b); got != "b0 b2" || p.queued != 0 {
			t.Fatalf("handled %q, want b0 b2, and %d wait", got, p.queued)
		}
		if &b.tasks[0] == &b.given[0] {
			t.Fatal("the handler could change the renewer's slice")
		}
		s[0].Handler = func(context.Context, []Leased) []error { return nil }
		s[0].r.handle(b)
		if len(reported) != 2 || !errors.Is(reported[0], ErrLeaseLost) || !errors.Is(reported[1], ErrLeaseLost) ||
			!strings.HasSuffix(reported[1].Error(), ": 2 of them") {
			t.Fatalf("reported %v", reported)
		}
		if len(s[0].acker.pending.done) != 2 || len(p.held(s[0])) != 0 {
			t.Fatalf("%d settled, %d leases kept", len(s[0].acker.pending.done), len(p.held(s[0])))
		}
	})
}

// TestRenewer_OneEnded: a lost lease whose handler still runs does not stop the renewal of the
// others.
func TestRenewer_OneEnded(t *testing.T) {
	t.Parallel()
	q, err := New(redistest.Embedded(t), Config{Prefix: redistest.Prefix(t), Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Enqueue(t.Context(), Task{ID: "a"}, Task{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	p, s := bench(t, RunConfig{Batch: 1}, 1)
	s[0].Queue = q
	f, err := q.Dequeue(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	p.fetched(s[0], f.Tasks, false, false)
	now := time.Now()
	f.Tasks[0].hold.end, f.Tasks[1].hold.end = now.Add(-time.Second), now.Add(time.Minute)
	if !s[0].extend(t.Context()) {
		t.Fatal("it failed")
	}
	if end := f.Tasks[1].hold.end; end.Before(now.Add(time.Hour)) {
		t.Fatalf("the other ends at %v and was not extended", end)
	}
	if end := f.Tasks[0].hold.end; end.After(now) {
		t.Fatalf("the ended lease was extended to %v", end)
	}
}

// TestPool_LostBeforeTaken: the worker that was woken for tasks whose leases are lost stays idle,
// so the source may fetch for it again.
func TestPool_LostBeforeTaken(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1)
	s[0].r.cfg.OnError = func(error) {}
	p.free(1)
	p.ask(s[0])
	if granted(s[0]) != 1 {
		t.Fatal("no fetch was granted")
	}
	p.fetched(s[0], brought("a", 0, 1), false, true)
	p.ask(s[0])
	if n := granted(s[0]); n != 0 {
		t.Fatalf("granted %d, but the worker is about to be busy", n)
	}
	s[0].lose(func(Leased) bool { return true })
	if n := granted(s[0]); n != 1 {
		t.Fatalf("granted %d, but the worker is idle", n)
	}
}

// TestPool_OverdueIdle: tasks that have waited too long are not handed back while a worker is free.
func TestPool_OverdueIdle(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1)
	old := brought("old", 0, 2)
	old[0].FetchedAt = time.Now().Add(-time.Hour)
	p.fetched(s[0], old, true, true)
	p.free(1)
	if p.returnOverdue(s[0]); s[0].acker.pending.len() != 0 {
		t.Errorf("%s were handed back, but a worker is free", reasons(s[0]))
	}
	p.free(-1)
	if p.returnOverdue(s[0]); reasons(s[0]) != "old0 old1" {
		t.Errorf("handed back %q, want old0 old1", reasons(s[0]))
	}
}

// TestPool_Abandon: the tasks of a handler that keeps running are handed back in their order, even
// if it has reordered them, and without those that it has settled itself.
func TestPool_Abandon(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 3, Workers: 1}, 1)
	p.fetched(s[0], brought("a", 0, 3), false, false)
	b := p.take(t.Context())
	slices.Reverse(b.given)
	b.given[1].ended(StatusOK)
	if held := p.held(s[0]); len(held) != 2 || held[0].ID != "a0" || held[1].ID != "a2" {
		t.Errorf("the leases of %v are renewed, want a0 and a2", held)
	}
	s[0].lose(func(l Leased) bool { return l.ID == "a1" }) // it is settled, not lost
	if b.ctx.Err() != nil {
		t.Error("the handler's context has ended")
	}
	if n := p.abandon(); n != 1 || reasons(s[0]) != "a0 a2" || b.ctx.Err() == nil {
		t.Errorf("%d abandoned, handed back %q, %v", n, reasons(s[0]), b.ctx.Err())
	}
	p.finished(b, results{done: b.given}, 0)
	if n := len(s[0].acker.pending.done); n != 0 {
		t.Error("an abandoned handler can still settle")
	}
}
