//go:build unix

package main_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
)

// write changes the shop's database directly.
func (s *shop) write(text string, args ...any) {
	s.t.Helper()
	db, err := s.open()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := db.ExecContext(s.t.Context(), text, args...); err != nil {
		s.t.Errorf("%s: %v", text, err)
	}
	if err := db.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *shop) setSale(item, field string, value any) {
	s.t.Helper()
	if err := s.rdb.HSet(s.t.Context(), "fs:{p0}:sale:"+item, field, value).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// The command reports a difference by its exit code and in its output, and repairs it. Accepted
// orders that no worker has fetched yet are not a difference.
func TestCommand_Reconcile(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	p := s.api("--reconcile-every", "0")
	c := dial(t, p)
	item, other := s.newItem(c, 9, 2), s.newItem(c, 5, 1)
	run := func(args ...string) (r process.Result) {
		t.Helper()
		// On a busy machine Redis or the database may not answer in time.
		eventually(t, "the items are examined", soon, func() (bool, any) {
			r = s.run(append([]string{"reconcile", "--server", p.URL()}, args...)...)
			return !strings.Contains(r.Output, "not examined: unavailable"), r.Output
		})
		return r
	}
	row := func(item string, figures ...int) string {
		return strings.Join(strings.Fields(fmt.Sprint(item, " ", strings.Trim(fmt.Sprint(figures), "[]"))), " ")
	}
	want := func(code int, r process.Result, words ...string) {
		t.Helper()
		r.Output = strings.ReplaceAll(r.Output, "\n", " \n ") // and single spaces
		r.Output = strings.Join(strings.Fields(r.Output), " ")
		wantCode(t, code, r, words...)
	}
	for i := range 4 {
		only(t, []purchase{c.buy(item, fmt.Sprint("u", i), "k", "Prefer", "respond-async")}, "202")
	}
	queued := row(item, 9, 0, 5, 4, 0) + " balanced"
	want(0, run(), queued, row(other, 5, 0, 5, 0, 0)+" balanced", "2 items, 0 different, 0 repairs")
	want(0, run("--repair"), queued, "0 repairs")
	if n := s.stats().Entries; n != 4 {
		t.Errorf("%d orders are queued after a repair, want 4", n)
	}
	s.setSale(item, "left", 3)
	found := item + ": left: expected 5, found 3"
	want(1, run(), row(item, 9, 0, 3, 4, 0)+" differs", found, "1 different", "--repair")
	want(0, run("--item", other), "1 item, ")
	want(1, run("--item", item, "--json"), `"balanced":false`, `"kind":"left","expected":5,"found":3`)
	want(0, run("--repair"), row(item, 9, 0, 5, 4, 0)+" repaired", found+", repaired", "1 repair, ")
	want(0, run(), queued)
	s.write("UPDATE items SET sold = 2 WHERE id = ?1", item)
	want(1, run(), item+": sold: expected 0, found 2")
	want(0, run("--repair", "--item", item), item+": sold: expected 0, found 2, repaired")
	s.write("UPDATE items SET total = 10 WHERE id = ?1", item)
	want(1, run("--repair"), "total: expected 9, found 10; ", "cannot be repaired automatically")
	s.write("UPDATE items SET total = 9 WHERE id = ?1", item)
	want(0, run("--repair"))
	want(1, run("--item", "none"), "item_not_found")
	want(2, run("--item", ""), "id_invalid")
	want(2, run("now"), `"now"`)
	want(2, run("--reparieren"), "reparieren")
	s.worker()
	rows := s.audit(c, item, 2, nil)
	if len(rows) != 4 {
		t.Errorf("%d rows, want the 4 orders that were accepted", len(rows))
	}
	want(0, run(), row(item, 9, 0, 5, 0, 4)+" balanced")
}

// The same on the embedded engine, which only its own process reaches.
func TestCommand_Reconcile_Embedded(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve("--reconcile-every", "1s")
	c := dial(t, p)
	item := s.newItem(c, 9, 2)
	only(t, []purchase{c.buy(item, "alice", "k", untilCommitted...)}, "201")
	wantCode(t, 0, s.run("reconcile", "--server", p.URL()), item, "balanced", "1 item, 0 different")
	s.write("UPDATE buyers SET quantity = 2 WHERE item_id = ?1", item)
	wantCode(t, 1, s.run("reconcile", "--server", p.URL()), item+": buyers: expected 1, found 2", "differs")
	wantCode(t, 0, s.run("reconcile", "--server", p.URL(), "--repair"), "repaired")
	wantCode(t, 0, s.run("reconcile", "--server", p.URL()), "balanced")
	wantCode(t, 1, s.run("reconcile", "--server", p.URL(), "--token", c.token("alice", "buyer")), "forbidden")
}

// The background reconciliation repairs a sale that counts too few units and exports it as a
// metric. Damage in the database is left to the operator.
func TestReconcile_BackgroundRepairsTheStock(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	p := s.api("--reconcile-every", "1s")
	c := dial(t, p)
	item := s.newItem(c, 9, 2)
	only(t, []purchase{c.buy(item, "alice", "k", "Prefer", "respond-async")}, "202")
	s.setSale(item, "left", 5)
	eventually(t, "the sale is repaired", soon, func() (bool, any) {
		left, err := s.rdb.HGet(t.Context(), "fs:{p0}:sale:"+item, "left").Result()
		return err == nil && left == "8", left
	})
	figures := func() string {
		res, err := http.Get(p.OpsURL() + "/metrics")
		if err != nil {
			return err.Error()
		}
		text, err := io.ReadAll(res.Body)
		if err != nil {
			return err.Error()
		}
		if err := res.Body.Close(); err != nil {
			return err.Error()
		}
		return string(text)
	}
	shows := func(lines ...string) {
		t.Helper()
		eventually(t, fmt.Sprint("the figures ", lines), soon, func() (bool, any) {
			text := figures()
			for _, l := range lines {
				if !strings.Contains(text, l+"\n") {
					return false, text
				}
			}
			return true, ""
		})
	}
	shows(`flashsale_reconcile_repairs_total{kind="left"} 1`, `flashsale_reconcile_drift_units{kind="left"} 0`, `flashsale_reconcile_items_differing 0`)
	s.write("UPDATE items SET sold = 3 WHERE id = ?1", item)
	shows(`flashsale_reconcile_drift_units{kind="sold"} 3`, `flashsale_reconcile_items_differing 1`, `flashsale_reconcile_repairs_total{kind="sold"} 0`)
	if text := figures(); strings.Contains(text, item) {
		t.Error("an item is a label")
	}
}
