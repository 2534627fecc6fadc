package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// eventLog records an observer's events as "<event> <resource>", followed by their other values.
type eventLog struct {
	mu     sync.Mutex
	events []string
}

func (s *eventLog) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

// since returns the events starting with the n-th.
func (s *eventLog) since(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[n:])
}

func (s *eventLog) observer() Observer {
	why := func(err error) string {
		for _, known := range []error{ErrLost, ErrMaxHold, ErrWaitTimeout, ErrClosed} {
			if errors.Is(err, known) {
				return strings.TrimPrefix(known.Error(), "lock: ")
			}
		}
		return fmt.Sprint(err)
	}
	sane := func(d time.Duration) string {
		if d < 0 || d > patience {
			return " " + d.String()
		}
		return ""
	}
	return Observer{
		Acquired:     func(r string, d time.Duration) { s.note("acquired %s%s", r, sane(d)) },
		Waited:       func(r string, d time.Duration, err error) { s.note("waited %s%s: %s", r, sane(d), why(err)) },
		HandedOver:   func(r string) { s.note("handed over %s", r) },
		Released:     func(r string, d time.Duration) { s.note("released %s%s", r, sane(d)) },
		Lost:         func(r string, cause error) { s.note("lost %s: %s", r, why(cause)) },
		Repaired:     func(r string) { s.note("repaired %s", r) },
		ExtendedLate: func(r string, d time.Duration) { s.note("extended late %s", r) },
	}
}

// expect runs a step and fails unless the observer gets exactly these events of the resource, in any
// order.
func (o *observation) expect(t *testing.T, what string, want []string, step func()) {
	t.Helper()
	o.mu.Lock()
	n := len(o.events)
	o.mu.Unlock()
	step()
	for i := range want {
		event, more, found := strings.Cut(want[i], ":")
		if want[i] = event + " " + o.name; found {
			want[i] += ":" + more
		}
	}
	slices.Sort(want)
	await.True(t, what+": as many events", func() bool { return len(o.since(n)) >= len(want) })
	got := o.since(n)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: events %q, want %q", what, got, want)
	}
}

// observation is a manager whose observer writes to a log, and one resource.
type observation struct {
	eventLog
	ctx  context.Context
	rdb  *redis.Client
	m    *Manager
	name string
	keys *keys
}

// observed runs a test on each engine.
func observed(t *testing.T, test func(t *testing.T, o *observation)) {
	t.Helper()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		o := &observation{ctx: await.Context(t), rdb: rdb, name: name, keys: mustKeys(t, name)}
		cfg := slow
		cfg.Observer = o.observer()
		o.m = newManager(t, rdb, cfg)
		test(t, o)
	})
}

// TestObserver_AcquireAndRelease: each acquire and release is reported once; refused and nested
// acquires are not reported.
func TestObserver_AcquireAndRelease(t *testing.T) {
	t.Parallel()
	observed(t, func(t *testing.T, o *observation) {
		var l *Lock
		o.expect(t, "a free lock", []string{"acquired"}, func() { l = mustAcquire(t, o.m, o.name) })
		o.expect(t, "entered again", nil, func() {
			inner, err := o.m.Acquire(l.Context(), o.name, WithReentry())
			must(t, err)
			mustRelease(t, inner)
		})
		o.expect(t, "tried in vain", nil, func() {
			_, err := o.m.TryAcquire(o.ctx, o.name)
			wantErr(t, err, ErrTaken)
		})
		o.expect(t, "released twice", []string{"released"}, func() {
			mustRelease(t, l)
			mustRelease(t, l)
		})
	})
}

// TestObserver_Wait: the end of a wait and a handover are reported.
func TestObserver_Wait(t *testing.T) {
	t.Parallel()
	observed(t, func(t *testing.T, o *observation) {
		l := mustAcquire(t, o.m, o.name)
		o.expect(t, "waited in vain", []string{"waited: wait ended without the lock"}, func() {
			// Once it is in the queue, no event of it can follow its end.
			waits, cancel := context.WithCancel(o.ctx)
			vain := acquireAsync(waits, o.m, o.name)
			awaitWaiters(t, o.rdb, o.name, 1)
			cancel()
			wantErr(t, awaitResult(t, vain).err, ErrWaitTimeout)
			awaitWaiters(t, o.rdb, o.name, 0)
		})
		o.expect(t, "handed over", []string{"released", "handed over", "acquired", "waited: <nil>"}, func() {
			next := acquireAsync(o.ctx, o.m, o.name)
			awaitWaiters(t, o.rdb, o.name, 1)
			mustRelease(t, l)
			l = awaitLock(t, next)
		})
	})
}

// TestObserver_Lost: each lock that ends without a release is reported once, with the cause.
func TestObserver_Lost(t *testing.T) {
	t.Parallel()
	observed(t, func(t *testing.T, o *observation) {
		var l *Lock
		o.expect(t, "deleted", []string{"acquired", "lost: lost"}, func() {
			l = mustAcquire(t, o.m, o.name)
			must(t, o.rdb.Del(o.ctx, o.keys[keyLock]).Err())
			wantErr(t, l.Extend(o.ctx, time.Hour), ErrLost)
			wantErr(t, l.Extend(o.ctx, time.Hour), ErrLost)
			wantErr(t, l.Release(o.ctx), ErrNotHeld)
		})
		o.expect(t, "lost before Redis knew", []string{"acquired", "lost: lost"}, func() {
			l = mustAcquire(t, o.m, o.name)
			l.h.lose(ErrLost)
			wantErr(t, l.Release(o.ctx), ErrNotHeld, ErrLost)
		})
		o.expect(t, "held for its maximum", []string{"acquired", "lost: held for its maximum time"}, func() {
			l = mustAcquire(t, o.m, o.name, WithMaxHold(20*time.Millisecond))
			wantCause(t, l, ErrMaxHold)
			awaitNoTrace(t, o.rdb, o.name)
			wantErr(t, l.Release(o.ctx), ErrNotHeld)
		})
	})
}

// TestObserver_ManagerEnds: ReleaseAll reports each release, and Close the end of a wait; a closed
// manager reports nothing.
func TestObserver_ManagerEnds(t *testing.T) {
	t.Parallel()
	observed(t, func(t *testing.T, o *observation) {
		var l *Lock
		o.expect(t, "all released", []string{"acquired", "released"}, func() {
			l = mustAcquire(t, o.m, o.name)
			check(t, o.m.ReleaseAll(o.ctx))
			mustRelease(t, l)
		})
		o.expect(t, "closed while it waits", []string{"waited: manager closed"}, func() {
			l = mustAcquire(t, newManager(t, o.rdb, slow), o.name)
			next := acquireAsync(o.ctx, o.m, o.name)
			awaitWaiters(t, o.rdb, o.name, 1)
			check(t, o.m.Close(o.ctx))
			wantErr(t, awaitResult(t, next).err, ErrClosed)
			mustRelease(t, l)
		})
		o.expect(t, "closed", nil, func() {
			_, err := o.m.Acquire(o.ctx, o.name)
			wantErr(t, err, ErrClosed)
		})
	})
}

// TestObserver_ExtendedLate: a renewal after two thirds of the TTL is reported, and those in time are
// not.
func TestObserver_ExtendedLate(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl = time.Minute
		name := resource(t)
		var mu sync.Mutex
		var reports []time.Duration
		reported := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(reports)
		}
		cfg := Config{TTL: ttl, Observer: Observer{ExtendedLate: func(r string, late time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			reports = append(reports, late)
			if r != name {
				t.Errorf("reported for %s", r)
			}
		}}}
		inOwnTime(t, rdb, cfg, func(t *testing.T, m *Manager, f *failing) {
			l := mustAcquire(t, m, name)
			failFor := func(d time.Duration) {
				until := time.Now().Add(d)
				f.set(seldom(t, func(_ context.Context, cmds []redis.Cmder) error {
					if runs(cmds[0], extendScript) && time.Now().Before(until) {
						return errors.New("connection reset")
					}
					return nil
				}))
			}
			// Given renewals that fail when they are due, when one succeeds before two thirds of the
			// TTL have passed, then it was in time.
			failFor(ttl / 2)
			pass(ttl * 6 / 10)
			if got := reported(); len(got) != 0 {
				t.Errorf("reported %v, which was in time", got)
			}
			// When one succeeds well after that, then the delay is reported.
			failFor(ttl * 6 / 10) // a tenth has gone by since the last one
			pass(ttl * 3 / 4)
			got := reported()
			if len(got) != 1 || got[0] <= ttl/3 || got[0] >= ttl {
				t.Errorf("reported %v, want one renewal more than %s late", got, ttl/3)
			}
			// When the next ones are in time, then nothing is reported.
			pass(3 * ttl)
			if again := reported(); len(again) != len(got) {
				t.Errorf("reported %v, the last of them in time", again)
			}
			if l.Context().Err() != nil {
				t.Error("lost: ", context.Cause(l.Context()))
			}
			mustRelease(t, l)
		})
	})
}
