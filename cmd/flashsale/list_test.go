//go:build unix

package main_test

import (
	"net/url"
	"testing"
)

// orderList is an answer of GET /v1/orders.
type orderList struct {
	Orders []struct {
		ID     string
		Status string
	}
	Next string `json:"next_cursor"`
}

// list reads a page of a buyer's orders.
func (c *client) list(user, query string) (l orderList) {
	c.t.Helper()
	a := c.get("/v1/orders?"+query, user)
	if a.Status != 200 {
		c.t.Fatalf("list of %s: %d %s", user, a.Status, a.Body)
	}
	a.decode(c.t, &l)
	return l
}

// After a 202, a buyer's list contains the order although no worker runs, and contains it once
// after a worker has committed it, even between two pages.
func TestAPI_ListQueued(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	c := dial(t, s.api())
	item := s.newItem(c, 9, 9)
	first := c.buy(item, "alice", "k1", "Prefer", "respond-async")
	second := c.buy(item, "alice", "k2", "Prefer", "respond-async")
	other := c.buy(item, "bob", "k", "Prefer", "respond-async")
	only(t, []purchase{first, second, other}, "202")

	is := func(what string, l orderList, status string, ids ...string) {
		t.Helper()
		if len(l.Orders) != len(ids) {
			t.Fatalf("%s: %+v, want %v", what, l, ids)
		}
		for i, o := range l.Orders {
			if o.ID != ids[i] || o.Status != status {
				t.Errorf("%s: %+v, want %s %v", what, l, status, ids)
			}
		}
	}
	is("alice's list", c.list("alice", ""), "queued", second.Order.ID, first.Order.ID)
	is("bob's list", c.list("bob", ""), "queued", other.Order.ID)
	is("carol's list", c.list("carol", ""), "")
	// Another API process, which did not sell them, finds them too.
	is("alice's list elsewhere", dial(t, s.api()).list("alice", ""), "queued", second.Order.ID, first.Order.ID)
	page := c.list("alice", "limit=1")
	is("alice's first page", page, "queued", second.Order.ID)

	var mine orderList
	if a := c.admin("GET", "/v1/orders?user_id=alice&status=queued", nil); a.Status != 200 {
		t.Errorf("an admin's list: %d %s", a.Status, a.Body)
	} else {
		a.decode(t, &mine)
		is("an admin's list of alice's", mine, "queued", second.Order.ID, first.Order.ID)
	}
	if a := c.admin("GET", "/v1/orders?status=queued", nil); a.verdict() != "400 parameter_invalid" {
		t.Errorf("an admin's list of all queued orders: %d %s", a.Status, a.Body)
	}

	s.worker()
	eventually(t, "the orders to be committed", soon, func() (bool, any) {
		l := c.list("alice", "")
		for _, o := range l.Orders {
			if o.Status != "confirmed" {
				return false, l
			}
		}
		return true, nil
	})
	is("alice's list after the commit", c.list("alice", ""), "confirmed", second.Order.ID, first.Order.ID)
	rest := c.list("alice", "limit=1&cursor="+url.QueryEscape(page.Next))
	is("alice's second page", rest, "confirmed", first.Order.ID)
	if rest.Next != "" {
		t.Error("there is a third page")
	}
}
