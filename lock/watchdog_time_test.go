package lock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// renewalCalls records the times of the watchdog's calls and lets the test intercept each of them.
type renewalCalls struct {
	mu    sync.Mutex
	began time.Time
	asked []time.Duration // since began
	// before runs before the call with this number, counted from 1; if it returns an error, that
	// is the result, and the call is not made.
	before func(ctx context.Context, call int) error
}

// hook is for failing.set.
func (r *renewalCalls) hook(ctx context.Context, cmds []redis.Cmder) error {
	if !runs(cmds[0], extendScript) {
		return nil
	}
	r.mu.Lock()
	r.asked = append(r.asked, time.Since(r.began))
	call := len(r.asked)
	r.mu.Unlock()
	if r.before == nil {
		return nil
	}
	return r.before(ctx, call)
}

func (r *renewalCalls) calls() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.asked)
}

// watched runs a test on a lock that is taken at the start of the bubble's clock.
func watched(t *testing.T, ttl time.Duration, before func(ctx context.Context, call int) error, test func(t *testing.T, l *Lock, r *renewalCalls)) {
	t.Helper()
	inOwnTime(t, redistest.Embedded(t), Config{TTL: ttl, CallTimeout: ttl}, func(t *testing.T, m *Manager, f *failing) {
		l := mustAcquire(t, m, resource(t))
		r := &renewalCalls{began: time.Now(), before: before}
		f.set(r.hook)
		test(t, l, r)
	})
}

// after advances the clock to this time after the start, and waits until all goroutines are blocked.
func (r *renewalCalls) after(d time.Duration) {
	pass(d - time.Since(r.began))
	synctest.Wait()
}

// Given a lock that is held for a long time, then it is renewed each time a third of its TTL has passed,
// and not more often.
func TestWatchdog_Time_Thirds(t *testing.T) {
	t.Parallel()
	// The keys expire by the real clock, so the TTL is longer than a few renewals can take on a busy
	// machine.
	for _, ttl := range []time.Duration{20 * time.Second, time.Minute, time.Hour} {
		watched(t, ttl, nil, func(t *testing.T, l *Lock, r *renewalCalls) {
			r.after(10 * ttl)
			calls := r.calls()
			last := time.Duration(0)
			for _, at := range calls {
				if since := at - last; since < ttl/3-ttl/20 || since > ttl/3+time.Millisecond {
					t.Errorf("TTL %s: renewed after %s, want a third", ttl, since)
				}
				last = at
			}
			if len(calls) < 29 || context.Cause(l.Context()) != nil || !l.ValidUntil().After(time.Now().Add(ttl/2)) {
				t.Errorf("TTL %s: %d renewals in ten, valid for %s, cause %v", ttl, len(calls), time.Until(l.ValidUntil()), context.Cause(l.Context()))
			}
			mustRelease(t, l)
			r.after(20 * ttl)
			if n := len(r.calls()) - len(calls); n != 0 {
				t.Errorf("TTL %s: %d renewals of a lock that is released", ttl, n)
			}
		})
	}
}

// Given a renewal whose reply takes a quarter of the TTL, then the validity counts from when the call was
// sent. Given one that takes longer than a third, then it is given up and another is sent, in time to keep
// the lock.
func TestWatchdog_Time_SlowRenewal(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	slow := func(ctx context.Context, call int) error {
		switch call {
		case 1:
			pass(ttl / 4)
		case 2:
			return hang(ctx, nil)
		}
		return nil
	}
	watched(t, ttl, slow, func(t *testing.T, l *Lock, r *renewalCalls) {
		r.after(ttl/3 + ttl/4)
		calls := r.calls()
		if len(calls) != 1 || !l.ValidUntil().Equal(r.began.Add(calls[0]+validity(ttl))) {
			t.Fatalf("renewed at %v, valid until %s", calls, l.ValidUntil().Sub(r.began))
		}
		r.after(3 * ttl)
		if calls = r.calls(); context.Cause(l.Context()) != nil || len(calls) < 3 {
			t.Fatalf("renewed at %v, cause %v", calls, context.Cause(l.Context()))
		}
		// The renewal that hangs is cancelled after a third of the TTL and retried a twentieth
		// later.
		if again := calls[2] - calls[1]; again < ttl/3 || again > ttl/3+ttl/20+time.Millisecond {
			t.Errorf("retried after %s, want a third of %s and a twentieth", again, ttl)
		}
		mustRelease(t, l)
	})
}

// Given refused renewals, then they are retried every twentieth of the TTL, and the lock ends at its
// deadline with ErrLost but not ErrNotHeld. If the last try succeeds, the lock stays held.
func TestWatchdog_Time_Refused(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	var tries int
	watched(t, ttl, func(ctx context.Context, _ int) error { return refuse(ctx, nil) }, func(t *testing.T, l *Lock, r *renewalCalls) {
		until := l.ValidUntil()
		r.after(until.Sub(r.began) - time.Nanosecond)
		if context.Cause(l.Context()) != nil {
			t.Fatalf("a nanosecond early: %v", context.Cause(l.Context()))
		}
		calls := r.calls()
		tries = len(calls)
		for i := 1; i < len(calls); i++ {
			if pause := calls[i] - calls[i-1]; pause < ttl/20 || pause > ttl/20+time.Millisecond {
				t.Errorf("retried after %s, want a twentieth of %s", pause, ttl)
			}
		}
		if tries < 10 {
			t.Errorf("%d tries: %v", tries, calls)
		}
		r.after(until.Sub(r.began))
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrLost) || errors.Is(cause, ErrNotHeld) {
			t.Errorf("at the deadline the cause is %v, want ErrLost without ErrNotHeld", cause)
		}
		r.after(3 * ttl)
		if n := len(r.calls()); n != tries {
			t.Errorf("%d tries after the loss", n-tries)
		}
	})
	watched(t, ttl, func(ctx context.Context, call int) error {
		if call < tries {
			return refuse(ctx, nil)
		}
		return nil
	}, func(t *testing.T, l *Lock, r *renewalCalls) {
		r.after(2 * ttl)
		if context.Cause(l.Context()) != nil {
			t.Errorf("the last of %d tries succeeded, and the lock is lost: %v", tries, context.Cause(l.Context()))
		}
		mustRelease(t, l)
	})
}

// Given a lock that is held or renewed later, when another one is taken whose maximum hold ends before the loop's
// next round, then that one ends in time. In the second case its renewal is due slightly earlier than that of the
// other lock, and could wait for it.
func TestWatchdog_Time_MaxHoldBeside(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		beside, opts []Option
		limit        time.Duration
	}{
		"held":    {nil, nil, time.Second},
		"renewed": {[]Option{WithTTL(6750 * time.Millisecond)}, []Option{WithTTL(6 * time.Second)}, 2200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, time.Hour, nil, func(t *testing.T, l *Lock, _ *renewalCalls) {
				if tc.beside != nil {
					mustAcquire(t, l.h.m, resource(t)+"/beside", tc.beside...)
				}
				synctest.Wait() // the loop sleeps
				short := mustAcquire(t, l.h.m, resource(t)+"/short", append(tc.opts, WithMaxHold(tc.limit))...)
				pass(tc.limit)
				synctest.Wait()
				if cause := context.Cause(short.Context()); !errors.Is(cause, ErrMaxHold) {
					t.Errorf("the lock ended with %v, want %v", cause, ErrMaxHold)
				}
			})
		})
	}
}
