package queue

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// results are what is to be told to the queue of tasks that were handled.
type results struct {
	done []Leased
	then []Completion
	back []Rejection
}

func (o *results) len() int { return len(o.done) + len(o.then) + len(o.back) }

// maxUnsettled is how many outcomes wait for Redis at most, not counting one
// from each worker; workers then wait too.
const maxUnsettled = 2 * chunkTasks

// settler tells a queue how its tasks went. What comes while one call is under
// way goes out with the next, so the busier the queue, the more tasks share a call.
type settler struct {
	s *source

	mu      sync.Mutex
	changed sync.Cond
	pending results
	until   time.Time // when the last of the leases ends
	closed  bool
}

func newSettler(s *source) *settler {
	t := &settler{s: s}
	t.changed.L = &t.mu
	return t
}

// add takes outcomes over. It waits where there are too many already.
func (t *settler) add(until time.Time, o results) {
	if o.len() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.pending.len() >= maxUnsettled {
		t.changed.Wait()
	}
	if t.pending.len() == 0 {
		t.changed.Broadcast()
	}
	t.pending.done = append(t.pending.done, o.done...)
	t.pending.then = append(t.pending.then, o.then...)
	t.pending.back = append(t.pending.back, o.back...)
	if until.After(t.until) {
		t.until = until
	}
}

// close lets loop end when it has told everything.
func (t *settler) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

func (t *settler) loop() {
	var spare []Leased
	for {
		t.mu.Lock()
		for t.pending.len() == 0 && !t.closed {
			t.changed.Wait()
		}
		o, until := t.pending, t.until
		t.pending, t.until = results{done: spare[:0]}, time.Time{}
		t.changed.Broadcast() // there is room again
		t.mu.Unlock()
		if o.len() == 0 {
			return
		}
		t.settle(until, o)
		clear(o.done)
		spare = o.done
	}
}

// settle tells one lot, again and again through failures of Redis until the
// leases have ended: then the tasks are redelivered anyway.
func (t *settler) settle(until time.Time, o results) {
	stale := 0
	t.s.r.persist(until, func(ctx context.Context) error {
		q := t.s.Queue
		if len(o.done) > 0 {
			status, err := q.Ack(ctx, o.done...)
			if err != nil {
				return err
			}
			stale += count(status, Stale)
			o.done = nil
		}
		if len(o.then) > 0 {
			status, err := q.Complete(ctx, o.then...)
			if err != nil {
				return err
			}
			stale += count(status, Stale)
			for i := range status {
				if status[i] == NoRoom {
					o.back = append(o.back, Rejection{Task: o.then[i].Task, Delay: -1, Uncounted: true, Reason: "no room for the tasks that follow"})
				}
			}
			o.then = nil
		}
		if len(o.back) > 0 {
			status, err := q.Reject(ctx, o.back...)
			if err != nil {
				return err
			}
			stale += count(status, Stale)
		}
		return nil
	})
	if stale > 0 {
		t.s.r.cfg.OnError(fmt.Errorf("settle tasks: %w: %d of them", ErrLeaseLost, stale))
	}
}

// persist repeats f until it succeeds, the time is over or the drain is spent; it tries at least once.
func (r *runner) persist(until time.Time, f func(context.Context) error) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.work), fetchLimit)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		r.cfg.OnError(err)
		if r.work.Err() != nil || !time.Now().Before(until) {
			return
		}
		pause(r.work, fullJitter(redisBackoffBase, redisBackoffMax, attempt))
	}
}

func count(status []AckStatus, want AckStatus) int {
	n := 0
	for _, s := range status {
		if s == want {
			n++
		}
	}
	return n
}
