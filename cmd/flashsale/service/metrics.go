package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/breaker"
	"flashsale/internal/histogram"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/figures"
	"flashsale/order/payments"
)

// batchMetrics are the metrics of batches of purchases and their scripts.
type batchMetrics struct {
	size               prometheus.Histogram
	wait, lock, script *histogram.Histogram
}

func newBatchMetrics(registry prometheus.Registerer) *batchMetrics {
	m := &batchMetrics{
		size: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "flashsale_purchase_batch_requests", Help: "Purchases per script.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		wait:   histogram.PurchaseStep(histogram.StepBatchWait),
		lock:   histogram.PurchaseStep(histogram.StepLockWait),
		script: histogram.PurchaseStep(histogram.StepScript),
	}
	registry.MustRegister(m.size, m.wait, m.lock, m.script)
	return m
}

// sent is inventory.Config.OnBatch.
func (m *batchMetrics) sent(purchases int, took time.Duration) {
	m.size.Observe(float64(purchases))
	m.script.ObserveN(0, took, purchases)
}

// waited is inventory.Config.OnWait.
func (m *batchMetrics) waited(d time.Duration) { m.wait.Observe(0, d) }

// locked is inventory.Config.OnLock.
func (m *batchMetrics) locked(purchases int, waited time.Duration) {
	m.lock.ObserveN(0, waited, purchases)
}

// lockMetrics registers the metrics of the items' locks, and returns their observer. Items are
// not labels, because their number is unbounded.
func lockMetrics(e *env, counters *figures.Counters) lock.Observer {
	times := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		})
		e.registry.MustRegister(h)
		return h
	}
	waited := times("flashsale_lock_wait_duration_seconds", "Time from the request for an item's lock to its acquisition.")
	held := times("flashsale_lock_hold_duration_seconds", "Time that an item's lock was held until it was released.")
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_lock_events_total",
		Help: "Events of item locks: handed_over, wait_failed, lost, max_hold, repaired, extended_late.",
	}, []string{"event"})
	e.registry.MustRegister(events)
	for _, event := range []string{"handed_over", "wait_failed", "lost", "max_hold", "repaired", "extended_late"} {
		events.WithLabelValues(event)
	}
	count := func(event string) func(string) {
		c := events.WithLabelValues(event)
		return func(string) { c.Inc() }
	}
	waitFailed, lost, maxHold, late := count("wait_failed"), count("lost"), count("max_hold"), count("extended_late")
	handedOver := count("handed_over")
	return lock.Observer{
		Acquired: func(_ string, d time.Duration) { waited.Observe(d.Seconds()) },
		Released: func(_ string, d time.Duration) { held.Observe(d.Seconds()) },
		Waited: func(item string, _ time.Duration, err error) {
			if err != nil {
				waitFailed(item)
			}
		},
		HandedOver: func(item string) {
			handedOver(item)
			counters.HandedOver()
		},
		Repaired: count("repaired"),
		Lost: func(item string, cause error) {
			if errors.Is(cause, lock.ErrMaxHold) {
				maxHold(item)
				return
			}
			lost(item)
		},
		ExtendedLate: func(item string, _ time.Duration) { late(item) },
		CannotListen: e.reporter("locks"),
	}
}

// processName identifies this process in the locks.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s pid %d", host, os.Getpid())
}

// newBreakers creates the circuit breakers for Redis and registers their metrics. Nodes are not
// labels: Redis's own monitoring shows which one is unavailable.
func newBreakers(registry prometheus.Registerer) *breaker.Breakers {
	b := breaker.New(breaker.Config{})
	registry.MustRegister(
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

const (
	// watchedRefunds bounds the number that a scrape counts.
	watchedRefunds = 10_000
	// watchTimeout bounds how long a scrape waits for the database.
	watchTimeout = time.Second
)

// paymentCounter registers the counter of received amounts, and returns the function that
// counts them.
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

// addRefundMetric registers the number of amounts to be refunded.
func addRefundMetric(ctx context.Context, e *env, payments *payments.Service) {
	ctx = context.WithoutCancel(ctx) // scrapes continue while the process drains
	report := e.reporter("payments")
	e.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "flashsale_payments_to_refund",
		Help: "Amounts in the database that paid for no order and are not marked as refunded, up to 10000; the same in every API process.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(ctx, watchTimeout)
		defer cancel()
		n, err := payments.ToRefund(ctx, watchedRefunds)
		if err != nil {
			report(err)
			return math.NaN()
		}
		return float64(n)
	}))
}
