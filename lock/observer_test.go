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

// specLog records what an observer is told, "<event> <resource>" with what came
// with it behind.
type specLog struct {
	mu     sync.Mutex
	events []string
}

func (s *specLog) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

// since returns the events from the n-th on.
func (s *specLog) since(n int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[n:])
}

func (s *specLog) observer() Observer {
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

// tells runs a step and wants the observer to be told just these events of the
// resource, in any order.
func (s *specLog) tells(t *testing.T, name, what string, want []string, step func()) {
	t.Helper()
	s.mu.Lock()
	n := len(s.events)
	s.mu.Unlock()
	step()
	for i := range want {
		event, more, found := strings.Cut(want[i], ":")
		if want[i] = event + " " + name; found {
			want[i] += ":" + more
		}
	}
	slices.Sort(want)
	await.True(t, what+": as many events", func() bool { return len(s.since(n)) >= len(want) })
	got := s.since(n)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: told %q, want %q", what, got, want)
	}
}

func TestObserver(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		k := mustKeys(t, name)
		var log specLog
		cfg := slow
		cfg.Observer = log.observer()
		m := newManager(t, rdb, cfg)
		var l *Lock

		log.tells(t, name, "a free lock", []string{"acquired"}, func() { l = mustAcquire(t, m, name) })
		log.tells(t, name, "entered again", nil, func() {
			inner, err := m.Acquire(l.Context(), name, WithReentry())
			if err != nil {
				t.Fatal(err)
			}
			mustRelease(t, inner)
		})
		log.tells(t, name, "tried in vain", nil, func() {
			_, err := m.TryAcquire(ctx, name)
			specIs(t, err, ErrTaken)
		})
		log.tells(t, name, "waited in vain", []string{"waited: wait ended without the lock"}, func() {
			// Once it is in the queue nothing of it can come later than its end.
			waits, cancel := context.WithCancel(ctx)
			vain := acquireAsync(waits, m, name)
			awaitWaiters(t, rdb, name, 1)
			cancel()
			specIs(t, awaitResult(t, vain).err, ErrWaitTimeout)
			awaitWaiters(t, rdb, name, 0)
		})
		log.tells(t, name, "handed over", []string{"released", "handed over", "acquired", "waited: <nil>"}, func() {
			next := acquireAsync(ctx, m, name)
			awaitWaiters(t, rdb, name, 1)
			mustRelease(t, l)
			l = awaitLock(t, next)
		})
		log.tells(t, name, "released twice", []string{"released"}, func() {
			mustRelease(t, l)
			mustRelease(t, l)
		})
		log.tells(t, name, "deleted", []string{"acquired", "lost: lost"}, func() {
			l = mustAcquire(t, m, name)
			if err := rdb.Del(ctx, k[keyLock]).Err(); err != nil {
				t.Fatal(err)
			}
			specIs(t, l.Extend(ctx, time.Hour), ErrLost)
			specIs(t, l.Extend(ctx, time.Hour), ErrLost)
			specIs(t, l.Release(ctx), ErrNotHeld)
		})
		log.tells(t, name, "lost before Redis knew", []string{"acquired", "lost: lost"}, func() {
			l = mustAcquire(t, m, name)
			l.h.lose(ErrLost)
			mustRelease(t, l)
		})
		log.tells(t, name, "taken by force", []string{"acquired", "lost: lost"}, func() {
			l = mustAcquire(t, m, name)
			if _, err := m.ForceRelease(ctx, name, "moved away"); err != nil {
				t.Fatal(err)
			}
			specCause(t, l, ErrLost)
		})
		log.tells(t, name, "held for its maximum", []string{"acquired", "lost: held for its maximum time"}, func() {
			l = specWith(t, m, name, WithMaxHold(20*time.Millisecond))
			specCause(t, l, ErrMaxHold)
			awaitNoTrace(t, rdb, name)
			specIs(t, l.Release(ctx), ErrNotHeld)
		})
		log.tells(t, name, "a key without TTL", []string{"repaired"}, func() {
			if err := rdb.Set(ctx, k[keyLock], "1", 0).Err(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				_, err := m.TryAcquire(ctx, name)
				specIs(t, err, ErrTaken)
			}
			if err := rdb.Del(ctx, k[keyLock]).Err(); err != nil {
				t.Fatal(err)
			}
		})
		log.tells(t, name, "all released", []string{"acquired", "released"}, func() {
			l = mustAcquire(t, m, name)
			if err := m.ReleaseAll(ctx); err != nil {
				t.Error(err)
			}
			mustRelease(t, l)
		})
		log.tells(t, name, "closed while it waits", []string{"waited: manager closed"}, func() {
			l = mustAcquire(t, newManager(t, rdb, slow), name)
			next := acquireAsync(ctx, m, name)
			awaitWaiters(t, rdb, name, 1)
			if err := m.Close(ctx); err != nil {
				t.Error(err)
			}
			specIs(t, awaitResult(t, next).err, ErrClosed)
			mustRelease(t, l)
		})
		log.tells(t, name, "closed", nil, func() {
			_, err := m.Acquire(ctx, name)
			specIs(t, err, ErrClosed)
		})
	})
}

// TestObserver_ExtendedLate: a renewal that came when two thirds of the TTL had
// gone by is reported, and those in time are not.
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
			// Given renewals that fail from when they are due, when one succeeds before
			// two thirds of the TTL, then it was in time.
			failFor(ttl / 2)
			pass(ttl * 6 / 10)
			if got := reported(); len(got) != 0 {
				t.Errorf("reported %v, which was in time", got)
			}
			// When one succeeds well after that, then it was late by so much.
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
