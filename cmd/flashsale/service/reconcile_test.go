//go:build unix

package service

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/testing/await"
	"flashsale/order/reconcile"
)

// The metric counts items, also those whose stock is divided.
func TestReconcileMetrics_Observe_Buckets(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := newReconcileMetrics(registry, false)
	off := []reconcile.Drift{{Kind: reconcile.DriftLeft, Units: 2}}
	m.observe(&reconcile.Report{Items: []reconcile.ItemReport{
		{ItemID: "drop-1", Drifts: off}, {ItemID: "drop-1.1", Drifts: off}, {ItemID: "drop-1.2", Drifts: off}, {ItemID: "drop-2", Drifts: off}, {ItemID: "drop-3"},
	}})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "flashsale_reconcile_items_differing" {
			if n := f.GetMetric()[0].GetGauge().GetValue(); n != 2 {
				t.Errorf("%v items differ, want 2", n)
			}
			return
		}
	}
	t.Error("there is no metric of differing items")
}

// A process that begins to lead the reconciliation does not look overdue until its first round.
func TestReconcile_NotOverdueBeforeTheFirstRound(t *testing.T) {
	t.Parallel()
	s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
		"--data-dir="+t.TempDir(), "--reconcile-every=24h")
	if err != nil {
		t.Fatal(err)
	}
	h := &tracedHost{skewedHost: &skewedHost{t: t}}
	h.start(&env{settings: s, role: Serve})
	await.True(t, "the time of the last round", func() bool {
		families, err := h.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "flashsale_reconcile_last_run_timestamp_seconds" {
				return f.GetMetric()[0].GetGauge().GetValue() > 0
			}
		}
		return false
	})
}
