package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"flashsale/bench/internal/load"
)

func TestOfferedRate_Add(t *testing.T) {
	t.Parallel()
	o := &offeredRate{seen: load.NewBought(), late: load.NewBought()}
	failed := errors.New("connection reset")
	for _, a := range []load.Answer{
		{Status: 202, Due: 999 * time.Millisecond, Sent: time.Second, Done: 3 * time.Second}, // before settle
		{Status: 202, Due: time.Second, Sent: 1010 * time.Millisecond, Done: 1050 * time.Millisecond},
		{Err: failed, Due: 2 * time.Second, Sent: 2 * time.Second, Done: 2 * time.Second},
		{Err: errors.New("the next one"), Due: 2 * time.Second, Sent: 2 * time.Second, Done: 2 * time.Second},
	} {
		o.add(&a, time.Second)
	}
	if o.seen.Codes[202] != 1 || o.seen.Latency.TotalCount() != 1 || o.seen.Quantile(99) < 49 || o.seen.Quantile(99) > 51 {
		t.Errorf("%v, p99 %.1f ms; want one answer after 50 ms", o.seen.Codes, o.seen.Quantile(99))
	}
	if late := o.late.Quantile(99); late < 9 || late > 11 {
		t.Errorf("sent %.1f ms late, want 10", late)
	}
	if !errors.Is(o.failed, failed) {
		t.Errorf("error %v, want the first one", o.failed)
	}
}

func TestMeasureLatency(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := measureLatency(t.Context(), tiny(t, &out)); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"open_loop_p99_half_peak_202_ms", "open_loop_p99_half_peak_201_ms"} {
		if v := figure(t, out.String(), name); !(v > 0) {
			t.Errorf("%s is %v", name, v)
		}
	}
	for _, part := range []string{" closed ", " 25% ", " 50% ", " 75% ", " 90% "} {
		if n := strings.Count(out.String(), part); n != len(latencyKinds) {
			t.Errorf("%d rows of %q, want one for each answer:\n%s", n, part, out.String())
		}
	}
}
