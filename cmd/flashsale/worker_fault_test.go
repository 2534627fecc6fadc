//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/testing/process"
)

const shortLease = time.Second

// takenOver waits until no order is in progress. How soon that is, is tested in the package queue.
func takenOver(t *testing.T, s *shop) {
	t.Helper()
	eventually(t, "another worker takes over", soon, func() (bool, any) {
		st := s.stats()
		return st.Ready+st.Leased+st.Delayed == 0, st
	})
}

func lease(d time.Duration) []string { return []string{"--lease", d.String()} }

// TestWorker_KilledAfterCommit kills a worker between the commit and the acknowledgement.
// Another one gets the same orders again, finds their rows, creates no second rows, and
// notifies the waiting requests.
func TestWorker_KilledAfterCommit(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(noLimit...))
	item := s.newItem(c, 30, 1)
	doomed := s.faulty("order.committed:1", "worker", lease(shortLease)...)

	answers := make(chan []purchase, 1)
	go func() {
		answers <- crowd(30, func(i int) purchase {
			return c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...)
		})
	}()
	struck(t, doomed)
	committed := s.rows(item)
	if len(committed) == 0 || s.stats().Leased == 0 {
		t.Fatalf("the worker died elsewhere: %d rows, queue %+v", len(committed), s.stats())
	}
	s.worker(lease(shortLease)...)
	takenOver(t, s)
	got := <-answers
	only(t, got, "201", "202")
	for _, p := range got {
		if r := c.get("/v1/orders/"+p.Order.ID, p.user); r.Order.Status != "confirmed" {
			t.Errorf("order %s: %s %s", p.Order.ID, r.verdict(), r.Order.Status)
		}
	}
	// The other worker notifies the requests of orders whose notice was lost with the first.
	if n := count(got)["201"]; n == 0 {
		t.Errorf("no request was notified of a commit: %v", count(got))
	}
	if rows := s.audit(c, item, 1, got); len(rows) != 30 {
		t.Errorf("%d rows, want 30", len(rows))
	}
	if st := s.stats(); st.Dead != 0 {
		t.Errorf("a redelivery became a dead letter: %+v", st)
	}
}

// TestWorker_KilledBesideAnother kills one of two workers under load.
func TestWorker_KilledBesideAnother(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(noLimit...))
	item := s.newItem(c, 1_000_000, 1)
	s.worker(lease(shortLease)...)
	doomed := s.faulty("order.committed:3", "worker", lease(shortLease)...)
	// The load lasts until the fault has struck, because the share of each worker varies.
	limit := lasting(t, soon)
	var next atomic.Int64
	got := slices.Concat(crowd(32, func(int) []purchase {
		var mine []purchase
		for {
			i := next.Add(1)
			if i > 500 {
				select {
				case <-doomed.Done():
					return mine
				case <-limit: // the missing fault is detected below
					return mine
				default:
				}
			}
			mine = append(mine, c.buy(item, fmt.Sprintf("u%d", i), "k"))
		}
	})...)
	only(t, got, "201", "202")
	struck(t, doomed)
	takenOver(t, s)
	if rows := s.audit(c, item, 1, got); len(rows) != len(got) {
		t.Errorf("%d rows of %d purchases", len(rows), len(got))
	}
}

// TestWorker_StoppedAfterCommit stops a worker between the commit and the acknowledgement for
// longer than its lease. Another one takes over. The first then continues with expired leases.
func TestWorker_StoppedAfterCommit(t *testing.T) {
	needProcesses(t)
	for range tries {
		if stoppedAfterCommit(t) || t.Failed() {
			return
		}
	}
	t.Error("the worker was never stopped before its acknowledgement; see the log above")
}

// stoppedAfterCommit reports whether the worker was stopped in time: a stop takes a moment to reach every thread, so
// an acknowledgement may still be sent.
func stoppedAfterCommit(t *testing.T) bool {
	t.Helper()
	s := newRedisShop(t)
	c := dial(t, s.api(noLimit...))
	item := s.newItem(c, 30, 1)
	spec := s.faultySpec("order.committed:1:stop", "worker", lease(shortLease))
	spec.NoWait = true // it may stop itself before it is ready

	answers := make(chan []purchase, 1)
	go func() {
		answers <- crowd(20, func(i int) purchase {
			return c.buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...)
		})
	}()
	eventually(t, "the orders wait", soon, func() (bool, any) { st := s.stats(); return st.Leased == 0 && st.Entries == 20, st })
	// The worker fetches them in one batch. With two batches, the stop could hit the
	// transaction of the other, which would lock the database.
	stalled := process.Start(t, spec)
	eventually(t, "the worker commits", soon, func() (bool, any) { n := len(s.rows(item)); return n > 0, n })
	stalled.Pause() // it has stopped itself, or is about to; now it certainly has
	if st := s.stats(); st.Leased == 0 {
		t.Logf("the worker had acknowledged already: %+v", st)
		stalled.Continue()
		<-answers
		return false
	}
	second := s.worker(lease(shortLease)...)
	got := <-answers
	only(t, got, "201")
	takenOver(t, s)

	ops := dialAddr(t, stalled.OpsURL())
	eventually(t, "the worker continues after its commit", soon, func() (bool, any) {
		stalled.Continue() // repeatedly: it may have stopped itself after the test did
		a, err := ops.do("GET", "/metrics", "", "")
		return err == nil && strings.Contains(a.Body, "flashsale_orders_committed_total 20"), stalled.Log()
	})
	// It continues to work: as the only worker, it commits the next orders.
	if code := second.Stop(); code != 0 {
		t.Errorf("the second worker ended with %d", code)
	}
	more := crowd(10, func(i int) purchase {
		return c.buy(item, fmt.Sprintf("v%d", i), "k", untilCommitted...)
	})
	only(t, more, "201")
	if rows := s.audit(c, item, 1, append(got, more...)); len(rows) != 30 {
		t.Errorf("%d rows, want 30", len(rows))
	}
	return true
}

// TestWorker_StoppedAnywhere stops a busy worker for three lease times at a random place,
// possibly in its transaction, while another one works.
func TestWorker_StoppedAnywhere(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api(noLimit...))
	item := s.newItem(c, 500, 1)
	stalled := s.worker(lease(shortLease)...)
	var second *process.P
	got := burst(600, 32, 150, func(i int) purchase {
		return c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "respond-async")
	}, func() {
		stalled.Pause()
		second = s.worker(lease(shortLease)...)
	})
	if second == nil {
		t.Fatal("the fault never struck")
	}
	only(t, got, "201", "202", "409 sold_out")
	<-lasting(t, 3*shortLease)
	stalled.Continue()
	eventually(t, "every order is settled", soon, func() (bool, any) {
		st := s.stats()
		return st.Ready+st.Leased+st.Delayed == 0, st
	})
	if rows := s.audit(c, item, 1, accepted(got)); len(rows) != 500 {
		t.Errorf("%d rows, want 500", len(rows))
	}
}
