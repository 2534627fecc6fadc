package service

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order/checkout"
	"flashsale/order/items"
	"flashsale/order/recovery"
	"flashsale/order/release"
	"flashsale/order/sales"
	"flashsale/order/store"
)

// Times of the items' locks. A killed process blocks its items for at most lockTTL. A slow
// process loses its lock after that time, and its scripts are refused.
const (
	lockTTL      = time.Second
	lockClaimTTL = 400 * time.Millisecond
	lockLiveness = 500 * time.Millisecond
)

// selling has the parts that purchases use: the stock with its recovery, the items and the
// orders.
type selling struct {
	stock   *inventory.Inventory
	items   *catalog.Catalog
	service *checkout.Service
	sales   *items.Service
	queued  *accepted.Index
	locks   *lock.Manager // of the items on sale
}

// newSelling creates the parts that purchases use. It compares Redis with the database before
// anything is sold.
func newSelling(ctx context.Context, sh *shared, ps *parts) (*selling, error) {
	e, eng := sh.env, sh.eng
	locks, err := lock.New(eng.rdb, lock.Config{
		TTL: lockTTL, ClaimTTL: lockClaimTTL, Liveness: lockLiveness,
		Metadata: processName(), Observer: lockMetrics(e, sh.counters),
	})
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "locks", stop: locks.Close})
	report := e.reporter("order")
	ps.add(part{name: "commit notices", run: func(ctx context.Context) error {
		return sh.waiters.Listen(ctx, eng.rdb, eng.store, report)
	}})
	batches := newBatchMetrics(e.registry)
	source := &sales.Source{Store: eng.store, Tasks: eng.tasks(), Partition: eng.partition}
	queued := accepted.NewIndex(eng.rdb, eng.queues...)
	var rec *recovery.Recovery
	var cache *catalog.Catalog
	var catalogue parts
	stock, err := inventory.New(ctx, eng.rdb, locks, eng.queues, source, inventory.Config{
		Partitions: e.settings.Partitions, Lineage: sh.highWater.Lineage, ConfirmReplicas: e.settings.ConfirmReplicas, OnError: e.reporter("inventory"),
		OnBatch: batches.sent, OnWait: batches.waited, OnLock: batches.locked, OnAccepted: sh.counters.Accepted,
		MayLoad: sh.highWater.MayLoad, Archive: sales.NewEndedSales(eng.store, queued, eng.partition),
		Observe: func(stock *inventory.Inventory) (inventory.Observers, error) {
			rec = newRecovery(e, eng, stock, locks, sh.highWater)
			var err error
			if cache, err = newCatalog(ctx, e, eng, stock, &catalogue); err != nil {
				return inventory.Observers{}, err
			}
			return observers(rec, cache, report), nil
		},
	})
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "inventory", stop: stock.Close})
	if err := rec.Check(ctx); err != nil {
		return nil, err
	}
	ps.add(part{name: "recovery", run: func(ctx context.Context) error {
		rec.Run(ctx, recoverEvery)
		return nil
	}})
	*ps = append(*ps, catalogue...)
	admin := &items.Service{Store: eng.store, Stock: stock, Catalog: cache, OnError: report}
	service := checkout.NewService(checkout.Config{
		Store: eng.store, Stock: stock, Items: cache, Buckets: admin, Tasks: eng.tasks(), Waiters: sh.waiters,
		Releaser: release.New(eng.store, eng.rdb, e.settings.Partitions, stock.DropSoldOutMark, report), ChangeNotifier: checkout.NewChangeNotifier(eng.rdb, report),
		Queued: queued, Volatile: e.embedded(), OnError: report,
	})
	ps.add(part{name: "buckets", run: func(ctx context.Context) error {
		var since time.Time // all items, once
		for pause.For(ctx, alignEvery) {
			err := admin.Align(ctx, since)
			switch {
			case err == nil:
				since = e.now().Add(-alignChanged)
			case ctx.Err() == nil:
				report(err)
			}
		}
		return nil
	}})
	return &selling{stock: stock, items: cache, service: service, sales: admin, queued: queued, locks: locks}, nil
}

// observers connects the recovery and the catalogue to events of the stock.
func observers(rec *recovery.Recovery, items *catalog.Catalog, report func(error)) inventory.Observers {
	return inventory.Observers{
		OnChange:  items.StockChanged,
		OnRestart: rec.Check,
		OnVersion: items.Confirm,
		OnLoss: func(ctx context.Context, rewound int64) {
			if err := rec.Lost(ctx, rewound); err != nil {
				report(fmt.Errorf("check Redis for lost data: %w", err))
			}
		},
	}
}

// alignEvery is the interval at which buckets get the terms of their items, if the process that changed an item
// could not finish the change.
const alignEvery = 2 * time.Second

// alignChanged is how long ago a change of an item may be that a process finishes, apart from the first time.
const alignChanged = 10 * time.Minute

// recoveryKey is the lock of the process that recovers lost data.
const recoveryKey = "fs:{p0}:recovery"

// recoverEvery is the interval between comparisons of Redis with the database. A process that
// finds a sale missing or older than expected compares at once.
const recoverEvery = time.Second

// newRecovery creates the recovery, which compares Redis with the database before anything is
// sold, then every second, and after every new connection.
func newRecovery(e *env, eng *engine, stock *inventory.Inventory, locks *lock.Manager, highWater *store.HighWater) *recovery.Recovery {
	recovered := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_recoveries_total", Help: "Sale rebuilds after Redis data loss, and loads into a new Redis.",
	})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_recovery_duration_seconds", Help: "Time to load all sales after data loss.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
	})
	e.registry.MustRegister(recovered, took)
	var level atomic.Int32 // of the log lines about loads
	level.Store(int32(zerolog.InfoLevel))
	if eng.unused {
		level.Store(int32(zerolog.DebugLevel)) // until the first load, which finds nothing
	}
	logLevel := func() zerolog.Level { return zerolog.Level(level.Load()) }
	return recovery.NewRecovery(recovery.Config{
		Store: eng.store, Stock: stock, Locks: locks, Resource: recoveryKey, Expiries: eng.expires, HighWater: highWater,
		Nudges: eng.nudges,
		OnLoss: func(what string) {
			if e.embedded() {
				// The embedded engine is empty at each start, which is not a loss.
				e.log.WithLevel(logLevel()).Str("component", "recovery").Msg("loading sales from the database")
				return
			}
			e.log.Warn().Str("component", "recovery").Msg(what + ": rebuilding the sales from the database")
		},
		OnRecovered: func(r recovery.Recovered) {
			recovered.Inc()
			took.Observe(r.Took.Seconds())
			e.log.WithLevel(logLevel()).Str("component", "recovery").Int64("epoch", r.Epoch).Int("sales", r.Sales).Int("expiries", r.Expiries).
				Dur("took_ms", r.Took).Msg("sales loaded")
			level.Store(int32(zerolog.InfoLevel))
		},
		OnError: e.reporter("recovery"),
	})
}
