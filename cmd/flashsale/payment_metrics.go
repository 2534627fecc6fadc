package main

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order"
)

const (
	// watchedRefunds bounds what a scrape counts.
	watchedRefunds = 10_000
	// watchTimeout bounds how long a scrape waits for the database.
	watchTimeout = time.Second
)

// addPaymentMetrics registers the figures of received amounts.
func (a *app) addPaymentMetrics(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // scrapes go on while the process drains
	recorded := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_payments_total",
		Help: "Amounts recorded by this process: accepted, late, duplicate or mismatch; and amounts marked as refunded.",
	}, []string{"outcome"})
	counters := make(map[order.PaymentOutcome]prometheus.Counter, len(order.PaymentOutcomes))
	for _, outcome := range order.PaymentOutcomes {
		counters[outcome] = recorded.WithLabelValues(string(outcome))
	}
	a.store.OnPayment(func(outcome order.PaymentOutcome) { counters[outcome].Inc() })
	report := a.reporter("payments")
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_payments_to_refund",
		Help: "Amounts in the database that paid nothing and are not marked as refunded, up to 10000; the same in every API process.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		n, err := a.store.PaymentsToRefund(ctx, watchedRefunds)
		if err != nil {
			report(err)
			return math.NaN()
		}
		return float64(n)
	})
	a.registry.MustRegister(recorded, waiting)
}
