package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order/worker"
	"flashsale/queue"
)

// sqliteWorkers is the number of batches that a process commits concurrently. SQLite has one
// writer: a second batch fetched in the meantime would wait for it instead of filling up.
const sqliteWorkers = 1

// sweepEvery is the interval between sweeps for unfinished work.
const sweepEvery = 10 * time.Second

// addWorker adds the part that commits orders, and offers to run the workers' chores.
func addWorker(sh *shared, p *pulse, ps *parts) error {
	e, eng, s := sh.env, sh.eng, sh.settings
	report := p.failing(e.reporter("order"))
	committed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_orders_committed_total", Help: "Orders written to the database, confirmed or rejected.",
	})
	batches := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_commit_batch_orders", Help: "Orders per database transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	e.registry.MustRegister(committed, batches)
	f := worker.NewFulfiller(eng.store, eng.rdb, sh.waiters, report, worker.WithPartitions(s.Partitions), worker.WithCommits(func(n int) {
		committed.Add(float64(n))
		batches.Observe(float64(n))
		p.commit()
	}))
	ps.add(part{name: "worker", run: func(ctx context.Context) error {
		return f.Work(ctx, eng.queues, eng.expires, queue.RunConfig{
			Batch: s.Batch, Workers: sqliteWorkers, Drain: s.Drain / 2,
			Linger: worker.Linger(s.Linger), OnError: p.failing(e.reporter("queue")), OnFetch: p.fetched,
		})
	}})
	letters := make([]worker.DeadLetters, len(eng.queues))
	for i, q := range eng.queues {
		letters[i] = q
	}
	deliverer, err := newDeliverer(e, eng, sh.chores)
	if err != nil {
		return err
	}
	ps.add(deliverer)
	sweeper := worker.NewSweeper(f, worker.SweeperConfig{Dead: letters, Logs: eng.queues, KeepEnded: s.KeepEnded})
	ps.add(sh.chores.lead("sweeper", func(ctx context.Context) { sweeper.Run(ctx, sweepEvery) }))
	return nil
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
	entry     *queue.Registration // in the list of all workers
	now       func() time.Time
	moved     atomic.Pointer[time.Time] // the last fetch, commit or failure; nil: not yet
	committed atomic.Pointer[time.Time] // nil: not yet
}

// newPulse registers this process as a worker until all its work has ended.
func newPulse(e *env, workers *queue.Registry, ps *parts) *pulse {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := &pulse{entry: workers.Register(fmt.Sprintf("%s:%d", host, os.Getpid()), e.build.Version), now: e.now}
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

// fetched records an attempt to fetch.
func (p *pulse) fetched(err error) {
	p.move()
	if err == nil {
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
			return fmt.Errorf("worker has shown no sign of life for %v", d.Round(time.Second))
		}
	}
	return nil
}
