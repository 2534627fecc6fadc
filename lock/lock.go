// Package lock is a distributed lock on Redis. It is fair (waiters are served in
// the order of arrival), is handed over directly without polling, is renewed while
// held, and has a fencing token by which a data store can reject a former holder.
//
// A [Manager] serves one process. Acquire waits, TryAcquire does not, Do runs a
// function under the lock, and AcquireAll takes several locks. They return a [Lock],
// whose Context ends when the lock does. No lock can prevent a paused process from
// writing after another process has taken over: check the lock in the script that
// writes (see [GuardLua]), or compare [Lock.Fence] in the data store.
//
// [New] keeps the locks on one Redis (single, Sentinel or Cluster), [NewQuorum]
// on several independent ones.
package lock

import (
	"context"
	"time"
)

// Lock is a handle on a held lock. It is safe for concurrent use.
type Lock struct {
	h      *holding
	caller context.Context // the context that acquired it
	parent *Lock           // the handle that this one re-entered, or nil

	// Guarded by h.mu.
	ctx    context.Context // made by the first call of Context, because many holders need none
	cancel context.CancelCauseFunc
	over   bool  // released
	why    error // the first reason why it ended
}

// heldContext lets an acquire find the locks that its context holds.
type heldContext struct {
	context.Context
	l *Lock
}

// heldKey is the context key for a lock that the manager holds under a Redis key.
type heldKey struct {
	m   *Manager
	key string
}

// Value returns the lock for its own heldKey and delegates all other keys.
func (c heldContext) Value(key any) any {
	if k, ok := key.(heldKey); ok && k.m == c.l.h.m && k.key == c.l.h.keys[keyLock] {
		return c.l
	}
	return c.Context.Value(key)
}

// end ends the handle's context. The caller holds h.mu.
func (l *Lock) end(why error) {
	if l.why == nil {
		l.why = why
	}
	if l.cancel != nil {
		l.cancel(why)
	}
}

// Context ends when the lock does, with the cause ErrReleased, ErrLost or
// ErrMaxHold, and when the context that acquired the lock does, with its cause. In
// the second case the lock stays held until Release. Use [WithWaitLimit] to bound
// only the wait. An acquire with this context can re-enter the lock (see
// [WithReentry]).
func (l *Lock) Context() context.Context {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.ctx == nil {
		caller := l.caller
		if l.why != nil {
			caller = context.WithoutCancel(caller) // the cause is that of the lock
		}
		ctx, cancel := context.WithCancelCause(caller)
		if l.why != nil {
			cancel(l.why)
		}
		l.ctx, l.cancel = heldContext{ctx, l}, cancel
	}
	return l.ctx
}

// Resource returns the name of the locked resource.
func (l *Lock) Resource() string { return l.h.resource }

// Token returns the random name of this holding. Re-entered handles share it.
func (l *Lock) Token() string { return l.h.token }

// Fence returns the fencing token: greater than that of every earlier holding
// of the resource, and below 2^53. Re-entered handles share it.
func (l *Lock) Fence() int64 { return l.h.fence }

// GuardValue returns the value of the lock's key while this lock is held,
// "<token>:<fence>" followed by ":<metadata>" if there is any, for scripts that
// begin with [GuardLua].
func (l *Lock) GuardValue() string { return l.h.value }

// ValidUntil returns the time until which the lock is known to be held, on the
// monotonic clock of this process and with an allowance for clock drift. Each renewal
// extends it. For a lock that has ended it is in the past. A lock that was handed over
// is valid for [Config.ClaimTTL] at first, and for the TTL from its first renewal on.
func (l *Lock) ValidUntil() time.Time {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	at, _ := l.h.timeUp() //nolint:errcheck // only the time matters here
	return at
}

// Held asks Redis, or a quorum of nodes, whether this lock is still held. Context
// gives the local state without a call. The errors are those of [Manager.Inspect].
func (l *Lock) Held(ctx context.Context) (bool, error) {
	info, err := l.h.m.store.inspect(ctx, &l.h.keys, 0)
	if err != nil {
		return false, opError("ask for", l.h.resource, err)
	}
	return info.Holder.Token == l.h.token, nil
}

// Extend makes the lock last at least ttl from now; it never shortens the lock. The
// watchdog keeps renewing it. The errors are the reason for the end of the lock
// (ErrReleased, ErrLost, ErrMaxHold) and ErrInvalid for a ttl below 10 ms. After any
// other error the lock is held as before; if Redis did not answer, its key may have been
// extended.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := l.h.extend(ctx, l, ttl.Truncate(time.Millisecond)); err != nil {
		return opError("extend", l.h.resource, err)
	}
	return nil
}

// Release ends the lock and hands it to the next waiter. It first ends the context
// and then removes the key, within Config.CallTimeout and even if ctx has ended. The
// error is ErrNotHeld if the lock had ended before: Redis no longer held it, or its
// context had ended with ErrLost or ErrMaxHold, which is then joined. (If the first
// reply is lost, a lock that ended unnoticed counts as released.) Any other error means
// that Redis could not be reached: the lock expires with its TTL, and Release may be
// repeated. After a success further calls return nil. A re-entered lock stays held until
// all its handles are released; releasing any but the last only ends that handle's
// context. On a nil Lock the error is ErrNotHeld.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return opError("release", "", ErrNotHeld)
	}
	if err := l.h.release(ctx, l); err != nil {
		return opError("release", l.h.resource, err)
	}
	return nil
}
