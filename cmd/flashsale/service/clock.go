package service

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/cmd/flashsale/backend"
	"flashsale/inventory"
)

// startClock measures the one clock by which pages, purchases and the database tell the
// time: that of Redis, now and then every few seconds. The embedded engine's clock is
// this host's.
func startClock(ctx context.Context, e *env, clock *inventory.Clock, ps *parts) {
	e.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_clock_offset_seconds",
		Help: "Redis server clock minus this host's clock, in seconds; the largest difference on a cluster.",
	}, func() float64 { return clock.Offset().Seconds() }))
	if e.embedded() {
		return
	}
	report := e.reporter("clock")
	if err := clock.Measure(ctx); err != nil {
		report(err)
	}
	if d := clock.Offset(); d.Abs() > backend.MaxClockSkew {
		e.log.Warn().Int64("offset_ms", d.Milliseconds()).Msg("this host's clock differs from the Redis clock: " + backend.ClockEffect + "; " + backend.ClockFix)
	}
	ps.add(part{name: "clock", run: func(ctx context.Context) error {
		clock.Run(ctx, report)
		return nil
	}})
}
