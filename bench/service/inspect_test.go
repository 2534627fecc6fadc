package main

import (
	"bytes"
	"testing"
)

// TestMeasureInspect: all inspections are measured without and with queued orders.
func TestMeasureInspect(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := tiny(t, &out)
	if err := s.inspect(t.Context(), 20, 0, 2); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if err := s.inspect(t.Context(), 20, 30, 2); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{
		"ledger_blocks_20_ms", "reconcile_blocks_20_ms", "deep_reconcile_blocks_20_ms", "dashboard_blocks_20_ms", "erasure_blocks_20_ms", "reconcile_cpu_20_percent",
		"ledger_blocks_20_30_queued_ms", "reconcile_blocks_20_30_queued_ms", "deep_reconcile_blocks_20_30_queued_ms", "dashboard_blocks_20_30_queued_ms",
		"erasure_blocks_20_30_queued_ms",
	} {
		if v := figure(t, out.String(), name); v < 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
}
