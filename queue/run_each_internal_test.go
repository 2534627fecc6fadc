package queue

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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
