package lock

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// failing is a go-redis hook by which a test makes calls to Redis fail.
type failing struct {
	how   atomic.Pointer[func(context.Context, []redis.Cmder) error]
	after atomic.Pointer[func([]redis.Cmder)]
}

func (f *failing) set(how func(ctx context.Context, cmds []redis.Cmder) error) { f.how.Store(&how) }

// delay delays the replies of this script.
func (f *failing) delay(which func(redis.Cmder) bool, d time.Duration) {
	after := func(cmds []redis.Cmder) {
		// A script that Redis does not know yet is sent again, and that reply is not delayed.
		if which(cmds[0]) && !redis.HasErrorPrefix(cmds[0].Err(), "NOSCRIPT") {
			pass(d)
		}
	}
	f.after.Store(&after)
}

// hook refuses a call if how returns an error, and makes it otherwise.
func (f *failing) hook(ctx context.Context, cmds []redis.Cmder, next func() error) error {
	if how := f.how.Load(); how != nil {
		if err := (*how)(ctx, cmds); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
	}
	err := next()
	if after := f.after.Load(); after != nil {
		(*after)(cmds)
	}
	return err
}

// failingClient returns another client of rdb's servers and the hook by which its calls fail.
func failingClient(t *testing.T, rdb redis.UniversalClient) (redis.UniversalClient, *failing) {
	t.Helper()
	own, f := redistest.Second(t, rdb), new(failing)
	own.AddHook(around(f.hook))
	return own, f
}

var errRefused = errors.New("connection refused")

func refuse(context.Context, []redis.Cmder) error {
	return &net.OpError{Op: "dial", Err: errRefused}
}

func hang(ctx context.Context, _ []redis.Cmder) error {
	<-ctx.Done()
	return ctx.Err()
}

// seldom is a fault that fails the test if it is hit in a busy loop: in a synctest bubble no time passes
// in one.
func seldom(t *testing.T, fault func(context.Context, []redis.Cmder) error) func(context.Context, []redis.Cmder) error {
	t.Helper()
	const limit = 1000
	var calls atomic.Int64
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := calls.Add(1)
		if n == limit {
			t.Errorf("%d calls", n)
		}
		if n >= limit {
			return hang(ctx, cmds)
		}
		return fault(ctx, cmds)
	}
}

// alternating refuses calls and lets them hang in turn.
func alternating() func(context.Context, []redis.Cmder) error {
	var calls atomic.Int64
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if calls.Add(1)%2 == 0 {
			return hang(ctx, cmds)
		}
		return refuse(ctx, cmds)
	}
}

// untimed is a connection without deadlines.
type untimed struct{ net.Conn }

func (untimed) SetDeadline(time.Time) error      { return nil }
func (untimed) SetReadDeadline(time.Time) error  { return nil }
func (untimed) SetWriteDeadline(time.Time) error { return nil }

// untimedClient returns a client for a synctest bubble. The network would measure a deadline of the bubble's
// clock, which stands still during a call, with the real clock, and end a call that is slow on a busy machine.
func untimedClient(addr string) *redis.Client {
	o := redistest.Options(addr)
	o.DialTimeout = patience
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(context.WithoutCancel(ctx), network, addr)
		if err != nil {
			return nil, err
		}
		return untimed{c}, nil
	}
	return redis.NewClient(o)
}

// inOwnTime runs a test in a synctest bubble with calls to a Redis outside of it. The bubble's clock
// does not advance during a call: minutes pass instantly, and timers fire at their exact time. The
// manager polls, because a connection that listens would stop this clock.
func inOwnTime(t *testing.T, rdb *redis.Client, cfg Config, test func(t *testing.T, m *Manager, f *failing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		own := untimedClient(rdb.Options().Addr)
		defer func() {
			check(t, own.Close())
		}()
		f := new(failing)
		own.AddHook(around(f.hook))
		cfg.Poll = time.Millisecond
		m, err := New(own, cfg)
		must(t, err)
		defer func() {
			f.how.Store(nil)
			check(t, m.Close(context.WithoutCancel(t.Context())))
		}()
		test(t, m, f)
	})
}

// Given a Redis that is cut off right after it granted the lock, when it refuses calls, lets them hang, or
// both, then the context ends before the key can expire, counted from before the acquire was sent, and no
// earlier than the lock's validity ends.
func TestLock_Context_EndsBeforeKey(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, fault := range map[string]func(context.Context, []redis.Cmder) error{
		"Refuses": refuse, "Hangs": hang, "Alternates": alternating(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ttl := range []time.Duration{
				10 * time.Millisecond, 37 * time.Millisecond, 300 * time.Millisecond, time.Second,
				1013 * time.Millisecond, 1026 * time.Millisecond, 10 * time.Second, time.Minute, time.Hour,
			} {
				inOwnTime(t, rdb, Config{TTL: ttl}, func(t *testing.T, m *Manager, f *failing) {
					name := resource(t)
					start := time.Now()
					l, err := m.TryAcquire(t.Context(), name)
					must(t, err)
					f.set(seldom(t, fault))
					endsWithin(t, l, start, ttl)
				})
			}
		})
	}
}

// endsWithin fails unless the lock ends with its validity: before the key that was set after start, for
// this TTL, can expire.
func endsWithin(t *testing.T, l *Lock, start time.Time, ttl time.Duration) {
	t.Helper()
	until := l.ValidUntil()
	<-l.Context().Done()
	switch lasted := time.Since(start); {
	case lasted > ttl:
		t.Errorf("TTL %s: the context ended %s after the key could expire", ttl, lasted-ttl)
	case time.Now().Before(until):
		t.Errorf("TTL %s: the context ended after %s, %s before it had to", ttl, lasted, time.Until(until))
	}
	if cause := context.Cause(l.Context()); !errors.Is(cause, ErrLost) {
		t.Errorf("TTL %s: cause = %v, want ErrLost", ttl, cause)
	}
}

// Given locks with different TTLs and a Redis that is cut off after some of their renewals, then each ends
// before its own key can expire.
func TestLock_Context_EndsBeforeKey_Many(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, fault := range map[string]func(context.Context, []redis.Cmder) error{
		"Refuses": refuse, "Hangs": hang, "Alternates": alternating(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, after := range []time.Duration{0, 333 * time.Millisecond, 1500 * time.Millisecond, 20 * time.Second} {
				inOwnTime(t, rdb, Config{TTL: 3 * time.Second}, func(t *testing.T, m *Manager, f *failing) {
					var locks []*Lock
					for _, ttl := range []time.Duration{time.Second, 1100 * time.Millisecond, 3 * time.Second, 10 * time.Second, time.Minute} {
						locks = append(locks, mustAcquire(t, m, resource(t), WithTTL(ttl)))
					}
					pass(after)
					// Keys set before this have the TTL.
					cut := time.Now()
					f.set(seldom(t, fault))
					for _, l := range locks {
						endsWithin(t, l, cut, l.h.settings.ttl)
					}
				})
			}
		})
	}
}

// Given a lock that was extended for a long time, when its key is deleted, then the holder still learns of
// it within one TTL, and renewals in between do not shorten the lock.
func TestLock_Extend_StillWatched(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl, long = time.Hour, 100 * time.Hour // long, because the keys expire on the real clock
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: ttl}, func(t *testing.T, m *Manager, _ *failing) {
			l := mustAcquire(t, m, name)
			must(t, l.Extend(t.Context(), long))
			until := l.ValidUntil()
			pass(5 * ttl)
			if err := context.Cause(l.Context()); err != nil || l.ValidUntil().Before(until) {
				t.Fatalf("after %s: valid until %s, err = %v", 5*ttl, l.ValidUntil(), err)
			}
			must(t, rdb.Del(t.Context(), mustKeys(t, name)[keyLock]).Err())
			deleted := time.Now()
			<-l.Context().Done()
			if took := time.Since(deleted); took > ttl/3 {
				t.Errorf("the loss was noticed after %s, want a renewal's %s", took, ttl/3)
			}
			wantErr(t, context.Cause(l.Context()), ErrLost, ErrNotHeld)
		})
	})
}

// expiresDuring changes a script so that the lock's key expires while it runs, as can happen in the
// embedded engine: after the script has read the key, and before it extends it.
func expiresDuring(script string) *redis.Script {
	return redis.NewScript(`
local engine = redis
local redis = {pcall = engine.pcall, call = function(command, ...)
  if command == 'PTTL' then engine.call('DEL', KEYS[1]) end
  return engine.call(command, ...)
end}
` + script)
}

// Given a key that expires while a script extends it, then a renewal reports that the lock is not held,
// and a repeated acquire takes it again: no client believes that it holds a missing key.
func TestLock_LapsesDuringScript(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		n, ok := m.store.(*node)
		if !ok {
			t.Fatalf("%T is no node", m.store)
		}
		l := mustAcquire(t, m, resource(t))
		e := extended(expiresDuring(extendLua).Run(ctx, rdb, []string{l.h.keys[keyLock]}, l.GuardValue(), slow.TTL.Milliseconds()))
		if e.err != nil || e.held {
			t.Errorf("extend: %+v, want that the lock is not held", e)
		}
		wantErr(t, l.Release(ctx), ErrNotHeld)

		l = mustAcquire(t, m, resource(t))
		again := &attempt{keys: l.h.keys, settings: l.h.settings, token: l.Token()}
		r, err := granted(expiresDuring(acquireLua+handoverLua+queueLua).Run(ctx, rdb, again.keys[:],
			again.token, again.settings.meta, again.settings.ttl.Milliseconds(), n.contended))
		if err != nil || !r.held || r.fence <= l.Fence() {
			t.Errorf("acquire: %+v, err = %v; want a fence after %d", r, err, l.Fence())
		}
		if left := keyTTL(t, rdb, l.Resource()); left <= 0 {
			t.Errorf("acquire: the key lives for %s", left)
		}
		mustRelease(t, l)
	})
}

// Given a Redis whose reply takes longer than the TTL, when it grants the lock, then the
// caller gets ErrLost, and the lock is released.
func TestManager_Acquire_ErrLost_LateAnswer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl = time.Minute
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: ttl, CallTimeout: time.Hour}, func(t *testing.T, m *Manager, f *failing) {
			for _, acquire := range []func(context.Context, string, ...Option) (*Lock, error){m.TryAcquire, m.Acquire} {
				for _, tc := range []struct {
					late time.Duration
					lost bool
				}{{validity(ttl) - 1, false}, {validity(ttl), true}, {ttl, true}, {3 * ttl, true}} {
					f.delay(acquires, tc.late)
					l, err := acquire(t.Context(), name, WithoutWatchdog())
					f.after.Store(nil)
					if tc.lost && (!errors.Is(err, ErrLost) || l != nil) {
						t.Errorf("answer after %s: lock %v, err = %v, want ErrLost", tc.late, l, err)
					}
					if !tc.lost && (err != nil || l.Context().Err() != nil) {
						t.Errorf("answer after %s: lock %v, err = %v", tc.late, l, err)
					}
					if l != nil {
						mustRelease(t, l)
					}
					awaitNoTrace(t, rdb, name)
				}
			}
		})
	})
}

// Given an extension whose reply arrives after the lock has ended, then the lock stays ended.
func TestLock_Extend_ErrLost_LateAnswer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl = time.Minute
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: ttl, CallTimeout: time.Hour}, func(t *testing.T, m *Manager, f *failing) {
			l := mustAcquire(t, m, name, WithoutWatchdog())
			f.delay(func(cmd redis.Cmder) bool { return runs(cmd, extendScript) }, ttl)
			wantErr(t, l.Extend(t.Context(), time.Hour), ErrLost)
			if l.ValidUntil().After(time.Now()) {
				t.Errorf("valid for %s, want that it has ended", time.Until(l.ValidUntil()))
			}
			wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
		})
	})
}
