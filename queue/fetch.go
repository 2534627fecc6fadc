package queue

import (
	"context"
	"time"
)

// fetchLoop asks the pool for leave to fetch, fetches, and waits where the queue
// has nothing, until ctx ends. So a Run has one blocked connection per queue, and
// it is the last to look that watches the next due time.
func (s *source) fetchLoop(ctx context.Context) {
	f := fetcher{source: s, size: chunkTasks}
	failures := 0
	for ctx.Err() == nil {
		err := f.turn(ctx)
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		s.r.cfg.OnError(err)
		pause(ctx, fullJitter(redisBackoffBase, redisBackoffMax, failures))
	}
}

// fetcher is what the loop of one source remembers.
type fetcher struct {
	*source
	size      int       // how many tasks are asked for at most
	nextFetch time.Time // when lingering ends
}

// turn fetches once, and waits for a wake-up when there was nothing.
func (f *fetcher) turn(ctx context.Context) error {
	pool := f.r.pool
	if d := time.Until(f.nextFetch); d > 0 {
		pause(ctx, d)
	}
	n := pool.reserve(ctx, f.source)
	if n == 0 {
		return nil
	}
	got, err := f.fetch(ctx, min(n, f.size))
	if err != nil {
		// On a slow link the answer to a large batch may never arrive in
		// time, and each one lost costs its tasks a lease and an attempt.
		f.size = max(min(n, f.size)/2, 1)
		pool.fetched(f.source, n, nil, false, false)
		return err
	}
	f.size = min(2*f.size, chunkTasks)
	if len(got.Tasks) == 0 {
		pool.fetched(f.source, n, nil, got.More, got.More)
		if got.More || pool.busy() {
			return nil
		}
		return f.wait(ctx, got.Next)
	}
	h := newHaul(f.source, got.Tasks)
	f.keeper.add(h)
	soon := true
	if f.r.cfg.Linger != nil && len(got.Tasks) < f.r.cfg.Batch {
		d := min(f.r.cfg.Linger(got.Tasks), maxLinger)
		f.nextFetch = time.Now().Add(d)
		soon = d <= 0
	}
	if !pool.fetched(f.source, n, h, got.More, soon) {
		h.handBack("handed back at shutdown")
	}
	return nil
}

func (f *fetcher) fetch(ctx context.Context, n int) (Fetched, error) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	return f.Queue.dequeue(whole, n, f.r.cfg.MaxIdle)
}

// wait sleeps until the queue has something. Another source may have taken the
// workers meanwhile: then the wake-up is left for another process.
func (f *fetcher) wait(ctx context.Context, next time.Duration) error {
	limit, due := f.r.cfg.MaxIdle, false
	if next >= 0 && next < limit {
		limit, due = next, true
	}
	err := f.Queue.wait(ctx, limit, due)
	if err == nil && f.r.pool.busy() {
		f.Queue.giveBack(ctx)
	}
	return err
}
