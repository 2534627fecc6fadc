package queue

import (
	"context"
	"fmt"
	"time"

	"flashsale/internal/pause"
)

// fetchLoop asks the pool for leave to fetch, fetches, and waits where the queue
// has nothing, until ctx ends; then it hands back what no worker has. So a Run has
// one blocked connection per queue, and it is the last to look that watches the
// next due time.
func (s *source) fetchLoop(ctx context.Context) {
	defer func() { s.handBack(s.r.pool.clear(s), "handed back at shutdown") }()
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

// fetcher is what the loop of one source remembers.
type fetcher struct {
	*source
	size      int       // how many tasks are asked for at most
	nextFetch time.Time // when lingering ends
	birth     string    // of the queue, and how many calls had taken tasks,
	takes     int64     // when it last looked
	strays    strays
	// woken: it was told that there may be something, and nobody else was.
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
	got, err := f.fetch(ctx, min(n, f.size))
	if f.r.cfg.OnFetch != nil {
		f.r.cfg.OnFetch(err)
	}
	if err != nil {
		// On a slow link the answer to a large batch may never arrive in
		// time, and each one lost costs its tasks a lease and an attempt.
		f.size = max(min(n, f.size)/2, 1)
		pool.failed(f.source)
		return err
	}
	f.woken = false
	f.compare(got)
	f.size = min(2*f.size, chunkTasks)
	if len(got.Tasks) == 0 {
		pool.fetched(f.source, nil, got.More, got.More && got.strays <= 0)
		f.seek(ctx, got.strays)
		if got.More {
			return nil
		}
		return f.wait(ctx, got.Next)
	}
	h := newFetch(f.source, got.Tasks)
	f.renewer.add(h)
	select {
	case <-ctx.Done():
		// No handler is to begin. The older ones are handed back later, in front of these.
		pool.fetched(f.source, nil, false, false)
		f.handBack([]*fetch{h}, "handed back at shutdown")
		return nil
	default:
	}
	soon := got.strays <= 0
	if f.r.cfg.Linger != nil && len(got.Tasks) < f.batch() {
		d := min(f.r.cfg.Linger(got.Tasks), maxLinger)
		f.nextFetch = time.Now().Add(d)
		soon = soon && d <= 0
	}
	pool.fetched(f.source, h, got.More, soon)
	f.seek(ctx, got.strays)
	return nil
}

// leave waits for leave to fetch, and returns for how many tasks; 0 where there
// is none to be had, or nothing to fetch.
//
// The workers may be busy for long, with other sources perhaps, and a wake-up
// goes to one process only. So one that cannot be followed at once is passed on,
// and where there is nothing to take, this goes on waiting for the next.
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
		// Where it failed, workers look on their own within their longest idle time.
	}
	select {
	case n := <-f.grant:
		return n, nil
	case <-ctx.Done():
		pool.withdraw(f.source)
		return 0, nil
	}
}

// compare reports when the queue is another than the one it knew, or that one as
// it was some time ago. What was lost behind the last call that took tasks, or has
// been made up for in number by others' calls, is not seen.
func (f *fetcher) compare(got Fetched) {
	switch {
	case got.birth == "":
		return // nothing is known
	case f.birth != "" && got.birth != f.birth:
		f.r.cfg.OnError(fmt.Errorf("fetch tasks: %w: the queue was recreated", ErrDataLost))
	case got.birth == f.birth && got.takes < f.takes:
		f.r.cfg.OnError(fmt.Errorf("fetch tasks: %w: %d fetches are missing", ErrDataLost, f.takes-got.takes))
	}
	f.birth, f.takes = got.birth, got.takes
}

// seek searches for strays after a fetch. What that brought is with the workers by
// then, and other sources may fetch meanwhile.
func (f *fetcher) seek(ctx context.Context, n int64) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	f.strays.look(whole, f.Queue, n, f.r.cfg.OnError)
}

func (f *fetcher) fetch(ctx context.Context, n int) (Fetched, error) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	return f.Queue.dequeue(whole, n, f.r.cfg.MaxIdle)
}

// wait sleeps until the queue has something.
func (f *fetcher) wait(ctx context.Context, next time.Duration) error {
	limit, due := f.r.cfg.MaxIdle, false
	if f.strays.reported > 0 {
		limit = min(limit, strayEvery) // the check is to go on
	}
	if next >= 0 && next < limit {
		limit, due = next, true
	}
	err := f.Queue.wait(ctx, limit, due)
	f.woken = err == nil
	return err
}
