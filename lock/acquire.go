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
	caller   context.Context // of the lock's context; that of the wait may be shorter
	resource string
	keys     keys
	settings settings
	token    string
	member   string // entry in the queue; "" until it waits
	started  time.Time
	told     chan news // one message at a time; see tell

	sent  time.Time // before the last call that was answered
	nowUS int64     // the clock of Redis in that answer
}

// tell wakes the waiter up. If it has not read the message before, this one is
// dropped: it is going to run the script, which finds what it was handed.
func (a *attempt) tell(n news) {
	select {
	case a.told <- n:
	default:
	}
}

// Acquire waits for the lock, in the order of arrival over all processes, until
// ctx ends. The errors are ErrWaitTimeout (joined with why ctx ended),
// ErrForeignKey, ErrClosed, ErrInvalid, ErrNoQuorum, ErrLost (the first answer
// took longer than the TTL), or that of a Redis that cannot be reached at first;
// a waiter outlasts interruptions. It returns at the deadline of ctx whatever
// Redis does; a cancellation during a call is noticed when the call is answered,
// within Config.CallTimeout. When it fails it leaves nothing behind: what it had
// is given back in the background, which [Manager.Close] waits for. A manager
// made by NewQuorum knows no order.
func (m *Manager) Acquire(ctx context.Context, resource string, opts ...Option) (*Lock, error) {
	l, err := m.acquire(ctx, resource, true, opts)
	if err != nil {
		return nil, opError("acquire", resource, err)
	}
	return l, nil
}

// TryAcquire takes the lock if it is free and nobody waits for it. The error is
// ErrTaken otherwise, the context's when that ended first, or one of Acquire's
// but ErrWaitTimeout.
func (m *Manager) TryAcquire(ctx context.Context, resource string, opts ...Option) (*Lock, error) {
	l, err := m.acquire(ctx, resource, false, opts)
	if err != nil {
		return nil, opError("try", resource, err)
	}
	return l, nil
}

// Do runs fn while the lock is held. Its context is Lock.Context: it ends with
// ctx and, with the lock's cause, when the lock does; fn should then return soon.
// The lock is released when fn returns or panics; a panic also ends the handles
// that fn took of it by re-entering. The error joins that of fn, the reason why
// the lock ended meanwhile (fn may then not have been alone), and that of the
// release; without the lock it is Acquire's, and fn is not called.
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
		// When fn released the lock itself that is its right. When it was lost or
		// released by others, fn was perhaps not alone.
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
	// Before the subscription stands a handover could not be learned of, so the
	// first try does not join the queue then.
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
			a.token = m.newToken() // the token says whether its waiter polls
		}
		return m.await(ctx, a, true)
	case !errors.Is(err, ErrTaken) && !errors.Is(err, ErrForeignKey):
		m.giveBackTwice(ctx, a)
	}
	return nil, err
}

// await joins the queue and waits until the lock is ours or ctx ends. While it
// waits it makes one call per liveness interval, or per polling interval.
// waiting says that Redis has told already that the lock is another's.
func (m *Manager) await(ctx context.Context, a *attempt, waiting bool) (l *Lock, err error) {
	m.join(a)
	defer m.removeWaiter(a)
	defer func() {
		if waiting {
			m.cfg.Observer.waited(a.resource, time.Since(a.started), err)
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
			waiting, failure = true, nil
		case errors.Is(err, ErrForeignKey):
			m.giveBack(ctx, a, nil)
			return nil, err
		case !waiting:
			m.giveBackTwice(ctx, a)
			return nil, err
		default:
			// Redis is away for a while; the place in the queue may still be
			// there when it is back.
			failure = err
		}
		timer.Reset(pause)
		select {
		case n := <-a.told:
			if l, err := m.claim(ctx, a, n); l != nil || err != nil {
				return l, err
			}
		case <-timer.C:
		case <-ctx.Done():
			m.giveBack(ctx, a, nil)
			return nil, m.whyEnded(ctx, true, failure)
		case <-m.closing:
			m.giveBack(ctx, a, nil)
			return nil, ErrClosed
		}
	}
}

// join prepares an attempt that waits. Where nobody hands over there is no
// queue to join.
func (m *Manager) join(a *attempt) {
	if !m.store.queues() {
		return
	}
	a.member = a.token + a.settings.meta
	if !strings.HasPrefix(a.token, pollingMark) {
		a.told = make(chan news, 1)
		m.addWaiter(a)
	}
}

// claim takes the lock that was handed over, without a call to Redis on the
// way. The handover set the key for the claim's time, and the time that has
// gone by since is known: the last answer before it carried the clock of Redis
// and came from a call sent at a known local time, so the handover was no
// earlier than that time plus the difference of the clocks' readings. The
// watchdog renews the lock to its full TTL after a quarter of the claim's time,
// 100 ms at the latest; a short holding is over by then, and costs no call.
// Without the watchdog the renewal follows at once, beside the holder's first
// work. When the news comes late, half of the claim's time being gone, or ctx has
// ended, claim returns nothing and the script decides.
func (m *Manager) claim(ctx context.Context, a *attempt, n news) (*Lock, error) {
	// A handover from before the last answer is over: that answer was "taken".
	if n.setUS <= a.nowUS || ctx.Err() != nil {
		return nil, nil //nolint:nilerr // the script decides, and then looks at ctx itself
	}
	claimTTL := time.Duration(n.claimMS) * time.Millisecond
	received := time.Now()
	set := a.sent.Add(time.Duration(n.setUS-a.nowUS) * time.Microsecond)
	if set.After(received) {
		set = received
	}
	deadline := set.Add(validity(claimTTL))
	if deadline.Sub(received) < claimTTL/2 {
		return nil, nil
	}
	short := a.settings.unwatched && a.settings.ttl < claimTTL
	if short {
		deadline = earlier(deadline, received.Add(validity(a.settings.ttl)))
	}
	l, err := m.finish(ctx, a, n.fence, deadline, min(claimTTL/4, settleMax))
	if err != nil {
		return nil, err
	}
	if a.settings.unwatched && !short {
		m.work.Go(func() { m.confirmClaim(l.h) })
	}
	return l, nil
}

// settleMax is how long a lock that was handed over is left with its claim's time.
const settleMax = 100 * time.Millisecond

// confirmClaim extends a lock that was handed over to its full TTL, as often as
// it takes while the lock is held.
func (m *Manager) confirmClaim(h *holding) {
	ctx, cancel := context.WithTimeout(m.life, m.cfg.ClaimTTL)
	defer cancel()
	for {
		sent := time.Now()
		e := m.store.extend(ctx, h, h.settings.ttl)
		m.renewed(h, sent, e)
		if e.err == nil && !e.held {
			m.endTaken(ctx, []*holding{h})
		}
		if e.err == nil || !wait(ctx, m.cfg.ClaimTTL/20) {
			return
		}
	}
}

// errEnded says that ctx or the manager ended during the call.
var errEnded = errors.New("lock: ended during the call")

// try runs the script once. The error is ErrTaken when the lock is another's;
// pause is then, and after a failure, how long to wait before the next run.
// After errEnded nothing is left to give back.
func (m *Manager) try(ctx context.Context, a *attempt) (l *Lock, pause time.Duration, err error) {
	sent := time.Now()
	r, err := m.ask(ctx, a)
	if err != nil {
		return nil, m.pause(a, m.cfg.Liveness), err
	}
	a.sent, a.nowUS = sent, r.nowUS
	if r.repaired {
		m.cfg.Observer.repaired(a.resource)
	}
	if !r.held {
		// A little later than the expiry, which Redis rounds to milliseconds.
		return nil, m.pause(a, min(m.cfg.Liveness, r.lapse+2*time.Millisecond)), ErrTaken
	}
	if ctx.Err() != nil {
		m.giveBack(ctx, a, nil)
		return nil, 0, errEnded
	}
	deadline := sent.Add(validity(a.settings.ttl))
	if !time.Now().Before(deadline) {
		// Another may have it already. Who waits asks again, and finds out.
		return nil, m.pause(a, time.Millisecond), errLate
	}
	l, err = m.finish(ctx, a, r.fence, deadline, 0)
	return l, 0, err
}

// errLate says that the answer that granted the lock came too late.
var errLate = fmt.Errorf("%w: the answer that granted it took longer than its TTL", ErrLost)

// pause is how long a waiter waits before it asks again: until it has to show
// that it is alive, or, where it polls, the interval with its jitter.
func (m *Manager) pause(a *attempt, alive time.Duration) time.Duration {
	if poll := m.pollEvery(a); poll > 0 {
		return poll/2 + mathrand.N(poll)
	}
	return alive
}

// answer is the outcome of one run of the script.
type answer struct {
	reply
	err error
}

// inlineLeft is how much time a context must have left for its calls to be made
// on the caller's own goroutine, which is much cheaper than on another.
const inlineLeft = 250 * time.Millisecond

// ask runs the script and returns its answer, or errEnded when ctx or the
// manager ended meanwhile. An ended context does not cut off the call: a script
// that is still on its way would run after the clean-up, and what it took would
// stay behind. With time enough the caller waits for the call, so that it
// notices a cancellation when the answer is there, and returns at its deadline
// even if Redis hangs. Short of time, and where the client does not end a call
// with its context, the call gets a goroutine to end on.
func (m *Manager) ask(ctx context.Context, a *attempt) (reply, error) {
	bound := time.Now().Add(m.cfg.CallTimeout)
	deadline, bounded := ctx.Deadline()
	if !m.store.bounded() || bounded && time.Until(deadline) < inlineLeft {
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
		<-ctx.Done() // the connection's timer may be a moment ahead of the context's
		m.giveBackTwice(ctx, a)
		return reply{}, errEnded
	}
	return r, err
}

// askBeside is ask for a context that may end at any moment: it returns then,
// and what the call takes is given back once it has ended.
func (m *Manager) askBeside(ctx context.Context, a *attempt) (reply, error) {
	done := make(chan answer, 1)
	go func() {
		callCtx, cancel := m.cleanUp(ctx)
		defer cancel()
		r, err := m.store.acquire(callCtx, a)
		done <- answer{r, err}
	}()
	select {
	case ans := <-done:
		return ans.reply, ans.err
	case <-ctx.Done():
	case <-m.closing:
	}
	m.giveBack(ctx, a, done)
	return reply{}, errEnded
}

// finish turns the lock that Redis granted into a handle. The lock is renewed
// no earlier than after settle, unless its deadline moves first.
func (m *Manager) finish(ctx context.Context, a *attempt, fence int64, deadline time.Time, settle time.Duration) (*Lock, error) {
	l, err := m.newLock(a, fence, deadline, settle)
	if err != nil {
		m.giveBack(ctx, a, nil)
		return nil, err
	}
	m.cfg.Observer.acquired(a.resource, time.Since(a.started))
	return l, nil
}

// giveBack removes what the attempt may have in Redis, its place or the lock,
// once the call under way (if any) has ended. It goes on in the background,
// because whoever called Acquire has stopped waiting. If Redis cannot be
// reached, the TTL and the missing signs of life do the same later.
func (m *Manager) giveBack(ctx context.Context, a *attempt, underWay <-chan answer) {
	// The attempt is counted itself, so Close cannot have got past it.
	m.work.Go(func() {
		if underWay != nil {
			<-underWay
		}
		m.withdraw(ctx, a)
	})
}

// giveBackTwice is giveBack after a call that got no answer. Its script may
// still be on its way, behind the first clean-up, so a second one follows.
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
	ctx, cancel := m.cleanUp(ctx)
	defer cancel()
	_, handed, err := m.store.release(ctx, &a.keys, a.token, a.member)
	if err == nil && handed {
		m.cfg.Observer.handedOver(a.resource)
	}
}

// whyEnded returns what to tell the caller of an attempt that ended early.
// failure is the last error of Redis, if the wait ended during an interruption.
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

// settle applies the options of one acquire to the manager's settings.
func (m *Manager) settle(opts []Option) (settings, error) {
	s := m.defaults
	if len(opts) == 0 {
		return s, nil
	}
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	err := s.check()
	return s, err
}
