package main

import (
	"bytes"
	"testing"
)

// TestMeasureEnded measures a few orders: their sales leave Redis, and no purchase
// brings them back. So little memory is no measure.
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
