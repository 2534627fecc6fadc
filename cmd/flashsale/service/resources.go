package service

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/backend"
	"flashsale/order/sales"
	"flashsale/order/store"
)

// addDatabaseMetrics registers the sizes of the database's files and the room beside them. They
// are read at each scrape, without opening the files.
func addDatabaseMetrics(registry prometheus.Registerer, path string) {
	gauge := func(name, help string, read func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	size := func(file string) func() float64 {
		return func() float64 {
			info, err := os.Stat(file)
			if err != nil {
				return 0 // the log does not exist between a clean stop and the first write
			}
			return float64(info.Size())
		}
	}
	gauge("flashsale_database_size_bytes", "Size of the database's file, without its write-ahead log.", size(path))
	gauge("flashsale_database_wal_size_bytes", "Size of the database's write-ahead log; it grows beyond 64 MiB only while a read takes long.", size(path+"-wal"))
	folder := filepath.Dir(path)
	if _, _, known := backend.DiskSpace(folder); !known {
		return
	}
	gauge("flashsale_database_disk_free_bytes", "Space that the service can still use on the database's disk.", func() float64 {
		free, _, known := backend.DiskSpace(folder)
		if !known {
			return math.NaN()
		}
		return float64(free)
	})
	gauge("flashsale_database_disk_size_bytes", "Used and free space on the database's disk.", func() float64 {
		_, all, known := backend.DiskSpace(folder)
		if !known {
			return math.NaN()
		}
		return float64(all)
	})
}

// checkpointMetrics registers the metrics of checkpoints, and returns their observer.
func checkpointMetrics(registry prometheus.Registerer) func(took time.Duration, err error) {
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "flashsale_database_checkpoint_duration_seconds",
		Help:    "Duration of a background checkpoint: the copy of the write-ahead log into the database's file.",
		Buckets: prometheus.ExponentialBuckets(0.004, 2, 12),
	})
	failed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_database_checkpoint_failures_total", Help: "Failed background checkpoints, which are retried.",
	})
	registry.MustRegister(took, failed)
	return func(d time.Duration, err error) {
		if err != nil {
			failed.Inc()
			return
		}
		took.Observe(d.Seconds())
	}
}

const (
	// memoryEvery is the interval between reads of Redis's memory.
	memoryEvery = 10 * time.Second
	// memoryTimeout bounds one read of all nodes.
	memoryTimeout = 2 * time.Second
)

// redisMemory has the memory of the fullest Redis node. Nodes are not labels: Redis's own
// monitoring shows each.
type redisMemory struct {
	used, limit *prometheus.Desc

	mu    sync.Mutex
	known bool
	now   nodeMemory
}

// nodeMemory is the memory of one node in bytes. A limit of 0 means none.
type nodeMemory struct{ used, limit float64 }

// addRedisMemory makes the process read the memory of Redis at intervals. A managed Redis that
// forbids INFO has no such metrics.
func addRedisMemory(e *env, rdb redis.UniversalClient, ps *parts) {
	m := &redisMemory{
		used: prometheus.NewDesc("flashsale_redis_memory_used_bytes",
			"Memory that Redis uses (used_memory); on a cluster that of the master nearest to its limit. Absent while unknown.", nil, nil),
		limit: prometheus.NewDesc("flashsale_redis_memory_limit_bytes",
			"Limit of the same node (maxmemory); absent if there is none.", nil, nil),
	}
	e.registry.MustRegister(m)
	ps.add(part{name: "redis memory", run: func(ctx context.Context) error {
		tick := time.NewTicker(memoryEvery)
		defer tick.Stop()
		for {
			m.read(ctx, rdb)
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}})
}

// read reads all nodes. After an error nothing is known: /readyz reports a Redis that does not
// answer.
func (m *redisMemory) read(ctx context.Context, rdb redis.UniversalClient) {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	now, err := fullestNode(ctx, rdb)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.known = now, err == nil
}

func fullestNode(ctx context.Context, rdb redis.UniversalClient) (fullest nodeMemory, err error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return readMemory(ctx, rdb)
	}
	var mu sync.Mutex // the nodes are read concurrently
	err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		n, err := readMemory(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		if n.fuller(fullest) {
			fullest = n
		}
		return err
	})
	return fullest, err
}

// fuller reports whether n is nearer to its limit than other. Without limits, it compares their
// use.
func (n nodeMemory) fuller(other nodeMemory) bool {
	if n.limit > 0 && other.limit > 0 {
		return n.used/n.limit > other.used/other.limit
	}
	if n.limit > 0 || other.limit > 0 {
		return n.limit > 0
	}
	return n.used > other.used
}

func readMemory(ctx context.Context, rdb redis.Cmdable) (n nodeMemory, err error) {
	info, err := rdb.InfoMap(ctx, "memory").Result()
	if err != nil {
		return n, fmt.Errorf("read the memory of redis: %w", err)
	}
	memory := info["Memory"]
	if n.used, err = strconv.ParseFloat(memory["used_memory"], 64); err != nil {
		return n, fmt.Errorf("read used_memory of redis: %w", err)
	}
	if n.limit, err = strconv.ParseFloat(memory["maxmemory"], 64); err != nil {
		n.limit = 0 // some managed servers do not show it
	}
	return n, nil
}

// Describe lists the metrics.
func (m *redisMemory) Describe(to chan<- *prometheus.Desc) { to <- m.used; to <- m.limit }

// Collect exports the last result; it makes no calls.
func (m *redisMemory) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	now, known := m.now, m.known
	m.mu.Unlock()
	if !known {
		return
	}
	to <- prometheus.MustNewConstMetric(m.used, prometheus.GaugeValue, now.used)
	if now.limit > 0 {
		to <- prometheus.MustNewConstMetric(m.limit, prometheus.GaugeValue, now.limit)
	}
}

// totalsEvery is the interval between reads of the items on sale.
const totalsEvery = 15 * time.Second

// watchTotals registers the totals of the items on sale, and returns the function that keeps
// them current until its context ends. It runs in one of all workers, because it reads every
// item; the others export 0. Items are not labels, because their number is unbounded.
func watchTotals(e *env, s *store.Store) func(ctx context.Context) {
	items := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_sale_items", Help: "Items on sale, in the worker that runs the sweeper; 0 elsewhere.",
	})
	units := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "flashsale_sale_units",
		Help: "Units of all items on sale, by state in the database: unsold (includes queued orders), awaiting (payment) or sold; in the worker that runs the sweeper, 0 elsewhere.",
	}, []string{"state"})
	e.registry.MustRegister(items, units)
	set := func(t sales.Totals) {
		items.Set(float64(t.Items))
		units.WithLabelValues("unsold").Set(float64(t.Units - t.Sold - t.Awaiting))
		units.WithLabelValues("awaiting").Set(float64(t.Awaiting))
		units.WithLabelValues("sold").Set(float64(t.Sold))
	}
	set(sales.Totals{})
	report := e.reporter("totals")
	return func(ctx context.Context) {
		defer set(sales.Totals{})
		tick := time.NewTicker(totalsEvery)
		defer tick.Stop()
		for {
			t, err := sales.OnSale(ctx, s)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				report(err)
			default:
				set(t)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}
