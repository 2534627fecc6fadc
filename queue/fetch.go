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
	f := fetcher{source: s, size: chunkTasks}
	failures, answered := 0, false
	for ctx.Err() == nil {
		err := f.turn(ctx)
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

// fetcher is the state of the fetch loop of one source.
type fetcher struct {
	*source
	size      int       // maximum number of entries per fetch
	nextFetch time.Time // when lingering ends
	strays    strays
	// woken: this loop consumed a wake-up and has not fetched since.
	woken bool
}

// turn fetches once, and waits for a wake-up when there was nothing.
func (f *fetcher) turn(ctx context.Context) error {
	pool := f.r.pool
	if d := time.Until(f.nextFetch); d > 0 {
		pause.For(ctx, d)
	}
	n, err := f.leave(ctx)
	if n == 0 {
		return err
	}
	// The end of Run does not cancel it; see fetchLimit.
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	got, err := f.Queue.dequeue(whole, min(n, f.size), f.r.cfg.MaxIdle)
	if f.r.cfg.OnFetch != nil {
		f.r.cfg.OnFetch(err)
	}
	if err != nil {
		// On a slow link the reply with a large batch may never arrive in time, and the
		// tasks of a lost reply have used an attempt.
		f.size = max(min(n, f.size)/2, 1)
		pool.failed(f.source)
		return err
	}
	f.woken = false
	f.size = min(2*f.size, chunkTasks)
	empty := len(got.Tasks) == 0
	soon := got.strays <= 0 && (got.More || !empty)
	if f.r.cfg.Linger != nil && !got.More && !empty && entries(got.Tasks) < f.batch() {
		d := min(f.r.cfg.Linger(got.Tasks), maxLinger)
		f.nextFetch = time.Now().Add(d)
		soon = soon && d <= 0
	}
	pool.fetched(f.source, got.Tasks, got.More, soon)
	f.reportExpired(got)
	f.strays.look(ctx, f.Queue, got.strays, f.r.cfg.OnError)
	if empty && !got.More {
		return f.wait(ctx, got.Next)
	}
	return nil
}

// leave waits for a grant from the pool and returns the number of entries it may fetch; 0
// if ctx has ended or the queue is empty.
//
// The workers may be busy for a long time, and a wake-up reaches only one process. So a
// loop that cannot fetch at once passes its wake-up on, and waits for the next one if no
// task is ready.
func (f *fetcher) leave(ctx context.Context) (int, error) {
	pool := f.r.pool
	if f.acker.full() {
		pool.withdraw(f.source)
		if f.woken {
			f.Queue.giveBack(ctx)
			f.woken = false
		}
		f.acker.wait(ctx)
	}
	pool.ask(f.source)
	if f.woken {
		select {
		case n := <-f.grant:
			return n, nil
		default:
		}
		ready, next, err := f.Queue.pass(ctx)
		if err == nil && !ready {
			pool.withdraw(f.source)
			return 0, f.wait(ctx, next)
		}
		// If it failed, other workers check the queue within RunConfig.MaxIdle anyway.
	}
	select {
	case n := <-f.grant:
		return n, nil
	case <-ctx.Done():
		pool.withdraw(f.source)
		return 0, nil
	}
}

// reportExpired reports the attempts whose lease had expired when this fetch took back their
// tasks. At most one fetch of all processes does: a reply that is lost reports nothing. The
// fetched tasks are with the workers and their leases are renewed by then, however long the
// callback takes.
func (f *fetcher) reportExpired(got Fetched) {
	if f.r.cfg.OnFailure == nil {
		return
	}
	for i := range got.expired {
		e := &got.expired[i]
		f.r.cfg.OnFailure(e.task, fmt.Errorf("attempt %d: %w: it expired", e.task.Attempt, ErrLeaseLost), e.dead)
	}
}

// wait sleeps until the queue may have ready tasks.
func (f *fetcher) wait(ctx context.Context, next time.Duration) error {
	limit, due := f.r.cfg.MaxIdle, false
	if f.strays.reported > 0 {
		limit = min(limit, strayEvery) // continue the check
	}
	if next >= 0 && next < limit {
		limit, due = next, true
	}
	err := f.Queue.wait(ctx, limit, due)
	f.woken = err == nil
	return err
}
