//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"testing"
)

// noLimit disables the buyers' rate limit, for tests of other behaviour.
var noLimit = []string{"--rate-buyer", "-1"}

// TestCrowd_TenUnitsAreSoldExactly sells ten units to a thousand concurrent buyers.
func TestCrowd_TenUnitsAreSoldExactly(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 10, 1)
		got := crowd(1000, func(i int) purchase { return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k")) })
		only(t, got, "201", "202", "409 sold_out")
		winners := accepted(got)
		if len(winners) != 10 {
			t.Fatalf("10 units, 1,000 buyers: %d winners", len(winners))
		}
		want := make([]string, 0, len(winners))
		for _, w := range winners {
			want = append(want, w.Order.ID)
		}
		slices.Sort(want)
		if rows := ids(s.audit(c, item, 1, winners)); !slices.Equal(rows, want) {
			t.Errorf("rows %v, winners %v", rows, want)
		}
	})
}

// TestCrowd_OneBuyerGetsOneOrder sends a thousand concurrent purchases of one buyer, each with
// a new key: one order. The other nine units stay available.
func TestCrowd_OneBuyerGetsOneOrder(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 10, 1)
		got := crowd(1000, func(i int) purchase { return c.settle(item, c.buy(item, "greedy", fmt.Sprintf("k%d", i))) })
		only(t, got, "201", "202", "409 user_limit")
		if n := len(accepted(got)); n != 1 {
			t.Fatalf("limit 1, one buyer, 1,000 requests at once: %d orders", n)
		}
		others := crowd(9, func(i int) purchase { return c.buy(item, fmt.Sprintf("u%d", i), "k") })
		only(t, others, "201", "202")
		late := c.buy(item, "late", "k")
		if late.verdict() != "409 sold_out" {
			t.Errorf("the eleventh got %s", late.verdict())
		}
		if rows := s.audit(c, item, 1, slices.Concat(accepted(got), others)); len(rows) != 10 {
			t.Errorf("%d rows, want 10", len(rows))
		}
	})
}

// TestCrowd_OneKeyMakesOneOrder sends one purchase fifty times concurrently: all answers have
// the same order, and all but the first are marked as replays.
func TestCrowd_OneKeyMakesOneOrder(t *testing.T) {
	needProcesses(t)
	engines(t, noLimit, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 10, 5)
		got := crowd(50, func(int) purchase { return c.buyMany(item, "alice", "the-key", 2) })
		only(t, got, "201", "202")
		first := 0
		for _, p := range got {
			if p.Order.ID != got[0].Order.ID || p.Order.Quantity != 2 {
				t.Errorf("one key, two orders: %s of %d and %s of %d", got[0].Order.ID, got[0].Order.Quantity, p.Order.ID, p.Order.Quantity)
			}
			if !p.replayed() {
				first++
			}
		}
		if first != 1 {
			t.Errorf("%d of 50 answers say that they are no replay; only one made the order", first)
		}
		again := c.buyMany(item, "alice", "the-key", 2, untilCommitted...)
		if again.verdict() != "201" || !again.replayed() || again.Order.ID != got[0].Order.ID {
			t.Errorf("a later repeat: %s, replayed %v, order %s", again.verdict(), again.replayed(), again.Order.ID)
		}
		if other := c.buyMany(item, "alice", "the-key", 1); other.verdict() != "422 idempotency_key_reused" {
			t.Errorf("the same key with another quantity: %s", other.verdict())
		}
		if bob := c.buyMany(item, "bob", "the-key", 2, untilCommitted...); bob.Status != 201 || bob.Order.ID == got[0].Order.ID {
			t.Errorf("another buyer's same key: %s, order %s", bob.verdict(), bob.Order.ID)
		}
		if rows := s.audit(c, item, 5, got); len(rows) != 2 {
			t.Errorf("%d rows, want 2", len(rows))
		}
	})
}

// twoAPIs starts two API processes and one worker.
func twoAPIs(t *testing.T) (s *shop, a, b *client) {
	t.Helper()
	s = newRedisShop(t)
	s.worker()
	return s, dial(t, s.api(noLimit...)), dial(t, s.api(noLimit...))
}

// TestTwoAPIs_SellTheStockExactly sells one item through two API processes to more buyers than
// units.
func TestTwoAPIs_SellTheStockExactly(t *testing.T) {
	needProcesses(t)
	s, a, b := twoAPIs(t)
	item := s.newItem(a, 300, 1)
	got := crowd(600, func(i int) purchase {
		c := []*client{a, b}[i%2]
		return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k"))
	})
	only(t, got, "201", "202", "409 sold_out")
	if n := len(accepted(got)); n != 300 {
		t.Errorf("300 units: %d winners", n)
	}
	if rows := s.audit(b, item, 1, accepted(got)); len(rows) != 300 {
		t.Errorf("%d rows, want 300", len(rows))
	}
}

// TestTwoAPIs_EachGetsItsNotices buys at both: each process receives notices of its own
// commits, and orders of one can be read at the other. A 201 needs the worker's notice; without
// it a request answers 202 at the end of its wait.
func TestTwoAPIs_EachGetsItsNotices(t *testing.T) {
	needProcesses(t)
	s, a, b := twoAPIs(t)
	item := s.newItem(a, 40, 1)
	got := crowd(40, func(i int) purchase {
		return []*client{a, b}[i%2].buy(item, fmt.Sprintf("u%d", i), "k", untilCommitted...)
	})
	only(t, got, "201")
	for i, p := range got {
		other := []*client{b, a}[i%2]
		if r := other.get("/v1/orders/"+p.Order.ID, p.user); r.Status != 200 || r.Order.Status != "confirmed" {
			t.Fatalf("order %s at the other process: %s %s", p.Order.ID, r.verdict(), r.Order.Status)
		}
	}
	s.audit(a, item, 1, got)
}

// TestTwoAPIs_OneKeyMakesOneOrder sends one key to both concurrently.
func TestTwoAPIs_OneKeyMakesOneOrder(t *testing.T) {
	needProcesses(t)
	s, a, b := twoAPIs(t)
	item := s.newItem(a, 10, 1)
	got := crowd(40, func(i int) purchase { return []*client{a, b}[i%2].buy(item, "alice", "k") })
	only(t, got, "201", "202")
	for _, p := range got {
		if p.Order.ID != got[0].Order.ID {
			t.Errorf("one key, two orders: %s, %s", got[0].Order.ID, p.Order.ID)
		}
	}
	if rows := s.audit(a, item, 1, got); len(rows) != 1 {
		t.Errorf("%d rows, want 1", len(rows))
	}
}

// TestTwoAPIs_NewItemCanBeBoughtAtOnce creates items at one process and immediately buys them
// at the other, including one that the other process has just cached as unknown.
func TestTwoAPIs_NewItemCanBeBoughtAtOnce(t *testing.T) {
	needProcesses(t)
	s, a, b := twoAPIs(t)
	for i := range 10 {
		from, at := a, b
		if i%2 == 1 {
			from, at = b, a
		}
		item := s.newItem(from, 1, 1)
		if p := at.buy(item, "alice", "k", untilCommitted...); p.verdict() != "201" {
			t.Fatalf("item created at one process, bought at the other: %s", p.verdict())
		}
	}
	// An unknown item is cached for a bounded time.
	const item = "later-item"
	if p := b.buy(item, "alice", "k"); p.verdict() != "404 item_not_found" {
		t.Fatalf("an item that is not there: %s", p.verdict())
	}
	r := a.admin("POST", "/v1/admin/items", map[string]any{"id": item, "name": "n", "price_minor": 1, "currency": "EUR", "stock": 1})
	if r.Status != 201 {
		t.Fatalf("create item: %d %s", r.Status, r.Body)
	}
	eventually(t, "the other process learns of the item", soon, func() (bool, any) {
		p := b.buy(item, "alice", "k")
		return p.verdict() == "201", p.verdict()
	})
}
