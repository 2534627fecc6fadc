package lock

import (
	"context"
	"time"
)

// watchdog is the state of the loop that renews all locks of a manager and ends each at its
// deadline. The loop makes no calls itself, so that it is never late;
// goroutines do the renewals. It starts with the first lock and ends when it wakes up and
// finds none, so that a stream of short locks does not start it each time. Manager.mu guards
// its fields.
type watchdog struct {
	running bool
	next    time.Time     // the loop's next wake-up
	kick    chan struct{} // wakes it earlier
}

func newWatchdog() watchdog { return watchdog{kick: make(chan struct{}, 1)} }

// renewBatch is the maximum number of locks renewed in one call.
const renewBatch = 256

// watch registers a new lock with the watchdog.
func (m *Manager) watch(h *holding) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	h.mu.Lock()
	due, slack := h.renewAt()
	end, _ := h.timeUp() //nolint:errcheck // only the time matters here
	h.mu.Unlock()
	m.held[h] = struct{}{}
	switch {
	case !m.dog.running:
		m.dog.running = true
		m.work.Go(m.renewLoop)
	case earlier(due.Add(slack), end).Before(m.dog.next):
		// A lock that is due only slightly earlier waits for the next round; its end does not.
		m.kickDog()
	}
	return nil
}

// unwatch removes a lock that has ended.
func (m *Manager) unwatch(h *holding) {
	m.mu.Lock()
	delete(m.held, h)
	m.mu.Unlock()
}

func (m *Manager) kickDog() {
	select {
	case m.dog.kick <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// renewAt is the time of the next renewal: when a third of the TTL has passed. A lock that
// was extended for longer is renewed just as often, because a renewal is how its loss is
// noticed. slack is how much earlier it may be renewed together with others. For a lock that
// ends before that, or is not renewed, it is the end of the lock. The caller holds mu.
func (h *holding) renewAt() (at time.Time, slack time.Duration) {
	at = h.deadline.Add(h.settings.ttl/3 - validity(h.settings.ttl))
	at = earlier(at, h.asked.Add(h.settings.ttl/3))
	slack = h.settings.ttl / 20
	if at.Before(h.notBefore) {
		at, slack = h.notBefore, 0
	}
	if end, _ := h.timeUp(); h.settings.unwatched || end.Before(at) { //nolint:errcheck // only the time matters here
		return end, 0
	}
	return at, slack
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
			if !h.expire() {
				m.kickDog() // next does not include it
			}
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

// idleLook is the longest sleep of the loop, and so how long it runs without locks.
const idleLook = 10 * time.Second

// dueLocks returns the locks to renew, grouped by TTL, those whose deadline has passed, and
// the time of the next check. It includes locks that are due soon, so that many locks need
// few round trips. The loop ends when there are none.
func (m *Manager) dueLocks(now time.Time) (due map[time.Duration][]*holding, over []*holding, next time.Time, running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, running = now.Add(min(idleLook, m.cfg.TTL/3)), len(m.held) > 0
	for h := range m.held {
		h.mu.Lock()
		at, slack := h.renewAt()
		end, _ := h.timeUp() //nolint:errcheck // only the time matters here
		ttl := h.settings.ttl
		if !h.retryAt.Before(at) { // also where they are equal
			at, slack = h.retryAt, 0
		}
		switch {
		case !end.After(now): // also while it is being released
			over = append(over, h)
		case h.renewing: // the end of the renewal wakes the loop
			next = earlier(next, end)
		case !at.After(now.Add(slack)):
			if due == nil {
				due = make(map[time.Duration][]*holding)
			}
			h.renewing = true
			due[ttl] = append(due[ttl], h)
			next = earlier(next, end)
		default:
			next = earlier(next, earlier(at, end)) // a retry may come too late
		}
		h.mu.Unlock()
	}
	m.dog.next, m.dog.running = next, running
	return due, over, next, running
}

// renew extends the locks in batches of one TTL. A third of the TTL bounds each batch, so that
// a call that hangs leaves time for another try and does not delay locks with a shorter TTL.
func (m *Manager) renew(due map[time.Duration][]*holding) {
	for ttl, locks := range due {
		for start := 0; start < len(locks); start += renewBatch {
			batch := locks[start:min(start+renewBatch, len(locks))]
			m.work.Go(func() { m.renewTogether(batch, ttl) })
		}
	}
}

func (m *Manager) renewTogether(locks []*holding, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(m.life, ttl/3)
	defer cancel()
	sent := time.Now()
	for i, e := range m.store.extendAll(ctx, locks, ttl) {
		m.renewed(locks[i], sent, e)
	}
	m.kickDog()
}

// renewed records the outcome of one renewal. After an error the lock stays: the next round
// retries, and the lock ends at its deadline if none succeeds.
func (m *Manager) renewed(h *holding, sent time.Time, e extension) {
	ttl := h.settings.ttl
	h.mu.Lock()
	at, _ := h.renewAt()
	late := time.Since(at)
	h.renewing = false
	if e.err != nil {
		// The same locks are due at once; this pause prevents a busy loop while Redis is
		// down.
		h.retryAt = time.Now().Add(max(ttl/20, time.Millisecond))
	}
	h.mu.Unlock()
	switch {
	case e.err != nil:
	case !e.held:
		h.lose(errGone)
	case h.prolong(sent.Add(validity(ttl))) && late > ttl/3:
		m.cfg.Observer.ExtendedLate(h.resource, late)
	}
}
