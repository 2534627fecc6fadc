package service

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"flashsale/internal/bucket"
	"flashsale/order/reconcile"
)

// newReconciler returns the reconciler for the API, and makes one of all processes reconcile in
// the background.
func newReconciler(sh *shared, sl *selling, ps *parts) *reconcile.Reconciler {
	e, eng := sh.env, sh.eng
	m := newReconcileMetrics(e.registry, e.settings.ReconcileEvery != 0)
	r := reconcile.NewReconciler(reconcile.Config{
		Store: eng.store, Stock: sl.stock, Records: sl.stock, Tasks: eng.tasks(), Releaser: sl.service.Releaser, HighWater: sh.highWater,
		OnRepair: func(item string, d reconcile.Drift) {
			m.repairs.WithLabelValues(string(d.Kind)).Inc()
			e.log.Warn().Str("item", item).Str("kind", string(d.Kind)).Int64("expected", d.Expected).Int64("found", d.Found).
				Int("count", d.Count).Str("note", d.Note).Msg("reconciliation repaired a difference")
		},
	})
	if e.settings.ReconcileEvery == 0 {
		return r
	}
	ps.add(sh.chores.lead("reconcile", func(ctx context.Context) {
		m.last.SetToCurrentTime() // the first round is due after an interval
		// A process that no longer leads does not know the drift.
		defer m.clear()
		r.Run(ctx, e.settings.ReconcileEvery, func(report reconcile.Report, err error) {
			if err != nil {
				e.log.Warn().Err(err).Msg("reconciliation interrupted")
				return
			}
			m.observe(&report)
			logReconciled(e.log, &report)
		})
	}))
	return r
}

// maxLogged bounds the items that one background round logs.
const maxLogged = 20

// logReconciled logs the differences that are not repaired.
func logReconciled(log zerolog.Logger, report *reconcile.Report) {
	logged := 0
	for i := range report.Items {
		item := &report.Items[i]
		if item.Clean() {
			continue
		}
		if logged++; logged > maxLogged {
			log.Error().Int("differing", report.Differing).Int("failed", report.Failed).Msg("more items differ")
			return
		}
		if item.Err != nil {
			log.Warn().Str("item", item.ItemID).Err(item.Err).Msg("item not reconciled")
		}
		for _, d := range item.Drifts {
			if !d.Repaired {
				log.Error().Str("item", item.ItemID).Str("kind", string(d.Kind)).Int64("expected", d.Expected).
					Int64("found", d.Found).Int("count", d.Count).Str("note", d.Note).Msg("Redis and database differ")
			}
		}
	}
}

// reconcileMetrics are the metrics of the background reconciliations. Items are not labels,
// because their number is unbounded.
type reconcileMetrics struct {
	drift   *prometheus.GaugeVec
	items   prometheus.Gauge
	failed  prometheus.Gauge
	repairs *prometheus.CounterVec
	last    prometheus.Gauge
	took    prometheus.Histogram
}

// newReconcileMetrics registers the metrics; without background rounds, not the time of the last
// one, which would look overdue.
func newReconcileMetrics(registry prometheus.Registerer, background bool) *reconcileMetrics {
	m := &reconcileMetrics{
		drift: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_drift_units", Help: "Units by which Redis and the database differ (at least 1 per difference), after the last round and its repairs.",
		}, []string{"kind"}),
		items: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_items_differing", Help: "Items with a difference after the last round and its repairs.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_items_failed", Help: "Items of which the last round could not examine at least one bucket.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_reconcile_repairs_total", Help: "Differences repaired, in the background or on request.",
		}, []string{"kind"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_last_run_timestamp_seconds", Help: "Time at which this process last finished a round, or took over reconciliation if that is later; 0: neither. Absent if --reconcile-every is 0.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "flashsale_reconcile_duration_seconds", Help: "Duration of a round over all items.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
	}
	registry.MustRegister(m.drift, m.items, m.failed, m.repairs, m.took)
	if background {
		registry.MustRegister(m.last)
	}
	for _, kind := range reconcile.DriftKinds {
		m.repairs.WithLabelValues(string(kind))
	}
	m.clear()
	return m
}

// clear resets the results of the last round.
func (m *reconcileMetrics) clear() {
	for _, kind := range reconcile.DriftKinds {
		m.drift.WithLabelValues(string(kind)).Set(0)
	}
	m.items.Set(0)
	m.failed.Set(0)
}

func (m *reconcileMetrics) observe(r *reconcile.Report) {
	units := make(map[reconcile.DriftKind]int64)
	differing := make(map[string]bool) // items; a divided one has several reports
	for i := range r.Items {
		for _, d := range r.Items[i].Drifts {
			if d.Repaired {
				continue
			}
			differing[bucket.Item(r.Items[i].ItemID)] = true
			// A version has no units, and a record may be wrong by zero units.
			units[d.Kind] += max(d.Units, 1)
		}
	}
	for _, kind := range reconcile.DriftKinds {
		m.drift.WithLabelValues(string(kind)).Set(float64(units[kind]))
	}
	m.items.Set(float64(len(differing)))
	m.failed.Set(float64(r.Failed))
	m.last.SetToCurrentTime()
	m.took.Observe(r.Took.Seconds())
}
