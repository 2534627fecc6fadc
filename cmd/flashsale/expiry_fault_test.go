//go:build unix

package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"flashsale/inventory"
)

// expiring opens a sale whose unpaid orders expire after one second.
func (s *shop) expiring(c *client, stock int64) string {
	s.t.Helper()
	id := "expiring"
	a := c.admin("POST", "/v1/admin/items", map[string]any{
		"id": id, "name": "Thing", "description": "d", "price_minor": 990, "currency": "EUR",
		"stock": stock, "per_user_limit": 1, "payment_window_seconds": 1,
	})
	if a.Status != 201 {
		s.t.Fatalf("create item: %d %s", a.Status, a.Body)
	}
	return id
}

// pendingReleases is the number of expired orders whose units have not been released in Redis yet.
func (s *shop) pendingReleases() int {
	s.t.Helper()
	var n int
	if err := s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM releases").Scan(&n); err != nil {
		s.t.Fatalf("read releases: %v", err)
	}
	return n
}

// left is the stock left in Redis, read directly, because reading the ledger would repair it.
func (s *shop) left(item string) int {
	s.t.Helper()
	v, err := s.rdb.HGet(s.t.Context(), strings.TrimSuffix(inventory.QueuePrefix(0, 1), "q:orders:")+"sale:"+item, "left").Result()
	if err != nil {
		s.t.Fatalf("read stock: %v", err)
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatalf("read stock: %v", err)
	}
	return n
}

// TestWorker_KilledInExpiry kills a worker between the commit of an expiry and the return of
// its units, and between that and its record. Another worker gets the task again; the units
// return once, and can be bought.
func TestWorker_KilledInExpiry(t *testing.T) {
	needProcesses(t)
	for _, fault := range []string{"order.closed", "order.released"} {
		t.Run(fault, func(t *testing.T) {
			const stock = 30
			s := newRedisShop(t)
			c := dial(t, s.api(noLimit...))
			item := s.expiring(c, stock)
			doomed := s.faulty(fault, "worker", lease(shortLease)...)
			got := crowd(stock, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k", "Prefer", "wait=10") })
			only(t, got, "201", "202")
			struck(t, doomed)
			if back := s.left(item); s.pendingReleases() == 0 || (back > 0) != (fault == "order.released") {
				t.Fatalf("the worker died elsewhere: %d pending, %d left", s.pendingReleases(), back)
			}
			s.worker(lease(shortLease)...)
			eventually(t, "another worker takes over", soon, func() (bool, any) {
				st := s.stats()
				return st.Ready+st.Leased+st.Delayed == 0 && s.pendingReleases() == 0, st
			})
			for _, r := range s.rows(item) {
				if r.Status != "expired" {
					t.Errorf("order %+v", r)
				}
			}
			if n := s.left(item); n != stock || s.sold(item) != 0 || s.stats().Dead != 0 {
				t.Errorf("%d left, %d sold, queue %+v, want %d left", n, s.sold(item), s.stats(), stock)
			}
			// The same buyers may buy again: expired orders do not count towards their limit. Their
			// orders do not expire while the others buy, however slow the machine is.
			if a := c.insist("PATCH", "/v1/admin/items/"+item, map[string]any{"payment_window_seconds": 3600}, "If-Match", "*"); a.Status != 200 {
				t.Fatalf("change item: %d %s", a.Status, a.Body)
			}
			again := crowd(stock+5, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k2", "Prefer", "respond-async") })
			if n := count(again); n["202"] != stock || n["409 sold_out"] != 5 {
				t.Errorf("bought again: %v", n)
			}
			if l := s.ledger(c, item); l.Left+l.Held != stock {
				t.Errorf("ledger %+v", l)
			}
		})
	}
}
