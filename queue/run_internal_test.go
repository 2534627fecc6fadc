package queue

import (
	"context"
	"errors"
	"fmt"
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

// TestBatch_Begin: a task that lost its lease while it waited is left out, whether or not the
// renewer has noticed.
func TestBatch_Begin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s := bench(t, RunConfig{Batch: 9, Workers: 1}, 1)
		var reported []error
		s[0].r.cfg.OnError = func(err error) { reported = append(reported, err) }
		short := brought(s[0], "a", 0, 2)
		short.end = time.Now().Add(time.Second)
		p.fetched(s[0], short, true, true)
		h := brought(s[0], "b", 0, 3)
		p.fetched(s[0], h, true, true)
		s[0].renewer.lose(h, map[string]bool{"token" + "b1": true})
		<-time.After(time.Second) // and the renewer has not noticed
		b := p.take(t.Context())
		if got := ids(b); got != "b0 b2" {
			t.Fatalf("handled %q, want b0 b2", got)
		}
		if &b.tasks[0] == &h.tasks[0] {
			t.Fatal("the handler could change the renewer's slice")
		}
		s[0].Handler = func(context.Context, []Leased) []error { return nil }
		s[0].r.handle(b)
		if len(reported) != 2 || !errors.Is(reported[0], ErrLeaseLost) || !errors.Is(reported[1], ErrLeaseLost) ||
			!strings.HasSuffix(reported[1].Error(), ": 2 of them") {
			t.Fatalf("reported %v", reported)
		}
		if len(s[0].acker.pending.done) != 2 || len(s[0].renewer.fetches) != 0 {
			t.Fatalf("%d settled, %d fetches kept", len(s[0].acker.pending.done), len(s[0].renewer.fetches))
		}
	})
}

// TestBatch_Lost: the loss of a lease ends the context of its handler, and no other.
func TestBatch_Lost(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 2, Workers: 2}, 1)
	s[0].r.cfg.OnError = func(error) {}
	h := brought(s[0], "a", 0, 4)
	p.fetched(s[0], h, true, true)
	first, second := p.take(t.Context()), p.take(t.Context())
	s[0].renewer.lose(h, map[string]bool{"token" + "a3": true})
	if first.ctx.Err() != nil || !errors.Is(context.Cause(second.ctx), ErrLeaseLost) {
		t.Fatalf("contexts: %v and %v, want the second ended", first.ctx.Err(), context.Cause(second.ctx))
	}
	if until, ok := second.end(); !ok || !until.Equal(h.end) {
		t.Fatalf("%v, %v; want %v", until, ok, h.end)
	}
	s[0].renewer.lose(h, nil)
	if !errors.Is(context.Cause(first.ctx), ErrLeaseLost) {
		t.Fatal("the first goes on without its leases")
	}
}

// leases returns n tasks as in a fetch.
func leases(name string, from, n int, until time.Time) []Leased {
	holds := make([]hold, n)
	tasks := make([]Leased, n)
	for i := range tasks {
		tasks[i] = Leased{ID: fmt.Sprintf("%s%d", name, from+i), Token: "token", Attempt: 1, LeaseUntil: until, hold: &holds[i]}
	}
	return tasks
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
	f := fetcher{source: s[0], size: chunkTasks}
	if err := f.turn(ctx); err != nil {
		t.Fatal(err)
	}
	if got := reasons(s[0]); got != "a b" || p.waiting != 0 || p.reserved != 0 {
		t.Fatalf("handed back %q, %d wait and %d are reserved", got, p.waiting, p.reserved)
	}
	if len(s[0].renewer.fetches) != 0 {
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
	_, s := bench(t, RunConfig{}, 1)
	s[0].Queue = q
	var fetches [2]*fetch
	for i := range fetches {
		f, err := q.Dequeue(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		fetches[i] = newFetch(s[0], f.Tasks)
		s[0].renewer.add(fetches[i])
	}
	now := time.Now()
	fetches[0].end, fetches[1].end = now.Add(-time.Second), now.Add(time.Minute)
	if !s[0].renewer.extend(t.Context()) {
		t.Fatal("it failed")
	}
	if end := fetches[1].until(); end.Before(now.Add(time.Hour)) {
		t.Fatalf("the other ends at %v and was not extended", end)
	}
	if end := fetches[0].until(); end.After(now) {
		t.Fatalf("the ended lease was extended to %v", end)
	}
}

// TestAcker_LaterInFront: tasks handed back later go in front, whether in one call or two.
func TestAcker_LaterInFront(t *testing.T) {
	t.Parallel()
	p, s := bench(t, RunConfig{Batch: 1, Workers: 1}, 1)
	p.fetched(s[0], brought(s[0], "a", 0, 2), true, true)
	p.fetched(s[0], brought(s[0], "a", 2, 1), true, true)
	s[0].handBack([]*fetch{brought(s[0], "b", 0, 2)}, "handed back")
	s[0].handBack(p.clear(s[0]), "handed back")
	if got := reasons(s[0]); got != "a0 a1 a2 b0 b1" {
		t.Fatalf("handed back %q", got)
	}
}
