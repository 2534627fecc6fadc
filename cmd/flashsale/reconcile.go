package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/inventory"
	"flashsale/order"
)

// reconcileTimeout bounds a reconciliation of all items, which the API does in
// five minutes at most.
const reconcileTimeout = 6 * time.Minute

// errDiffers makes the exit code 1 of a reconciliation that did not end even.
var errDiffers = errors.New("the items' counts differ")

// reconcileView is a reconciliation's report as the API shows it.
type reconcileView struct {
	Balanced                              bool
	Examined, Differing, Failed, Repaired int
	Omitted                               int
	Items                                 []reconciledView
}

type reconciledView struct {
	ItemID string `json:"item_id"`
	Error  string
	Loaded bool
	Ledger struct{ Initial, Restocked, Left, Held, Sold int64 }
	Drifts []struct {
		Kind                   string
		Expected, Found, Units int64
		Count                  int
		Repaired               bool
		Note                   string
	}
	LateReturns int64 `json:"late_returns"`
	Partial     bool
}

func newReconcile() *cobra.Command {
	var server, token, item string
	var repair, asJSON, deep bool
	c := &cobra.Command{
		Use: "reconcile", Short: "Compare Redis and database item by item; exit 1 when they differ", Args: config.NoArgs,
		Long: "reconcile prints the conservation equation of every item, from Redis and the database, and what differs.\n" +
			"What is under way between the two is no difference. --repair builds sales that differ anew, and recomputes\n" +
			"what the database counts of its orders; no order is touched. It goes through the API.",
		Example: "  flashsale reconcile\n  flashsale reconcile --repair --item drop-1",
		RunE: func(c *cobra.Command, _ []string) error {
			r, err := dial(c, server, token, true)
			if err != nil {
				return err
			}
			r.client.Timeout = reconcileTimeout
			query := url.Values{"repair": {strconv.FormatBool(repair)}}
			if c.Flags().Changed("item") {
				query.Set("item_id", item)
			}
			if !deep {
				query.Set("deep", "false")
			}
			var text json.RawMessage
			if err := r.call(c.Context(), http.MethodPost, "/v1/admin/reconcile?"+query.Encode(), nil, &text); err != nil {
				return err
			}
			var report reconcileView
			if err := json.Unmarshal(text, &report); err != nil {
				return fmt.Errorf("read answer: %w", err)
			}
			if asJSON {
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", text)
			} else {
				err = printReconciled(c.OutOrStdout(), &report)
			}
			switch {
			case err != nil:
				return err
			case report.Balanced:
				return nil
			case report.Failed > 0:
				return fmt.Errorf("%w or could not be compared: %d of %d items were not examined", errDiffers, report.Failed, report.Examined)
			case repair:
				return fmt.Errorf("%w where no repair can mend it", errDiffers)
			}
			return fmt.Errorf("%w; --repair mends what can be mended", errDiffers)
		},
	}
	f := c.Flags()
	f.StringVar(&server, "server", "", "URL of the API (default http:// and --addr)")
	addWait(f)
	f.StringVar(&token, "token", "", "admin token (default: signed with the configured key)")
	f.StringVar(&item, "item", "", "compare this item alone")
	f.BoolVar(&repair, "repair", false, "mend what differs")
	f.BoolVar(&deep, "deep", true, "read all orders and records as well; =false compares the counters, which takes milliseconds per item")
	f.BoolVar(&asJSON, "json", false, "print the report as the API sends it")
	return c
}

// printReconciled prints the equations first and what differs below them.
func printReconciled(out io.Writer, r *reconcileView) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "ITEM\tINITIAL\t+ RESTOCKED\t= LEFT\t+ HELD\t+ SOLD\t")
	for i := range r.Items {
		v := &r.Items[i]
		if v.Error != "" {
			fmt.Fprintf(w, "%s\t\t\t\t\t\tnot examined: %s\n", v.ItemID, v.Error)
			continue
		}
		l := &v.Ledger
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%s\n", v.ItemID, l.Initial, l.Restocked, l.Left, l.Held, l.Sold, v.state())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.Items {
		v := &r.Items[i]
		for _, d := range v.Drifts {
			fmt.Fprintf(out, "%s: %s: expected %d, found %d", v.ItemID, d.Kind, d.Expected, d.Found)
			if d.Count > 1 {
				fmt.Fprintf(out, " (%d records)", d.Count)
			}
			if d.Repaired {
				fmt.Fprint(out, ", repaired")
			}
			if d.Note != "" {
				fmt.Fprintf(out, "; %s", d.Note)
			}
			fmt.Fprintln(out)
		}
		if v.LateReturns > 0 {
			fmt.Fprintf(out, "%s: %d closed orders have waited for minutes to give their units back\n", v.ItemID, v.LateReturns)
		}
		if v.Partial {
			fmt.Fprintf(out, "%s: not everything was compared, because the item changed meanwhile or too many orders are queued; repeat when it is quiet, or pause the sale\n", v.ItemID)
		}
	}
	if r.Omitted > 0 {
		fmt.Fprintf(out, "and %d items more, not listed\n", r.Omitted)
	}
	_, err := fmt.Fprintf(out, "%d items, %d differ, %d repairs, %d not examined\n", r.Examined, r.Differing, r.Repaired, r.Failed)
	return err
}

func (v *reconciledView) state() string {
	differs, repaired := false, false
	for _, d := range v.Drifts {
		differs = differs || !d.Repaired
		repaired = repaired || d.Repaired
	}
	switch {
	case differs:
		return "differs"
	case repaired:
		return "repaired"
	case !v.Loaded:
		return "not loaded"
	default:
		return "balanced"
	}
}

// addReconciler makes the reconciler that the API asks, and lets one of all
// processes run one in the background.
func (a *app) addReconciler(stock *inventory.Inventory, returns *order.Returns) (*order.Reconciler, error) {
	m := a.reconcileMetrics()
	r := order.NewReconciler(order.ReconcilerConfig{
		Store: a.store, Stock: stock, Records: stock, Tasks: a.tasks(), Returns: returns, HighWater: a.highWater,
		OnRepair: func(item string, d order.Drift) {
			m.repairs.WithLabelValues(string(d.Kind)).Inc()
			a.log.Warn().Str("item", item).Str("kind", string(d.Kind)).Int64("expected", d.Expected).Int64("found", d.Found).
				Int("count", d.Count).Str("note", d.Note).Msg("reconciliation repaired a difference")
		},
	})
	if a.settings.ReconcileEvery == 0 {
		return r, nil
	}
	return r, a.lead("reconcile", func(ctx context.Context) {
		// Who leads no more knows nothing of the drift.
		defer m.clear()
		r.Run(ctx, a.settings.ReconcileEvery, func(report order.ReconcileReport, err error) {
			if err != nil {
				a.log.Warn().Err(err).Msg("reconciliation cut short")
				return
			}
			m.observe(&report)
			a.logReconciled(&report)
		})
	})
}

// maxLogged bounds the items that one round of the background logs.
const maxLogged = 20

// logReconciled tells of what is not repaired.
func (a *app) logReconciled(report *order.ReconcileReport) {
	logged := 0
	for i := range report.Items {
		item := &report.Items[i]
		if item.Mended() {
			continue
		}
		if logged++; logged > maxLogged {
			a.log.Error().Int("differing", report.Differing).Int("failed", report.Failed).Msg("more items differ")
			return
		}
		if item.Err != nil {
			a.log.Warn().Str("item", item.ItemID).Err(item.Err).Msg("item not reconciled")
		}
		for _, d := range item.Drifts {
			if !d.Repaired {
				a.log.Error().Str("item", item.ItemID).Str("kind", string(d.Kind)).Int64("expected", d.Expected).
					Int64("found", d.Found).Int("count", d.Count).Str("note", d.Note).Msg("Redis and database differ")
			}
		}
	}
}

// reconcileMetrics are the figures of the background's reconciliations. No item
// becomes a label: there may be any number of them.
type reconcileMetrics struct {
	drift   *prometheus.GaugeVec
	items   prometheus.Gauge
	failed  prometheus.Gauge
	repairs *prometheus.CounterVec
	last    prometheus.Gauge
	took    prometheus.Histogram
}

func (a *app) reconcileMetrics() *reconcileMetrics {
	m := &reconcileMetrics{
		drift: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_drift_units", Help: "Units by which Redis and database differ (at least 1 for each difference), after the last round and its repairs.",
		}, []string{"kind"}),
		items: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_items_differing", Help: "Items with a difference after the last round and its repairs.",
		}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_items_failed", Help: "Items that the last round could not examine.",
		}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_reconcile_repairs_total", Help: "Differences repaired, by the background or on request.",
		}, []string{"kind"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_reconcile_last_run_timestamp_seconds", Help: "When this process last ended a round; 0: never.",
		}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "flashsale_reconcile_duration_seconds", Help: "Time of a round over all items.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
		}),
	}
	a.registry.MustRegister(m.drift, m.items, m.failed, m.repairs, m.last, m.took)
	for _, kind := range order.DriftKinds {
		m.repairs.WithLabelValues(string(kind))
	}
	m.clear()
	return m
}

// clear forgets what the last round has found.
func (m *reconcileMetrics) clear() {
	for _, kind := range order.DriftKinds {
		m.drift.WithLabelValues(string(kind)).Set(0)
	}
	m.items.Set(0)
	m.failed.Set(0)
}

func (m *reconcileMetrics) observe(r *order.ReconcileReport) {
	units := make(map[order.DriftKind]int64)
	items := 0
	for i := range r.Items {
		differs := false
		for _, d := range r.Items[i].Drifts {
			if d.Repaired {
				continue
			}
			differs = true
			// A version has no units, and a record may be wrong by none.
			units[d.Kind] += max(d.Units, 1)
		}
		if differs {
			items++
		}
	}
	for _, kind := range order.DriftKinds {
		m.drift.WithLabelValues(string(kind)).Set(float64(units[kind]))
	}
	m.items.Set(float64(items))
	m.failed.Set(float64(r.Failed))
	m.last.SetToCurrentTime()
	m.took.Observe(r.Took.Seconds())
}
