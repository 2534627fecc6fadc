package service

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/order"
)

// recoveryKey names the lock by which one process at a time looks after lost data.
const recoveryKey = "fs:{p0}:recovery"

// recoverEvery is how often Redis is compared with the database. A process that
// meets a sale which is gone or older than it knew looks at once.
const recoverEvery = time.Second

// newRecovery makes what compares Redis with the database, before anything is sold and
// from then on every second and after every new connection.
func newRecovery(e *env, eng *engine, stock *inventory.Inventory, locks *lock.Manager, highWater *order.HighWater) *order.Recovery {
	recovered := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "flashsale_recoveries_total", Help: "Times that this process built the sales anew, because Redis had lost or rewound its data, or was new.",
	})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "flashsale_recovery_seconds", Help: "Time to load all sales after a loss.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
	})
	e.registry.MustRegister(recovered, took)
	expiries := make([]order.Adder, len(eng.expires))
	for i, q := range eng.expires {
		expiries[i] = q
	}
	return order.NewRecovery(order.RecoveryConfig{
		Store: eng.store, Stock: stock, Locks: locks, Resource: recoveryKey, Expiries: expiries, HighWater: highWater,
		Nudges: eng.nudges,
		OnLoss: func(what string) {
			if e.embedded() {
				// It begins with nothing at each start: that is no loss to be told of.
				e.log.Info().Str("room", "recovery").Msg("the embedded Redis holds none of the sales: they are built from the database")
				return
			}
			e.log.Warn().Str("room", "recovery").Msg(what + ": the sales are built anew from the database")
		},
		OnRecovered: func(r order.Recovered) {
			recovered.Inc()
			took.Observe(r.Took.Seconds())
			e.log.Info().Str("room", "recovery").Int64("epoch", r.Epoch).Int("sales", r.Sales).Int("expiries", r.Expiries).
				Dur("took_ms", r.Took).Msg("sales are rebuilt")
		},
		OnError: e.reporter("recovery"),
	})
}
