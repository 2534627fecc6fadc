//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"flashsale/handler/auth"
)

// ask sends an admin's change of an item. After an error its outcome is unknown.
func (c *client) ask(method, path string, body any, headers ...string) (answer, error) {
	c.t.Helper()
	text := ""
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			c.t.Error(err)
		}
		text = string(b)
	}
	headers = append([]string{"Content-Type", "application/json"}, headers...)
	return c.do(method, path, c.token("root", auth.RoleAdmin), text, headers...)
}

// insist is like ask, but retries while the service asks for it.
func (c *client) insist(method, path string, body any, headers ...string) (a answer) {
	c.t.Helper()
	eventually(c.t, method+" "+path, soon, func() (bool, any) {
		var err error
		if a, err = c.ask(method, path, body, headers...); err != nil {
			c.t.Fatalf("%s %s: %v", method, path, err)
		}
		return a.Status != 503, a.verdict()
	})
	return a
}

func (c *client) restock(item, key string, quantity int64) answer {
	c.t.Helper()
	return c.insist("POST", "/v1/admin/items/"+item+"/restock", restockBody(quantity), "Idempotency-Key", key)
}

func restockBody(quantity int64) map[string]any {
	return map[string]any{"quantity": quantity, "reason": "test"}
}

// stockLedger checks that an item's restocks explain its total, and returns the total and the
// number of restocks.
func (s *shop) stockLedger(item string) (total, restocks int64) {
	s.t.Helper()
	var initial, sum, last int64
	err := s.db.QueryRowContext(s.t.Context(), `SELECT initial, total, COALESCE(SUM(quantity), 0), COUNT(quantity),
		COALESCE((SELECT total_after FROM stock_changes WHERE item_id = items.id ORDER BY id DESC LIMIT 1), initial)
		FROM items LEFT JOIN stock_changes ON item_id = items.id WHERE items.id = ?1 GROUP BY items.id`, item).Scan(&initial, &total, &sum, &restocks, &last)
	if err != nil {
		s.t.Fatalf("read the ledger of the total: %v", err)
	}
	if initial+sum != total || last != total {
		s.t.Errorf("created with %d, restocked by %d to %d, and the total is %d", initial, sum, last, total)
	}
	return total, restocks
}

// soldOutTo makes n buyers order one unit each from the clients in turn, and returns how many
// got one. Each repeats until the answer is definite.
func soldOutTo(t *testing.T, item, name string, n int, clients ...*client) int {
	t.Helper()
	list := stream(n, 32, func(i int) purchase {
		c := clients[i%len(clients)]
		return c.settle(item, c.buy(item, fmt.Sprintf("%s%d", name, i), "k"))
	})
	only(t, list, "201", "202", "409 sold_out")
	return len(accepted(list))
}

// comesBack buys until the process sees that a unit has returned.
func comesBack(t *testing.T, c *client, item, user string) purchase {
	t.Helper()
	var p purchase
	eventually(t, "the unit can be bought", soon, func() (bool, any) {
		p = c.settle(item, c.buy(item, user, "k", untilCommitted...))
		return p.Status == 201, p.verdict()
	})
	return p
}

// With two processes, 5,000 buyers are refused the only unit. When it returns, one new buyer
// gets it, and after a restock of one unit exactly one more buyer.
func TestChange_ReturnedUnitsAreSoldAfterSoldOut(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	a, b := dial(t, s.api(noLimit...)), dial(t, s.api(noLimit...))
	item := s.newItem(a, 1, 1)
	first := a.settle(item, a.buy(item, "winner", "k", untilCommitted...))
	if first.Status != 201 {
		t.Fatalf("buy: %s", first.verdict())
	}
	if n := soldOutTo(t, item, "early", 5000, a, b); n != 0 {
		t.Fatalf("%d bought what was sold", n)
	}
	if x := a.send(first.Order.ID, "cancel", "winner", auth.RoleBuyer, ""); x.Status != 200 {
		t.Fatalf("cancel: %s", x.verdict())
	}
	comesBack(t, b, item, "second")
	if n := soldOutTo(t, item, "late", 50, a, b); n != 0 {
		t.Fatalf("%d bought what was sold again", n)
	}
	if x := a.restock(item, "r", 1); x.Status != 200 {
		t.Fatalf("restock: %s", x.verdict())
	}
	comesBack(t, b, item, "third")
	if n := soldOutTo(t, item, "last", 50, a, b); n != 0 {
		t.Errorf("%d bought the one unit more, which was sold", n)
	}
	if l := s.ledger(a, item); l.Initial != 1 || l.Restocked != 1 || l.Left != 0 || l.Sold != 2 {
		t.Errorf("ledger %+v", l)
	}
	s.stockLedger(item)
}

// After one process has changed an item, an admin at another can change it with the ETag shown
// there. Of two changes with the same ETag, one succeeds.
func TestChange_OneOfTwoWithTheSameTagSucceeds(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	clients := []*client{dial(t, s.api(noLimit...)), dial(t, s.api(noLimit...))}
	item := s.newItem(clients[0], 10, 1)
	path := "/v1/admin/items/" + item
	for _, c := range clients { // so that both have it in memory
		c.get("/v1/items/"+item, "u")
	}
	for i := range 6 {
		c := clients[i%2]
		seen := c.admin("GET", path, nil)
		if a := c.insist("PATCH", path, map[string]any{"price_minor": i}, "If-Match", seen.Header["Etag"]); a.Status != 200 {
			t.Fatalf("change %d with %s: %d %s", i, seen.Header["Etag"], a.Status, a.Body)
		}
	}
	for round := range 5 {
		tag := clients[0].admin("GET", path, nil).Header["Etag"]
		var made, lost atomic.Int64
		crowd(8, func(i int) struct{} {
			body := map[string]any{"name": fmt.Sprintf("Name %d %d", round, i)}
			switch a := clients[i%2].insist("PATCH", path, body, "If-Match", tag); a.verdict() {
			case "200":
				made.Add(1)
			case "412 version_conflict":
				lost.Add(1)
			default:
				t.Errorf("change: %s", a.verdict())
			}
			return struct{}{}
		})
		if made.Load() != 1 || lost.Load() != 7 {
			t.Errorf("round %d: %d of 8 changes with one tag were made, %d refused", round, made.Load(), lost.Load())
		}
	}
	// A higher limit also applies at the other process, in the sale and in the check before it.
	clients[0].insist("PATCH", path, map[string]any{"per_user_limit": 3}, "If-Match", "*")
	eventually(t, "the limit to hold everywhere", soon, func() (bool, any) {
		p := clients[1].buyMany(item, "u", "k", 3, untilCommitted...)
		return p.Status == 201, p.verdict()
	})
}

// No purchase that begins after the answer to a pause is accepted, at either process.
func TestChange_NoSaleAfterAPause(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker()
	a, b := dial(t, s.api(noLimit...)), dial(t, s.api(noLimit...))
	item := s.newItem(a, 100_000, 1)
	path := "/v1/admin/items/" + item
	var paused atomic.Bool
	var late atomic.Int64
	list := burst(1200, 32, 200, func(i int) purchase {
		c, after := []*client{a, b}[i%2], paused.Load()
		p := c.settle(item, c.buy(item, fmt.Sprint("u", i), "k", "Prefer", "respond-async"))
		if after {
			late.Add(1)
			if p.verdict() != "409 sale_paused" {
				t.Errorf("after the pause: %s", p.verdict())
			}
		}
		return p
	}, func() {
		if x := b.insist("POST", path+"/pause", nil); x.Status != 200 {
			t.Errorf("pause: %s", x.verdict())
		}
		paused.Store(true)
	})
	only(t, list, "201", "202", "409 sale_paused")
	if late.Load() == 0 {
		t.Error("the burst was over before the pause")
	}
	if x := a.insist("POST", path+"/close", nil); x.Status != 200 {
		t.Errorf("close: %s", x.verdict())
	}
	if x := b.insist("POST", path+"/resume", nil); x.verdict() != "409 sale_closed" {
		t.Errorf("resume of a closed sale: %s", x.verdict())
	}
	if p := b.settle(item, b.buy(item, "last", "k")); p.verdict() != "409 sale_closed" {
		t.Errorf("buy from a closed sale: %s", p.verdict())
	}
	s.audit(a, item, 1, accepted(list))
}

// TestChange_KilledRestockIsMadeOnce kills the API during a restock, at each point where Redis
// and the database differ. A repeat with the same key completes it once, and exactly the
// available units are sold.
func TestChange_KilledRestockIsMadeOnce(t *testing.T) {
	needProcesses(t)
	for _, at := range []struct {
		place string
		made  bool // the database has it
	}{{"inventory.suspended", false}, {"inventory.changed", true}, {"inventory.adjusted", true}} {
		for _, quantity := range []int64{7, -3} {
			t.Run(fmt.Sprintf("%s%+d", at.place, quantity), func(t *testing.T) {
				t.Parallel()
				s := newRedisShop(t)
				s.worker()
				fresh := dial(t, s.api(noLimit...))
				doomed := s.faulty(at.place+":1", "api", noLimit...)
				item := s.newItem(fresh, 10, 1)
				if p := fresh.settle(item, fresh.buy(item, "first", "k", untilCommitted...)); p.Status != 201 {
					t.Fatalf("buy: %s", p.verdict())
				}
				key := uuid.NewString()
				if x, err := dial(t, doomed).ask("POST", "/v1/admin/items/"+item+"/restock", restockBody(quantity), "Idempotency-Key", key); err == nil {
					t.Fatalf("the API answered before it died: %s", x.verdict())
				}
				struck(t, doomed)
				if _, n := s.stockLedger(item); (n == 1) != at.made {
					t.Fatalf("%d restocks are recorded", n)
				}
				if at.made { // the sale continues before the restock is repeated
					if p := fresh.settle(item, fresh.buy(item, "between", "k")); !p.accepted() {
						t.Errorf("buy: %s", p.verdict())
					}
				}
				x := fresh.restock(item, key, quantity)
				if x.Status != 200 || (x.Header["Idempotent-Replayed"] == "true") != at.made {
					t.Errorf("the repeat: %d %s %v", x.Status, x.Body, x.Header)
				}
				if other := fresh.restock(item, key, quantity+1); other.verdict() != "422 idempotency_key_reused" {
					t.Errorf("another restock with the key: %s", other.verdict())
				}
				soldOutTo(t, item, "u", 30, fresh)
				want := 10 + quantity
				if total, n := s.stockLedger(item); total != want || n != 1 {
					t.Errorf("the total is %d after %d restocks, want %d after 1", total, n, want)
				}
				eventually(t, "all is sold", soon, func() (bool, any) {
					l := s.ledger(fresh, item)
					return l.Sold == want && l.Left == 0 && l.Held == 0 && l.Restocked == quantity, l
				})
				if rows := s.rows(item); int64(len(rows)) != want {
					t.Errorf("%d orders, want %d", len(rows), want)
				}
			})
		}
	}
}

// The audit log has the changes of an item and its orders, with their actors.
func TestChange_AuditHasEveryChange(t *testing.T) {
	needProcesses(t)
	engines(t, nil, func(t *testing.T, s *shop, c *client) {
		item := s.newItem(c, 5, 1)
		p := c.settle(item, c.buy(item, "alice", "k", untilCommitted...))
		c.restock(item, "r", 5)
		c.restock(item, "r", 5)
		for range 2 {
			c.insist("POST", "/v1/admin/items/"+item+"/pause", nil)
		}
		if x := c.send(p.Order.ID, "cancel", "root", auth.RoleAdmin, ""); x.Status != 200 {
			t.Fatalf("cancel: %s", x.verdict())
		}
		var actions []string
		cursor := ""
		for page := 0; page == 0 || cursor != ""; page++ {
			query := "/v1/admin/audit?limit=3&item_id=" + item
			if cursor != "" {
				query += "&cursor=" + cursor
			}
			var list struct {
				Entries []struct {
					Actor, Action string
					RequestID     string `json:"request_id"`
				}
				NextCursor string `json:"next_cursor"`
			}
			a := c.admin("GET", query, nil)
			a.decode(t, &list)
			for _, e := range list.Entries {
				actions = append(actions, e.Action)
				if e.Actor != "root" || e.RequestID == "" {
					t.Errorf("entry %+v", e)
				}
			}
			cursor = list.NextCursor
		}
		if got := fmt.Sprint(actions); got != "[order.cancel item.pause item.restock item.create]" {
			t.Errorf("audit %s", got)
		}
		a := c.admin("GET", "/v1/admin/audit?order_id="+p.Order.ID, nil)
		if a.Status != 200 || len(a.Body) < 50 {
			t.Errorf("an order's audit: %s", a.Body)
		}
	})
}

// TestChange_StoppedRestockTakesNoSoldUnits stops the API after it has marked the sale to
// remove units, and continues it when another process has sold them. It must not remove them
// then, although the orders are not in the database yet.
func TestChange_StoppedRestockTakesNoSoldUnits(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	b := dial(t, s.api(noLimit...))
	stalled := s.faulty("inventory.suspended:1:stop", "api", noLimit...)
	a := dial(t, stalled)
	item := s.newItem(b, 10, 1)
	type outcome struct {
		answer
		err error
	}
	late := make(chan outcome, 1)
	go func() {
		x, err := a.ask("POST", "/v1/admin/items/"+item+"/restock", restockBody(-3), "Idempotency-Key", "k")
		late <- outcome{x, err}
	}()
	eventually(t, "the sale is marked", soon, func() (bool, any) {
		sale, err := s.rdb.HGetAll(t.Context(), "fs:{p0}:sale:"+item).Result()
		return err == nil && sale["changing"] != "", sale
	})
	stalled.Pause() // it has stopped itself, or is about to
	list := crowd(10, func(i int) purchase {
		return b.settle(item, b.buy(item, fmt.Sprint("u", i), "k", "Prefer", "respond-async"))
	})
	only(t, list, "202", "409 sold_out")
	x := awaken(stalled, late)
	if made := x.Status == 200; x.err == nil && made != (len(accepted(list)) == 7) || len(accepted(list)) < 7 {
		t.Errorf("removing 3 of 10: %s, error %v, and %d were sold", x.verdict(), x.err, len(accepted(list)))
	}
	s.worker() // started late, so that the orders were not in the database before
	eventually(t, "every order is settled", soon, func() (bool, any) {
		l := s.ledger(b, item)
		return l.Held == 0 && l.Sold == int64(len(accepted(list))), l
	})
	for _, r := range s.rows(item) {
		if r.Status != "confirmed" {
			t.Errorf("order %s was accepted and is %s", r.ID, r.Status)
		}
	}
	s.stockLedger(item)
}
