// Package lock is a distributed lock on Redis: fair (waiters are served in the
// order of arrival), handed over directly without polling, renewed while held,
// with a fencing token that lets data refuse a holder that lost it unawares.
//
// A [Manager] serves one process. Acquire waits, TryAcquire does not; both
// return a [Lock], whose Context ends when the lock does. The lock alone cannot
// protect data, because a holder may stall beyond its TTL and wake up after
// another took over: check the lock in the same script that writes (see
// [GuardLua]), or compare [Lock.Fence] where the data is kept.
package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// Lock is one holding of a lock. It is safe for concurrent use.
type Lock struct {
	m        *Manager
	resource string
	token    string
	value    string
	fence    int64
	keys     []string
	ctx      context.Context
	cancel   context.CancelCauseFunc
	timer    *time.Timer // ends the lock when deadline passes

	releasing sync.Mutex // held during the release's call

	notBefore time.Time // the watchdog leaves the lock alone until then

	mu       sync.Mutex
	deadline time.Time // until when the lock is known to be ours
	state    state
}

type state int

const (
	stateHeld     state = iota
	stateLost           // ended without a release
	stateReleased       // by its holder; the key may still be there
	stateGone           // released, and Redis has answered
	stateMissing        // released, but Redis held it no more
)

// newLock makes a holding that is valid until deadline and watches over it. If
// the manager was closed meanwhile the error is ErrClosed, and the key is still
// to be given back. settle is how long something else takes care of renewing.
func (m *Manager) newLock(ctx context.Context, a *attempt, fence int64, deadline time.Time, settle time.Duration) (*Lock, error) {
	l := &Lock{
		m:        m,
		resource: a.resource,
		token:    a.token,
		value:    a.token + ":" + strconv.FormatInt(fence, 10),
		fence:    fence,
		keys:     a.keys,
		deadline: deadline,
	}
	if settle > 0 {
		l.notBefore = time.Now().Add(settle)
	}
	// The lock outlives the context that bounded the wait for it.
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := m.watch(l); err != nil {
		l.cancel(err)
		return nil, err
	}
	return l, nil
}

// Context ends when the lock does, with the cause ErrReleased or ErrLost. It
// carries the values of the context that acquired the lock, not its end.
func (l *Lock) Context() context.Context { return l.ctx }

// Resource returns the name that was locked.
func (l *Lock) Resource() string { return l.resource }

// Token returns the random name of this holding.
func (l *Lock) Token() string { return l.token }

// Fence returns the fencing token: greater than that of every earlier holding
// of the resource, and below 2^53.
func (l *Lock) Fence() int64 { return l.fence }

// GuardValue returns what the lock's key holds while this lock is held,
// "<token>:<fence>", for scripts that begin with [GuardLua].
func (l *Lock) GuardValue() string { return l.value }

// ValidUntil returns until when the lock is known to be held, on the monotonic
// clock of this process and with an allowance for clocks that run apart. It
// moves on with each renewal. A lock that ended returns a time in the past.
func (l *Lock) ValidUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// Extend makes the lock last at least ttl from now; a lock that lasts longer
// already is left as it is. The watchdog goes on renewing it. The errors are
// ErrReleased, ErrLost and ErrInvalid (a ttl below 10 ms); any other leaves the
// lock as it was.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	ttl = ttl.Truncate(time.Millisecond)
	if ttl < minTTL {
		return opError("extend", l.resource, fmt.Errorf("%w ttl %s, it must be at least %s", ErrInvalid, ttl, minTTL))
	}
	if l.ctx.Err() != nil {
		return opError("extend", l.resource, context.Cause(l.ctx))
	}
	sent := time.Now()
	ok, err := l.m.runExtend(ctx, l, ttl)
	if err != nil {
		return opError("extend", l.resource, err)
	}
	if !ok {
		l.lose()
		return opError("extend", l.resource, fmt.Errorf("%w (%w)", ErrLost, trimmed{ErrNotHeld}))
	}
	if !l.prolong(sent.Add(validity(ttl))) {
		return opError("extend", l.resource, context.Cause(l.ctx))
	}
	return nil
}

// Release ends the lock and hands it to the next waiter. The context ends
// first, then the key. It does its work also when ctx has ended, within
// Config.CallTimeout. The error is ErrNotHeld when Redis held the lock no more,
// joined with ErrLost when that was known; another error means that Redis could
// not be reached, the lock lapses with its TTL, and Release may be repeated.
// After a success further calls return nil.
func (l *Lock) Release(ctx context.Context) error {
	// Whoever comes second waits for the first one's result.
	l.releasing.Lock()
	defer l.releasing.Unlock()

	wasLost, done, result := l.endForRelease()
	if done {
		return result
	}
	ctx, cancel := l.m.cleanUp(ctx)
	defer cancel()
	ok, handed, err := l.m.runRelease(ctx, l.keys, l.token, "")
	l.m.unwatch(l)
	if err != nil {
		return opError("release", l.resource, err)
	}
	if handed {
		call(l.m.cfg.Observer.HandedOver, l.resource)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.state = stateGone
		return nil
	}
	l.state = stateMissing
	return l.notHeld(wasLost)
}

// endForRelease ends the context. done says that an earlier Release had its
// answer, and result repeats it.
func (l *Lock) endForRelease() (wasLost, done bool, result error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	wasLost = errors.Is(context.Cause(l.ctx), ErrLost)
	switch l.state {
	case stateGone:
		return wasLost, true, nil
	case stateMissing:
		return wasLost, true, l.notHeld(wasLost)
	case stateHeld, stateLost, stateReleased:
		l.state = stateReleased
		l.end(ErrReleased)
	}
	return wasLost, false, nil
}

func (l *Lock) notHeld(wasLost bool) error {
	err := ErrNotHeld
	if wasLost {
		err = fmt.Errorf("%w (%w)", ErrNotHeld, trimmed{ErrLost})
	}
	return opError("release", l.resource, err)
}

// lose ends a held lock with ErrLost.
func (l *Lock) lose() {
	l.mu.Lock()
	wasHeld := l.state == stateHeld
	if wasHeld {
		l.state = stateLost
		l.end(ErrLost)
	}
	l.mu.Unlock()
	if wasHeld {
		l.m.unwatch(l)
		call(l.m.cfg.Observer.Lost, l.resource)
	}
}

// end cancels the context and dates the validity back. The caller holds mu. A
// context that ended before keeps its cause.
func (l *Lock) end(cause error) {
	l.timer.Stop()
	if now := time.Now(); l.deadline.After(now) {
		l.deadline = now
	}
	l.cancel(cause)
}

// prolong moves the deadline to a later time. It returns false when the lock
// has ended: an extension that comes too late does not bring it back.
func (l *Lock) prolong(deadline time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != stateHeld {
		return false
	}
	if deadline.After(l.deadline) {
		l.deadline = deadline
	}
	return true
}

// expire is the timer's function. Renewals do not set the timer anew each time;
// it finds the deadline moved and sets itself.
func (l *Lock) expire() {
	l.mu.Lock()
	left := time.Until(l.deadline)
	if l.state == stateHeld && left > 0 {
		l.timer.Reset(left)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	l.lose()
}

// validity is how long a TTL may be relied on, counted from before the call
// that set it: less 1 % for clocks that run apart, and less 2 ms for Redis's
// own rounding.
func validity(ttl time.Duration) time.Duration {
	return ttl - ttl/100 - 2*time.Millisecond
}

// call tells an observer's function, if there is one.
func call(fn func(string), resource string) {
	if fn != nil {
		fn(resource)
	}
}
