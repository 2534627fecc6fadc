package lock

import (
	"context"
	"time"
)

// watchdog is the state of the one loop that renews all locks of a manager, and
// ends those that could not be renewed in time. It makes no call itself, so that
// it is never late; what it has to renew it hands to goroutines. It starts with
// the first lock and ends when it wakes up and finds none held, so that a stream
// of short locks does not start it each time. Manager.mu guards its fields.
type watchdog struct {
	running bool
	next    time.Time     // when the loop wakes up on its own
	kick    chan struct{} // wakes it up earlier
}

func newWatchdog() watchdog { return watchdog{kick: make(chan struct{}, 1)} }

// renewBatch is how many locks are renewed in one call.
const renewBatch = 256

// watch starts watching over a lock that has just been taken.
func (m *Manager) watch(h *holding) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	h.mu.Lock()
	if h.settings.unwatched || h.settings.maxHold > 0 {
		until := h.deadline
		if h.settings.maxHold > 0 && h.endBy.Before(until) {
			until = h.endBy
		}
		h.timer = time.AfterFunc(time.Until(until), h.expire)
	}
	due, slack := h.renewAt()
	h.mu.Unlock()
	m.held[h] = struct{}{}
	switch {
	case h.settings.unwatched:
	case !m.dog.running:
		m.dog.running = true
		m.work.Go(m.renewLoop)
	case due.Add(slack).Before(m.dog.next):
		// What is due a little before the next round comes along with it.
		m.kickDog()
	}
	return nil
}

// unwatch forgets a lock that has ended.
func (m *Manager) unwatch(h *holding) {
	m.mu.Lock()
	delete(m.held, h)
	m.mu.Unlock()
}

func (m *Manager) kickDog() {
	select {
	case m.dog.kick <- struct{}{}:
	default: // it is going to look anyway
	}
}

// renewAt is when a lock is to be renewed: when a third of the TTL has gone by.
// A lock that was extended for longer is asked for as often, because nothing
// else tells of its loss. slack is how much earlier it may be, to come along
// with others. The caller holds mu.
func (h *holding) renewAt() (at time.Time, slack time.Duration) {
	at = h.deadline.Add(h.settings.ttl/3 - validity(h.settings.ttl))
	at = earlier(at, h.asked.Add(h.settings.ttl/3))
	if at.Before(h.notBefore) {
		return h.notBefore, 0
	}
	return at, h.settings.ttl / 20
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (m *Manager) renewLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, over, next, running := m.dueLocks(time.Now())
		for _, h := range over {
			h.expire()
		}
		if !running {
			return
		}
		m.renew(due)
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-m.dog.kick:
		case <-m.life.Done():
		}
	}
}

// idleLook is how long the loop sleeps at most, and goes on without a lock.
const idleLook = 10 * time.Second

// dueLocks returns the locks to renew, by their TTL, those whose time is over,
// and when to look again. Those that are due soon come along, so that many locks
// make few round trips. With no lock held, or at the end of the manager, the
// loop ends.
func (m *Manager) dueLocks(now time.Time) (due map[time.Duration][]*holding, over []*holding, next time.Time, running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life.Err() != nil {
		m.dog.running = false
		return nil, nil, time.Time{}, false
	}
	next = now.Add(min(idleLook, m.cfg.TTL/3))
	for h := range m.held {
		if h.settings.unwatched {
			continue
		}
		running = true
		h.mu.Lock()
		at, slack := h.renewAt()
		ttl := h.settings.ttl
		if !h.retryAt.Before(at) { // also where they are equal
			at, slack = h.retryAt, 0
		}
		switch {
		case h.state != stateHeld:
		case !h.deadline.After(now):
			over = append(over, h)
		case h.renewing: // its end kicks the loop
			next = earlier(next, h.deadline)
		case !at.After(now.Add(slack)):
			if due == nil {
				due = make(map[time.Duration][]*holding)
			}
			h.renewing = true
			due[ttl] = append(due[ttl], h)
			next = earlier(next, h.deadline)
		default:
			// Whatever else is to be done, the lock ends at its deadline.
			next = earlier(next, earlier(at, h.deadline))
		}
		h.mu.Unlock()
	}
	m.dog.next, m.dog.running = next, running
	return due, over, next, running
}

// renew extends the locks in batches of one TTL, each bounded by a third of it
// so that a call that hangs leaves time for another try, and does not hold up
// locks with a shorter life.
func (m *Manager) renew(due map[time.Duration][]*holding) {
	for ttl, locks := range due {
		for start := 0; start < len(locks); start += renewBatch {
			batch := locks[start:min(start+renewBatch, len(locks))]
			m.work.Go(func() { m.renewTogether(batch, ttl) })
		}
	}
}

func (m *Manager) renewTogether(locks []*holding, ttl time.Duration) {
	// A lock that is held for long enough to be renewed is one that somebody
	// may want to take by force, which its holder should learn of at once.
	m.startListening()
	ctx, cancel := context.WithTimeout(m.life, ttl/3)
	defer cancel()
	sent := time.Now()
	var gone []*holding
	for i, e := range m.store.extendAll(ctx, locks, ttl) {
		m.renewed(locks[i], sent, e)
		if e.err == nil && !e.held {
			gone = append(gone, locks[i])
		}
	}
	m.endTaken(ctx, gone)
	m.kickDog()
}

// endTaken ends locks that Redis does not hold for us any more. It asks for the
// reason first, so that the context's cause can tell it.
func (m *Manager) endTaken(ctx context.Context, locks []*holding) {
	if len(locks) == 0 {
		return
	}
	for i, reason := range m.whyTaken(ctx, locks) {
		locks[i].lose(taken(reason))
	}
}

// whyTaken asks for the reasons, for a moment only: another may hold the locks
// while the holders still work.
func (m *Manager) whyTaken(ctx context.Context, locks []*holding) []string {
	ctx, cancel := context.WithTimeout(ctx, min(locks[0].settings.ttl/20, m.cfg.reasonLimit))
	defer cancel()
	return m.store.reasons(ctx, locks)
}

// renewed records the outcome of one renewal. An error leaves the lock as it
// is: the next round tries again, and the deadline ends it if none succeeds. A
// lock that is not held any more is the caller's to end.
func (m *Manager) renewed(h *holding, sent time.Time, e extension) {
	ttl := h.settings.ttl
	h.mu.Lock()
	at, _ := h.renewAt()
	late := time.Since(at)
	h.renewing = false
	if e.err != nil {
		// The same locks are due at once; this keeps a Redis that is down from
		// being called in a loop.
		h.retryAt = time.Now().Add(max(ttl/20, time.Millisecond))
	}
	h.mu.Unlock()
	if e.held && h.prolong(sent.Add(validity(ttl))) && late > ttl/3 {
		m.cfg.Observer.extendedLate(h.resource, late)
	}
}
