//go:build unix

package main_test

import (
	"fmt"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// An operator lists payments that paid for no order, marks one as refunded, refunds paid
// orders, and finds the refunds in the metrics and the ledger.
func TestCommand_Payment(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	item := s.newHeldItem(c, 2, 3600)
	run := func(args ...string) process.Result { return s.run(append(args, "--server", p.URL())...) }
	buy := func(user string) string {
		t.Helper()
		b := c.settle(item, c.buy(item, user, "k", untilCommitted...))
		if b.Status != 201 {
			t.Fatalf("buy: %s", b.verdict())
		}
		return b.Order.ID
	}
	back, kept := buy("alice"), buy("bob")
	pay := func(order, reference string, amount int, want string) {
		t.Helper()
		body := fmt.Sprintf(`{"reference":%q,"amount_minor":%d,"currency":"EUR"}`, reference, amount)
		for range 2 {
			if a := c.send(order, "payment", "psp", auth.RoleService, body); a.verdict() != want {
				t.Errorf("%s: %s, want %s", reference, a.verdict(), want)
			}
		}
	}
	pay(back, "short", 1, "409 amount_mismatch")
	pay(back, "right", 990, "200")
	pay(back, "twice", 990, "409 order_final")
	pay(kept, "kept", 990, "200")
	list := run("payment", "list", "--needs-refund")
	wantCode(t, 0, list, "mismatch", "short", "duplicate", "twice", back, item, "alice", "1 EUR")
	if strings.Contains(list.Output, "accepted") || strings.Index(list.Output, "twice") > strings.Index(list.Output, "short") {
		t.Errorf("not what needs a refund, newest first:\n%s", list.Output)
	}
	wantCode(t, 0, run("payment", "list", "--outcome", "accepted", "--limit", "1"), "kept", "accepted")
	wantCode(t, 1, run("payment", "list", "--outcome", "paid"), "parameter_invalid", "mismatch")
	id := func(reference string) string {
		t.Helper()
		for _, line := range strings.Split(run("payment", "list").Output, "\n") {
			if f := strings.Fields(line); len(f) > 5 && strings.Contains(line, " "+reference+" ") {
				return f[0]
			}
		}
		t.Fatalf("no payment %s", reference)
		return ""
	}
	for range 2 {
		wantCode(t, 0, run("payment", "refunded", id("short")), "refunded", "mismatch", "short")
	}
	wantCode(t, 1, run("payment", "refunded", id("right")), "payment_accepted", "refund the order")
	wantCode(t, 1, run("payment", "refunded", "999"), "payment_not_found")
	wantCode(t, 1, run("payment", "refunded", "x/y"), "id_invalid")
	wantCode(t, 2, run("payment", "refunded"), "payment id")
	wantCode(t, 2, run("order", "refund", back), "--restock=true", "--restock=false")
	wantCode(t, 2, run("order", "refund", "--restock=true"), "order id")
	for range 2 {
		wantCode(t, 0, run("order", "refund", back, "--restock=true"), back, "refunded", "units restocked", "payment right")
		wantCode(t, 0, run("order", "refund", kept, "--restock=false"), kept, "refunded", "units stay sold")
	}
	wantCode(t, 1, run("order", "refund", back, "--restock=false"), "order_final")
	pay(back, "after", 990, "409 order_expired")
	next := buy("carol")
	wantCode(t, 1, run("order", "refund", next, "--restock=true"), "order_not_paid")
	if a := c.send(back, "cancel", "alice", auth.RoleBuyer, ""); a.verdict() != "409 order_final" {
		t.Errorf("cancel of a refunded order: %s", a.verdict())
	}
	if l := s.ledger(c, item); l.Left != 0 || l.Held != 1 || l.Sold != 1 || !l.Balanced {
		t.Errorf("ledger %+v", l)
	}
	wantCode(t, 0, run("reconcile"), "balanced")
	order := c.admin("GET", "/v1/orders/"+back, nil)
	for _, word := range []string{`"status":"refunded"`, `"restocked":true`, `"payments":[{"id":`, `"reference":"after"`, `"outcome":"late"`} {
		if !strings.Contains(order.Body, word) {
			t.Errorf("the order lacks %s: %s", word, order.Body)
		}
	}
	for line, want := range map[string]float64{
		`flashsale_payments_total{outcome="accepted"}`: 2, `flashsale_payments_total{outcome="duplicate"}`: 1,
		`flashsale_payments_total{outcome="late"}`: 1, `flashsale_payments_total{outcome="mismatch"}`: 1,
		`flashsale_payments_total{outcome="refunded"}`: 3, "flashsale_payments_to_refund": 2,
	} {
		if got := counted(t, p, line); got != want {
			t.Errorf("%s is %v, want %v", line, got, want)
		}
	}
}
