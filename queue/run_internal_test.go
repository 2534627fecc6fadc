package queue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// TestAcker_Wait: wait returns when the acker has room, or when its context ends.
func TestAcker_Wait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, s := bench(t, RunConfig{}, 1)
		full := s[0].acker
		full.wait(t.Context())
		full.add(time.Now(), results{done: make([]Leased, maxUnsettled-1)})
		if full.full() {
			t.Fatal("full too early")
		}
		full.wait(t.Context())
		full.add(time.Now(), results{then: make([]Completion, 1)})
		if !full.full() {
			t.Fatal("not full")
		}
		full.add(time.Now(), results{back: make([]Rejection, 1)}) // does not block
		for _, how := range []string{"cancelled", "room"} {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				full.wait(ctx)
			}()
			synctest.Wait()
			select {
			case <-ended:
				t.Fatal("it did not wait")
			default:
			}
			if how == "room" {
				full.mu.Lock()
				full.pending = results{}
				full.changed.Broadcast()
				full.mu.Unlock()
			} else {
				cancel()
			}
			<-ended
			cancel()
		}
	})
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
		s[0].renewer.lose(func(l Leased) bool { return l.ID == "b1" })
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

// cancels ends a context once a fetch has been answered.
type cancels struct{ cancel func() }

func (cancels) DialHook(next redis.DialHook) redis.DialHook { return next }

func (cancels) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (c cancels) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && len(cmd.Args()) > 2 {
			c.cancel()
		}
		return err
	}
}

// TestFetcher_TooLate: no worker gets tasks that arrive after the end of Run.
func TestFetcher_TooLate(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	q, err := New(rdb, Config{Prefix: redistest.Prefix(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Enqueue(t.Context(), Task{ID: "a"}, Task{ID: "b"}); err != nil {
		t.Fatal(err)
	}
	p, s := bench(t, RunConfig{Batch: 2, Workers: 1, MaxIdle: time.Second}, 1)
	s[0].Queue = q
	p.free(1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rdb.AddHook(cancels{cancel})
	p.stop = ctx.Done()
	s[0].fetchLoop(ctx)
	if got := reasons(s[0]); got != "a b" || p.queued != 0 || p.reserved != 0 {
		t.Fatalf("handed back %q, %d wait and %d are reserved", got, p.queued, p.reserved)
	}
	if len(p.held(s[0])) != 0 {
		t.Fatal("their leases are still extended")
	}
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
	if !s[0].renewer.extend(t.Context()) {
		t.Fatal("it failed")
	}
	if end := f.Tasks[1].hold.end; end.Before(now.Add(time.Hour)) {
		t.Fatalf("the other ends at %v and was not extended", end)
	}
	if end := f.Tasks[0].hold.end; end.After(now) {
		t.Fatalf("the ended lease was extended to %v", end)
	}
}

// TestAcker_LaterInFront: tasks handed back later go in front, whether in one call or two.
func TestAcker_LaterInFront(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1)
	p.fetched(s[0], brought("a", 0, 2), true, true)
	p.fetched(s[0], brought("a", 2, 1), true, true)
	s[0].acker.add(time.Now(), handedBack(brought("b", 0, 2), "handed back"))
	p.handBack(s[0])
	if got := reasons(s[0]); got != "a0 a1 a2 b0 b1" {
		t.Fatalf("handed back %q", got)
	}
}
