package main

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/cmd/flashsale/config"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/order"
)

// recoveryKey names the lock by which one process at a time looks after lost data.
const recoveryKey = "fs:{p0}:recovery"

// recoverEvery is how often Redis is compared with the database. A process that
// meets a sale which is gone or older than it knew looks at once.
const recoverEvery = time.Second

// addRecovery compares Redis with the database before anything is sold, and from
// then on every second and after every new connection.
func (a *app) addRecovery(ctx context.Context, stock *inventory.Inventory, locks *lock.Manager) error {
	recovered := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_recoveries_total", Help: "Times that this process built the sales anew, because Redis had lost or rewound its data, or was new.",
	})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_recovery_seconds", Help: "Time to load all sales after a loss.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
	})
	a.registry.MustRegister(recovered, took)
	expiries := make([]order.Adder, len(a.expires))
	for i, q := range a.expires {
		expiries[i] = q
	}
	r := order.NewRecovery(order.RecoveryConfig{
		Store: a.store, Stock: stock, Locks: locks, Resource: recoveryKey, Expiries: expiries, HighWater: a.highWater,
		OnLoss: func(what string) {
			if a.settings.Redis == config.EmbeddedRedis {
				// It begins with nothing at each start: that is no loss to be told of.
				a.log.Info().Str("room", "recovery").Msg("the embedded Redis holds none of the sales: they are built from the database")
				return
			}
			a.log.Warn().Str("room", "recovery").Msg(what + ": the sales are built anew from the database")
		},
		OnRecovered: func(r order.Recovered) {
			recovered.Inc()
			took.Observe(r.Took.Seconds())
			a.log.Info().Str("room", "recovery").Int64("epoch", r.Epoch).Int("sales", r.Sales).Int("expiries", r.Expiries).
				Dur("took_ms", r.Took).Msg("sales are rebuilt")
		},
		OnError: a.reporter("recovery"),
	})
	if err := r.Check(ctx); err != nil {
		return err
	}
	a.recovery.Store(r)
	a.life.add(part{name: "recovery", run: func(ctx context.Context) error {
		r.Run(ctx, recoverEvery)
		return nil
	}})
	return nil
}

// connected hears of every new connection to Redis.
func (a *app) connected() {
	if r := a.recovery.Load(); r != nil {
		r.Nudge()
	}
}
