package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order"
	"flashsale/queue"
)

// sqliteWorkers is how many batches a process commits at a time. SQLite has one
// writer; a second batch fetched meanwhile would wait for it instead of filling up.
const sqliteWorkers = 1

// sweepEvery is how often what was left undone is looked for.
const sweepEvery = 10 * time.Second

// addWorker adds what commits orders, and offers to do the chores of all workers.
func addWorker(sh *shared, p *pulse, ps *parts) error {
	e, eng, s := sh.env, sh.eng, sh.settings
	report := p.failing(e.reporter("order"))
	committed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_orders_committed_total", Help: "Orders that became rows, confirmed or rejected.",
	})
	batches := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_commit_batch_orders", Help: "Orders per database transaction.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	e.registry.MustRegister(committed, batches)
	f := order.NewFulfiller(eng.store, eng.rdb, sh.waiters, report, order.WithPartitions(s.Partitions), order.WithCommits(func(n int) {
		committed.Add(float64(n))
		batches.Observe(float64(n))
		p.commit()
	}))
	ps.add(part{name: "worker", run: func(ctx context.Context) error {
		return f.Work(ctx, eng.queues, eng.expires, queue.RunConfig{
			Batch: s.Batch, Workers: sqliteWorkers, Drain: s.Drain / 2,
			Linger: order.Linger(s.Linger), OnError: p.failing(e.reporter("queue")), OnFetch: p.fetched,
		})
	}})
	letters := make([]order.DeadLetters, len(eng.queues))
	for i, q := range eng.queues {
		letters[i] = q
	}
	deliverer, err := newDeliverer(e, eng, sh.chores)
	if err != nil {
		return err
	}
	ps.add(deliverer)
	sweeper := order.NewSweeper(f, order.SweeperConfig{Dead: letters, Logs: eng.queues, KeepEnded: s.KeepEnded})
	ps.add(sh.chores.lead("sweeper", func(ctx context.Context) { sweeper.Run(ctx, sweepEvery) }))
	return nil
}
