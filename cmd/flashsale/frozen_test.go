//go:build unix

package main_test

import (
	"fmt"
	"testing"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// TestRedis_Frozen stops Redis without closing a connection: nothing is refused and
// nothing is answered, as on a link that is half-open. Every route answers without
// it, or 503, and purchases are refused for certain once that is known. When Redis
// goes on, so does the sale.
func TestRedis_Frozen(t *testing.T) {
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

// TestRedis_FrozenShutdown asks processes to stop whose Redis does not answer: what
// they wait for has an end, and so have they.
func TestRedis_FrozenShutdown(t *testing.T) {
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
		// What could not be given back is a failure that the exit code tells of.
		if code := p.Stop(); code != 0 && code != 1 {
			t.Errorf("with Redis frozen the exit code is %d:\n%s", code, p.Log())
		}
	}
}
