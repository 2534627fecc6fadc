package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/registry"
	"flashsale/order/figures"
	"flashsale/order/worker"
)

// monitoring is this process's view of the queues and workers of all hosts.
type monitoring struct {
	workers *registry.Registry
	monitor *worker.Monitor
	// watched is set when some process shows the live figures.
	watched figures.Wanted
}

// newMonitoring makes the process poll the queues and workers for its metrics and its log.
// Every process does, so that each shows the same values.
func newMonitoring(e *env, eng *engine, ps *parts) (*monitoring, error) {
	workers, err := registry.New(eng.rdb, registry.Config{Key: worker.WorkersKey})
	if err != nil {
		return nil, err
	}
	watched := figures.NewWanted()
	log := e.log.With().Str("component", "monitor").Logger()
	monitor := worker.NewMonitor(worker.MonitorConfig{
		Redis: eng.rdb, Workers: workers, Orders: eng.orderQueues(), Others: eng.otherQueues(),
		WatchKey: figures.WatchedKey, OnWatch: watched.Set,
		OnAlarm: func(alarm *worker.Alarm) {
			if alarm == nil {
				log.Info().Msg("accepted orders are being committed again")
				return
			}
			log.Warn().Int("waiting", alarm.Waiting).Float64("oldest_seconds", alarm.Oldest.Seconds()).Str("workers", alarm.Workers).
				Msg("accepted orders are not being committed: start flashsale worker, or read its log")
		},
		OnError: func(err error) { log.Warn().Err(err).Msg("queue metrics unavailable, retrying") },
	})
	e.registry.MustRegister(newBacklogCollector(monitor))
	ps.add(part{name: "monitor", run: monitor.Run})
	return &monitoring{workers: workers, monitor: monitor, watched: watched}, nil
}

// backlogCollector exports the result of the monitor's last poll. It makes no calls, so a
// scrape neither waits for Redis nor loads it. It omits unknown values.
type backlogCollector struct {
	monitor                                           *worker.Monitor
	up, orders, tasks, oldest, died, live, fetchedAgo *prometheus.Desc
}

func newBacklogCollector(m *worker.Monitor) *backlogCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &backlogCollector{
		monitor: m,
		up: desc("flashsale_queue_metrics_up",
			"1 if the metrics of queues and workers are current, 0 if Redis could not be read for 15 seconds; they are then left out."),
		orders: desc("flashsale_queue_orders",
			"Orders in the tasks of a queue, in all states. A task has the orders of one batch.", "queue"),
		tasks: desc("flashsale_queue_tasks",
			"Tasks in a queue, by state: ready, delayed (not due, or waiting for a retry), leased (in a worker's hands), dead (dead letters).", "queue", "state"),
		oldest: desc("flashsale_queue_oldest_age_seconds",
			"How long the task at the head of a queue has been ready; 0 if none is.", "queue"),
		died: desc("flashsale_queue_dead_letters_total",
			"Tasks that became dead letters, including those retried or discarded since.", "queue"),
		live: desc("flashsale_workers_live",
			"Worker processes that sent a heartbeat within the last 15 seconds."),
		fetchedAgo: desc("flashsale_worker_last_fetch_age_seconds",
			"Time since any worker last fetched orders, past workers included; absent if none ever has. An idle worker fetches every 5 seconds."),
	}
}

// Describe lists the metrics.
func (c *backlogCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.orders, c.tasks, c.oldest, c.died, c.live, c.fetchedAgo} {
		to <- d
	}
}

// Collect exports the result of the last poll.
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
		gauge(c.orders, float64(q.Orders), q.Name)
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
