package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// line records the extensions and returns the answers that the test chooses. No network is
// used, so the test can run in a synctest bubble.
type line struct {
	mu    sync.Mutex
	asked []time.Duration // since the test began, in order
	tasks [][]string      // the ids of each
	began time.Time
	// answer gives the statuses of n tasks, one letter each.
	answer func(ctx context.Context, call, n int) (string, error)
}

func (l *line) answers(ctx context.Context, cmd redis.Cmder) error {
	args := cmd.Args()
	keys, ok := args[2].(int)
	if !ok || args[1] != extendScript.Hash() {
		return fmt.Errorf("unexpected command %v", cmd)
	}
	var ids []string
	for i := 3 + keys + 1; i < len(args); i += 2 {
		ids = append(ids, fmt.Sprint(args[i]))
	}
	l.mu.Lock()
	l.asked = append(l.asked, time.Since(l.began))
	l.tasks = append(l.tasks, ids)
	call := len(l.asked)
	l.mu.Unlock()
	text, err := l.answer(ctx, call, len(ids))
	if c, ok := cmd.(*redis.Cmd); ok && err == nil {
		c.SetVal(text)
	}
	return err
}

func (l *line) calls() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked)
}

// all is the answer that every lease is extended.
func all(_ context.Context, _, n int) (string, error) { return strings.Repeat("K", n), nil }

// timedLease is divided by six and by ten without a rest.
const timedLease = 6 * time.Second

// keeping is a running renewer in a synctest bubble.
type keeping struct {
	*line
	t      *testing.T
	source *source
	errs   []error // errors passed to OnError
}

func keep(t *testing.T, answer func(ctx context.Context, call, n int) (string, error), test func(t *testing.T, k *keeping)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &line{began: time.Now(), answer: answer}
		q := queueAt(t, l.answers, Config{Prefix: "t:{time}:", Lease: timedLease})
		k := &keeping{line: l, t: t}
		cfg := RunConfig{Batch: 9, Workers: 9}
		r := &runner{cfg: cfg, pool: newPool(cfg)}
		r.cfg.OnError = func(err error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.errs = append(k.errs, err)
		}
		r.work, r.cut = context.WithCancelCause(t.Context())
		k.source = &source{Source: Source{Queue: q, Weight: 1}, r: r}
		r.pool.sources = []*source{k.source}
		r.pool.run = func(b *batch) { b.ctx, b.cancel = context.WithCancelCause(r.work) }
		k.source.acker = newAcker(k.source)
		var loop sync.WaitGroup
		loop.Go(func() { k.source.renew(r.work) })
		defer func() {
			r.cut(nil)
			loop.Wait()
		}()
		test(t, k)
	})
}

func (k *keeping) reported() []error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.errs)
}

// begins passes n newly leased tasks to a handler.
func (k *keeping) begins(name string, n int) *batch {
	p := k.source.r.pool
	p.fetched(k.source, leases(name, 0, n, time.Now().Add(timedLease)), false, false)
	return p.running[len(p.running)-1]
}

func (k *keeping) ends(b *batch) { k.source.r.pool.finished(b, results{}, 0) }

func (k *keeping) until(b *batch) time.Duration {
	p := k.source.r.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return b.given[0].end.Sub(k.began)
}

// after advances the clock to this time after the start of the test, and waits until all
// goroutines are blocked.
func (k *keeping) after(d time.Duration) {
	<-time.After(d - time.Since(k.began))
	synctest.Wait()
}

// phases are starts of a lease between two checks of the renewer, which checks every sixth of
// a lease.
var phases = []time.Duration{0, time.Nanosecond, timedLease / 12, timedLease/6 - time.Nanosecond, timedLease / 4}

// TestRenewer_Time_Extends: a lease is extended when less than two thirds of it are left, and
// at half at the latest, however long its handler takes. It is not extended once settled.
func TestRenewer_Time_Extends(t *testing.T) {
	t.Parallel()
	for _, phase := range phases {
		keep(t, all, func(t *testing.T, k *keeping) {
			k.after(phase)
			b := k.begins("a", 3)
			k.after(phase + 10*timedLease)
			calls := k.calls()
			last := phase
			for _, at := range calls {
				if since := at - last; since < timedLease/3 || since > timedLease/2 {
					t.Errorf("extended %s after the lease began, want a third to a half of %s", since, timedLease)
				}
				last = at
			}
			if k.until(b) < 10*timedLease+timedLease/2 || context.Cause(b.ctx) != nil || len(k.reported()) != 0 {
				t.Errorf("after ten leases: until %s, cause %v, reported %v", k.until(b), context.Cause(b.ctx), k.reported())
			}
			k.ends(b)
			k.after(20 * timedLease)
			if n := len(k.calls()) - len(calls); n != 0 {
				t.Errorf("%d extensions after the task was settled", n)
			}
		})
	}
}

// TestRenewer_Time_SlowAnswer: an extension counts from when it was sent, not from its reply;
// one that hangs is given up with the lease.
func TestRenewer_Time_SlowAnswer(t *testing.T) {
	t.Parallel()
	const way = timedLease / 4
	slow := func(ctx context.Context, call, n int) (string, error) {
		if call > 2 {
			<-ctx.Done()
			return "", ctx.Err()
		}
		<-time.After(way)
		return all(ctx, call, n)
	}
	keep(t, slow, func(t *testing.T, k *keeping) {
		b := k.begins("a", 1)
		k.after(timedLease/2 + way)
		calls := k.calls()
		if len(calls) != 1 || k.until(b) != calls[0]+timedLease {
			t.Fatalf("extended at %v, and the lease runs until %s", calls, k.until(b))
		}
		<-b.ctx.Done()
		synctest.Wait()
		calls = k.calls()
		if ended := time.Since(k.began); len(calls) != 3 || ended != calls[1]+timedLease || !errors.Is(context.Cause(b.ctx), ErrLeaseLost) {
			t.Errorf("extended at %v, ended after %s, cause %v", calls, ended, context.Cause(b.ctx))
		}
	})
}

// TestRenewer_Time_Refused: failing extensions are retried every tenth of the lease. The
// handler's context ends with the lease, within a millisecond and with the cause; after that
// the lease is not extended.
func TestRenewer_Time_Refused(t *testing.T) {
	t.Parallel()
	failed := errors.New("no way to Redis")
	for _, phase := range phases {
		keep(t, func(context.Context, int, int) (string, error) { return "", failed }, func(t *testing.T, k *keeping) {
			k.after(phase)
			b := k.begins("a", 2)
			k.after(phase + timedLease - time.Nanosecond)
			if context.Cause(b.ctx) != nil {
				t.Fatalf("a nanosecond early: %v", context.Cause(b.ctx))
			}
			calls := k.calls()
			for i := 1; i < len(calls); i++ {
				if pause := calls[i] - calls[i-1]; pause > timedLease/10 {
					t.Errorf("retried after %s, want a tenth of %s", pause, timedLease)
				}
			}
			if reported := k.reported(); len(calls) < 4 || len(reported) != len(calls) {
				t.Errorf("tried at %v, and reported %v", calls, reported)
			}
			k.after(phase + timedLease + time.Millisecond) // the resolution of the renewer's timer
			if !errors.Is(context.Cause(b.ctx), ErrLeaseLost) {
				t.Fatalf("at the end of the lease: %v", context.Cause(b.ctx))
			}
			if reported := k.reported(); !errors.Is(reported[len(reported)-1], ErrLeaseLost) {
				t.Errorf("reported %v, want the loss last", reported)
			}
			k.after(phase + 3*timedLease)
			if n := len(k.calls()) - len(calls); n != 0 {
				t.Errorf("%d tries after the loss", n)
			}
		})
	}
}

// TestRenewer_Time_RefusedForAWhile: if an extension succeeds before the lease has ended, the handler goes on.
func TestRenewer_Time_RefusedForAWhile(t *testing.T) {
	t.Parallel()
	failed := errors.New("no way to Redis")
	keep(t, func(ctx context.Context, call, n int) (string, error) {
		if call <= 3 {
			return "", failed
		}
		return all(ctx, call, n)
	}, func(t *testing.T, k *keeping) {
		b := k.begins("a", 1)
		k.after(3 * timedLease)
		reported := k.reported()
		if context.Cause(b.ctx) != nil || len(reported) != 3 || !errors.Is(reported[2], failed) {
			t.Errorf("cause %v, reported %v; want three failures", context.Cause(b.ctx), reported)
		}
	})
}

// TestRenewer_Time_Lost: a lease that another worker has ends only its own handler's context, and
// the other leases are still extended.
func TestRenewer_Time_Lost(t *testing.T) {
	t.Parallel()
	keep(t, func(_ context.Context, call, n int) (string, error) {
		text := strings.Repeat("K", n)
		if call == 1 {
			text = "S" + text[1:]
		}
		return text, nil
	}, func(t *testing.T, k *keeping) {
		lost, kept := k.begins("a", 2), k.begins("b", 1)
		<-lost.ctx.Done()
		if cause := context.Cause(lost.ctx); !errors.Is(cause, ErrLeaseLost) {
			t.Errorf("ended by %v", cause)
		}
		k.after(4 * timedLease)
		if cause := context.Cause(kept.ctx); cause != nil {
			t.Errorf("the other handler was ended: %v", cause)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for i, ids := range k.tasks[1:] {
			if !slices.Equal(ids, []string{"a1", "b0"}) {
				t.Errorf("extension %d is of %v; another worker has a0", i+2, ids)
			}
		}
	})
}

// TestRenewer_Time_EndsBeforeCall: the handler's context ends with the lease even if a call for other leases, which
// would begin at that moment, hangs.
func TestRenewer_Time_EndsBeforeCall(t *testing.T) {
	t.Parallel()
	hang, failed := make(chan struct{}), errors.New("no way to Redis")
	keep(t, func(ctx context.Context, _, _ int) (string, error) {
		select {
		case <-hang:
			<-ctx.Done()
			return "", ctx.Err()
		default:
			return "", failed
		}
	}, func(t *testing.T, k *keeping) {
		first := k.begins("a", 1)
		k.after(timedLease / 2)
		second := k.begins("b", 1)
		k.after(timedLease - time.Nanosecond)
		close(hang)
		k.after(timedLease + time.Millisecond) // the resolution of the renewer's timer
		if !errors.Is(context.Cause(first.ctx), ErrLeaseLost) || context.Cause(second.ctx) != nil {
			t.Errorf("at the end of the first lease: %v and %v", context.Cause(first.ctx), context.Cause(second.ctx))
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if last := k.tasks[len(k.tasks)-1]; !slices.Equal(last, []string{"b0"}) {
			t.Errorf("the last call is for %v, want one for b0 that hangs", last)
		}
	})
}
