//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/redistest"
)

// TestDatabase_LockedOnlyDelaysCommits holds the database's write lock during a sale. On a
// durable Redis purchases are answered 202. The embedded engine is not durable, so there they
// wait. No request fails, and after the lock is released every order is confirmed.
func TestDatabase_LockedOnlyDelaysCommits(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 30, 1)
		before := c.buy(item, "before", "k", untilCommitted...)
		only(t, []purchase{before}, "201")
		unlock := s.lockDatabase()
		held := lasting(t, 3*time.Second)
		answers := make(chan []purchase, 1)
		go func() {
			answers <- crowd(20, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k") })
		}()
		eventually(t, "the orders are taken", soon, func() (bool, any) {
			l := s.ledger(c, item)
			return l.Left == 9 && l.Held == 20, l
		})
		var got []purchase
		if s.server != nil {
			got = <-answers // each waits 2 s for its commit
			only(t, got, "202")
			for _, p := range got {
				if r := c.get(p.Header["Location"], p.user); r.Status != 200 || r.Order.Status != "queued" {
					t.Errorf("while it waits, order %s is %s %s", p.Order.ID, r.verdict(), r.Order.Status)
				}
			}
		}
		if p := c.buy(item, "before", "k"); p.verdict() != "201" || p.Order.ID != before.Order.ID {
			t.Errorf("a repeat of a committed order: %s %s", p.verdict(), p.Order.ID)
		}
		if r := c.get("/v1/orders", "before"); r.Status != 200 {
			t.Errorf("the list of orders: %s", r.verdict())
		}
		s.unready(c, "database")
		<-held
		unlock()
		if s.server == nil {
			got = <-answers
			only(t, got, "201")
		}
		for _, p := range got {
			eventually(t, "the order is confirmed", soon, func() (bool, any) {
				r := c.get("/v1/orders/"+p.Order.ID, p.user)
				return r.Order.Status == "confirmed", r.Body
			})
		}
		if rows := s.audit(c, item, 1, append(got, before)); len(rows) != 21 {
			t.Errorf("%d rows, want 21", len(rows))
		}
	})
}

// TestDatabase_LockedRefusesTheFirstAfterALull locks the database of the embedded engine, and
// buyers return after a pause without purchases: the first of them is refused at once, instead
// of waiting in vain behind an order older than --queue-age.
func TestDatabase_LockedRefusesTheFirstAfterALull(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	c := dial(t, s.serve(append(noLimit, "--queue-age", "300ms")...))
	item := s.newItem(c, 30, 1)
	unlock := s.lockDatabase()
	first := make(chan purchase, 1)
	go func() { first <- c.buy(item, "first", "k") }()
	eventually(t, "the first order waits", soon, func() (bool, any) {
		l := s.ledger(c, item)
		return l.Held == 1, l
	})
	<-lasting(t, 3*time.Second) // the lull; the queue is polled for two seconds without buyers
	only(t, []purchase{c.buy(item, "second", "k", "Prefer", "wait=1")}, "503 overloaded")
	unlock()
	got := []purchase{<-first}
	only(t, got, "201")
	got = append(got, c.settle(item, c.buy(item, "third", "k")))
	only(t, got, "201")
	s.audit(c, item, 1, got)
}

// TestDatabase_LockedForLongAnswers503 holds the lock for longer than the statement timeout.
// Requests that need the lock get 503, and none gets an internal error.
func TestDatabase_LockedForLongAnswers503(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 30, 1)
		unlock := s.lockDatabase()
		create := make(chan answer, 1)
		go func() {
			a, err := c.do("POST", "/v1/admin/items", c.token("root", auth.RoleAdmin),
				`{"id":"meanwhile","name":"n","price_minor":1,"currency":"EUR","stock":3}`, "Content-Type", "application/json")
			if err != nil {
				a.Body = err.Error()
			}
			create <- a
		}()
		got := crowd(20, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k") })
		// If the embedded engine could not commit an order in time, its outcome is unknown, and
		// the answer says so.
		only(t, got, "201", "202", "503 unavailable")
		made := <-create
		if !slices.Contains([]string{"503 unavailable", "503 overloaded"}, made.verdict()) || !waits(made) {
			t.Errorf("creating an item while the database is locked: %s, Retry-After %q: %s", made.verdict(), made.Header["Retry-After"], made.Body)
		}
		unlock()
		for i, p := range got {
			got[i] = c.settle(item, p)
		}
		only(t, got, "201", "202")
		if rows := s.audit(c, item, 1, got); len(rows) != 20 {
			t.Errorf("%d rows, want 20", len(rows))
		}
	})
}

// TestDatabase_LockedFullQueueRefuses lets the queue fill up while the database cannot be
// written to: purchases beyond the limit are definitively refused. After the lock is released,
// all accepted orders are confirmed and purchases are accepted again.
func TestDatabase_LockedFullQueueRefuses(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t))
	const room = 10
	s.worker("--queue-limit", strconv.Itoa(room))
	c := dial(t, s.api(append(noLimit, "--queue-limit", strconv.Itoa(room))...))
	item := s.newItem(c, 100, 1)
	unlock := s.lockDatabase()
	got := crowd(40, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "respond-async") })
	only(t, got, "202", "503 overloaded")
	if n := len(accepted(got)); n != room {
		t.Errorf("%d orders were accepted, want %d", n, room)
	}
	for _, p := range got {
		if p.Status == 503 && !waits(p.answer) {
			t.Errorf("a 503 without Retry-After: %s", p.Body)
		}
	}
	if l := s.ledger(c, item); l.Held != room || l.Left != 100-room {
		t.Errorf("while the queue is full: %+v", l)
	}
	unlock()
	for i, p := range got {
		got[i] = c.settle(item, p)
	}
	only(t, got, "201", "202")
	if rows := s.audit(c, item, 1, got); len(rows) != 40 {
		t.Errorf("%d rows, want 40", len(rows))
	}
}
