package queue

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// renew extends the leases of the source's tasks that wait for a worker or are with one, and
// ends the handlers' contexts when leases are lost, until ctx ends. It extends every lease
// with less than two thirds of its time left. It checks often enough to extend a lease before
// half of its time has passed, and more often while extending fails.
func (s *source) renew(ctx context.Context) {
	lease := s.Queue.cfg.Lease
	every, again := lease/6, lease/10
	timer := time.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		pause := every
		s.expire()
		s.r.pool.returnOverdue(s)
		if !s.extend(ctx) {
			pause = again
		}
		if end := s.expire(); !end.IsZero() {
			pause = min(pause, max(time.Until(end), time.Millisecond))
		}
		timer.Reset(pause)
	}
}

// expire gives up the leases that were not extended in time and returns the end of the
// next one; zero if there is none.
func (s *source) expire() (next time.Time) {
	now := time.Now()
	s.lose(func(l Leased) bool { return !now.Before(*l.end) })
	for _, l := range s.r.pool.held(s) {
		if next.IsZero() || l.end.Before(next) {
			next = *l.end
		}
	}
	return next
}

// extend extends the leases that are due, within the time that the first of them has
// left. It returns false if that failed.
func (s *source) extend(ctx context.Context) bool {
	q := s.Queue
	start := time.Now()
	var due []Leased
	var first time.Time
	for _, l := range s.r.pool.held(s) {
		// An ended lease must not cut the call for the others short.
		if left := l.end.Sub(start); left <= 0 || left >= q.cfg.Lease*2/3 {
			continue
		}
		due = append(due, l)
		if first.IsZero() || l.end.Before(first) {
			first = *l.end
		}
	}
	if len(due) == 0 {
		return true
	}
	limited, cancel := context.WithDeadline(ctx, first)
	defer cancel()
	status, err := q.Extend(limited, due...)
	if err != nil {
		if ctx.Err() == nil {
			s.r.cfg.OnError(err)
		}
		return false
	}
	lost := make(map[*time.Time]bool)
	s.r.pool.mu.Lock()
	for i, got := range status {
		if got == StatusOK {
			*due[i].end = start.Add(q.cfg.Lease)
		} else {
			lost[due[i].end] = true
		}
	}
	s.r.pool.mu.Unlock()
	if len(lost) > 0 {
		s.lose(func(l Leased) bool { return lost[l.end] })
	}
	return true
}

// held lists the tasks of a source that wait or are with a handler.
func (p *pool) held(s *source) []Leased {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Leased
	for _, b := range slices.Concat(p.waiting, p.running) {
		if b.source == s {
			all = append(all, b.tasks...)
		}
	}
	return all
}

// lose removes tasks whose leases are lost: waiting ones do not start, and the contexts of
// the handlers of the others end.
func (s *source) lose(lost func(Leased) bool) {
	p, n := s.r.pool, 0
	without := func(b *batch) bool {
		before := len(b.tasks)
		if b.source == s {
			b.tasks = slices.DeleteFunc(b.tasks, lost)
			n += before - len(b.tasks)
		}
		return len(b.tasks) < before
	}
	var ended []*batch
	p.mu.Lock()
	for _, b := range p.running {
		if without(b) {
			ended = append(ended, b)
		}
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(b *batch) bool { return without(b) && len(b.tasks) == 0 })
	p.mu.Unlock()
	if n == 0 {
		return
	}
	err := fmt.Errorf("handle tasks: %w: %d of them", ErrLeaseLost, n)
	s.r.cfg.OnError(err)
	for _, b := range ended {
		b.cancel(err)
	}
}
