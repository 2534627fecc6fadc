package lock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// counting returns another client of rdb's servers and a count of its calls of a script, or of all
// commands if script is nil.
func counting(t *testing.T, rdb redis.UniversalClient, script *redis.Script) (redis.UniversalClient, *atomic.Int64) {
	t.Helper()
	counted, n := redistest.Second(t, rdb), new(atomic.Int64)
	counted.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		for _, cmd := range cmds {
			if script == nil || runs(cmd, script) {
				n.Add(1)
			}
		}
		return next()
	}))
	return counted, n
}

func keyTTL(t *testing.T, rdb redis.UniversalClient, name string) time.Duration {
	t.Helper()
	left, err := rdb.PTTL(t.Context(), mustKeys(t, name)[keyLock]).Result()
	must(t, err)
	return left
}

func TestWithTTL(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m := newManager(t, rdb, slow)

		// Given a lock with its own TTL, then its key and its deadline have it.
		l := mustAcquire(t, m, name, WithTTL(time.Hour))
		if left := keyTTL(t, rdb, name); left <= slow.TTL || left > time.Hour {
			t.Errorf("the key lives for %s, want an hour", left)
		}
		if left := time.Until(l.ValidUntil()); left <= slow.TTL {
			t.Errorf("valid for %s, want an hour", left)
		}
		// When it is handed to a waiter with another TTL, then it has that one soon.
		next := acquireAsync(ctx, m, name, WithTTL(2*time.Hour))
		awaitWaiters(t, rdb, name, 1)
		mustRelease(t, l)
		l = awaitLock(t, next)
		await.True(t, "the waiter's TTL", func() bool {
			return keyTTL(t, rdb, name) > time.Hour && time.Until(l.ValidUntil()) > time.Hour
		})
		mustRelease(t, l)

		// Given a TTL shorter than the manager's, then the lock is renewed in time.
		const short = 3 * time.Second
		l = mustAcquire(t, m, name, WithTTL(short))
		for range 2 {
			until := l.ValidUntil()
			await.True(t, "a renewal", func() bool { return l.ValidUntil().After(until) || l.Context().Err() != nil })
			if left := keyTTL(t, rdb, name); left <= 0 || left > short {
				t.Fatalf("the key lives for %s, want at most %s", left, short)
			}
		}
		mustRelease(t, l)
	})
}

// Given a lock acquired within the limit of its wait, when the limit has passed, then the lock stays held.
func TestWithWaitLimit(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: time.Hour}, func(t *testing.T, m *Manager, _ *failing) {
			l := mustAcquire(t, m, name, WithWaitLimit(time.Minute))
			pass(2 * time.Minute)
			if l.Context().Err() != nil {
				t.Errorf("the limit of the wait ended the lock: %v", context.Cause(l.Context()))
			}
			// TryAcquire ignores the limit and does not wait.
			began := time.Now()
			_, err := m.TryAcquire(t.Context(), name, WithWaitLimit(time.Minute))
			wantErr(t, err, ErrTaken)
			if errors.Is(err, ErrWaitTimeout) || time.Since(began) != 0 {
				t.Errorf("err = %v after %s", err, time.Since(began))
			}
			mustRelease(t, l)
			awaitNoTrace(t, rdb, name)
		})
	})
}

// Given a holder that extends a lock without watchdog, then the lock and its key last longer.
func TestWithoutWatchdog_Extended(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: time.Minute}, func(t *testing.T, m *Manager, _ *failing) {
			l := mustAcquire(t, m, name, WithoutWatchdog())
			must(t, l.Extend(t.Context(), time.Hour))
			pass(2 * time.Minute)
			if l.Context().Err() != nil || keyTTL(t, rdb, name) < 2*time.Minute {
				t.Errorf("it ended: %v", context.Cause(l.Context()))
			}
			mustRelease(t, l)
		})
	})
}

func TestWithoutWatchdog(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		counted, renewals := counting(t, rdb, extendScript)
		m := newManager(t, counted, slow)

		t.Run("HandedOver", func(t *testing.T) {
			// Given a waiter, when it is handed the lock, then it has its own TTL at once.
			name := resource(t)
			l := mustAcquire(t, m, name)
			before := renewals.Load()
			waiting := acquireAsync(ctx, m, name, WithoutWatchdog())
			awaitWaiters(t, rdb, name, 1)
			mustRelease(t, l)
			l = awaitLock(t, waiting)
			if left := min(time.Until(l.ValidUntil()), keyTTL(t, rdb, name)); left <= slow.ClaimTTL {
				t.Errorf("valid for %s, want more than ClaimTTL", left)
			}
			if n := renewals.Load() - before; n != 0 {
				t.Errorf("%d renewals, want none", n)
			}
			mustRelease(t, l)
		})
		t.Run("HandedOverShort", func(t *testing.T) {
			// Given a TTL shorter than ClaimTTL, then the lock and its key end with it as well.
			name := resource(t)
			l := mustAcquire(t, m, name)
			waiting := acquireAsync(ctx, m, name, WithTTL(200*time.Millisecond), WithoutWatchdog())
			awaitWaiters(t, rdb, name, 1)
			mustRelease(t, l)
			l = awaitLock(t, waiting)
			wantCause(t, l, ErrLost)
			awaitNoTrace(t, rdb, name)
			wantErr(t, l.Release(ctx), ErrNotHeld, ErrLost)
		})
	})
}

func TestWithMaxHold(t *testing.T) {
	t.Parallel()
	const limit = time.Minute
	for name, test := range map[string]func(t *testing.T, m *Manager, name string) (ended []*Lock){
		// Given a maximum hold longer than the TTL, then the watchdog renews until its end.
		"BeyondTTL": func(t *testing.T, m *Manager, name string) []*Lock {
			return []*Lock{mustAcquire(t, m, name, WithTTL(limit*3/4), WithMaxHold(limit))}
		},
		// Given a holder that extends, then the maximum does not change.
		"NotExtended": func(t *testing.T, m *Manager, name string) []*Lock {
			l := mustAcquire(t, m, name, WithMaxHold(limit))
			must(t, l.Extend(t.Context(), time.Hour))
			return []*Lock{l}
		},
		// Given a re-entered lock, then its maximum ends all handles.
		"AllHandles": func(t *testing.T, m *Manager, name string) []*Lock {
			outer := mustAcquire(t, m, name, WithMaxHold(limit))
			inner, err := m.Acquire(outer.Context(), name, WithReentry(), WithMaxHold(time.Hour))
			must(t, err)
			return []*Lock{inner, outer}
		},
		// Given a lock released in time, then its maximum does not affect the next holder.
		"ReleasedBefore": func(t *testing.T, m *Manager, name string) []*Lock {
			mustRelease(t, mustAcquire(t, m, name, WithMaxHold(limit)))
			next := mustAcquire(t, m, name)
			pass(2 * limit)
			wantHeld(t, next, true)
			wantErr(t, context.Cause(next.Context()), nil)
			mustRelease(t, next)
			return nil
		},
		// Given a lock without watchdog, then its TTL may end it first.
		"TTLFirst": func(t *testing.T, m *Manager, name string) []*Lock {
			wantCause(t, mustAcquire(t, m, name+":short", WithTTL(limit), WithoutWatchdog(), WithMaxHold(time.Hour)), ErrLost)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				name := resource(t)
				inOwnTime(t, rdb, Config{TTL: time.Hour}, func(t *testing.T, m *Manager, _ *failing) {
					began := time.Now()
					ended := test(t, m, name)
					for _, l := range ended {
						wantCause(t, l, ErrMaxHold)
						if held := time.Since(began); held != limit {
							t.Errorf("held for %s, want %s", held, limit)
						}
						wantErr(t, l.Extend(t.Context(), time.Minute), ErrMaxHold)
					}
					awaitNoTrace(t, rdb, name)
					for _, l := range ended {
						wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrMaxHold)
					}
				})
			})
		})
	}
}

func TestConfig_Metadata(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		// Texts that a parser could misread.
		for _, text := range []string{"host:a pid:1", ":", "1:2:3", "a.b", "äöü\x00\n{}", strings.Repeat("x", maxMetadata)} {
			name := resource(t)
			l := mustAcquire(t, m, name, withMetadata(text))
			next := acquireAsync(ctx, m, name, withMetadata("n"+text[1:]))
			awaitWaiters(t, rdb, name, 1)
			info, err := m.Inspect(ctx, name)
			must(t, err)
			if info.Holder.Metadata != text || info.Holder.Token != l.Token() || info.Fence != l.Fence() {
				t.Errorf("%q: holder = %+v, fence = %d", text, info.Holder, info.Fence)
			}
			if len(info.Queue) != 1 || info.Queue[0].Metadata != "n"+text[1:] {
				t.Errorf("%q: queue = %+v", text, info.Queue)
			}
			// A renewal and a handover keep it.
			check(t, l.Extend(ctx, time.Hour))
			if guarded(t, rdb, l) != 1 {
				t.Errorf("%q: the guard refuses the holder", text)
			}
			mustRelease(t, l)
			l = awaitLock(t, next)
			if info, err = m.Inspect(ctx, name); err != nil || info.Holder.Metadata != "n"+text[1:] || info.Holder.Token != l.Token() {
				t.Errorf("%q: after the handover %+v, %v", text, info.Holder, err)
			}
			if guarded(t, rdb, l) != 0 {
				t.Errorf("%q: the guard refuses the next holder", text)
			}
			mustRelease(t, l)
			awaitNoTrace(t, rdb, name)
		}
	})
}

// TestConfig_Poll: a manager that polls does not subscribe, and shares locks with one that listens.
func TestConfig_Poll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		polling := slow
		polling.Poll = 5 * time.Millisecond
		polls, listens := newManager(t, rdb, polling), newManager(t, rdb, slow)
		listeners := func(m *Manager) int64 {
			channel := channelPrefix + m.id
			n, err := rdb.PubSubNumSub(ctx, channel).Result()
			must(t, err)
			return n[channel]
		}
		// Given alternating waiters of both kinds, when the lock is released repeatedly, then they
		// are served in the order of their arrival.
		l := mustAcquire(t, polls, name)
		var waiting []<-chan result
		for i, m := range []*Manager{polls, listens, polls, listens} {
			waiting = append(waiting, acquireAsync(ctx, m, name))
			awaitWaiters(t, rdb, name, int64(i+1))
		}
		if p, s := listeners(polls), listeners(listens); p != 0 || s != 1 {
			t.Errorf("subscriptions: %d of the polling manager, %d of the listening one; want 0 and 1", p, s)
		}
		mustRelease(t, l)
		for _, w := range waiting {
			l := awaitLock(t, w)
			if n := len(polls.Held()) + len(listens.Held()); n != 1 {
				t.Errorf("%d hold it", n)
			}
			mustRelease(t, l)
		}
		awaitNoTrace(t, rdb, name)
	})
}

// TestOptions_Invalid: invalid options are rejected before anything is done.
func TestOptions_Invalid(t *testing.T) {
	t.Parallel()
	rdb, calls := counting(t, redistest.Embedded(t), nil)
	m := newManager(t, rdb, slow)
	ctx, name := await.Context(t), resource(t)
	for what, opts := range map[string][]Option{
		"ttl zero":                {WithTTL(0)},
		"ttl below the least":     {WithTTL(minTTL - time.Millisecond)},
		"ttl negative":            {WithTTL(-time.Second)},
		"ttl not in milliseconds": {WithTTL(minTTL + time.Microsecond)},
		"wait limit zero":         {WithWaitLimit(0)},
		"wait limit negative":     {WithWaitLimit(-1)},
		"maximum hold zero":       {WithMaxHold(0)},
		"maximum hold too short":  {WithMaxHold(minTTL - 1)},
		"the last one counts":     {WithTTL(time.Second), WithTTL(time.Millisecond)},
	} {
		for how, acquire := range map[string]func() error{
			"Acquire":    func() error { _, err := m.Acquire(ctx, name, opts...); return err },
			"TryAcquire": func() error { _, err := m.TryAcquire(ctx, name, opts...); return err },
			"AcquireAll": func() error { _, err := m.AcquireAll(ctx, []string{name}, opts...); return err },
			"Do": func() error {
				return m.Do(ctx, name, func(context.Context, *Lock) error { t.Error("fn was called"); return nil }, opts...)
			},
		} {
			if err := acquire(); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s, %s: err = %v, want ErrInvalid", how, what, err)
			}
		}
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d commands were sent", n)
	}
	// The smallest valid values, and a nil option.
	l, err := m.Acquire(await.Context(t), name, WithTTL(minTTL), WithMaxHold(minTTL), WithWaitLimit(time.Minute), nil)
	if errors.Is(err, ErrLost) {
		return // the reply took longer than these 10 ms
	}
	must(t, err)
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
}
