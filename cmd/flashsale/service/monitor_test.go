package service

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/internal/registry"
	"flashsale/internal/testing/redistest"
	"flashsale/order/worker"
)

// A worker is alive as long as it makes progress, even if that is an error, and ready once it
// has fetched.
func TestPulse_AliveOnProgressReadyOnFetch(t *testing.T) {
	t.Parallel()
	workers, err := registry.New(redistest.Embedded(t), registry.Config{Key: "workers"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &pulse{entry: workers.Register("host", ""), now: func() time.Time { return now }}
	if err := p.alive(); err != nil {
		t.Errorf("before it begins: %v", err)
	}
	reports := 0
	fails := p.failing(func(error) { reports++ })
	for name, sign := range map[string]func(){
		"start": p.move, "a fetch that failed": func() { p.fetched(errors.New("away"), false) }, "a commit": p.commit,
		"a commit that failed": func() { fails(errors.New("locked")) },
	} {
		sign()
		now = now.Add(stuckAfter)
		if err := p.alive(); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
		now = now.Add(time.Second)
		if p.alive() == nil {
			t.Errorf("long after %s it counts as alive", name)
		}
	}
	if reports != 1 {
		t.Errorf("%d errors were reported, want 1", reports)
	}
	if p.ready() == nil {
		t.Error("it is ready although no fetch has succeeded")
	}
	p.fetched(nil, true)
	if p.ready() == nil {
		t.Error("it is ready although it fails to commit")
	}
	p.fetched(nil, false)
	if err := p.ready(); err != nil {
		t.Errorf("after a fetch: %v", err)
	}
}

// Before the first poll, and while Redis is unavailable, only the metric for an unknown backlog
// is exported.
func TestBacklogCollector_OmitsUnknownValues(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(newBacklogCollector(worker.NewMonitor(worker.MonitorConfig{})))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "flashsale_queue_metrics_up" || families[0].GetMetric()[0].GetGauge().GetValue() != 0 {
		t.Errorf("exported %v", families)
	}
}
