// Package lock is a distributed lock on Redis: fair (waiters are served in the
// order of arrival), handed over directly without polling, renewed while held,
// with a fencing token that lets data refuse a holder that lost it unawares.
//
// A [Manager] serves one process. Acquire waits, TryAcquire does not, Do runs a
// function under the lock, AcquireAll takes several; they return a [Lock], whose
// Context ends when the lock does. The lock alone cannot keep a process that
// was paused from writing when it wakes up after another took over: check the
// lock in the same script that writes (see [GuardLua]), or compare [Lock.Fence]
// where the data is kept.
//
// [New] keeps the locks on one Redis (single, Sentinel or Cluster), [NewQuorum]
// on several independent ones.
package lock

import (
	"context"
	"time"
)

// Lock is a handle on a lock that is held. It is safe for concurrent use.
type Lock struct {
	h      *holding
	ctx    heldContext
	cancel context.CancelCauseFunc
	parent *Lock // the handle whose context acquired this one, if it is the same lock's
	over   bool  // released; guarded by h.mu
	why    error // the first reason why it ended; guarded by h.mu
}

// heldContext lets an acquire find the locks that its context stands under.
type heldContext struct {
	context.Context
	l *Lock
}

// heldKey asks a context for a lock that the manager holds under this key.
type heldKey struct {
	m   *Manager
	key string
}

// Value answers for the lock's own key, and passes others on.
func (c *heldContext) Value(key any) any {
	if k, ok := key.(heldKey); ok && k.m == c.l.h.m && k.key == c.l.h.keys[keyLock] {
		return c.l
	}
	return c.Context.Value(key)
}

// init prepares a handle that lies in l already. ctx is the caller's context.
func (l *Lock) init(ctx context.Context, h *holding) {
	l.h = h
	l.ctx.l = l
	l.ctx.Context, l.cancel = context.WithCancelCause(ctx)
}

// end ends the handle's context. The caller holds h.mu.
func (l *Lock) end(why error) {
	if l.why == nil {
		l.why = why
	}
	l.cancel(why)
}

// Context ends when the lock does, with the cause ErrReleased, ErrLost or
// ErrMaxHold, and when the context that acquired the lock does, with its cause.
// In the second case the lock is still held until Release. A context that is to
// bound only the wait is [WithWaitLimit]. An acquire on Context can re-enter the
// lock (see [WithReentry]).
func (l *Lock) Context() context.Context { return &l.ctx }

// Resource returns the name that was locked.
func (l *Lock) Resource() string { return l.h.resource }

// Token returns the random name of this holding. Re-entered handles share it.
func (l *Lock) Token() string { return l.h.token }

// Fence returns the fencing token: greater than that of every earlier holding
// of the resource, and below 2^53. Re-entered handles share it.
func (l *Lock) Fence() int64 { return l.h.fence }

// GuardValue returns what the lock's key holds while this lock is held,
// "<token>:<fence>" with ":<metadata>" after it if there is any, for scripts
// that begin with [GuardLua].
func (l *Lock) GuardValue() string { return l.h.value }

// ValidUntil returns until when the lock is known to be held, on the monotonic
// clock of this process and with an allowance for clocks that run apart. It
// moves on with each renewal. A lock that ended returns a time in the past. A
// lock that was handed over is known to be held for [Config.ClaimTTL] at first,
// and for the TTL from its first renewal on.
func (l *Lock) ValidUntil() time.Time {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	at, _ := l.h.timeUp() //nolint:errcheck // why it will end then is not the question
	return at
}

// Held asks Redis whether this lock is still held; with several nodes, whether
// a quorum says so. To only know what this process knows, look at Context.
func (l *Lock) Held(ctx context.Context) (bool, error) {
	info, err := l.h.m.store.inspect(ctx, &l.h.keys, 0)
	if err != nil {
		return false, opError("ask for", l.h.resource, err)
	}
	return info.Holder.Token == l.h.token, nil
}

// Extend makes the lock last at least ttl from now; a lock that lasts longer
// already is left as it is. The watchdog goes on renewing it. The errors are
// those with which the lock ended (ErrReleased, ErrLost, ErrMaxHold), and
// ErrInvalid (a ttl below 10 ms); any other leaves the lock as it was.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := l.h.extend(ctx, l, ttl.Truncate(time.Millisecond)); err != nil {
		return opError("extend", l.h.resource, err)
	}
	return nil
}

// Release ends the lock and hands it to the next waiter. The context ends
// first, then the key. It does its work also when ctx has ended, within
// Config.CallTimeout. The error is ErrNotHeld when Redis held the lock no more,
// joined with ErrLost or ErrMaxHold when that was known; another error means
// that Redis could not be reached, the lock expires with its TTL, and Release may
// be repeated. After a success further calls return nil. A lock that was
// re-entered stays held until all its handles are released; all but the last
// end only their own context. On a nil Lock the error is ErrNotHeld.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return opError("release", "", ErrNotHeld)
	}
	if err := l.h.release(ctx, l); err != nil {
		return opError("release", l.h.resource, err)
	}
	return nil
}
