package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/internal/histogram"
	"flashsale/internal/registry"
	"flashsale/order"
	"flashsale/order/worker"
	"flashsale/queue"
)

// concurrentBatches is the number of batches of orders that a process commits concurrently. On both
// databases one goroutine writes them (order/store/database/writer.go): a second batch that is fetched
// in the meantime would wait for it instead of filling up.
const concurrentBatches = 1

// sweepEvery is the interval between sweeps for unfinished work.
const sweepEvery = 10 * time.Second

// addWorker adds the part that commits orders, and offers to run the workers' chores.
func addWorker(sh *shared, p *pulse, ps *parts) error {
	e, eng, s := sh.env, sh.eng, sh.settings
	report := p.failing(e.reporterOf("order", failureMessage))
	committed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_orders_committed_total", Help: "Orders written to the database, confirmed or rejected.",
	})
	batches := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_commit_batch_orders", Help: "Orders per database transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	queued, commit := histogram.PurchaseStep(histogram.StepQueue), histogram.PurchaseStep(histogram.StepCommit)
	e.registry.MustRegister(committed, batches, queued, commit)
	f := worker.NewFulfiller(eng.store, eng.rdb, sh.waiters, report, worker.WithPartitions(s.Partitions), worker.WithCommits(func(n int) {
		committed.Add(float64(n))
		batches.Observe(float64(n))
		sh.counters.Committed(n)
		p.commit()
	}), worker.WithSteps(worker.Steps{
		Queued:    func(n int, d time.Duration) { queued.ObserveN(0, d, n) },
		Committed: func(n int, d time.Duration) { commit.ObserveN(0, d, n) },
	}), worker.WithObserver(logOrders(e.log)), worker.WithTracer(sh.tracer))
	ps.add(part{name: "worker", run: func(ctx context.Context) error {
		return f.Work(ctx, eng.queues, eng.expires, queue.RunConfig{
			Batch: s.Batch, Workers: concurrentBatches, Drain: s.Drain / 2,
			Linger: worker.Linger(s.Linger), OnError: p.failing(e.reporter("queue")), OnFetch: func(err error) { p.fetched(err, f.Failing()) },
		})
	}})
	letters := make([]worker.DeadLetters, len(eng.queues))
	for i, q := range eng.queues {
		letters[i] = q
	}
	deliverer, err := newDeliverer(e, eng, sh.mock, sh.chores)
	if err != nil {
		return err
	}
	ps.add(deliverer)
	sweeper := worker.NewSweeper(f, worker.SweeperConfig{Dead: letters, Logs: eng.queues, KeepEnded: s.KeepEnded})
	totals := watchTotals(e, eng.store)
	ps.add(sh.chores.lead("sweeper", func(ctx context.Context) {
		var watching sync.WaitGroup
		defer watching.Wait()
		watching.Go(func() { totals(ctx) })
		sweeper.Run(ctx, sweepEvery)
	}))
	return nil
}

// failureMessage is the log message about an error of the Fulfiller.
func failureMessage(err error) string {
	if errors.Is(err, worker.ErrReturned) {
		return "order failed, returned to the queue"
	}
	return "order failed, retrying"
}

// logOrders returns the observer that logs what becomes of orders. Failures are at most a few
// per second, because an outage repeats them.
func logOrders(log zerolog.Logger) worker.Observer {
	log = log.With().Str("component", "order").Logger()
	failures := log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Second})
	return worker.Observer{
		Committed: func(t *order.Task, out *order.Outcome) {
			if out.Status == order.StatusRejected {
				failures.Warn().Str("request_id", t.RequestID).Str("order_id", t.ID).Str("item", t.ItemID).
					Str("reason", out.Reason).Msg("order rejected by the database")
				return
			}
			log.Debug().Str("request_id", t.RequestID).Str("order_id", t.ID).Str("item", t.ItemID).
				Str("status", string(out.Status)).Msg("order committed")
		},
		Failed: func(f worker.Failure) {
			to, level, text := &failures, zerolog.WarnLevel, "order not committed, retrying"
			if f.Dead {
				to, level, text = &log, zerolog.ErrorLevel, "order not committed, now a dead letter"
			}
			to.WithLevel(level).Str("request_id", f.RequestID).Str("order_id", f.OrderID).Str("task", f.TaskID).
				Int("attempt", f.Attempt).Err(f.Err).Msg(text)
		},
	}
}

const (
	// stuckAfter is how long a worker may make no progress before it counts as stuck. It is far
	// above the time of a commit on a slow disk.
	stuckAfter = 2 * time.Minute
	// commitTrust is how long a commit proves that the database accepts writes.
	commitTrust = 2 * time.Second
)

// pulse is the state of this process's worker. Its times are from this host's clock, and are
// only compared with each other.
type pulse struct {
	entry     *registry.Registration // in the list of all workers
	now       func() time.Time
	moved     atomic.Pointer[time.Time] // the last fetch, commit or failure; nil: not yet
	committed atomic.Pointer[time.Time] // nil: not yet
}

// newPulse registers this process as a worker until all its work has ended.
func newPulse(e *env, workers *registry.Registry, ps *parts) *pulse {
	p := &pulse{entry: workers.Register(processHost(), e.build.Version), now: e.now}
	log := e.log.With().Str("component", "worker").Logger()
	ps.add(part{name: "heartbeat", run: func(ctx context.Context) error {
		p.move()
		p.entry.Run(ctx, func(err error) { log.Warn().Err(err).Msg("heartbeat failed, retrying") })
		return nil
	}})
	return p
}

// move records progress.
func (p *pulse) move() {
	now := p.now()
	p.moved.Store(&now)
}

// fetched records an attempt to fetch. A worker that fails to commit counts as one that does not
// fetch, so that operators see that orders are not processed.
func (p *pulse) fetched(err error, failing bool) {
	p.move()
	if err == nil && !failing {
		p.entry.Fetched()
	}
}

// commit records a commit.
func (p *pulse) commit() {
	now := p.now()
	p.moved.Store(&now)
	p.committed.Store(&now)
}

// failing returns a function that records an error as progress, for work that is retried.
func (p *pulse) failing(report func(error)) func(error) {
	return func(err error) {
		p.move()
		report(err)
	}
}

// ready fails if the worker has not fetched recently. An idle worker blocks for tasks and
// fetches at intervals.
func (p *pulse) ready() error {
	switch d, ever := p.entry.SinceFetch(); {
	case !ever:
		return errors.New("worker has not fetched orders yet")
	case d > worker.FetchStale:
		return fmt.Errorf("worker has not fetched orders for %v", d.Round(time.Second))
	}
	return nil
}

// alive fails if the worker makes no progress, not even failing and retrying.
func (p *pulse) alive() error {
	if at := p.moved.Load(); at != nil {
		if d := p.now().Sub(*at); d > stuckAfter {
			return fmt.Errorf("worker has been inactive for %v", d.Round(time.Second))
		}
	}
	return nil
}
