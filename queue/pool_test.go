package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// bench is a pool for which the test plays the sources and workers.
func bench(t *testing.T, cfg RunConfig, weights ...int) (*pool, []*source) {
	t.Helper()
	r := &runner{cfg: cfg, pool: newPool(cfg)}
	r.cfg.OnError = func(err error) { t.Error(err) }
	for _, w := range weights {
		s := &source{Source: Source{Queue: &Queue{}, Weight: w}, r: r}
		s.grant, s.loaded = make(chan int, 1), true
		s.acker = newAcker(s)
		r.sources = append(r.sources, s)
	}
	r.pool.sources = r.sources
	r.work = t.Context()
	r.pool.run = func(b *batch) { b.ctx, b.cancel = context.WithCancelCause(r.work) }
	return r.pool, r.sources
}

// answering replaces the connection of a client: it gives the outcome of each command.
type answering func(ctx context.Context, cmd redis.Cmder) error

func (answering) DialHook(next redis.DialHook) redis.DialHook { return next }
func (answering) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a answering) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := a(ctx, cmd)
		cmd.SetErr(err)
		return err
	}
}

// queueAt returns a queue whose commands get these answers.
func queueAt(t *testing.T, answers answering, cfg Config) *Queue {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, ContextTimeoutEnabled: true})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	rdb.AddHook(answers)
	if cfg.Prefix == "" {
		cfg.Prefix = "t:{hook}:"
	}
	q, err := New(rdb, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
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
	tasks := make([]Leased, n)
	for i := range tasks {
		end := until
		tasks[i] = Leased{
			ID: fmt.Sprintf("%s%d", name, from+i), Token: "token", Attempt: 1, FetchedAt: time.Now(), end: &end,
		}
	}
	return tasks
}

// brought is a fetch of n tasks.
func brought(name string, from, n int) []Leased {
	return leases(name, from, n, time.Now().Add(time.Hour))
}

// called makes the pool believe that a handler call has taken this long.
func (p *pool) called(took time.Duration) {
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
	p.finished(&batch{}, results{}, took)
}

// done ends the first of the running handler calls.
func (p *pool) done(took time.Duration) { p.finished(p.running[0], results{}, took) }

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
		p.done(0)
	}
	for range 100 {
		p.ask(b)
		if granted(b) != 1 {
			t.Fatal("b got no grant while only b asked")
		}
		serve(b, false) // it lingers
	}
	p.ask(b)
	if granted(b) != 1 {
		t.Fatal("b got no grant while only b asked")
	}
	p.ask(a)
	serve(b, true)
	p.ask(b)
	var got [2]int
	for range 10 {
		for i := range s {
			if granted(s[i]) == 1 {
				got[i]++
				serve(s[i], true)
				p.ask(s[i])
				break
			}
		}
	}
	if got[0] < 4 || got[0] > 6 || got[0]+got[1] != 10 {
		t.Fatalf("served %v of 10, want half each", got)
	}
}

// TestPool_Room: without prefetching, only tasks for free workers are fetched.
func TestPool_Room(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 8, Workers: 3}, 1, 1)
	p.ask(s[0])
	p.ask(s[1])
	if a, b := granted(s[0]), granted(s[1]); a != 24 || b != 0 {
		t.Fatalf("granted %d and %d, want three batches for the first", a, b)
	}
	p.fetched(s[0], brought("t", 0, 9), false, true)
	p.ask(s[0])
	if a, b := granted(s[0]), granted(s[1]); a != 0 || b != 8 {
		t.Fatalf("granted %d and %d, want a batch for the second: two workers are busy", a, b)
	}
	p.done(0)
	if a, b := granted(s[0]), granted(s[1]); a != 0 || b != 0 {
		t.Fatalf("granted %d and %d, but the second is still fetching and its turn is next", a, b)
	}
	p.fetched(s[1], brought("t", 0, 8), false, true)
	if n := granted(s[0]); n != 0 {
		t.Fatalf("granted %d, but the turn is the second's", n)
	}
	if p.withdraw(s[1]); granted(s[0]) != 8 {
		t.Fatal("the free worker is not used")
	}
}

// TestPool_Room_Unbounded: a fetch is bounded, not the number of workers.
func TestPool_Room_Unbounded(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 256, Workers: math.MaxInt}, 1)
	p.ask(s[0])
	if n := granted(s[0]); n != chunkTasks {
		t.Fatalf("granted %d, want %d", n, chunkTasks)
	}
}

// TestPool_RoomAhead: at most 512 entries of fetched tasks wait, however short a handler call is.
func TestPool_RoomAhead(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 256, Workers: 1, Ahead: time.Hour}, 1)
	p.called(time.Microsecond)
	p.ask(s[0])
	for fetches := 1; ; fetches++ {
		n := granted(s[0])
		if n == 0 && fetches == 3 && len(p.waiting) == 2 {
			return
		}
		if n < 256 || n > chunkTasks || fetches == 3 {
			t.Fatalf("fetch %d: granted %d, and %d batches wait", fetches, n, len(p.waiting))
		}
		p.fetched(s[0], brought("t", 0, n), true, true)
		p.ask(s[0])
	}
}

// TestPool_SlowFetch: a source whose fetch hangs does not hold up the others for long.
func TestPool_SlowFetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 4, Workers: 1}, 1, 1)
		p.ask(s[0])
		p.ask(s[1])
		if granted(s[0]) != 4 || granted(s[1]) != 0 {
			t.Fatal("the first was not the only one with a grant")
		}
		<-time.After(defaultPatience - time.Nanosecond)
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
		if p.reserved != 1 || p.active != 1 {
			t.Fatalf("%d calls reserved and %d begun, want 1 and 1", p.reserved, p.active)
		}
		p.fetched(s[1], nil, false, false)
		// After a failure the others do not wait for it at all, until a fetch succeeds.
		p.failed(s[0])
		p.done(0)
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
		<-time.After(2 * defaultPatience)
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
		for range 3 {
			if granted(s[0]) != 4 {
				t.Fatal("no leave")
			}
			<-time.After(defaultPatience * 2 / 3)
			synctest.Wait()
			if p.reserved != 1 || !s[0].loaded {
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
		<-time.After(2 * defaultPatience)
		synctest.Wait()
		p.done(0)
		if granted(s[0]) != 4 {
			t.Fatal("its request is lost")
		}
		p.withdraw(s[0])
		if p.reserved != 0 {
			t.Fatalf("%d reserved", p.reserved)
		}
	})
}

// TestPool_Reserved: no source fetches for workers for which another one is fetching.
func TestPool_Reserved(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 8, Workers: 3}, 1, 1)
	p.withdraw(s[0])
	p.ask(s[1])
	p.ask(s[0])
	if a, b := granted(s[0]), granted(s[1]); a != 0 || b != 24 {
		t.Fatalf("granted %d and %d, want 0 and 24", a, b)
	}
}

// TestPool_Share: while two sources are loaded, each prefetches its share, also if it does not
// know whether it has more tasks. A source without others prefetches only if it has more.
func TestPool_Share(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: 8 * time.Microsecond}, 3, 1)
	p.called(time.Microsecond)
	p.active = 1 // the worker is busy
	p.ask(s[0])
	if n := granted(s[0]); n != 6 {
		t.Fatalf("granted %d, want three quarters of 8", n)
	}
	p.fetched(s[0], nil, false, true)
	p.withdraw(s[1])
	p.ask(s[0])
	if n := granted(s[0]); n != 0 {
		t.Fatalf("granted %d, but the worker is busy and no task was left", n)
	}
}

// TestPool_HalfFree: tasks are prefetched only when half of the room for them is free.
func TestPool_HalfFree(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: 8 * time.Microsecond}, 1)
	p.called(time.Microsecond)
	s[0].more = true
	p.ask(s[0])
	p.fetched(s[0], brought("t", 0, granted(s[0])), true, true)
	p.ask(s[0])
	if n := len(p.waiting); n != 7 {
		t.Fatalf("%d wait, want 7 of 8", n)
	}
	for left := 6; left >= 4; left-- {
		if n := granted(s[0]); n != 0 {
			t.Fatalf("granted %d while more than half wait", n)
		}
		p.done(time.Microsecond)
	}
	if n := granted(s[0]); n != 4 {
		t.Fatalf("granted %d, want 4", n)
	}
}

// TestPool_Newcomer: while prefetched tasks keep all workers busy, another source still gets
// its turn, although it does not know whether it has more tasks.
func TestPool_Newcomer(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: 8 * time.Microsecond}, 1, 1)
	p.called(time.Microsecond)
	p.withdraw(s[0])
	p.ask(s[1])
	p.fetched(s[1], brought("b", 0, granted(s[1])), true, true)
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
		p.done(time.Microsecond)
	}
}

// TestPool_Batches: a fetch is split into batches, which are handled in the order of arrival.
func TestPool_Batches(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 5, Workers: 1}, 1, 1)
	big := brought("a", 0, 5)
	big[1].Entries, big[2].Entries, big[3].Entries = 3, 6, 4
	p.fetched(s[0], big, true, true)
	p.fetched(s[1], brought("b", 0, 6), true, true)
	for _, want := range []string{"a0 a1", "a2", "a3 a4", "b0 b1 b2 b3 b4", "b5"} {
		if got := ids(p.running[0]); got != want || len(p.running) != 1 {
			t.Fatalf("%q runs, one of %d, want %q", got, len(p.running), want)
		}
		p.done(0)
	}
	if len(p.running)+len(p.waiting)+p.active != 0 {
		t.Fatalf("%d run and %d wait", len(p.running), len(p.waiting))
	}
}

// TestPool_Ahead: the duration of handler calls determines how much is prefetched.
func TestPool_Ahead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		window, took time.Duration
		want         int
	}{
		{10 * time.Millisecond, time.Millisecond, 2 * 10},
		{10 * time.Millisecond, time.Microsecond, chunkTasks},
		{10 * time.Millisecond, time.Second, 0},
		{-1, time.Microsecond, 0},
	} {
		p, _ := bench(t, RunConfig{Batch: 4, Workers: 2, Ahead: tt.window}, 1)
		for range 100 {
			p.called(tt.took)
		}
		if p.ahead != tt.want {
			t.Errorf("%v of %v: %d ahead, want %d", tt.took, tt.window, p.ahead, tt.want)
		}
	}
	// A single slow call lowers it; many quick ones raise it again.
	p, _ := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: 10 * time.Millisecond}, 1)
	p.called(time.Microsecond)
	p.called(40 * time.Millisecond)
	if p.ahead != 0 {
		t.Errorf("%d ahead after a slow call", p.ahead)
	}
	for range 200 {
		p.called(time.Microsecond)
	}
	if p.ahead != chunkTasks {
		t.Errorf("%d ahead after many quick calls", p.ahead)
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

// TestPool_OverdueAfterFetch: during a fetch, older tasks that have waited too long stay, so
// that both fetches are handed back in the order of arrival.
func TestPool_OverdueAfterFetch(t *testing.T) {
	t.Parallel()
	p, all := bench(t, RunConfig{Batch: 1, Workers: 1, Ahead: time.Hour}, 1)
	s := all[0]
	p.called(time.Millisecond) // from now on tasks are prefetched
	p.active, s.more = 1, true // its worker is busy with something else
	p.ask(s)
	if granted(s) == 0 {
		t.Fatal("no fetch was granted")
	}
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
		p.active = 1 // the worker is busy
		all := leases("a", 0, 2, time.Now().Add(time.Second))
		p.fetched(s[0], append(all, brought("b", 0, 3)...), true, true)
		p.fetched(s[0], brought("c", 0, 1), true, true)
		s[0].lose(func(l Leased) bool { return l.ID == "b1" || l.ID == "c0" })
		<-time.After(time.Second) // and the renewer has not noticed
		p.active--
		p.ask(s[0])
		b := p.running[0]
		if got := ids(b); got != "b0 b2" || len(p.waiting) != 0 {
			t.Fatalf("handled %q, want b0 b2, and %d wait", got, len(p.waiting))
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

// TestPool_Abandon: the tasks of a handler that keeps running are handed back in their order, even
// if it has reordered them, and without those whose leases are lost.
func TestPool_Abandon(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 3, Workers: 1}, 1)
	p.fetched(s[0], brought("a", 0, 3), false, false)
	b := p.running[0]
	slices.Reverse(b.given)
	s[0].r.cfg.OnError = func(error) {}
	s[0].lose(func(l Leased) bool { return l.ID == "a1" })
	if n := p.abandon(); n != 1 || reasons(s[0]) != "a0 a2" || b.ctx.Err() == nil {
		t.Errorf("%d abandoned, handed back %q, %v", n, reasons(s[0]), b.ctx.Err())
	}
	p.finished(b, results{done: b.given}, 0)
	if n := len(s[0].acker.pending.done); n != 0 {
		t.Error("an abandoned handler can still settle")
	}
}

// TestPool_Each: one fetch serves all free workers with single tasks.
func TestPool_Each(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 64, Workers: 10}, 1)
	s[0].Each = func(context.Context, Leased) error { return nil }
	p.ask(s[0])
	if n := granted(s[0]); n != 10 {
		t.Fatalf("granted %d tasks, want 10", n)
	}
	p.fetched(s[0], brought("a", 0, 10), true, true)
	for _, b := range p.running {
		if len(b.given) != 1 || len(p.running) != 10 {
			t.Fatalf("one of %d calls gets %d tasks", len(p.running), len(b.given))
		}
	}
}

// TestRunEach_HangingBound: at most RunConfig.Workers hanging handlers are replaced. Beyond
// that a worker is free only when one of them returns.
func TestRunEach_HangingBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const workers, tasks = 2, 6
		p, s := bench(t, RunConfig{Batch: 64, Workers: workers}, 1)
		r := s[0].r
		p.run = r.begin
		var began, reported atomic.Int32
		r.cfg.OnError = func(err error) {
			reported.Add(1)
			if !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrAbandoned) {
				t.Errorf("reported %v", err)
			}
		}
		release := make(chan struct{})
		s[0].Each = func(context.Context, Leased) error {
			began.Add(1)
			<-release
			return errors.New("too late")
		}
		h := brought("a", 0, tasks)
		for i := range h {
			h[i].Timeout = time.Second
		}
		p.fetched(s[0], h, false, false)
		want := func(when string, n, abandoned int32) {
			t.Helper()
			synctest.Wait()
			if began.Load() != n || reported.Load() != abandoned {
				t.Fatalf("%s: %d began and %d were abandoned, want %d and %d", when, began.Load(), reported.Load(), n, abandoned)
			}
			<-time.After(time.Second + cancelGrace)
		}
		want("at first", workers, 0)
		want("after their time", 2*workers, workers)
		want("with all of them hanging", 2*workers, 2*workers)
		want("later", 2*workers, 2*workers)
		release <- struct{}{}
		want("when one has returned", 2*workers+1, 2*workers)
		want("after the time of the next", 2*workers+1, 2*workers+1)
		close(release)
		synctest.Wait()
		if began.Load() != tasks || p.hung != 0 || p.busy() != 0 {
			t.Errorf("%d began, %d hang and %d workers are busy, want %d, 0 and 0", began.Load(), p.hung, p.busy(), tasks)
		}
		p.close()
		<-p.gone
		back := s[0].acker.pending.back
		for _, b := range back {
			if late := strings.Contains(b.Reason, "too late"); b.Uncounted || late != (b.Task.ID == "a5") {
				t.Errorf("%s is handed back because %q, uncounted %v", b.Task.ID, b.Reason, b.Uncounted)
			}
		}
		if len(back) != tasks || len(p.held(s[0])) != 0 {
			t.Errorf("%d failed and %d leases are kept, want %d and 0", len(back), len(p.held(s[0])), tasks)
		}
	})
}

// TestRunEach_LongestTimeout: a handler with the maximum Timeout is not abandoned at once by
// an integer overflow.
func TestRunEach_LongestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 64, Workers: 1}, 1)
		r := s[0].r
		p.run = r.begin
		s[0].Each = func(context.Context, Leased) error {
			<-time.After(time.Hour)
			return nil
		}
		h := brought("a", 0, 1)
		var err error
		given := Task{Timeout: math.MaxInt64}
		if h[0].Options, err = parseOptions(given.options()); err != nil {
			t.Fatal(err)
		}
		p.fetched(s[0], h, false, false)
		<-time.After(2 * time.Hour)
		p.close()
		<-p.gone
		if o := s[0].acker.pending; len(o.done) != 1 || len(o.back) != 0 {
			t.Errorf("%d done and %d failed, want 1 and 0", len(o.done), len(o.back))
		}
	})
}
