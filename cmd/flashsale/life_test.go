//go:build unix

package main_test

import (
	"strconv"
	"testing"

	"github.com/google/uuid"

	"flashsale/handler/auth"
)

// newHeldItem opens a sale whose orders must be paid within window seconds.
func (s *shop) newHeldItem(c *client, stock, window int64) string {
	s.t.Helper()
	id := "it-" + uuid.NewString()[:8]
	a := c.admin("POST", "/v1/admin/items", map[string]any{
		"id": id, "name": "Thing", "description": "d", "price_minor": 990, "currency": "EUR",
		"stock": stock, "per_user_limit": 1, "payment_window_seconds": window,
	})
	if a.Status != 201 {
		s.t.Fatalf("create item: %d %s", a.Status, a.Body)
	}
	return id
}

// send posts to an order's route, as the shop's backend or a buyer.
func (c *client) send(orderID, action, sub string, role auth.Role, body string) answer {
	c.t.Helper()
	a, err := c.do("POST", "/v1/orders/"+orderID+"/"+action, c.token(sub, role), body, "Content-Type", "application/json")
	if err != nil {
		c.t.Fatalf("%s: %v", action, err)
	}
	return a
}

const rightPayment = `{"reference":"psp-1","amount_minor":990,"currency":"EUR"}`

// One unit is bought and cancelled, and bought again by another buyer, who pays for it. The
// sold-out mark does not prevent that, and the ledger balances throughout.
func TestLife_CancelledUnitIsSoldAgain(t *testing.T) {
	needProcesses(t)
	engines(t, nil, func(t *testing.T, s *shop, c *client) {
		item := s.newHeldItem(c, 1, 3600)
		first := c.settle(item, c.buy(item, "alice", "k1", untilCommitted...))
		if first.Status != 201 {
			t.Fatalf("buy: %s", first.verdict())
		}
		if l := s.ledger(c, item); l.Held != 1 || l.Sold != 0 {
			t.Fatalf("ledger while payment is awaited: %+v", l)
		}
		for i := range 5 { // so that the process marks the item as sold out
			if p := c.buy(item, "bob", "early", untilCommitted...); p.Status != 409 {
				t.Fatalf("buy %d of a sold-out item: %s", i, p.verdict())
			}
		}
		if a := c.send(first.Order.ID, "cancel", "bob", auth.RoleBuyer, ""); a.Status != 404 {
			t.Fatalf("cancel by a stranger: %d %s", a.Status, a.Body)
		}
		for range 2 {
			if a := c.send(first.Order.ID, "cancel", "alice", auth.RoleBuyer, ""); a.Status != 200 {
				t.Fatalf("cancel: %d %s", a.Status, a.Body)
			}
		}
		var second purchase
		eventually(t, "the unit can be bought again", soon, func() (bool, any) {
			second = c.settle(item, c.buy(item, "bob", "k2", untilCommitted...))
			return second.Status == 201, second.verdict()
		})
		if a := c.send(first.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 409 || a.verdict() != "409 order_expired" {
			t.Fatalf("money for a cancelled order: %s", a.verdict())
		}
		wrong := `{"reference":"psp-2","amount_minor":1,"currency":"EUR"}`
		if a := c.send(second.Order.ID, "payment", "psp", auth.RoleService, wrong); a.verdict() != "409 amount_mismatch" {
			t.Fatalf("too little money: %s", a.verdict())
		}
		right := `{"reference":"psp-2","amount_minor":990,"currency":"EUR"}`
		for range 2 {
			if a := c.send(second.Order.ID, "payment", "psp", auth.RoleService, right); a.Status != 200 {
				t.Fatalf("pay: %d %s", a.Status, a.Body)
			}
		}
		if a := c.send(second.Order.ID, "cancel", "bob", auth.RoleBuyer, ""); a.verdict() != "409 order_final" {
			t.Fatalf("cancel what is paid: %s", a.verdict())
		}
		if l := s.ledger(c, item); l.Left != 0 || l.Held != 0 || l.Sold != 1 {
			t.Fatalf("ledger at the end: %+v", l)
		}
	})
}

// An unpaid order expires, its unit is sold to another buyer, and its payment comes too late.
func TestLife_UnpaidOrderExpires(t *testing.T) {
	needProcesses(t)
	engines(t, nil, func(t *testing.T, s *shop, c *client) {
		item := s.newHeldItem(c, 1, 1)
		first := c.settle(item, c.buy(item, "alice", "k1", untilCommitted...))
		if first.Status != 201 {
			t.Fatalf("buy: %s", first.verdict())
		}
		eventually(t, "the order expires", soon, func() (bool, any) {
			a := c.admin("GET", "/v1/orders/"+first.Order.ID, nil) // admins have no rate limit
			var o struct{ Status string }
			a.decode(t, &o)
			return o.Status == "expired", o
		})
		eventually(t, "the unit can be bought again", soon, func() (bool, any) {
			p := c.settle(item, c.buy(item, "bob", "k2", untilCommitted...))
			return p.Status == 201, p.verdict()
		})
		if a := c.send(first.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.verdict() != "409 order_expired" {
			t.Fatalf("late money: %s", a.verdict())
		}
		eventually(t, "the second order expires too", soon, func() (bool, any) {
			l := s.ledger(c, item)
			return l.Left == 1 && l.Held == 0 && l.Sold == 0, l
		})
	})
}

// The sweeper finds orders that expired while the service was down, even on an engine that
// loses its tasks.
func TestLife_OrdersExpireAfterARestart(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	item := s.newHeldItem(c, 1, 1)
	first := c.settle(item, c.buy(item, "alice", "k1", untilCommitted...))
	if first.Status != 201 {
		t.Fatalf("buy: %s", first.verdict())
	}
	p.Kill()
	c = dial(t, s.serve())
	eventually(t, "the order expires", soon, func() (bool, any) {
		l := s.ledger(c, item)
		return l.Left == 1 && l.Held == 0 && l.Sold == 0, l
	})
}

// More orders wait for their payment than the queue of orders has capacity for, and the sale
// continues.
func TestLife_UnpaidOrdersUseNoQueueCapacity(t *testing.T) {
	needProcesses(t)
	const room, orders = 5, 23
	s := newRedisShop(t)
	s.worker("--queue-limit", strconv.Itoa(room))
	c := dial(t, s.api("--queue-limit", strconv.Itoa(room)))
	item := s.newHeldItem(c, orders+1, 3600)
	for i := range orders {
		p := c.settle(item, c.buy(item, "u"+strconv.Itoa(i), "k", untilCommitted...))
		if p.Status != 201 {
			t.Fatalf("order %d: %s", i, p.verdict())
		}
	}
	eventually(t, "all wait for their payment", soon, func() (bool, any) {
		st := s.expiries()
		return st.Delayed == orders, st
	})
	if st, err := s.tasks.Stats(t.Context()); err != nil || st.Delayed+st.Ready+st.Leased != 0 {
		t.Errorf("in the queue of orders: %+v, %v", st, err)
	}
	if l := s.ledger(c, item); !l.Balanced || l.Held != orders || l.Left != 1 {
		t.Errorf("ledger %+v", l)
	}
}
