package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// RunConfig configures Run. The zero value of a field selects its default; Run rejects
// values out of bounds.
type RunConfig struct {
	// Batch is the maximum number of entries per call of a BatchHandler, 1 to 512; a task
	// with more entries is a batch of its own. Default 256. A Handler gets one task.
	Batch int
	// Workers is the number of handler calls that run concurrently. Default 2.
	Workers int
	// Ahead bounds prefetching: Run fetches the tasks that the workers will start
	// within about this time, judged by the recent duration of handler calls, and at
	// most 512 entries. Prefetched tasks are leased. If one has waited for half a second when
	// the leases are checked, every sixth of Config.Lease, it and those behind it are handed
	// back uncounted, for other processes.
	// Default 10 ms; negative: no prefetching.
	Ahead time.Duration
	// Drain is how long running handlers may continue after the context of Run has
	// ended. Unfinished tasks are handed back then. If Redis does not answer, Run
	// returns up to 8 s later; see [Queue.Run]. Default 10 s.
	Drain time.Duration
	// MaxIdle is the longest time that an idle worker waits before it checks the queue,
	// at least 10 ms. It matters only if a wake-up was lost with a dying process.
	// Default 5 s.
	MaxIdle time.Duration
	// Linger returns the minimum time from fetching these tasks to the next fetch, which
	// then finds a fuller batch; more than a second counts as a second. It suits a handler
	// such as a database transaction, which costs little more for more tasks. It is called
	// after a fetch that found fewer entries than Batch, but at least one task, and left none
	// ready. It must not keep the slice. Default: no lingering.
	Linger func(fetched []Leased) time.Duration
	// OnError gets failures of Redis, panics, lost leases and all other problems except
	// the handlers' errors. It is called from several goroutines and must not block.
	// Default: log them with the default logger of log/slog.
	OnError func(error)
	// OnFailure is called for each failed attempt that counts, with the handler's error,
	// panic or ErrTimeout, and whether the task is now a dead letter. An attempt of a worker
	// that died is reported, with ErrLeaseLost and without the task's payload, by the process
	// whose fetch takes the task back, unless the reply to that fetch is lost. An attempt
	// that fails after its lease has expired may be reported twice. It is called from two
	// goroutines per source. Default: not called.
	OnFailure func(task Leased, err error, dead bool)
	// OnMissing gets the tasks that were handled but no longer in Redis when they were
	// to be acknowledged: Redis lost them, another worker did them after the lease had
	// ended, or an earlier acknowledgement succeeded but its reply was lost. Their follow-up
	// tasks were not added. ctx does not end. Default: not called.
	OnMissing func(ctx context.Context, tasks []Leased)
	// OnFetch is called after each attempt to fetch tasks, with its error: nil if Redis
	// answered, even if no task was ready. An idle worker fetches once per MaxIdle, so a
	// longer gap means that the handlers are busy or stuck. It is called from one
	// goroutine per source and must not block. Default: not called.
	OnFetch func(err error)
	// Hold is called before each fetch, and returns for how long this process fetches nothing,
	// because it cannot do tasks at present. Meanwhile other processes are woken in its place. It is
	// called from one goroutine per source and must not block. Default: not called.
	Hold func() time.Duration
	// patience is that of the pool; only tests set it.
	patience time.Duration
}

// fetchLimit bounds one command of Run. The end of Run's context does not cancel
// commands that change leases, because a lost reply would leave tasks leased without a
// worker. Tests raise it, as they do recallLimit.
var fetchLimit = 3 * time.Second

// cancelGrace is how long a handler may take to return after its context has ended. Tests raise
// it, too.
var cancelGrace = 250 * time.Millisecond

const (
	// These bound the pause before a failed command is repeated.
	redisBackoffBase = 50 * time.Millisecond
	redisBackoffMax  = time.Second
	// maxLinger bounds what RunConfig.Linger may ask for.
	maxLinger    = time.Second
	defaultAhead = 10 * time.Millisecond
	maxWeight    = 1000
)

// Source is one of the queues that share the workers of RunAll.
type Source struct {
	Queue *Queue
	// Handler processes batches of tasks, and Each single tasks. Set exactly one.
	Handler BatchHandler
	Each    Handler
	// Weight is the share of this queue while several have ready tasks, 1 (default) to
	// 1000.
	Weight int
}

// Run processes the queue's tasks until ctx ends; it survives outages of Redis. Then it
// drains: it stops fetching, gives running handlers RunConfig.Drain to finish,
// acknowledges finished tasks and hands back the rest, uncounted. No handler call
// begins after ctx has ended.
//
// If Redis does not answer, Run returns at most 7.25 s after RunConfig.Drain, where a
// Drain below 6 s counts as 6 s: 250 ms for handlers that ignore their context, 3 s for
// the command in flight, 3 s for the last acknowledgements, and 1 s to pass a wake-up on.
// Tasks that could not be acknowledged or handed back run again when their lease expires.
//
// It returns nil after that; ErrAbandoned if a handler was still running; ErrConfig,
// before doing anything, for settings out of bounds; and ErrDenied if Redis rejects the
// first fetch because of the client's password or permissions.
//
// A batch is settled when its handler returns. Use [Queue.RunEach] for independent tasks.
func (q *Queue) Run(ctx context.Context, h BatchHandler, cfg RunConfig) error {
	return RunAll(ctx, []Source{{Queue: q, Handler: h}}, cfg)
}

// RunEach is [Queue.Run] for single tasks: up to RunConfig.Workers handlers run
// concurrently, and each task is acknowledged when its handler returns. Tasks that
// finish at about the same time share one acknowledgement, and free workers share one
// fetch.
func (q *Queue) RunEach(ctx context.Context, h Handler, cfg RunConfig) error {
	return RunAll(ctx, []Source{{Queue: q, Each: h}}, cfg)
}

// RunAll is [Queue.Run] for several queues that share the workers. While several of
// them have ready tasks, they are served by weight, counted in entries. A queue without
// ready tasks reserves no share, and a queue whose fetch fails or takes more than half a
// second does not stop the others.
func RunAll(ctx context.Context, sources []Source, cfg RunConfig) error {
	setDefault(&cfg.Batch, 256)
	setDefault(&cfg.Workers, 2)
	setDefault(&cfg.Ahead, defaultAhead)
	setDefault(&cfg.Drain, 10*time.Second)
	setDefault(&cfg.MaxIdle, defaultIdle)
	if err := cfg.validate(); err != nil {
		return err
	}
	if err := validateSources(sources); err != nil {
		return err
	}
	if cfg.OnError == nil {
		cfg.OnError = func(err error) { slog.Error("task queue", "error", err) }
	}
	ctx, deny := context.WithCancelCause(ctx)
	defer deny(nil)
	r := newRunner(ctx, sources, cfg)
	r.deny = deny
	err := r.run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, ErrDenied) {
		return errors.Join(cause, err)
	}
	return err
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

func validateSources(sources []Source) error {
	if len(sources) == 0 {
		return fmt.Errorf("%w: no sources", ErrConfig)
	}
	for i, s := range sources {
		switch {
		case s.Queue == nil:
			return fmt.Errorf("%w: source %d has no queue", ErrConfig, i)
		case (s.Handler == nil) == (s.Each == nil):
			return fmt.Errorf("%w: source %d needs either Handler or Each", ErrConfig, i)
		case s.Weight < 0 || s.Weight > maxWeight:
			return fmt.Errorf("%w: source %d has weight %d, want 1 to %d, or 0 for 1", ErrConfig, i, s.Weight, maxWeight)
		}
	}
	return nil
}

// runner is one call of Run. Tasks go from the sources' fetchers to the pool, from
// there to the handlers, and then to the sources' ackers. The leases of all tasks between
// fetcher and acker are renewed.
type runner struct {
	cfg     RunConfig
	pool    *pool
	sources []*source
	// work is the handlers' context. It ends after RunConfig.Drain.
	work context.Context
	cut  context.CancelCauseFunc
	deny context.CancelCauseFunc // ends Run with ErrDenied
}

// source is one queue of a Run.
type source struct {
	Source
	r         *runner
	acker     *acker
	poolState // guarded by the pool's mutex

	// Of the fetch loop:
	size      int       // maximum number of entries per fetch
	nextFetch time.Time // when lingering ends
	woken     bool      // it consumed a wake-up and has not fetched since
	strays    strays
}

// batch is the maximum number of entries per handler call.
func (s *source) batch() int {
	if s.Each != nil {
		return 1
	}
	return s.r.cfg.Batch
}

func newRunner(ctx context.Context, sources []Source, cfg RunConfig) *runner {
	r := &runner{cfg: cfg, pool: newPool(cfg)}
	r.pool.stop = ctx.Done()
	r.work, r.cut = context.WithCancelCause(context.WithoutCancel(ctx))
	r.pool.run = r.begin
	for _, from := range sources {
		s := &source{Source: from, r: r, size: chunkTasks}
		setDefault(&s.Weight, 1)
		s.grant, s.loaded = make(chan int, 1), true
		s.acker = newAcker(s)
		r.sources = append(r.sources, s)
	}
	r.pool.sources = r.sources
	return r
}

func (r *runner) run(ctx context.Context) error {
	defer r.cut(nil)
	var fetchers, ackers, renewers sync.WaitGroup
	renewing, stopRenewing := context.WithCancel(r.work)
	defer stopRenewing()
	for _, s := range r.sources {
		ackers.Go(s.acker.loop)
		renewers.Go(func() { s.renew(renewing) })
		fetchers.Go(func() { s.fetchLoop(ctx) })
	}

	<-ctx.Done()
	timer := time.AfterFunc(r.cfg.Drain, func() { r.cut(ErrDraining) })
	defer timer.Stop()
	r.pool.close()
	abandoned := r.await()
	fetchers.Wait()
	for _, s := range r.sources {
		s.acker.close()
	}
	ackers.Wait()
	stopRenewing()
	renewers.Wait()
	var wakes sync.WaitGroup
	for _, s := range r.sources {
		// Another worker must get a wake-up that reached this Run too late.
		wakes.Go(func() { s.Queue.giveBack(ctx) })
	}
	wakes.Wait()
	if abandoned > 0 {
		return fmt.Errorf("%w: %d of them", ErrAbandoned, abandoned)
	}
	return nil
}

// await waits for the handlers. After RunConfig.Drain and cancelGrace it hands back the
// tasks of handlers that ignore their context, and returns the number of handlers.
func (r *runner) await() (abandoned int) {
	select {
	case <-r.pool.gone:
		return 0
	case <-r.work.Done():
	}
	select {
	case <-r.pool.gone:
		return 0
	case <-time.After(cancelGrace):
		return r.pool.abandon()
	}
}
