//go:build unix

package main_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// payments is a service with an item of two units at 9.90 EUR.
type payments struct {
	t    *testing.T
	s    *shop
	p    *process.P
	c    *client
	item string
}

func newPayments(t *testing.T) *payments {
	t.Helper()
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	return &payments{t: t, s: s, p: p, c: c, item: s.newHeldItem(c, 2, 3600)}
}

func (m *payments) run(args ...string) process.Result {
	return m.s.run(append(args, "--server", m.p.URL())...)
}

// buy returns the id of a new order.
func (m *payments) buy(user string) string {
	m.t.Helper()
	b := m.c.settle(m.item, m.c.buy(m.item, user, "k", untilCommitted...))
	if b.Status != 201 {
		m.t.Fatalf("buy: %s", b.verdict())
	}
	return b.Order.ID
}

// pay reports a received amount twice.
func (m *payments) pay(order, reference string, amount int, want string) {
	m.t.Helper()
	body := fmt.Sprintf(`{"reference":%q,"amount_minor":%d,"currency":"EUR"}`, reference, amount)
	for range 2 {
		if a := m.c.send(order, "payment", "psp", auth.RoleService, body); a.verdict() != want {
			m.t.Errorf("%s: %s, want %s", reference, a.verdict(), want)
		}
	}
}

// id returns the id of the payment with the reference.
func (m *payments) id(reference string) string {
	m.t.Helper()
	var list struct {
		Payments []struct {
			ID        int64
			Reference string
		}
	}
	decodeOutput(m.t, m.run("payment", "list", "--json"), &list)
	for _, p := range list.Payments {
		if p.Reference == reference {
			return strconv.FormatInt(p.ID, 10)
		}
	}
	m.t.Fatalf("no payment %s", reference)
	return ""
}

func (m *payments) wantMetrics(metrics map[string]float64) {
	m.t.Helper()
	for line, want := range metrics {
		if got := counted(m.t, m.p, line); got != want {
			m.t.Errorf("%s is %v, want %v", line, got, want)
		}
	}
}

// An operator lists the payments that paid for no order, newest first, and marks one as refunded.
func TestCommand_Payment_ListsWhatNeedsARefund(t *testing.T) {
	m := newPayments(t)
	back, kept := m.buy("alice"), m.buy("bob")
	m.pay(back, "short", 1, "409 amount_mismatch")
	m.pay(back, "right", 990, "200")
	m.pay(back, "twice", 990, "409 order_final")
	m.pay(kept, "kept", 990, "200")
	list := m.run("payment", "list", "--needs-refund")
	wantCode(t, 0, list, "AMOUNT (MINOR)", "mismatch", "short", "duplicate", "twice", back, m.item, "alice", "1 EUR")
	if strings.Contains(list.Output, "accepted") || strings.Index(list.Output, "twice") > strings.Index(list.Output, "short") {
		t.Errorf("not the payments that need a refund, newest first:\n%s", list.Output)
	}
	wantCode(t, 0, m.run("payment", "list", "--outcome", "accepted", "--limit", "1"), "kept", "accepted")
	wantCode(t, 2, m.run("payment", "list", "--outcome", "paid"), "parameter_invalid", "mismatch")
	for range 2 {
		wantCode(t, 0, m.run("payment", "refunded", m.id("short")), "refunded", "mismatch", "short")
	}
	wantCode(t, 1, m.run("payment", "refunded", m.id("right")), "payment_accepted", "refund the order")
	wantCode(t, 1, m.run("payment", "refunded", "999"), "payment_not_found")
	wantCode(t, 2, m.run("payment", "refunded", "x/y"), "id_invalid")
	wantCode(t, 2, m.run("payment", "refunded"), "payment id")
	m.wantMetrics(map[string]float64{
		`flashsale_payments_total{outcome="accepted"}`: 2, `flashsale_payments_total{outcome="duplicate"}`: 1,
		`flashsale_payments_total{outcome="mismatch"}`: 1, `flashsale_payments_total{outcome="refunded"}`: 1,
		"flashsale_payments_to_refund": 1,
	})
}

// An operator refunds paid orders, and decides whether their units return to the stock.
func TestCommand_OrderRefund_RestocksOnlyIfAsked(t *testing.T) {
	m := newPayments(t)
	back, kept := m.buy("alice"), m.buy("bob")
	m.pay(back, "right", 990, "200")
	m.pay(kept, "kept", 990, "200")
	wantCode(t, 2, m.run("order", "refund", back), "--restock=true", "--restock=false")
	wantCode(t, 2, m.run("order", "refund", "--restock=true"), "order id")
	for range 2 {
		wantCode(t, 0, m.run("order", "refund", back, "--restock=true"), back, "refunded", "units restocked", "payment right")
		wantCode(t, 0, m.run("order", "refund", kept, "--restock=false"), kept, "refunded", "units stay sold")
	}
	wantCode(t, 1, m.run("order", "refund", back, "--restock=false"), "order_final")
	m.pay(back, "after", 990, "409 order_expired")
	next := m.buy("carol")
	wantCode(t, 1, m.run("order", "refund", next, "--restock=true"), "order_not_paid")
	if a := m.c.send(back, "cancel", "alice", auth.RoleBuyer, ""); a.verdict() != "409 order_final" {
		t.Errorf("cancel of a refunded order: %s", a.verdict())
	}
	if l := m.s.ledger(m.c, m.item); l.Left != 0 || l.Held != 1 || l.Sold != 1 || !l.Balanced {
		t.Errorf("ledger %+v", l)
	}
	wantCode(t, 0, m.run("reconcile"), "balanced")
	order := m.c.admin("GET", "/v1/orders/"+back, nil)
	for _, word := range []string{`"status":"refunded"`, `"restocked":true`, `"payments":[{"id":`, `"reference":"after"`, `"outcome":"late"`} {
		if !strings.Contains(order.Body, word) {
			t.Errorf("the order lacks %s: %s", word, order.Body)
		}
	}
	m.wantMetrics(map[string]float64{
		`flashsale_payments_total{outcome="accepted"}`: 2, `flashsale_payments_total{outcome="late"}`: 1,
		`flashsale_payments_total{outcome="refunded"}`: 2, "flashsale_payments_to_refund": 1,
	})
}
