package main

import (
	"bytes"
	"testing"
)

// TestMeasureEnded runs with a few orders: their sales leave Redis, and no purchase loads them
// again. The memory is too small to be measured.
func TestMeasureEnded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureEnded(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if n := figure(t, out.String(), "ended_keys_loaded"); n != 0 {
		t.Errorf("%g keys of ended sales are in Redis\n%s", n, out.String())
	}
	figure(t, out.String(), "ended_memory_left")
	figure(t, out.String(), "ended_slow_commands")
}
