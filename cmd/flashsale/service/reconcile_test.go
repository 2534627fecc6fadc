//go:build unix

package service

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/testing/await"
)

// A process that begins to lead the reconciliation does not look overdue until its first round.
func TestReconcile_NotOverdueBeforeTheFirstRound(t *testing.T) {
	t.Parallel()
	s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
		"--data-dir="+t.TempDir(), "--reconcile-every=24h")
	if err != nil {
		t.Fatal(err)
	}
	h := &tracedHost{skewedHost: &skewedHost{t: t, registry: prometheus.NewRegistry()}}
	h.start(&env{settings: s, role: Serve, registry: h.registry})
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
