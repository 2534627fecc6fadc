package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// BatchHandler works on leased tasks and says per task, in the same order, how
// it went. A nil slice says that all are done. Per task:
//
//   - nil: done, acknowledged
//   - an error made by [Discard]: dead letter now
//   - one made by [RetryIn]: again after that time; the attempt counts
//   - one made by [Snooze]: again after that time; the attempt does not count
//   - any other: again after the queue's backoff, or dead after Config.MaxAttempts
//
// The verdict may be wrapped. A panic fails every task of the batch, with the
// stack in the reason. The queue extends the leases while the handler runs. ctx
// ends with the cause [ErrLeaseLost] when a lease of the batch was lost all the
// same, and with [ErrDraining] when the time to drain is spent; an error returned
// after that does not count as an attempt.
//
// A task may be delivered more than once. The handler must make its effect
// idempotent by the task's id.
type BatchHandler func(ctx context.Context, tasks []Leased) []error

// RunConfig configures Run. The zero value of a field means its default;
// anything out of bounds is an error of Run.
type RunConfig struct {
	// Batch is how many tasks one handler call gets at most, 1 to 512. Default 256.
	Batch int
	// Workers is how many handler calls run at once. Default 2, so that one batch
	// is fetched while another is worked on.
	Workers int
	// Drain is how long running handlers get after the context of Run ended.
	// Default 10 s. What is not finished then is handed back.
	Drain time.Duration
	// MaxIdle is the longest an idle worker waits without looking at the queue, at
	// least 10 ms. It only matters when a wake-up was lost with a dying process. Default 5 s.
	MaxIdle time.Duration
	// Linger says how long after fetching these tasks the next fetch should come at
	// the earliest, so that it finds a fuller batch: for a handler such as a
	// database transaction, which costs little more for more tasks. It is asked
	// after a fetch that was short of Batch and found tasks; a worker that had
	// nothing to do picks up the first task at once in any case. It must not keep
	// the slice. More than a second counts as a second. Default: no lingering.
	Linger func(fetched []Leased) time.Duration
	// OnError is told of failures of Redis, panics and lost leases. It is called
	// from several goroutines and must not block. Default: nobody is told.
	OnError func(error)
}

const (
	// cancelGrace is how long a handler gets to return after its context ended with ErrDraining.
	cancelGrace = 250 * time.Millisecond
	// fetchLimit bounds one command of Run. Commands that change leases are not cut
	// short when Run's context ends: a lost reply would cost the tasks a lease.
	fetchLimit = 3 * time.Second
	// Redis is asked again after a failure within these bounds.
	redisBackoffBase = 50 * time.Millisecond
	redisBackoffMax  = time.Second
)

// Run works on the queue's tasks until ctx ends, through whatever happens to
// Redis meanwhile, and then drains: it fetches no more, gives running handlers
// Config.Drain to finish, acknowledges what they did and hands the rest back with
// the attempt uncounted.
//
// It returns nil after that, ErrAbandoned when a handler was still running, and
// ErrConfig, before doing anything, for settings out of bounds.
func (q *Queue) Run(ctx context.Context, h BatchHandler, cfg RunConfig) error {
	setDefault(&cfg.Batch, 256)
	setDefault(&cfg.Workers, 2)
	setDefault(&cfg.Drain, 10*time.Second)
	setDefault(&cfg.MaxIdle, defaultIdle)
	if err := cfg.validate(); err != nil {
		return err
	}
	if h == nil {
		return fmt.Errorf("%w: no handler", ErrConfig)
	}
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	r := &runner{q: q, handler: h, cfg: cfg, turn: make(chan struct{}, 1), size: cfg.Batch}
	var cut context.CancelCauseFunc
	r.work, cut = context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)

	finished := make(chan struct{})
	var drain, workers sync.WaitGroup
	drain.Go(func() {
		select {
		case <-ctx.Done():
		case <-finished:
			return
		}
		timer := time.NewTimer(cfg.Drain)
		defer timer.Stop()
		select {
		case <-timer.C:
			cut(ErrDraining)
		case <-finished:
		}
	})
	for range cfg.Workers {
		workers.Go(func() { r.worker(ctx) })
	}
	workers.Wait()
	close(finished)
	drain.Wait()
	// A wake-up that reached this Run too late belongs to another worker.
	q.giveBack(ctx)
	if n := r.abandoned.Load(); n > 0 {
		return fmt.Errorf("%w: %d of them", ErrAbandoned, n)
	}
	return nil
}

func (c RunConfig) validate() error {
	switch {
	case c.Batch < 1 || c.Batch > chunkTasks:
		return fmt.Errorf("%w: Batch %d, want 1 to %d", ErrConfig, c.Batch, chunkTasks)
	case c.Workers < 1:
		return fmt.Errorf("%w: Workers %d, want at least 1", ErrConfig, c.Workers)
	case c.Drain < 0:
		return fmt.Errorf("%w: Drain %v is negative", ErrConfig, c.Drain)
	case c.MaxIdle < 10*time.Millisecond:
		return fmt.Errorf("%w: MaxIdle %v, want at least 10ms", ErrConfig, c.MaxIdle)
	}
	return nil
}

// runner is one Run under way.
type runner struct {
	q       *Queue
	handler BatchHandler
	cfg     RunConfig
	// work ends when the time to drain is spent; handlers run on it.
	work context.Context
	// turn is held by the one worker that fetches or waits. So a process has one
	// blocked connection, and it is the last to look that watches the next due time.
	turn chan struct{}
	// nextFetch is when lingering ends, and size how many tasks the next fetch
	// asks for. They belong to the holder of turn.
	nextFetch time.Time
	size      int
	abandoned atomic.Int32
}

// maxLinger bounds what RunConfig.Linger may ask for.
const maxLinger = time.Second

func (r *runner) worker(ctx context.Context) {
	for {
		tasks := r.next(ctx)
		if len(tasks) == 0 {
			return
		}
		r.handle(tasks)
	}
}

// next returns the next batch, or none when ctx has ended.
func (r *runner) next(ctx context.Context) []Leased {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	defer func() { <-r.turn }()
	if d := time.Until(r.nextFetch); d > 0 {
		pause(ctx, d)
	}
	failures := 0
	for ctx.Err() == nil {
		f, err := r.fetch(ctx, r.size)
		if err == nil && len(f.Tasks) > 0 {
			r.size = min(2*r.size, r.cfg.Batch)
			return r.take(ctx, f.Tasks)
		}
		if err != nil {
			// On a slow link the answer to a large batch may never arrive in
			// time, and each one lost costs its tasks a lease and an attempt.
			r.size = max(r.size/2, 1)
		}
		if err == nil && !f.More {
			limit, due := r.cfg.MaxIdle, false
			if f.Next >= 0 && f.Next < limit {
				limit, due = f.Next, true
			}
			err = r.q.wait(ctx, limit, due)
		}
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() == nil {
			failures++
			r.cfg.OnError(err)
			pause(ctx, fullJitter(redisBackoffBase, redisBackoffMax, failures))
		}
	}
	return nil
}

func (r *runner) fetch(ctx context.Context, n int) (Fetched, error) {
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchLimit)
	defer cancel()
	return r.q.dequeue(whole, n, r.cfg.MaxIdle)
}

// take notes when the next fetch may come. It hands everything back when ctx
// has ended meanwhile.
func (r *runner) take(ctx context.Context, tasks []Leased) []Leased {
	if ctx.Err() != nil {
		r.settle(tasks[0].LeaseUntil, nil, handBack(tasks))
		return nil
	}
	if r.cfg.Linger != nil && len(tasks) < r.cfg.Batch {
		r.nextFetch = time.Now().Add(min(r.cfg.Linger(tasks), maxLinger))
	}
	return tasks
}

// handle runs the handler on one batch and tells the queue how it went.
func (r *runner) handle(tasks []Leased) {
	k := keep(r, tasks)
	results := make(chan []error, 1)
	go r.call(k.ctx, tasks, results)
	var errs []error
	select {
	case errs = <-results:
	case <-r.work.Done():
		grace := time.NewTimer(cancelGrace)
		defer grace.Stop()
		select {
		case errs = <-results:
		case <-grace.C:
			// The handler ignores its context. Whatever it still does, its tasks are another worker's now.
			r.abandoned.Add(1)
			k.stop()
			r.settle(k.until(), nil, handBack(tasks))
			return
		}
	}
	interrupted := k.ctx.Err() != nil
	k.stop()
	var done []Leased
	var back []Rejection
	for i := range tasks {
		if errs == nil || errs[i] == nil {
			done = append(done, tasks[i])
		} else {
			back = append(back, rejection(tasks[i], errs[i], interrupted))
		}
	}
	r.settle(k.until(), done, back)
}

// call runs the handler and always sends one result per task, or nil for all done.
func (r *runner) call(ctx context.Context, tasks []Leased, results chan<- []error) {
	// runtime.Goexit leaves this as it is.
	failure := errors.New("queue: handler ended its goroutine")
	var errs []error
	defer func() {
		if v := recover(); v != nil {
			failure = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
		if failure != nil {
			r.cfg.OnError(fmt.Errorf("handle %d tasks: %w", len(tasks), failure))
			errs = make([]error, len(tasks))
			for i := range errs {
				errs[i] = failure
			}
		}
		results <- errs
	}()
	errs = r.handler(ctx, tasks)
	failure = nil
	if errs != nil && len(errs) != len(tasks) {
		failure = fmt.Errorf("queue: handler returned %d errors for %d tasks", len(errs), len(tasks))
	}
}

// settle acknowledges and rejects, again and again through failures of Redis
// until the lease has ended: then the tasks are redelivered anyway.
func (r *runner) settle(until time.Time, done []Leased, back []Rejection) {
	stale := 0
	r.persist(until, func(ctx context.Context) error {
		if len(done) > 0 {
			status, err := r.q.Ack(ctx, done...)
			if err != nil {
				return err
			}
			stale += count(status, Stale)
			done = nil
		}
		if len(back) > 0 {
			status, err := r.q.Reject(ctx, back...)
			if err != nil {
				return err
			}
			stale += count(status, Stale)
		}
		return nil
	})
	if stale > 0 {
		r.cfg.OnError(fmt.Errorf("settle tasks: %w: %d of them", ErrLeaseLost, stale))
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

// handBack gives tasks back that were not worked on.
func handBack(tasks []Leased) []Rejection {
	back := make([]Rejection, len(tasks))
	for i := range tasks {
		back[i] = Rejection{Task: tasks[i], Uncounted: true, Reason: "handed back at shutdown"}
	}
	return back
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

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
