package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"flashsale/internal/pause"
)

// results are what is to be told to the queue of tasks that were handled.
type results struct {
	done []Leased
	then []Completion
	back []Rejection
}

func (o *results) len() int { return len(o.done) + len(o.then) + len(o.back) }

const (
	// maxUnsettled is from how many outcomes that wait for Redis on nothing more is
	// fetched of their source. Workers do not wait: other sources need them.
	maxUnsettled = 2 * chunkTasks
	// settleThen bounds how many tasks with followers are told within one
	// fetchLimit: they take a call for each few, and a slow link must get through.
	settleThen = 64
)

// acker acknowledges or rejects the tasks of a queue that were handled. What comes while one call is under
// way goes out with the next, so the busier the queue, the more tasks share a call.
type acker struct {
	s *source

	mu      sync.Mutex
	changed sync.Cond
	pending results
	until   time.Time // when the last of the leases ends
	closed  bool
}

func newAcker(s *source) *acker {
	t := &acker{s: s}
	t.changed.L = &t.mu
	return t
}

// add takes outcomes over. It waits for nothing.
func (t *acker) add(until time.Time, o results) {
	if o.len() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending.len() == 0 {
		t.changed.Broadcast()
	}
	t.pending.done = append(t.pending.done, o.done...)
	t.pending.then = append(t.pending.then, o.then...)
	// What is handed back later goes in front, as it would with a call of its own.
	t.pending.back = slices.Insert(t.pending.back, 0, o.back...)
	if until.After(t.until) {
		t.until = until
	}
}

// full says that wait would wait.
func (t *acker) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pending.len() >= maxUnsettled
}

// wait waits until there is room for further outcomes, or ctx ends.
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

// close lets loop end when it has told everything.
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

// settle tells one lot, again and again through failures of Redis until the
// leases have ended: then the tasks are redelivered anyway.
func (t *acker) settle(until time.Time, o results) {
	q, stale := t.s.Queue, 0
	t.s.failed(o.back)
	told := inChunks(o.done, chunkTasks, func(chunk []Leased) bool {
		return t.tell(until, &stale, func(ctx context.Context) ([]Status, error) {
			status, err := q.Ack(ctx, chunk...)
			if err == nil {
				t.missed(status, func(i int) Leased { return chunk[i] })
			}
			return status, err
		})
	})
	told = told && inChunks(o.then, settleThen, func(chunk []Completion) bool {
		return t.tell(until, &stale, func(ctx context.Context) ([]Status, error) {
			status, err := q.Complete(ctx, chunk...)
			if err != nil {
				return nil, err
			}
			t.missed(status, func(i int) Leased { return chunk[i].Task })
			for i, s := range status {
				if s == StatusFull {
					o.back = append(o.back, Rejection{Task: chunk[i].Task, Delay: -1, Uncounted: true, Reason: "no capacity for the follow-up tasks"})
				}
			}
			return status, nil
		})
	})
	// From the back: what is handed back goes to the front of the queue.
	for to := len(o.back); told && to > 0; to -= chunkTasks {
		tries := 0
		told = t.tell(until, &stale, func(ctx context.Context) ([]Status, error) {
			tries++
			status, err := q.Reject(ctx, o.back[max(0, to-chunkTasks):to]...)
			if tries > 1 {
				status = nil // stale may be what the try before has done
			}
			return status, err
		})
	}
	if stale > 0 {
		t.s.r.cfg.OnError(fmt.Errorf("settle tasks: %w: %d of them", ErrLeaseLost, stale))
	}
}

// missed tells of the tasks that were gone when they were acknowledged.
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

// inChunks calls f for one part of items after the other as long as it says true.
func inChunks[T any](items []T, size int, f func(chunk []T) bool) bool {
	for from := 0; from < len(items); from += size {
		if !f(items[from:min(from+size, len(items))]) {
			return false
		}
	}
	return true
}

// tell makes one call until it succeeds, and counts the leases it found stale. It is false when it gave up.
func (t *acker) tell(until time.Time, stale *int, call func(context.Context) ([]Status, error)) bool {
	return t.s.r.persist(until, func(ctx context.Context) error {
		status, err := call(ctx)
		if err == nil {
			*stale += count(status, StatusStale)
		}
		return err
	})
}

// persist repeats f until it succeeds, the time is over or the drain is spent; it
// tries at least once. It is false when f did not succeed.
func (r *runner) persist(until time.Time, f func(context.Context) error) bool {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.work), fetchLimit)
		err := f(ctx)
		cancel()
		if err == nil {
			return true
		}
		r.cfg.OnError(err)
		if r.work.Err() != nil || !time.Now().Before(until) {
			return false
		}
		pause.For(r.work, fullJitter(redisBackoffBase, redisBackoffMax, attempt))
	}
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

// failed calls OnFailure for the attempts that count.
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
