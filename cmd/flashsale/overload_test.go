//go:build unix

package main_test

import (
	"fmt"
	"strconv"
	"testing"

	"flashsale/internal/testing/redistest"
)

// TestOverload_LateQueueAnswersWithoutAWait blocks the commits until the oldest order is late:
// then no purchase waits for its commit, and all are accepted as long as the queue has
// capacity. Once the database is back, purchases wait again.
func TestOverload_LateQueueAnswersWithoutAWait(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t))
	s.worker()
	c := dial(t, s.api(append(noLimit, "--queue-age", "1s")...))
	item := s.newItem(c, 1000, 1)
	unlock := s.lockDatabase()
	// The worker leases as many as it can; the others wait in the queue.
	got := crowd(600, func(i int) purchase {
		return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "respond-async"))
	})
	only(t, got, "202")
	next := 0
	eventually(t, "purchases do not wait", soon, func() (bool, any) {
		next++
		p := c.buy(item, fmt.Sprintf("w%d", next), "k", "Prefer", "wait=1")
		got = append(got, p)
		return p.Status == 202 && p.Header["Preference-Applied"] == "", p.verdict()
	})
	unlock()
	eventually(t, "purchases wait again", soon, func() (bool, any) {
		next++
		p := c.buy(item, fmt.Sprintf("w%d", next), "k", untilCommitted...)
		got = append(got, p)
		return p.Status == 201, p.verdict()
	})
	for i, p := range got {
		got[i] = c.settle(item, p)
	}
	only(t, got, "201", "202")
	s.audit(c, item, 1, got)
}

// TestOverload_FullQueueRefuses fills the queue while no worker runs: purchases are refused
// early, with a Retry-After that accounts for the missing worker, and accepted again
// automatically once there is capacity.
func TestOverload_FullQueueRefuses(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t))
	const room = 50
	c := dial(t, s.api(append(noLimit, "--queue-limit", strconv.Itoa(room))...)) // without a worker
	item := s.newItem(c, 1000, 1)
	got := crowd(room, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "respond-async") })
	only(t, got, "202")
	eventually(t, "purchases are refused", soon, func() (bool, any) {
		p := c.buy(item, "late", "k", "Prefer", "respond-async")
		after, err := strconv.Atoi(p.Header["Retry-After"])
		return err == nil && after >= 10 && p.verdict() == "503 overloaded" && waits(p.answer), p.Body
	})
	s.worker("--queue-limit", strconv.Itoa(room))
	late := c.settle(item, c.buy(item, "late", "k", "Prefer", "respond-async"))
	only(t, []purchase{late}, "201", "202")
	if rows := s.audit(c, item, 1, append(got, late)); len(rows) != room+1 {
		t.Errorf("%d rows, want %d", len(rows), room+1)
	}
}
