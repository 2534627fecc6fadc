package service

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

// paymentCounter registers the count of received amounts, and returns what counts them.
func paymentCounter(registry prometheus.Registerer) func(order.PaymentOutcome) {
	recorded := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_payments_total",
		Help: "Amounts recorded by this process: accepted, late, duplicate or mismatch; and amounts marked as refunded.",
	}, []string{"outcome"})
	registry.MustRegister(recorded)
	counters := make(map[order.PaymentOutcome]prometheus.Counter, len(order.PaymentOutcomes))
	for _, outcome := range order.PaymentOutcomes {
		counters[outcome] = recorded.WithLabelValues(string(outcome))
	}
	return func(outcome order.PaymentOutcome) { counters[outcome].Inc() }
}

// addRefundMetric registers how many amounts have to be refunded.
func addRefundMetric(ctx context.Context, e *env, store *order.Store) {
	ctx = context.WithoutCancel(ctx) // scrapes go on while the process drains
	report := e.reporter("payments")
	e.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_payments_to_refund",
		Help: "Amounts in the database that paid nothing and are not marked as refunded, up to 10000; the same in every API process.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		n, err := store.PaymentsToRefund(ctx, watchedRefunds)
		if err != nil {
			report(err)
			return math.NaN()
		}
		return float64(n)
	}))
}
