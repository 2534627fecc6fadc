package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler"
	"flashsale/order"
	"flashsale/queue"
)

// addMonitor makes the process look at the queues and workers, for its metrics and
// its log. Every process does, so an operator sees the same figures everywhere.
func (a *app) addMonitor() error {
	registry, err := queue.NewRegistry(a.rdb, queue.RegistryConfig{Key: order.WorkersKey})
	if err != nil {
		return err
	}
	a.workers = registry
	log := a.log.With().Str("component", "monitor").Logger()
	a.monitor = order.NewMonitor(order.MonitorConfig{
		Redis: a.rdb, Workers: registry, Orders: a.orderQueues(), Others: a.otherQueues(),
		OnAlarm: func(alarm *order.Alarm) {
			if alarm == nil {
				log.Info().Msg("accepted orders are being committed again")
				return
			}
			log.Warn().Int("waiting", alarm.Waiting).Float64("oldest_seconds", alarm.Oldest.Seconds()).Str("workers", alarm.Workers).
				Msg("accepted orders are not being committed: start flashsale worker, or read its log")
		},
		OnError: func(err error) { log.Warn().Err(err).Msg("queue metrics unavailable, retrying") },
	})
	a.registry.MustRegister(newBacklogCollector(a.monitor))
	a.life.add(part{name: "monitor", run: a.monitor.Run})
	return nil
}

// backlogCollector exports the monitor's last look. It makes no calls, so a scrape
// neither waits for Redis nor burdens it; what is not known is left out.
type backlogCollector struct {
	monitor                                   *order.Monitor
	up, tasks, oldest, died, live, fetchedAgo *prometheus.Desc
}

func newBacklogCollector(m *order.Monitor) *backlogCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &backlogCollector{
		monitor: m,
		up: desc("flashsale_queue_metrics_up",
			"1 if the metrics of queues and workers are current, 0 if Redis could not be read for 15 seconds; they are then left out."),
		tasks: desc("flashsale_queue_tasks",
			"Tasks in a queue, by state: ready, delayed (not due, or waiting for a retry), leased (in a worker's hands), dead (dead letters).", "queue", "state"),
		oldest: desc("flashsale_queue_oldest_age_seconds",
			"How long the task at the head of a queue has been ready; 0 if none is.", "queue"),
		died: desc("flashsale_queue_died_total",
			"Tasks that became dead letters, including those retried or discarded since.", "queue"),
		live: desc("flashsale_workers_live",
			"Worker processes that sent a heartbeat within the last 15 seconds."),
		fetchedAgo: desc("flashsale_worker_last_fetch_age_seconds",
			"Time since any worker last fetched orders, past workers included; absent if none ever has. An idle worker fetches every 5 seconds."),
	}
}

// Describe lists the metrics.
func (c *backlogCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.tasks, c.oldest, c.died, c.live, c.fetchedAgo} {
		to <- d
	}
}

// Collect exports the last look.
func (c *backlogCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	l := c.monitor.Last()
	if l == nil {
		gauge(c.up, 0)
		return
	}
	gauge(c.up, 1)
	for i := range l.Queues {
		q := &l.Queues[i]
		gauge(c.tasks, float64(q.Ready), q.Name, "ready")
		gauge(c.tasks, float64(q.Delayed), q.Name, "delayed")
		gauge(c.tasks, float64(q.Leased), q.Name, "leased")
		gauge(c.tasks, float64(q.Dead), q.Name, "dead")
		gauge(c.oldest, q.OldestReady.Seconds(), q.Name)
		to <- prometheus.MustNewConstMetric(c.died, prometheus.CounterValue, float64(q.Died), q.Name)
	}
	gauge(c.live, float64(len(l.Workers.Live)))
	if !l.Workers.FetchedAt.IsZero() {
		gauge(c.fetchedAgo, l.Workers.Now.Sub(l.Workers.FetchedAt).Seconds())
	}
}

const (
	// stuckAfter is how long a worker may show no sign of life before it counts as
	// stuck. It is far above what a commit on a slow disk takes.
	stuckAfter = 2 * time.Minute
	// commitTrust is for how long a commit shows that the database takes writes.
	commitTrust = 2 * time.Second
)

// pulse is what the worker of this process shows of itself. Its times are this
// host's, and are only compared with each other.
type pulse struct {
	entry     *queue.Registration // in the list of all workers
	now       func() time.Time
	moved     atomic.Pointer[time.Time] // it fetched, committed, or failed to; nil: not yet
	committed atomic.Pointer[time.Time] // nil: not yet
}

// addPulse registers this process as a worker until all that it does has ended.
func (a *app) addPulse() {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := &pulse{entry: a.workers.Register(fmt.Sprintf("%s:%d", host, os.Getpid()), thisBuild().version), now: a.now}
	a.pulse = p
	log := a.log.With().Str("component", "worker").Logger()
	a.life.add(part{name: "heartbeat", run: func(ctx context.Context) error {
		p.move()
		p.entry.Run(ctx, func(err error) { log.Warn().Err(err).Msg("heartbeat failed, retrying") })
		return nil
	}})
}

// move notes a sign of life.
func (p *pulse) move() {
	now := p.now()
	p.moved.Store(&now)
}

// fetched notes an attempt to fetch.
func (p *pulse) fetched(err error) {
	p.move()
	if err == nil {
		p.entry.Fetched()
	}
}

// commit notes a commit.
func (p *pulse) commit() {
	now := p.now()
	p.moved.Store(&now)
	p.committed.Store(&now)
}

// failing returns a function that notes an error as a sign of life, for something
// that is tried again and again.
func (p *pulse) failing(report func(error)) func(error) {
	return func(err error) {
		p.move()
		report(err)
	}
}

// ready fails if the worker has not fetched recently. An idle one fetches at
// intervals, between which it is blocked waiting for work.
func (p *pulse) ready() error {
	switch d, ever := p.entry.SinceFetch(); {
	case !ever:
		return errors.New("worker has not fetched orders yet")
	case d > order.FetchStale:
		return fmt.Errorf("worker has not fetched orders for %v", d.Round(time.Second))
	}
	return nil
}

// alive fails if nothing the worker does goes on, not even failing and trying again.
func (p *pulse) alive() error {
	if at := p.moved.Load(); at != nil {
		if d := p.now().Sub(*at); d > stuckAfter {
			return fmt.Errorf("worker has shown no sign of life for %v", d.Round(time.Second))
		}
	}
	return nil
}

// opsConfig says what the operator's address shows of this process. Its functions run
// when the process has been built.
func (a *app) opsConfig(r role) handler.OpsConfig {
	c := handler.OpsConfig{Log: a.log}
	c.Ready = a.checks()
	if r.api {
		c.Workers = a.monitor
		c.Ready = append(c.Ready, handler.Check{Name: "catalog", Probe: func(ctx context.Context) error { return a.items.Ready(ctx) }})
	}
	if r.worker {
		c.Ready = append(c.Ready, handler.Check{Name: "worker", Probe: func(context.Context) error { return a.pulse.ready() }})
		c.Alive = func() error { return a.pulse.alive() }
	}
	return c
}

// databaseReady checks whether the database takes writes, and whether anything can be
// sold: not if it is older than Redis as to every item.
func (a *app) databaseReady(ctx context.Context) error {
	err := a.canWrite(ctx)
	if a.highWater.All() {
		err = errors.Join(err, a.highWater.Err())
	}
	return err
}

// salesStopped fails while the database is older than Redis as to some items. The other
// sales go on, so the process stays ready.
func (a *app) salesStopped(context.Context) error {
	if a.highWater.All() {
		return nil // databaseReady says so
	}
	return a.highWater.Err()
}

// canWrite checks whether the database takes writes. A worker that commits has shown
// it, and is not held up by a write of the check's own.
func (a *app) canWrite(ctx context.Context) error {
	if a.pulse != nil {
		if at := a.pulse.committed.Load(); at != nil && a.now().Sub(*at) < commitTrust {
			return nil
		}
	}
	return a.writes.Check(ctx)
}
