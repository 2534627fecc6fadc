package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/breaker"
)

// newBreakers makes the circuit breakers towards Redis, and registers their figures.
// No node becomes a label: which one is away, Redis's own monitoring tells.
func newBreakers(registry prometheus.Registerer) *breaker.Breakers {
	b := breaker.New(breaker.Config{})
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "flashsale_redis_breakers_open",
			Help: "Servers of Redis to which calls are refused at once, because they did not answer of late: 0 or 1, more on a cluster.",
		}, func() float64 { return float64(b.Open()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "flashsale_redis_breaker_refused_total",
			Help: "Calls to Redis that were refused at once while it was away. Nothing of them was sent.",
		}, func() float64 { return float64(b.Refused()) }),
	)
	return b
}
