package ops

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// The metric has each required part once, and is 0 for those that fail.
func TestNew_ReadyMetric(t *testing.T) {
	t.Parallel()
	works := func(context.Context) error { return nil }
	fails := func(context.Context) error { return errors.New("no answer from 10.0.0.1") }
	registry := prometheus.NewRegistry()
	New(registry, Config{Registerer: registry, Ready: []Check{
		{Name: "redis", Probe: fails}, {Name: "database", Probe: works},
		{Name: "database", Probe: fails, Degrades: "older"}, {Name: "sales", Probe: fails, Degrades: "older"},
	}})
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "flashsale_ready" {
		t.Fatalf("%v, %v", families, err)
	}
	got := make(map[string]float64)
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if want := map[string]float64{"redis": 0, "database": 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
