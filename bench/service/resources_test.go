package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestFootprint_Minus(t *testing.T) {
	t.Parallel()
	before := footprint{redis: 1000, log: 50, database: 4096}
	after := footprint{redis: 3000, log: 150, database: 8192}
	if got, want := after.minus(before, 10), (footprint{redis: 200, log: 10, database: 409.6}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestMeasureMemory(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureMemory(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	// So few orders may need no further page or block, so the values are not checked.
	for _, name := range []string{"in the queue", "order committed", "accepted and committed", "database file", "checkpoints"} {
		if !strings.Contains(out.String(), name) {
			t.Errorf("no row %q in\n%s", name, out.String())
		}
	}
}

func TestMeasureIdle(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureIdle(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"idle_cpu_api", "idle_cpu_worker", "idle_cpu_redis"} {
		if v := figure(t, out.String(), name); v < 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
}
