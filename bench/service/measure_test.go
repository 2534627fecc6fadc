package main

import (
	"bytes"
	"testing"
)

// TestFigures_PrintCPU: the processor time of an accepted order is compared with that of the empty handler.
func TestFigures_PrintCPU(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	f := new(figures)
	f.printCPU(&out) // nothing was measured
	for _, us := range []float64{20, 10, 30} {
		f.spent("empty", "empty", us)
	}
	f.spent("accepted", "api", 25)
	f.spent("accepted", "redis", 8)
	f.spent("committed", "redis", 1)
	f.printCPU(&out)
	const want = "BAR accepted_cpu_api/empty 1.25 1.26 met\nBAR accepted_cpu_redis/empty 0.400 0.33 missed\n"
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
