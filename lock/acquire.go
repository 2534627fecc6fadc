package lock

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"
)

// attempt is one call of Acquire or TryAcquire.
type attempt struct {
	caller   context.Context // parent of the lock's context; the wait's context may end earlier
	resource string
	keys     keys
	settings settings
	token    string
	member   string // entry in the queue; "" until it waits
	started  time.Time
	messages chan news // holds one message; see notify

	sent  time.Time // before the last call that got a reply
	nowUS int64     // the clock of Redis in that reply
}

// notify wakes the waiter. If a message is still unread, this one is dropped: the waiter
// is about to run the script, which finds the lock that it was handed.
func (a *attempt) notify(n news) {
	select {
	case a.messages <- n:
	default:
	}
}

// Acquire waits for the lock until ctx ends, in the order of arrival across all
// processes. The errors are ErrWaitTimeout (joined with why ctx ended), ErrNested,
// ErrForeignKey, ErrClosed, ErrInvalid, ErrNoQuorum, ErrLost (the first reply took longer
// than the TTL), or the error of a Redis that is unreachable at the first try; once
// waiting, it survives interruptions. It returns at the deadline of ctx regardless of Redis; it
// notices a cancellation during a call when the reply arrives, within
// Config.CallTimeout. If it fails, it removes its queue entry or lock in the background,
// which [Manager.Close] waits for. Managers made by NewQuorum keep no order.
func (m *Manager) Acquire(ctx context.Context, resource string, opts ...Option) (*Lock, error) {
	l, err := m.acquire(ctx, resource, true, opts)
	if err != nil {
		return nil, opError("acquire", resource, err)
	}
	return l, nil
}

// TryAcquire takes the lock if it is free and has no waiters. Otherwise the error is
// ErrTaken; it can also be that of the context or any of Acquire except ErrWaitTimeout and
// ErrNested.
func (m *Manager) TryAcquire(ctx context.Context, resource string, opts ...Option) (*Lock, error) {
	l, err := m.acquire(ctx, resource, false, opts)
	if err != nil {
		return nil, opError("try", resource, err)
	}
	return l, nil
}

// Do runs fn while the lock is held. The context of fn is Lock.Context: it ends with ctx
// and, with the lock's cause, when the lock does; fn should then return soon. The lock
// is released when fn returns or panics; a panic also ends the handles that fn took by
// re-entering. The error joins that of fn, the reason if the lock ended during fn
// (another holder may then have overlapped), and that of the release. If the lock could
// not be acquired, the error is that of Acquire, and fn is not called.
func (m *Manager) Do(ctx context.Context, resource string, fn func(ctx context.Context, l *Lock) error, opts ...Option) (err error) {
	l, err := m.Acquire(ctx, resource, opts...)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned {
			l.h.leaveBelow(l)
		}
		// fn may release the lock itself. If the lock was lost or taken, another holder
		// may have overlapped with fn.
		if ended := l.h.endedBehind(l); ended != nil {
			err = errors.Join(err, fmt.Errorf("lock: do %q: %w", resource, trimmed{ended}))
		}
		err = errors.Join(err, l.Release(ctx))
	}()
	err = fn(l.Context(), l)
	returned = true
	return err
}

func (m *Manager) acquire(ctx context.Context, resource string, wait bool, opts []Option) (*Lock, error) {
	k, err := keysOf(m.cfg.Prefix, resource)
	if err != nil {
		return nil, err
	}
	set, err := m.settle(opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, m.whyEnded(ctx, wait, nil)
	}
	if outer, ok := ctx.Value(heldKey{m, k[keyLock]}).(*Lock); ok {
		if set.reentrant {
			if l := outer.h.join(ctx, outer); l != nil {
				return l, nil
			}
		} else if wait && outer.h.isHeld() {
			return nil, ErrNested
		}
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.work.Done()
	caller := ctx
	if wait && set.waitLimit > 0 {
		limited, cancel := context.WithTimeout(ctx, set.waitLimit)
		defer cancel()
		ctx = limited
	}
	a := &attempt{caller: caller, resource: resource, keys: k, settings: set, token: m.newToken(), started: time.Now()}
	// Without a confirmed subscription a handover would go unnoticed, so the first try
	// does not join the queue.
	if wait && (m.polls() || m.subscribed()) {
		return m.await(ctx, a, false)
	}
	l, _, err := m.try(ctx, a)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, errEnded):
		return nil, m.whyEnded(ctx, wait, nil)
	case errors.Is(err, ErrTaken) && wait:
		if m.subscribe(ctx); m.polls() {
			a.token = m.newToken() // the token encodes whether its waiter polls
		}
		return m.await(ctx, a, true)
	case !errors.Is(err, ErrTaken) && !errors.Is(err, ErrForeignKey):
		m.giveBackTwice(ctx, a)
	}
	return nil, err
}

// await joins the queue and waits until it gets the lock or ctx ends. While waiting it
// makes one call per liveness interval or polling interval. waiting means that Redis
// has already reported that the lock is taken.
func (m *Manager) await(ctx context.Context, a *attempt, waiting bool) (l *Lock, err error) {
	m.join(a)
	defer m.removeWaiter(a)
	if waiting {
		m.waiting.Add(1)
	}
	defer func() {
		if waiting {
			m.waiting.Add(-1)
			m.cfg.Observer.Waited(a.resource, time.Since(a.started), err)
		}
	}()
	timer := time.NewTimer(time.Hour) // set again before each wait
	defer timer.Stop()
	var failure error
	for {
		l, pause, err := m.try(ctx, a)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, errEnded):
			return nil, m.whyEnded(ctx, true, failure)
		case errors.Is(err, ErrClosed):
			return nil, err
		case errors.Is(err, ErrTaken):
			if !waiting {
				m.waiting.Add(1)
			}
			waiting, failure = true, nil
		case errors.Is(err, ErrForeignKey):
			m.giveBack(ctx, a)
			return nil, err
		case !waiting:
			m.giveBackTwice(ctx, a)
			return nil, err
		default:
			// During an outage of Redis the waiter retries; its place in the queue may
			// still exist afterwards.
			failure = err
		}
		timer.Reset(pause)
		select {
		case n := <-a.messages:
			if l, err := m.claim(ctx, a, n); l != nil || err != nil {
				return l, err
			}
		case <-timer.C:
		case <-ctx.Done():
			m.giveBack(ctx, a)
			return nil, m.whyEnded(ctx, true, failure)
		case <-m.closing:
			m.giveBack(ctx, a)
			return nil, ErrClosed
		}
	}
}

// join prepares an attempt for waiting. A store without queues hands nothing over.
func (m *Manager) join(a *attempt) {
	if !m.queues {
		return
	}
	a.member = a.token + a.settings.meta
	if !strings.HasPrefix(a.token, pollingMark) {
		a.messages = make(chan news, 1)
		m.wake.mu.Lock()
		m.wake.waiters[a.token] = a
		m.wake.mu.Unlock()
	}
}

// claim takes a lock that was handed over, without a call to Redis. The handover gave
// the key a TTL of ClaimTTL, and claim can bound the time that has passed since then:
// the last reply before it has the clock of Redis and belongs to a call sent at a known
// local time, so the handover was no earlier than that local time plus the difference
// between the two readings of the Redis clock. The watchdog renews the lock to its full
// TTL after a quarter of ClaimTTL, 100 ms at the latest; a shorter holding needs no
// renewal. If there is no watchdog, the message is late, with half of ClaimTTL gone, or ctx
// has ended, claim returns nothing and the script decides.
func (m *Manager) claim(ctx context.Context, a *attempt, n news) (*Lock, error) {
	// A handover before the last reply is outdated, because that reply was "taken".
	if n.setUS <= a.nowUS || a.settings.unwatched || ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the script decides, and its caller checks ctx
	}
	claimTTL := time.Duration(n.claimMS) * time.Millisecond
	received := time.Now()
	set := earlier(a.sent.Add(time.Duration(n.setUS-a.nowUS)*time.Microsecond), received)
	deadline := set.Add(validity(claimTTL))
	if deadline.Sub(received) < claimTTL/2 {
		return nil, nil
	}
	return m.finish(ctx, a, n.fence, deadline, min(claimTTL/4, settleMax))
}

// settleMax is the latest time of the first renewal of a lock that was handed over.
const settleMax = 100 * time.Millisecond

// errEnded: ctx or the manager ended during the call.
var errEnded = errors.New("lock: ended during the call")

// try runs the script once. The error is ErrTaken if the lock is taken; pause is then,
// and after a failure, the time until the next run. After errEnded there is nothing
// left to clean up.
func (m *Manager) try(ctx context.Context, a *attempt) (l *Lock, pause time.Duration, err error) {
	sent := time.Now()
	r, err := m.ask(ctx, a)
	if err != nil {
		return nil, m.pause(a, m.cfg.Liveness), err
	}
	a.sent, a.nowUS = sent, r.nowUS
	if r.repaired {
		m.cfg.Observer.Repaired(a.resource)
	}
	if !r.held {
		// Slightly after the expiry, which Redis rounds to milliseconds.
		return nil, m.pause(a, min(m.cfg.Liveness, r.expires+2*time.Millisecond)), ErrTaken
	}
	if ctx.Err() != nil {
		m.giveBack(ctx, a)
		return nil, 0, errEnded
	}
	deadline := sent.Add(validity(a.settings.ttl))
	if !time.Now().Before(deadline) {
		// Another client may already have it. A waiter asks again and finds out.
		return nil, m.pause(a, time.Millisecond), errLate
	}
	l, err = m.finish(ctx, a, r.fence, deadline, 0)
	return l, 0, err
}

// errLate: the reply that granted the lock arrived too late.
var errLate = fmt.Errorf("%w: the answer that granted it took longer than its TTL", ErrLost)

// pause is the time until a waiter's next call: its next keep-alive, or, if it polls, the
// polling interval with jitter.
func (m *Manager) pause(a *attempt, alive time.Duration) time.Duration {
	if poll := m.pollEvery(a); poll > 0 {
		return poll/2 + mathrand.N(poll)
	}
	return alive
}

// inlineLeft is the minimum time left in a context for calls to run on the caller's own
// goroutine, which is much cheaper than a new one.
const inlineLeft = 250 * time.Millisecond

// ask runs the script and returns its reply, or errEnded if ctx or the manager ended
// during the call. The end of ctx does not cancel the call: the script could then run
// after the clean-up and leave a lock behind. With enough time left, the call runs on
// the caller's goroutine, which notices a cancellation when the reply arrives, and
// returns at the deadline even if Redis hangs. With little time left, or a client that
// does not end calls with their context, the call runs on its own goroutine.
func (m *Manager) ask(ctx context.Context, a *attempt) (reply, error) {
	bound := time.Now().Add(m.cfg.CallTimeout)
	deadline, bounded := ctx.Deadline()
	if !m.bounded || bounded && time.Until(deadline) < inlineLeft {
		return m.askBeside(ctx, a)
	}
	cut := bounded && deadline.Before(bound)
	if cut {
		bound = deadline
	}
	callCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), bound)
	defer cancel()
	r, err := m.store.acquire(callCtx, a)
	if cut && unknown(err) && !time.Now().Before(bound) {
		<-ctx.Done() // the connection's timer may fire slightly before the context's
		m.giveBackTwice(ctx, a)
		return reply{}, errEnded
	}
	return r, err
}

// askBeside is ask for a context that may end soon: it returns at the end of ctx, and
// releases what the call has taken once the call has ended.
func (m *Manager) askBeside(ctx context.Context, a *attempt) (reply, error) {
	var r reply
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		callCtx, cancel := m.cleanUp(ctx)
		defer cancel()
		r, err = m.store.acquire(callCtx, a)
	}()
	select {
	case <-done:
		return r, err
	case <-ctx.Done():
	case <-m.closing:
	}
	m.work.Go(func() {
		<-done
		m.withdraw(ctx, a)
	})
	return reply{}, errEnded
}

// finish makes a handle for a lock that Redis granted. settle is the minimum time until
// the first renewal.
func (m *Manager) finish(ctx context.Context, a *attempt, fence int64, deadline time.Time, settle time.Duration) (*Lock, error) {
	l, err := m.newLock(a, fence, deadline, settle)
	if err != nil {
		m.giveBack(ctx, a)
		return nil, err
	}
	m.cfg.Observer.Acquired(a.resource, time.Since(a.started))
	return l, nil
}

// giveBack removes the attempt's queue entry or lock from Redis, in the background, because
// the caller of Acquire has stopped waiting. If Redis is unreachable, the lock expires with
// its TTL, and the entry is skipped without keep-alives.
func (m *Manager) giveBack(ctx context.Context, a *attempt) {
	// The attempt is registered itself, so Close is still waiting.
	m.work.Go(func() { m.withdraw(ctx, a) })
}

// giveBackTwice is giveBack after a call without a reply. Its script may still run after
// the first clean-up, so a second one follows.
func (m *Manager) giveBackTwice(ctx context.Context, a *attempt) {
	m.work.Go(func() {
		m.withdraw(ctx, a)
		timer := time.NewTimer(m.cfg.CallTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.closing:
		}
		m.withdraw(ctx, a)
	})
}

func (m *Manager) withdraw(ctx context.Context, a *attempt) {
	_, _ = m.free(ctx, a.resource, &a.keys, a.token, a.member) //nolint:errcheck // see giveBack
}

// whyEnded returns the error of an attempt that ended early. failure is the last error
// of Redis if the wait ended during an outage.
func (m *Manager) whyEnded(ctx context.Context, wait bool, failure error) error {
	if ctx.Err() == nil {
		return ErrClosed
	}
	err := ended(ctx)
	if failure != nil {
		err = errors.Join(err, failure)
	}
	if wait {
		err = fmt.Errorf("%w: %w", ErrWaitTimeout, err)
	}
	return err
}

// settle applies the options of one acquire to the manager's defaults.
func (m *Manager) settle(opts []Option) (settings, error) {
	if len(opts) == 0 {
		return m.defaults, nil
	}
	s := m.defaults
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	err := s.check()
	return s, err
}
