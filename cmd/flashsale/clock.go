package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/cmd/flashsale/backend"
	"flashsale/cmd/flashsale/config"
	"flashsale/inventory"
)

// addClock makes the one clock by which pages, purchases and the database tell the
// time: that of Redis, as it is measured here now and then every few seconds. The
// embedded engine's clock is this host's.
func (a *app) addClock(ctx context.Context) {
	a.clock = inventory.NewClock(a.rdb, a.settings.Partitions, a.now)
	a.store.SetClock(a.clock)
	a.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_clock_offset_seconds",
		Help: "Redis server clock minus this host's clock, in seconds; the largest difference on a cluster.",
	}, func() float64 { return a.clock.Offset().Seconds() }))
	if a.settings.Redis == config.EmbeddedRedis {
		return
	}
	report := a.reporter("clock")
	if err := a.clock.Measure(ctx); err != nil {
		report(err)
	}
	if d := a.clock.Offset(); d.Abs() > backend.MaxClockSkew {
		a.log.Warn().Int64("offset_ms", d.Milliseconds()).Msg("this host's clock differs from the Redis clock: " + backend.ClockEffect + "; " + backend.ClockFix)
	}
	a.life.add(part{name: "clock", run: func(ctx context.Context) error {
		a.clock.Run(ctx, report)
		return nil
	}})
}
