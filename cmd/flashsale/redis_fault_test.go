//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"flashsale/handler/auth"
	"flashsale/internal/testing/redistest"
)

// TestRedis_KilledLosesNoAnsweredOrder kills Redis during a sale and restarts it. During the
// outage every route that needs Redis says so, and afterwards the sale continues: each order
// that was answered 201 or 202 is a row, and the stock is exact.
func TestRedis_KilledLosesNoAnsweredOrder(t *testing.T) {
	needProcesses(t)
	s := newShopOn(t, redistest.Real(t)) // it syncs every write
	s.worker(lease(shortLease)...)
	api := s.api(noLimit...)
	c := dial(t, api)
	item := s.newItem(c, 300, 1)
	known := c.buy(item, "known", "k", untilCommitted...)
	only(t, []purchase{known}, "201")

	var mu sync.Mutex
	var seen []purchase // every answer of the burst
	refusals, enough := 0, make(chan struct{})
	look := func(p purchase) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, p)
		if p.Status != 503 {
			return
		}
		if refusals++; refusals == 50 {
			close(enough)
		}
	}
	got := burst(450, 32, 60, func(i int) purchase {
		return c.settle(item, c.buy(item, fmt.Sprintf("u%d", i), "k"), look)
	}, func() {
		if err := s.server.Kill(); err != nil {
			t.Errorf("kill Redis: %v", err)
		}
		<-enough
		outage(t, c, item, known)
		if err := s.server.Start(); err != nil {
			t.Errorf("start Redis: %v", err)
		}
	})
	only(t, seen, "201", "202", "409 sold_out", "503 unavailable", "503 overloaded", "503 rebuilding")
	for _, p := range seen {
		if p.Status == 503 && !waits(p.answer) {
			t.Errorf("a 503 without Retry-After: %s, Retry-After %q", p.Body, p.Header["Retry-After"])
			break
		}
	}
	only(t, got, "201", "202", "409 sold_out")
	all := slices.Concat(accepted(seen), accepted(got), []purchase{known})
	if rows := s.audit(c, item, 1, all); len(rows) != 300 {
		t.Errorf("%d rows, want 300", len(rows))
	}
	if p := c.buy(item, "known", "k"); p.Order.ID != known.Order.ID || !p.replayed() {
		t.Errorf("the key from before the outage: %s, order %s, want %s", p.verdict(), p.Order.ID, known.Order.ID)
	}
	// The output of the start is plain text; everything after it is the log, no matter which
	// part writes it.
	for line := range strings.Lines(api.Log()) {
		word, _, _ := strings.Cut(line, " ")
		if !json.Valid([]byte(line)) && !slices.Contains([]string{"shop", "dashboard", "api", "docs", "metrics", "database", "engine"}, word) {
			t.Errorf("with --log-format json, a line of the log is %q", line)
		}
	}
	eventually(t, "the API is ready", soon, func() (bool, any) {
		r := c.get("/readyz", "known")
		return r.Status == 200, r.verdict()
	})
}

// waits reports whether an answer has a time to retry, in the header and in the body.
func waits(a answer) bool {
	n, err := strconv.ParseInt(a.Header["Retry-After"], 10, 64)
	return err == nil && n >= 1 && a.Problem.RetryAfter == n
}

// outage calls every route while Redis is down: each answers without Redis, or 503.
func outage(t *testing.T, c *client, item string, known purchase) {
	t.Helper()
	eventually(t, "/readyz notices the outage", soon, func() (bool, any) { // the readiness answer is cached for a moment
		a := c.get("/readyz", "u")
		return a.Status == 503, a.Body
	})
	for _, q := range []struct {
		role                     auth.Role
		user, method, path, body string
		want                     []string
	}{
		{auth.RoleBuyer, "u", "GET", "/healthz", "", []string{"200"}},
		{auth.RoleBuyer, "u", "GET", "/readyz", "", []string{"503 unavailable"}},
		{auth.RoleBuyer, "u", "GET", "/v1/items", "", []string{"200", "503 unavailable"}},
		{auth.RoleBuyer, "u", "GET", "/v1/items/" + item, "", []string{"200", "503 unavailable"}},
		{auth.RoleBuyer, "known", "GET", "/v1/orders/" + known.Order.ID, "", []string{"200"}},
		{auth.RoleBuyer, "u", "GET", "/v1/orders/01890000-0000-7000-8000-000000000000", "", []string{"404 order_not_found", "503 unavailable"}},
		{auth.RoleBuyer, "known", "GET", "/v1/orders", "", []string{"200"}},
		{auth.RoleAdmin, "root", "GET", "/v1/admin/items/" + item + "/ledger", "", []string{"503 unavailable"}},
		{auth.RoleAdmin, "root", "POST", "/v1/admin/items", `{"id":"outage","name":"n","price_minor":1,"currency":"EUR","stock":3}`, []string{"201", "503 unavailable"}},
	} {
		a, err := c.do(q.method, q.path, c.token(q.user, q.role), q.body, "Content-Type", "application/json")
		if err != nil {
			t.Errorf("while Redis is away, %s %s: %v", q.method, q.path, err)
			continue
		}
		if !slices.Contains(q.want, a.verdict()) {
			t.Errorf("while Redis is away, %s %s answered %s, want one of %q: %s", q.method, q.path, a.verdict(), q.want, a.Body)
		}
		if a.Status == 503 && !waits(a) {
			t.Errorf("while Redis is away, %s %s: a 503 without Retry-After: %s", q.method, q.path, a.Body)
		}
	}
}
