package queue

import (
	"context"
	"fmt"
	"time"

	"flashsale/internal/pause"
)

// fetchLoop requests a grant from the pool, fetches, and waits while the queue is
// empty, until ctx ends. Then it hands back the tasks that no worker has taken. A Run
// so has one blocked connection per queue, and the process that fetched last waits for
// the next due time.
func (s *source) fetchLoop(ctx context.Context) {
	defer s.r.pool.handBack(s)
	failures, answered := 0, false
	for ctx.Err() == nil {
		err := s.turn(ctx)
		if err == nil {
			failures, answered = 0, true
			continue
		}
		if !answered && denied(err) {
			s.r.deny(fmt.Errorf("%w: %w", ErrDenied, err))
			return
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		s.r.cfg.OnError(err)
		pause.For(ctx, fullJitter(redisBackoffBase, redisBackoffMax, failures))
	}
}

// turn fetches once, and waits for a wake-up when there was nothing.
func (s *source) turn(ctx context.Context) error {
	pool := s.r.pool
	if d := time.Until(s.nextFetch); d > 0 {
		pause.For(ctx, d)
	}
	n, err := s.awaitGrant(ctx)
	if n == 0 {
		return err
	}
	// The end of Run does not cancel it; see fetchLimit.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	got, err := s.Queue.dequeue(whole, min(n, s.size), s.r.cfg.MaxIdle)
	if s.r.cfg.OnFetch != nil {
		s.r.cfg.OnFetch(err)
	}
	if err != nil {
		// On a slow link the reply with a large batch may never arrive in time, and the
		// tasks of a lost reply have used an attempt.
		s.size = max(min(n, s.size)/2, 1)
		pool.failed(s)
		return err
	}
	s.woken = false
	s.size = min(2*s.size, chunkTasks)
	empty := len(got.Tasks) == 0
	soon := got.strays <= 0 && (got.More || !empty)
	if s.r.cfg.Linger != nil && !got.More && !empty && entries(got.Tasks) < s.batch() {
		d := min(s.r.cfg.Linger(got.Tasks), maxLinger)
		s.nextFetch = time.Now().Add(d)
		soon = soon && d <= 0
	}
	pool.fetched(s, got.Tasks, got.More, soon)
	s.reportExpired(got)
	s.strays.look(ctx, s.Queue, got.strays, s.r.cfg.OnError)
	if empty && !got.More {
		return s.wait(ctx, got.Next)
	}
	return nil
}

// awaitGrant waits for a grant from the pool and returns the number of entries it may fetch; 0
// if ctx has ended or the queue is empty.
//
// The workers may be busy for a long time, and a wake-up reaches only one process. So a
// loop that cannot fetch at once passes its wake-up on, and waits for the next one if no
// task is ready.
func (s *source) awaitGrant(ctx context.Context) (int, error) {
	pool := s.r.pool
	if s.r.cfg.Hold != nil {
		if d := s.r.cfg.Hold(); d > 0 {
			s.stepAside(ctx)
			pause.For(ctx, d)
		}
	}
	if s.acker.full() {
		s.stepAside(ctx)
		s.acker.wait(ctx)
	}
	pool.ask(s)
	if s.woken {
		select {
		case n := <-s.grant:
			return n, nil
		default:
		}
		ready, next, err := s.Queue.pass(ctx)
		if err == nil && !ready {
			pool.withdraw(s)
			return 0, s.wait(ctx, next)
		}
		// If it failed, other workers check the queue within RunConfig.MaxIdle anyway.
	}
	select {
	case n := <-s.grant:
		return n, nil
	case <-ctx.Done():
		return 0, nil
	}
}

// stepAside lets the other sources of this process and the other processes fetch first.
func (s *source) stepAside(ctx context.Context) {
	s.r.pool.withdraw(s)
	if s.woken {
		s.Queue.giveBack(ctx)
		s.woken = false
	}
}

// reportExpired reports the attempts whose lease had expired when this fetch took back their
// tasks. At most one fetch of all processes does: a reply that is lost reports nothing. The
// fetched tasks are with the workers and their leases are renewed by then, however long the
// callback takes.
func (s *source) reportExpired(got Fetched) {
	if s.r.cfg.OnFailure == nil {
		return
	}
	for i := range got.expired {
		e := &got.expired[i]
		s.r.cfg.OnFailure(e.task, fmt.Errorf("attempt %d: %w: it expired", e.task.Attempt, ErrLeaseLost), e.dead)
	}
}

// wait sleeps until the queue may have ready tasks.
func (s *source) wait(ctx context.Context, next time.Duration) error {
	limit, due := s.r.cfg.MaxIdle, false
	if s.strays.reported > 0 {
		limit = min(limit, strayEvery) // continue the check
	}
	if next >= 0 && next < limit {
		limit, due = next, true
	}
	err := s.Queue.wait(ctx, limit, due)
	s.woken = err == nil
	return err
}
