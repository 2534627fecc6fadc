//go:build unix

package main_test

import (
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// TestCommand_ItemChange changes items with the command.
func TestCommand_ItemChange(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	item := s.newItem(c, 5, 1)
	run := func(args ...string) process.Result {
		return s.run(append([]string{"item", args[0], item, "--server", p.URL()}, args[1:]...)...)
	}
	wantCode(t, 0, run("restock", "--quantity", "10", "--reason", "second delivery", "--key", "r1"), item, "open", " 15 ")
	wantCode(t, 0, run("restock", "--quantity", "10", "--reason", "second delivery", "--key", "r1"), " 15 ")
	wantCode(t, 2, run("restock", "--quantity", "11", "--reason", "second delivery", "--key", "r1"), "idempotency_key_reused")
	wantCode(t, 0, run("restock", "--quantity", "-12", "--reason", "broken"), " 3 ") // with a generated key
	wantCode(t, 0, run("restock", "--quantity=-2", "--reason", "broken"), " 1 ")
	below := run("restock", "--quantity", "-2", "--reason", "broken")
	wantCode(t, 1, below, "stock_below_sold")
	if strings.Contains(below.Output, "--key") {
		t.Errorf("a refusal is reported as if there were no answer:\n%s", below.Output)
	}
	wantCode(t, 0, run("change", "--name", "New name", "--limit", "3", "--price-minor", "0", "--closes-at", "2100-01-01T00:00:00Z"), "New name", " 3 ", " 0 EUR")
	wantCode(t, 0, run("change", "--closes-at", "never", "--description", "", "--payment-window", "90s"), "New name")
	wantCode(t, 0, run("change", "--image", "/images/new.jpg"), "/images/new.jpg  New name")
	wantCode(t, 2, run("change", "--image", "https://example.com/a.jpg"), "field_range: --image", "exactly one /")
	wantCode(t, 0, s.run("item", "list", "--server", p.URL()), "/images/new.jpg  New name")
	wantCode(t, 0, run("change", "--image", ""), "-      New name")
	wantCode(t, 0, run("change", "--payment-window", "none"), "New name")
	if a := c.admin("GET", "/v1/admin/items/"+item, nil); !strings.Contains(a.Body, `"payment_window_seconds":0,`) {
		t.Errorf("the window is still there: %s", a.Body)
	}
	wantCode(t, 0, run("change", "--opens-at", "2099-01-01T00:00:00Z"), "scheduled")
	wantCode(t, 2, run("change", "--closes-at", "2098-01-01T00:00:00Z"), "window_invalid", "--closes-at")
	wantCode(t, 0, run("change", "--opens-at", "2001-01-01T00:00:00Z"), "open")
	wantCode(t, 2, run("change", "--limit", "0"), "field_range: --limit must be")
	wantCode(t, 1, run("pause", "--token", c.token("alice", auth.RoleBuyer)), "forbidden")
	wantCode(t, 0, run("pause"), "paused")
	if b := c.buy(item, "alice", "k"); b.verdict() != "409 sale_paused" {
		t.Errorf("buy from a paused sale: %s", b.verdict())
	}
	wantCode(t, 0, run("resume"), "open")
	wantCode(t, 0, run("close"), "closed")
	wantCode(t, 1, run("resume"), "sale_closed", "final")
	wantCode(t, 1, s.run("item", "pause", "none", "--server", p.URL()), "item_not_found")
	wantCode(t, 2, s.run("item", "pause", "a/../b", "--server", p.URL()), "id_invalid: argument ID")
	away := s.run("item", "restock", item, "--quantity", "1", "--reason", "r", "--key", "r9", "--server", "http://"+process.FreeAddr(t))
	wantCode(t, 1, away, "refused", "--key r9")
	if total, n := s.stockLedger(item); total != 1 || n != 3 {
		t.Errorf("the total is %d after %d restocks, want 1 after 3", total, n)
	}
	// The audit log has the name of the system's user.
	if a := c.admin("GET", "/v1/admin/audit?limit=1&item_id="+item, nil); !strings.Contains(a.Body, `"actor":"cli`) {
		t.Errorf("audit %s", a.Body)
	}
}
