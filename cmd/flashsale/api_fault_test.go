//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/internal/testing/process"
)

// TestAPI_KilledAfterScript kills the API between the purchase script and the answer: the order
// is made, and a repeat with the same key gets it.
func TestAPI_KilledAfterScript(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	doomed := s.faulty("inventory.sent:1", "api", noLimit...)
	c := dial(t, doomed)
	item := s.newItem(c, 5, 1)
	lost := c.buy(item, "alice", "k")
	if lost.err == nil {
		t.Fatalf("the API answered before it died: %s", lost.verdict())
	}
	struck(t, doomed)
	s.worker() // an earlier worker might commit while the API is being killed, so that the API answers
	var rows []orderRow
	eventually(t, "the order becomes a row without any API", soon, func() (bool, any) {
		rows = s.rows(item)
		return len(rows) == 1, rows
	})
	fresh := dial(t, s.api(noLimit...))
	again := fresh.settle(item, fresh.buy(item, "alice", "k"))
	if again.verdict() != "201" || !again.replayed() || again.Order.ID != rows[0].ID {
		t.Errorf("the same key got %s, replayed %v, order %s; the row is %s", again.verdict(), again.replayed(), again.Order.ID, rows[0].ID)
	}
	if p := fresh.buy(item, "alice", "k2"); p.verdict() != "409 user_limit" {
		t.Errorf("a second purchase of the same buyer: %s", p.verdict())
	}
	if left := s.ledger(fresh, item).Left; left != 4 {
		t.Errorf("%d left, want 4", left)
	}
	s.audit(fresh, item, 1, []purchase{again})
}

// TestAPI_KilledBeforeScript kills the API before the purchase script: nothing has happened,
// and the repeat makes the only order.
func TestAPI_KilledBeforeScript(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	doomed := s.faulty("inventory.send:1", "api", noLimit...)
	c := dial(t, doomed)
	item := s.newItem(c, 5, 1)
	if lost := c.buy(item, "alice", "k"); lost.err == nil {
		t.Fatalf("the API answered before it died: %s", lost.verdict())
	}
	struck(t, doomed)
	if st := s.stats(); st.Ready+st.Delayed+st.Leased+st.Dead != 0 {
		t.Errorf("something was enqueued: %+v", st)
	}
	fresh := dial(t, s.api(noLimit...))
	if l := s.ledger(fresh, item); l.Left != 5 || l.Held != 0 || l.Sold != 0 {
		t.Errorf("something was taken: %+v", l)
	}
	again := fresh.settle(item, fresh.buy(item, "alice", "k", untilCommitted...))
	if again.verdict() != "201" || again.replayed() {
		t.Errorf("the repeat: %s, replayed %v", again.verdict(), again.replayed())
	}
	if rows := s.audit(fresh, item, 1, []purchase{again}); len(rows) != 1 {
		t.Errorf("%d rows, want 1", len(rows))
	}
}

// TestAPI_KilledInBurst kills one of two API processes during a sale, immediately after one of
// its scripts. Every buyer then repeats at the other.
func TestAPI_KilledInBurst(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	doomed := s.faulty("inventory.sent:4", "api", noLimit...)
	a, b := dial(t, doomed), dial(t, s.api(noLimit...))
	item := s.newItem(b, 300, 1)
	first := stream(400, 64, func(i int) purchase {
		return []*client{a, b}[i%2].buy(item, fmt.Sprintf("u%d", i), "k")
	})
	struck(t, doomed)
	unknown, done := 0, accepted(first)
	for _, p := range first {
		if p.err != nil {
			unknown++
		}
	}
	if unknown == 0 || len(done) == 0 {
		t.Fatalf("the fault hit no purchase: %v", count(first))
	}
	last := stream(400, 64, func(i int) purchase { return b.settle(item, b.buy(item, first[i].user, first[i].key)) })
	only(t, last, "201", "202", "409 sold_out")
	for i, p := range first {
		if p.err == nil && p.accepted() && last[i].Order.ID != p.Order.ID {
			t.Errorf("%s got %s, and for the same key then %s %s", p.user, p.Order.ID, last[i].verdict(), last[i].Order.ID)
		}
	}
	if rows := s.audit(b, item, 1, append(done, accepted(last)...)); len(rows) != 300 {
		t.Errorf("%d rows, want 300", len(rows))
	}
}

// tries bounds how often a test is repeated whose fault did not strike at the intended place.
const tries = 8

// lockLife is the time after which the lock of a silent holder expires.
const lockLife = time.Second

// stalledSale stops an API process that holds the item's lock immediately before it sends its
// script, lets another process sell, and continues the first when until returns. The sale must
// be exact, and the stalled requests must get correct answers. It returns the stalled process's
// log, and whether the process was stopped in time: a stop takes a moment to reach every
// thread, so a script may still be sent.
func stalledSale(t *testing.T, until func()) (log string, stopped bool) {
	t.Helper()
	s := newRedisShop(t)
	s.worker()
	stalled := s.faulty("inventory.send:1:stop", "api", noLimit...)
	a, b := dial(t, stalled), dial(t, s.api(noLimit...))
	item := s.newItem(b, 50, 1)
	late := make(chan []purchase, 1)
	go func() {
		late <- crowd(10, func(i int) purchase { return a.buy(item, fmt.Sprintf("late%d", i), "k") })
	}()
	eventually(t, "the process holds the lock", soon, func() (bool, any) {
		holder := s.holder(item)
		return holder != "", holder
	})
	stalled.Pause() // it has stopped itself, or is about to
	if rows, st := s.rows(item), s.stats(); len(rows) != 0 || st.Ready+st.Leased != 0 {
		t.Logf("the script was sent before the stop: %d rows, queue %+v", len(rows), st)
		stalled.Kill()
		<-late
		return "", false
	}
	first := b.settle(item, b.buy(item, "first", "k"))
	until()
	stalled.Continue()
	others := append(stream(46, 16, func(i int) purchase {
		return b.settle(item, b.buy(item, fmt.Sprintf("u%d", i), "k"))
	}), first)
	only(t, others, "201", "202", "409 sold_out")

	got := awaken(stalled, late)
	// All requests may have been refused as too late before the first script was sent. The
	// process then stops itself at one of the repeats.
	settled := make(chan struct{})
	var awake sync.WaitGroup
	awake.Go(func() { awaken(stalled, settled) })
	defer awake.Wait()
	defer close(settled)
	// A request that was unread for longer than the read timeout got 408 or was cut off, and
	// its client may repeat it like the others.
	const tooLate = "408 request_timeout"
	answered := slices.DeleteFunc(slices.Clone(got), func(p purchase) bool { return p.err != nil })
	only(t, answered, "201", "202", "409 sold_out", "503 unavailable", "503 overloaded", "503 rebuilding", tooLate)
	if n := count(answered); len(answered) == n[tooLate] {
		t.Errorf("no purchase with a delayed script was answered: %v", count(got))
	}
	for i, p := range got {
		if p.verdict() == tooLate {
			p = a.buy(item, p.user, p.key)
		}
		got[i] = a.settle(item, p)
	}
	only(t, got, "201", "202", "409 sold_out")
	both := append(accepted(got), accepted(others)...)
	if len(both) != 50 {
		t.Errorf("50 units, 57 buyers: %d winners", len(both))
	}
	if rows := s.audit(b, item, 1, both); len(rows) != 50 {
		t.Errorf("%d rows, want 50", len(rows))
	}
	return stalled.Log(), true
}

// awaken continues a stopped process until it has answered. One attempt may not be enough: if
// the test stopped the process just before it would have stopped itself, it still stops itself
// afterwards.
func awaken[T any](p *process.P, answers <-chan T) T {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		p.Continue()
		select {
		case v := <-answers:
			return v
		case <-tick.C:
		}
	}
}

// TestAPI_StoppedBeyondLock continues the stopped process as soon as another has the lock: its
// script is in time for its clients, but too late for the sale.
func TestAPI_StoppedBeyondLock(t *testing.T) {
	needProcesses(t)
	// On a very busy machine the process may continue too late even to send its script. That
	// would test something else, so the test is repeated.
	for range tries {
		if log, _ := stalledSale(t, func() {}); strings.Contains(log, "purchase refused") {
			return
		}
	}
	t.Error("the late script was never seen to be refused")
}

// TestAPI_StoppedForLong stops the process for three lifetimes of its lock.
func TestAPI_StoppedForLong(t *testing.T) {
	needProcesses(t)
	for range tries {
		if _, stopped := stalledSale(t, func() { <-lasting(t, 3*lockLife) }); stopped {
			return
		}
	}
	t.Error("the fault never struck in time")
}
