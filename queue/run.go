package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// RunConfig configures Run. The zero value of a field means its default;
// anything out of bounds is an error of Run.
type RunConfig struct {
	// Batch is how many tasks one call of a BatchHandler gets at most, 1 to 512.
	// Default 256. A Handler gets one.
	Batch int
	// Workers is how many handler calls run concurrently. Default 2.
	Workers int
	// Ahead says how far tasks are fetched before a worker is free for them: what
	// the workers will start within about this time, judged by how long handler
	// calls took lately, and at most 512 tasks. They are under lease meanwhile. When
	// one has waited for half a second after all, it and those behind it go back to
	// the queue uncounted, for others.
	// Default 10 ms; negative: nothing is fetched ahead.
	Ahead time.Duration
	// Strict serves the sources of RunAll in the order given: one is fetched from
	// only when those before it have nothing ready. Otherwise their weights count.
	// Either way a fetch that fails, or takes longer than half a second, is not waited for.
	Strict bool
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
	// the slice. More than a second counts as a second. Single tasks do not wait for
	// others, so it is not asked for a source with Each. Default: no lingering.
	Linger func(fetched []Leased) time.Duration
	// OnError gets failures of Redis, panics, lost leases and what else goes wrong
	// beside the handlers' errors. It is called from several goroutines and must not
	// block. Default: the default logger of log/slog logs them.
	OnError func(error)
	// OnFailure is called for each attempt that failed, with the task, the handler's
	// error, panic or ErrTimeout, and whether the task is a dead letter now. Attempts
	// that do not count are not reported, nor those of a worker that died: the next
	// one has a higher Attempt. It is called from one goroutine per source; the tasks'
	// outcomes wait for it. Default: not called.
	OnFailure func(task Leased, err error, dead bool)
	// OnMissing is told of tasks whose handler has done its work, and of which Redis
	// knew nothing any more when they were to be acknowledged: it has lost them, or
	// another worker has done them after a lease had ended, or an acknowledgement
	// went through though its answer did not come. What follows such a task was not
	// added. Acknowledging goes on when it returns; ctx does not end. Default: nobody is told.
	OnMissing func(ctx context.Context, tasks []Leased)
	// OnFetch is called after each attempt to fetch tasks, with its error: nil when
	// Redis answered, also if no task was ready. An idle worker fetches once in
	// MaxIdle, so a long silence means that the handlers are busy or stuck. It is
	// called from one goroutine per source and must not block. Default: not called.
	OnFetch func(err error)
	// aheadLimit is how long a task that was fetched ahead waits for a worker before
	// it is handed back; only tests set it.
	aheadLimit time.Duration
	// fetchPatience is how long a fetch may keep the other sources waiting; only
	// tests set it.
	fetchPatience time.Duration
}

// fetchLimit bounds one command of Run. Commands that change leases are not cut
// short when Run's context ends: a lost reply would cost the tasks a lease. A variable
// for the tests, as recallLimit.
var fetchLimit = 3 * time.Second

// defaultAheadLimit is that of RunConfig; a variable for the same reason.
var defaultAheadLimit = 500 * time.Millisecond

const (
	// cancelGrace is how long a handler gets to return after its context ended with ErrDraining.
	cancelGrace = 250 * time.Millisecond
	// Redis is asked again after a failure within these bounds.
	redisBackoffBase = 50 * time.Millisecond
	redisBackoffMax  = time.Second
	// maxLinger bounds what RunConfig.Linger may ask for.
	maxLinger    = time.Second
	defaultAhead = 10 * time.Millisecond
	maxWeight    = 1000
)

// Source is one of several queues that share the workers of RunAll.
type Source struct {
	Queue *Queue
	// Handler works on batches of tasks, and Each on single ones. One of them is set.
	Handler BatchHandler
	Each    Handler
	// Weight is this queue's share of the tasks where several have some ready,
	// 1 (default) to 1000.
	Weight int
}

// Run works on the queue's tasks until ctx ends, through whatever happens to
// Redis meanwhile, and then drains: it fetches no more, gives running handlers
// RunConfig.Drain to finish, acknowledges what they did and hands the rest back
// with the attempt uncounted. No handler call begins once ctx has ended.
//
// It returns nil after that, ErrAbandoned when a handler was still running,
// ErrConfig, before doing anything, for settings out of bounds, and ErrDenied when
// Redis refuses the first fetch because of the client's password or permissions.
//
// A batch is settled as a whole, when its handler returns. For tasks that have
// nothing to do with each other use [Queue.RunEach].
func (q *Queue) Run(ctx context.Context, h BatchHandler, cfg RunConfig) error {
	return RunAll(ctx, []Source{{Queue: q, Handler: h}}, cfg)
}

// RunEach is [Queue.Run] for a handler of single tasks: RunConfig.Workers of them run
// concurrently, and each is acknowledged as soon as it is finished. Several tasks
// that finish about the same time share one acknowledgement, and several free
// workers one fetch.
func (q *Queue) RunEach(ctx context.Context, h Handler, cfg RunConfig) error {
	return RunAll(ctx, []Source{{Queue: q, Each: h}}, cfg)
}

// RunAll is [Queue.Run] for several queues that share the workers. While several
// of them have tasks ready they are served by their weights, counted in tasks, or
// in strict order where RunConfig says so; a queue with none takes nothing from
// the others. A queue whose Redis fails does not stop the others.
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

// runner is one Run under way. Tasks go from the sources' fetchers to the pool,
// from there to the workers, and from those to the sources' ackers; a renewer
// extends the leases of what is between fetcher and acker.
type runner struct {
	cfg     RunConfig
	pool    *pool
	sources []*source
	// work ends when the time to drain is spent; handlers run on it.
	work context.Context
	cut  context.CancelCauseFunc
	deny context.CancelCauseFunc // ends Run with ErrDenied
}

// source is one queue of a Run.
type source struct {
	Source
	r       *runner
	renewer *renewer
	acker   *acker
	place   // the pool's
}

// batch is how many tasks one call of the handler gets at most.
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
	for _, from := range sources {
		s := &source{Source: from, r: r}
		setDefault(&s.Weight, 1)
		s.place = newPlace()
		s.renewer = newRenewer(s)
		s.acker = newAcker(s)
		r.sources = append(r.sources, s)
	}
	r.pool.sources = r.sources
	return r
}

func (r *runner) run(ctx context.Context) error {
	defer r.cut(nil)
	var fetchers, ackers, renewers sync.WaitGroup
	for _, s := range r.sources {
		ackers.Go(s.acker.loop)
		renewers.Go(s.renewer.loop)
		fetchers.Go(func() { s.fetchLoop(ctx) })
	}
	for range r.cfg.Workers {
		go r.worker()
	}
	quit := make(chan struct{})
	fetchers.Go(func() { r.pool.watch(quit) })

	<-ctx.Done()
	timer := time.AfterFunc(r.cfg.Drain, func() { r.cut(ErrDraining) })
	defer timer.Stop()
	close(quit)
	r.pool.close()
	abandoned := r.await()
	fetchers.Wait()
	for _, s := range r.sources {
		s.acker.close()
	}
	ackers.Wait()
	for _, s := range r.sources {
		s.renewer.close()
	}
	renewers.Wait()
	for _, s := range r.sources {
		// A wake-up that reached this Run too late belongs to another worker.
		s.Queue.giveBack(ctx)
	}
	if abandoned > 0 {
		return fmt.Errorf("%w: %d of them", ErrAbandoned, abandoned)
	}
	return nil
}

// await waits for the workers. When the time to drain is spent it hands the
// tasks of those that ignore their context back, and says how many those are:
// whatever they still do, their tasks are other workers' now.
func (r *runner) await() (abandoned int) {
	over := r.work.Done()
	grace := time.NewTimer(time.Hour)
	grace.Stop()
	for {
		select {
		case <-r.pool.gone:
			return 0
		case <-over:
			over = nil
			grace.Reset(cancelGrace)
		case <-grace.C:
			return r.pool.abandon()
		}
	}
}
