package lock

import (
	"context"
	"time"
)

// watchdog is the state of the one loop that renews all locks of a manager. It
// starts with the first lock and ends when it wakes up and finds none held, so
// that a stream of short locks does not start it each time. Manager.mu guards
// its fields.
type watchdog struct {
	running bool
	next    time.Time     // when the loop wakes up by itself
	kick    chan struct{} // wakes it up earlier
}

func newWatchdog() watchdog { return watchdog{kick: make(chan struct{}, 1)} }

// renewBatch is how many locks are renewed in one pipeline.
const renewBatch = 256

// watch starts watching over a lock that has just been taken.
func (m *Manager) watch(l *Lock) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	l.mu.Lock()
	l.timer = time.AfterFunc(time.Until(l.deadline), l.expire)
	due := m.renewAt(l)
	l.mu.Unlock()
	m.held[l] = struct{}{}
	switch {
	case !m.dog.running:
		m.dog.running = true
		m.work.Go(m.renewLoop)
	case due.Before(m.dog.next):
		m.kickDog()
	}
	return nil
}

// unwatch forgets a lock that has ended.
func (m *Manager) unwatch(l *Lock) {
	m.mu.Lock()
	delete(m.held, l)
	m.mu.Unlock()
}

func (m *Manager) kickDog() {
	select {
	case m.dog.kick <- struct{}{}:
	default: // it is going to look anyway
	}
}

// renewAt is when a lock is to be renewed: when a third of the TTL has gone by.
// The caller holds l.mu.
func (m *Manager) renewAt(l *Lock) time.Time {
	at := l.deadline.Add(m.cfg.TTL/3 - validity(m.cfg.TTL))
	if at.Before(l.notBefore) {
		return l.notBefore
	}
	return at
}

func (m *Manager) renewLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	// After a failed round the same locks are due at once; this keeps a Redis
	// that is down from being called in a loop.
	pause := max(m.cfg.TTL/20, time.Millisecond)
	for {
		due, next, running := m.dueLocks(time.Now())
		if !running {
			return
		}
		if len(due) > 0 {
			m.renew(due)
			next = time.Now().Add(pause)
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-m.dog.kick:
		case <-m.life.Done():
		}
	}
}

// dueLocks returns the locks to renew and when to look again. Those that are
// due soon come along, so that many locks make few round trips. With no lock
// held, or at the end of the manager, the loop ends.
func (m *Manager) dueLocks(now time.Time) (due []*Lock, next time.Time, running bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.held) == 0 || m.life.Err() != nil {
		m.dog.running = false
		return nil, time.Time{}, false
	}
	next = now.Add(m.cfg.TTL / 3)
	horizon := now.Add(m.cfg.TTL / 20)
	for l := range m.held {
		l.mu.Lock()
		at := m.renewAt(l)
		l.mu.Unlock()
		if at.Before(horizon) {
			due = append(due, l)
		} else if at.Before(next) {
			next = at
		}
	}
	m.dog.next = next
	return due, next, true
}

// renew extends the locks in batches, each bounded by a third of the TTL so
// that a call that hangs leaves time for another try.
func (m *Manager) renew(due []*Lock) {
	for start := 0; start < len(due); start += renewBatch {
		m.renewChunk(due[start:min(start+renewBatch, len(due))])
	}
}

func (m *Manager) renewChunk(locks []*Lock) {
	ctx, cancel := context.WithTimeout(m.life, m.cfg.TTL/3)
	defer cancel()
	sent := time.Now()
	cmds := m.extendAll(ctx, locks, m.cfg.TTL)
	for i, l := range locks {
		n, err := cmds[i].Int64()
		m.renewed(l, sent, n == 1, err)
	}
}

// renewed records the outcome of one renewal. An error leaves the lock as it
// is: the next round tries again, and the deadline ends it if none succeeds.
func (m *Manager) renewed(l *Lock, sent time.Time, ok bool, err error) {
	switch {
	case err != nil:
	case ok:
		l.prolong(sent.Add(validity(m.cfg.TTL)))
	default:
		l.lose()
	}
}
