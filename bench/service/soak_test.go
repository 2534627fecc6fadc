package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestParseSoak_Bounds(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-duration 2h", "-duration 30s", "-interval 10ms", "-orders -1", "-orders 5 -sales 6", "-sales 0", "-connections 0"} {
		if o, err := parseSoak(strings.Fields(args)); err == nil {
			t.Errorf("%s is accepted as %+v", args, o)
		}
	}
	if o, err := parseSoak(nil); err != nil || o.duration != 7*time.Minute || o.connections != 96 || o.orders != 0 {
		t.Errorf("defaults %+v, %v", o, err)
	}
}

func TestSoak(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := tiny(t, &out)
	o := soakOptions{duration: 2 * time.Second, interval: time.Second, orders: 60, sales: 3, connections: 4, settings: "--reconcile-every 1s"}
	if err := s.soak(t.Context(), o); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, name := range []string{"soak_rate", "soak_p99_spike", "soak_kb_per_order"} {
		figure(t, out.String(), name) // a busy machine may commit nothing in a second
	}
	for _, name := range []string{"soak_api_mb", "soak_wal_mb"} {
		if figure(t, out.String(), name) <= 0 {
			t.Errorf("%s is not positive in\n%s", name, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 1+1+2+3+5 {
		t.Errorf("%d lines; want a heading, the table of two rows, three lines of summary and five figures:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "60 orders in 3 past sales") {
		t.Errorf("no history in\n%s", out.String())
	}
}
