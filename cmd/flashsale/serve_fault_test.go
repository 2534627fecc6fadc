//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// TestServe_Killed kills the all-in-one process twice during a burst and restarts it in the
// same place. The embedded engine has lost its data each time; the database has every order
// that was answered 201.
func TestServe_Killed(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	const buyers, stock = 600, 400
	p := s.serve(noLimit...)
	item := s.newItem(dial(t, p), stock, 1)
	told := make([]string, buyers) // the order in each buyer's answer
	var done []purchase
	for round := range 2 {
		c := dial(t, p)
		first := burst(buyers, 32, 80+80*round, func(i int) purchase {
			return c.buy(item, fmt.Sprintf("u%d", i), "k")
		}, p.Kill)
		done = append(done, accepted(first)...)
		cut := 0
		for i, f := range first {
			switch {
			case f.err != nil:
				cut++
			case f.Status == 202:
				t.Errorf("%s was answered 202 on an engine that is not durable", f.user)
			case f.Status == 201 && told[i] == "":
				told[i] = f.Order.ID
			case f.Status == 201 && told[i] != f.Order.ID:
				t.Errorf("%s has order %s, and the same key got %s", f.user, told[i], f.Order.ID)
			}
		}
		if strings.Contains(p.Log(), "lost its data") {
			t.Errorf("a start of the embedded engine is reported as a loss:\n%s", p.Log())
		}
		if cut == 0 {
			t.Fatal("the process was killed after the burst; nothing was cut off")
		}
		rows := make(map[string]bool)
		for _, r := range s.rows(item) {
			rows[r.ID] = true
		}
		for i, id := range told {
			if id != "" && !rows[id] {
				t.Errorf("u%d was answered 201 with order %s, which is missing", i, id)
			}
		}
		p = process.Start(t, p.Spec())
	}
	c := dial(t, p)
	last := stream(buyers, 32, func(i int) purchase { return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k")) })
	only(t, last, "201", "409 sold_out")
	for i, l := range last {
		if told[i] != "" && (l.Order.ID != told[i] || !l.replayed()) {
			t.Errorf("u%d has order %s; the same key got %s %s, replayed %v", i, told[i], l.verdict(), l.Order.ID, l.replayed())
		}
	}
	if rows := s.audit(c, item, 1, append(done, accepted(last)...)); len(rows) != stock {
		t.Errorf("%d rows, want %d", len(rows), stock)
	}
	if left := s.ledger(c, item).Left; left != 0 {
		t.Errorf("%d left unsold", left)
	}
}
