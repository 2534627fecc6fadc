package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"flashsale/internal/pause"
)

// results are the outcomes of handled tasks, to be sent to Redis.
type results struct {
	done []Leased
	then []Completion
	back []Rejection
}

func (o *results) len() int { return len(o.done) + len(o.then) + len(o.back) }

const (
	// maxUnsettled is the number of outcomes waiting for Redis at which a source stops
	// fetching. Workers do not wait, because other sources need them.
	maxUnsettled = 2 * chunkTasks
	// settleThen is the number of tasks with follow-up tasks that are completed within
	// one fetchLimit. They need a call per 16 tasks, and must finish on a slow link too.
	settleThen = 64
)

// acker acknowledges or rejects the handled tasks of a source. Outcomes that arrive
// during a call go out with the next one, so a busier queue has more tasks per call.
type acker struct {
	s *source

	mu      sync.Mutex
	changed sync.Cond
	pending results
	until   time.Time // end of the last of the leases
	closed  bool
}

func newAcker(s *source) *acker {
	t := &acker{s: s}
	t.changed.L = &t.mu
	return t
}

// add queues outcomes. It does not block on Redis.
func (t *acker) add(until time.Time, o results) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending.len() == 0 {
		t.changed.Broadcast()
	}
	t.pending.done = append(t.pending.done, o.done...)
	t.pending.then = append(t.pending.then, o.then...)
	// Tasks handed back later go in front, as they would with a call of their own.
	t.pending.back = slices.Insert(t.pending.back, 0, o.back...)
	if until.After(t.until) {
		t.until = until
	}
}

// full reports whether wait would block.
func (t *acker) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending.len() >= maxUnsettled
}

// wait blocks until there is room for more outcomes, or ctx ends.
func (t *acker) wait(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.changed.Broadcast()
	})
	defer stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.pending.len() >= maxUnsettled && ctx.Err() == nil {
		t.changed.Wait()
	}
}

// close ends loop after the pending outcomes are sent.
func (t *acker) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.changed.Broadcast()
}

func (t *acker) loop() {
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

// settle sends one set of outcomes. It retries through failures of Redis until the
// leases have ended, because the tasks are redelivered then.
func (t *acker) settle(until time.Time, o results) {
	q, stale := t.s.Queue, 0
	t.s.failed(o.back)
	sent := send(t, until, o.done, chunkTasks, func(ctx context.Context, some []Leased) error {
		status, err := q.Ack(ctx, some...)
		if err == nil {
			stale += count(status, StatusStale)
			t.missed(status, func(i int) Leased { return some[i] })
		}
		return err
	})
	sent = sent && send(t, until, o.then, settleThen, func(ctx context.Context, some []Completion) error {
		status, err := q.Complete(ctx, some...)
		if err != nil {
			return err
		}
		stale += count(status, StatusStale)
		t.missed(status, func(i int) Leased { return some[i].Task })
		for i, s := range status {
			if s == StatusFull {
				o.back = append(o.back, Rejection{Task: some[i].Task, Delay: -1, Uncounted: true, Reason: "no capacity for the follow-up tasks"})
			}
		}
		return nil
	})
	// Last chunk first, because each chunk goes to the front of the queue.
	for to := len(o.back); sent && to > 0; to -= chunkTasks {
		tries := 0
		sent = send(t, until, o.back[max(0, to-chunkTasks):to], chunkTasks, func(ctx context.Context, some []Rejection) error {
			status, err := q.Reject(ctx, some...)
			if tries++; tries == 1 { // an earlier try may have made the lease stale
				stale += count(status, StatusStale)
			}
			return err
		})
	}
	if stale > 0 {
		t.s.r.cfg.OnError(fmt.Errorf("settle tasks: %w: %d of them", ErrLeaseLost, stale))
	}
}

// missed reports the tasks that were missing when they were acknowledged.
func (t *acker) missed(status []Status, task func(i int) Leased) {
	if t.s.r.cfg.OnMissing == nil || count(status, StatusMissing) == 0 {
		return
	}
	var gone []Leased
	for i, s := range status {
		if s == StatusMissing {
			gone = append(gone, task(i))
		}
	}
	t.s.r.cfg.OnMissing(context.WithoutCancel(t.s.r.work), gone)
}

// send calls f for one chunk of items after another, each until it succeeds, until has passed
// or the drain is over; it tries at least once. It returns false if it gave up.
func send[T any](t *acker, until time.Time, items []T, size int, f func(ctx context.Context, some []T) error) bool {
	r := t.s.r
	for attempt := 1; len(items) > 0; {
		n := min(size, len(items))
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.work), fetchLimit)
		err := f(ctx, items[:n])
		cancel()
		if err == nil {
			items, attempt = items[n:], 1
			continue
		}
		r.cfg.OnError(err)
		if r.work.Err() != nil || !time.Now().Before(until) {
			return false
		}
		pause.For(r.work, fullJitter(redisBackoffBase, redisBackoffMax, attempt))
		attempt++
	}
	return true
}

func count(status []Status, want Status) int {
	n := 0
	for _, s := range status {
		if s == want {
			n++
		}
	}
	return n
}

// failed calls OnFailure for the failed attempts that count.
func (s *source) failed(back []Rejection) {
	if s.r.cfg.OnFailure == nil {
		return
	}
	for i := range back {
		r := &back[i]
		if r.cause == nil || r.Uncounted {
			continue
		}
		bound := s.Queue.cfg.MaxAttempts
		if n := r.Task.MaxAttempts; n > 0 {
			bound = n
		}
		s.r.cfg.OnFailure(r.Task, r.cause, r.Dead || r.Task.Attempt >= bound)
	}
}
