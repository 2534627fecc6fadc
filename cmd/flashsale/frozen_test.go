//go:build unix

package main_test

import (
	"fmt"
	"testing"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// TestRedis_FrozenSaleRecovers pauses Redis without closing a connection, like a half-open
// link: connections are accepted, but no command is answered. Every route answers without Redis
// or with 503, and purchases are definitively refused once the outage is detected. The sale
// continues when Redis does.
func TestRedis_FrozenSaleRecovers(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t))
	s.worker(lease(shortLease)...)
	c := dial(t, s.api(noLimit...))
	item := s.newItem(c, 100, 1)
	known := c.buy(item, "known", "k", untilCommitted...)
	only(t, []purchase{known}, "201")
	if err := s.server.Pause(); err != nil {
		t.Fatal(err)
	}
	var got []purchase
	for round := range 3 {
		got = append(got, crowd(20, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d-%d", round, i), "k") })...)
	}
	outage(t, c, item, known)
	only(t, got, "503 unavailable", "503 overloaded")
	if err := s.server.Continue(); err != nil {
		t.Fatal(err)
	}
	for i, p := range got {
		got[i] = c.settle(item, p)
	}
	only(t, got, "201", "202")
	if rows := s.audit(c, item, 1, append(got, known)); len(rows) != 61 {
		t.Errorf("%d rows, want 61", len(rows))
	}
}

// TestRedis_FrozenDoesNotBlockTheStop stops processes whose Redis does not answer: their waits
// are bounded, so they exit.
func TestRedis_FrozenDoesNotBlockTheStop(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t))
	worker := s.worker("--drain", "2s")
	api := s.api(append(noLimit, "--drain", "2s")...)
	c := dial(t, api)
	item := s.newItem(c, 100, 1)
	only(t, []purchase{c.buy(item, "known", "k", untilCommitted...)}, "201")
	if err := s.server.Pause(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process.P{api, worker} {
		// If leases or locks could not be returned, the exit code is 1.
		if code := p.Stop(); code != 0 && code != 1 {
			t.Errorf("with Redis frozen the exit code is %d:\n%s", code, p.Log())
		}
	}
}
