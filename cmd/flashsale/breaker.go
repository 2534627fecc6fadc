package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/breaker"
)

// breakers makes the circuit breakers towards Redis, and registers their figures.
// No node becomes a label: which one is away, Redis's own monitoring tells.
func (a *app) breakers() *breaker.Breakers {
	b := breaker.New(breaker.Config{})
	a.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "flashsale_redis_breakers_open",
			Help: "Redis nodes whose circuit breaker is open: 0 or 1, more on a cluster.",
		}, func() float64 { return float64(b.Open()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "flashsale_redis_breaker_refused_total",
			Help: "Redis calls refused by an open circuit breaker, before anything was sent.",
		}, func() float64 { return float64(b.Refused()) }),
	)
	return b
}
