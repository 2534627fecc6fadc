package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// holding is one holding of a resource. Re-entered handles share it.
type holding struct {
	m        *Manager
	resource string
	token    string
	value    string // value of the lock's key
	fence    int64
	keys     keys
	settings settings
	since    time.Time
	endBy    time.Time // end of the maximum hold; zero without one

	releasing sync.Mutex // held during the release's call

	mu        sync.Mutex
	deadline  time.Time // the lock is known to be held until then
	notBefore time.Time // earliest renewal
	asked     time.Time // last time that Redis confirmed the lock
	retryAt   time.Time // next renewal after a failed one
	renewing  bool      // a renewal is in progress
	state     state
	lostBy    error   // why it ended before it was released
	handles   []*Lock // not yet released
}

type state int

const (
	stateHeld     state = iota
	stateLost           // ended without a release
	stateReleased       // released locally; the key may still exist
	stateGone           // released, and Redis has confirmed it
	stateMissing        // released, but it had ended before
)

// newLock makes a holding that is valid until deadline and registers it with the
// watchdog. If the manager was closed in the meantime, the error is ErrClosed, and the
// caller must release the key. settle is the minimum time until the first renewal.
func (m *Manager) newLock(a *attempt, fence int64, deadline time.Time, settle time.Duration) (*Lock, error) {
	// One allocation for the parts that almost every holding needs.
	mem := new(struct {
		h       holding
		first   Lock
		handles [1]*Lock
	})
	h, l := &mem.h, &mem.first
	h.m, h.resource, h.keys, h.settings = m, a.resource, a.keys, a.settings
	h.token, h.fence = a.token, fence
	h.value = a.token + ":" + strconv.FormatInt(fence, 10) + a.settings.meta
	h.deadline = deadline
	h.since = time.Now()
	h.asked = h.since
	if h.settings.maxHold > 0 {
		h.endBy = h.since.Add(h.settings.maxHold)
	}
	if settle > 0 {
		h.notBefore = h.since.Add(settle)
	}
	l.h, l.caller = h, a.caller
	mem.handles[0] = l
	h.handles = mem.handles[:]
	if err := m.watch(h); err != nil {
		return nil, err
	}
	return l, nil
}

// join makes another handle on a lock whose handle outer is in ctx; nil if the lock has
// ended.
func (h *holding) join(ctx context.Context, outer *Lock) *Lock {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld {
		return nil
	}
	l := &Lock{h: h, caller: ctx, parent: outer}
	h.handles = append(h.handles, l)
	return l
}

func (h *holding) isHeld() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state == stateHeld
}

// outlivedByKey reports whether the key may outlive the lock: the handover gave it a TTL
// of ClaimTTL, and the lock has a shorter TTL.
func (h *holding) outlivedByKey() bool {
	return h.settings.unwatched && h.settings.ttl < h.m.cfg.ClaimTTL
}

// timeUp returns when and why the lock ends unless it is renewed. The caller holds mu.
func (h *holding) timeUp() (at time.Time, cause error) {
	if !h.endBy.IsZero() && h.endBy.Before(h.deadline) {
		return h.endBy, ErrMaxHold
	}
	return h.deadline, ErrLost
}

// expire ends the lock if its time is up. It returns false if an extension has moved the deadline.
func (h *holding) expire() bool {
	h.mu.Lock()
	at, cause := h.timeUp()
	h.mu.Unlock()
	if time.Until(at) > 0 {
		return false
	}
	h.lose(cause)
	return true
}

// lose ends a held lock that its holder did not release.
func (h *holding) lose(cause error) {
	h.mu.Lock()
	wasHeld := h.state == stateHeld
	if wasHeld {
		h.state, h.lostBy = stateLost, cause
		h.end(cause)
	}
	h.mu.Unlock()
	if !wasHeld {
		return
	}
	// If the key is still held, it is released.
	if errors.Is(cause, ErrMaxHold) || h.outlivedByKey() {
		h.m.surrender(h)
	} else {
		h.m.unwatch(h)
	}
	h.m.cfg.Observer.Lost(h.resource, cause)
}

// errGone is the error of a lock that Redis no longer holds for us.
var errGone = fmt.Errorf("%w: %w", ErrLost, trimmed{ErrNotHeld})

// end cancels the contexts and ends the validity. The caller holds mu.
func (h *holding) end(cause error) {
	if now := time.Now(); h.deadline.After(now) {
		h.deadline = now
	}
	for _, l := range h.handles {
		l.end(cause)
	}
}

// prolong moves the deadline to a later time. It returns false if the lock has ended: a
// late extension does not revive it.
func (h *holding) prolong(deadline time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state != stateHeld {
		return false
	}
	h.asked = time.Now()
	if deadline.After(h.deadline) {
		h.deadline = deadline
	}
	return true
}

func (h *holding) extend(ctx context.Context, l *Lock, ttl time.Duration) error {
	if ttl < minTTL {
		return fmt.Errorf("%w ttl %s, it must be at least %s", ErrInvalid, ttl, minTTL)
	}
	if cause := h.whyOver(l); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	callCtx, cancel := context.WithTimeout(ctx, h.m.cfg.CallTimeout)
	defer cancel()
	sent := time.Now()
	e := h.m.store.extend(callCtx, h, ttl)
	switch {
	case e.err != nil:
		return e.err
	case !e.held:
		h.lose(errGone)
		return errGone
	case !h.prolong(sent.Add(validity(ttl))):
		return h.whyOver(l)
	}
	return nil
}

// whyOver returns why a handle has ended, or nil. The end of the caller's context does
// not count.
func (h *holding) whyOver(l *Lock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return l.why
}

// endedBehind returns why the lock ended, or nil if l was released.
func (h *holding) endedBehind(l *Lock) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.over {
		return nil
	}
	return l.why
}

// leaveBelow ends the handles that re-entered the lock through l.
func (h *holding) leaveBelow(l *Lock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.handles = slices.DeleteFunc(h.handles, func(inner *Lock) bool {
		for outer := inner.parent; outer != nil; outer = outer.parent {
			if outer == l {
				inner.over = true
				inner.end(ErrReleased)
				return true
			}
		}
		return false
	})
}

// release ends one handle, or all if l is nil, and releases the lock with the last one.
func (h *holding) release(ctx context.Context, l *Lock) error {
	// A concurrent second call waits for the result of the first.
	h.releasing.Lock()
	defer h.releasing.Unlock()

	done, err := h.leave(l)
	if done {
		return err
	}
	held := time.Since(h.since)
	ok, err := h.m.free(ctx, h.resource, &h.keys, h.token, "")
	h.m.unwatch(h)
	if err != nil {
		return err
	}
	h.mu.Lock()
	if ok && h.lostBy == nil {
		h.state = stateGone
	} else { // a reply that was lost may hide that the key was gone
		h.state, err = stateMissing, h.notHeld()
	}
	h.mu.Unlock()
	if err == nil {
		h.m.cfg.Observer.Released(h.resource, held)
	}
	return err
}

// leave ends one handle's context, or all of them. done means that no call to Redis
// follows: other handles still hold the lock, or an earlier release got its reply.
func (h *holding) leave(l *Lock) (done bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.state {
	case stateGone:
		return true, nil
	case stateMissing:
		return true, h.notHeld()
	case stateHeld, stateLost, stateReleased:
	}
	if l != nil && !l.over {
		l.over = true
		l.end(ErrReleased)
		if i := slices.Index(h.handles, l); i >= 0 {
			h.handles = slices.Delete(h.handles, i, i+1)
		}
	}
	if l != nil && len(h.handles) > 0 {
		if h.state == stateLost {
			return true, h.notHeld()
		}
		return true, nil
	}
	if h.state == stateHeld {
		h.state = stateReleased
		h.end(ErrReleased)
	}
	return false, nil
}

// notHeld is the error of a release that found the lock gone. The caller holds mu.
func (h *holding) notHeld() error {
	if h.lostBy == nil {
		return ErrNotHeld
	}
	return fmt.Errorf("%w (%w)", ErrNotHeld, trimmed{h.lostBy})
}

// validity is how long a lock with this TTL is certainly held, counted from before the
// call that set it: 1 % less for clock drift, and 2 ms less for rounding by Redis.
func validity(ttl time.Duration) time.Duration {
	return ttl - ttl/100 - 2*time.Millisecond
}
