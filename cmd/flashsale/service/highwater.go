package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order/store"
)

// compareEvery is the interval between comparisons of a page of items' revisions in Redis and
// the database.
const compareEvery = time.Second

// newHighWater compares the database's revisions with those recorded in Redis, before this
// process does anything else and then continuously.
func newHighWater(ctx context.Context, e *env, eng *engine, ps *parts) (*store.HighWater, error) {
	stopped := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "flashsale_sales_stopped",
		Help: "Sales that are stopped because the database is older than Redis; decide with flashsale recover.",
	})
	e.registry.MustRegister(stopped)
	was := 0
	h, err := store.NewHighWater(ctx, store.HighWaterConfig{
		Store: eng.store, Redis: eng.rdb, Partitions: e.settings.Partitions, OnError: e.reporter("highwater"),
		OnChange: func(behind []store.Behind) {
			stopped.Set(float64(len(behind)))
			if len(behind) == 0 {
				e.log.Info().Msg("the database has caught up with Redis: no sale is stopped")
			}
			for i := range behind[:min(len(behind), maxLogged)] {
				b := &behind[i]
				if b.Lost {
					e.log.Error().Str("item", b.ItemID).Int64("redis_revision", b.Redis).
						Msg("sale stopped: the database does not have the item, for example after a backup was restored; create the item again, then run flashsale recover --from redis|database")
					continue
				}
				e.log.Error().Str("item", b.ItemID).Int64("database_revision", b.Database).Int64("redis_revision", b.Redis).
					Msg("sale stopped: the database is older than Redis, for example after a backup was restored; run flashsale recover --from redis|database")
			}
			if len(behind) > maxLogged && len(behind) != was {
				e.log.Error().Int("sales", len(behind)).Msg("more sales are stopped")
			}
			was = len(behind)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := h.Check(ctx); err != nil {
		return nil, err
	}
	ps.add(part{name: "high-water marks", run: func(ctx context.Context) error {
		h.Run(ctx, compareEvery)
		return nil
	}})
	return h, nil
}
