package handler

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
)

// door is an admission control that the test sets.
type door struct {
	wait       time.Duration
	shut, late bool
	err        error
}

func (d *door) Admit(string) (time.Duration, error) {
	if d.shut {
		return d.wait, inventory.ErrOverloaded
	}
	return d.wait, d.err
}
func (d *door) Late(string) bool          { return d.late }
func (d *door) Wait(string) time.Duration { return d.wait }

// Purchases are refused before any other check, and all other routes keep working.
func TestAdmission_RefusesBeforeOtherChecks(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Admission = &door{wait: 3 * time.Second, shut: true}; c.Limits.RateBuyer = 1 })
	s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) {
		t.Error("a purchase got through")
		return order.Placed{}, errTest
	}
	seen := map[string]bool{}
	for i := range 200 {
		r := purchaseRequest(t, `{"quantity":1}`)
		switch i {
		case 0:
			r.Header.Del("Authorization")
		case 1:
			r = purchaseRequest(t, `{"quantity":`)
		}
		resp := s.do(r).Result()
		wantProblem(t, resp, 503, "overloaded")
		n, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if err != nil || n < 3 || n > 6 {
			t.Fatalf("Retry-After = %q, want 3 to 6", resp.Header.Get("Retry-After"))
		}
		seen[resp.Header.Get("Retry-After")] = true
	}
	if len(seen) < 2 {
		t.Errorf("all got the same Retry-After: %v", seen)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/items", nil)
	if err != nil {
		t.Fatal(err)
	}
	if w := s.do(r); w.Code != 200 {
		t.Errorf("the list of items: %d", w.Code)
	}
}

// Purchases are refused with 503 while the database does not accept writes.
func TestAdmission_RefusesWhileDatabaseIsReadOnly(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Admission = &door{err: fmt.Errorf("%w: disk full", database.ErrUnavailable)} })
	s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) {
		t.Error("a purchase got through")
		return order.Placed{}, errTest
	}
	resp := s.do(purchaseRequest(t, `{"quantity":1}`)).Result()
	wantProblem(t, resp, 503, "unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// Each admitted purchase is removed from the count, no matter how it ends.
func TestAdmission_EndedPurchasesLeaveTheCount(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Limits.InFlight = 1; c.Limits.RateBuyer = -1 })
	for i := range 20 {
		r := purchaseRequest(t, `{"quantity":1}`)
		want := 201
		switch i % 3 {
		case 1:
			r.Header.Del("Authorization")
			want = 401
		case 2:
			s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) { panic("as a test") }
			want = 500
		}
		if w := s.do(r); w.Code != want {
			t.Fatalf("request %d: %d, want %d: %s", i, w.Code, want, w.Body)
		}
		s.orders.place = nil
	}
}

// Purchases are answered immediately, without a wait, while commits are late.
func TestAdmission_NoWaitWhileCommitsAreLate(t *testing.T) {
	t.Parallel()
	d := &door{late: true}
	s := open(t, func(c *Config) { c.Admission = d })
	var waited time.Duration
	s.orders.place = func(_ context.Context, p order.Purchase) (order.Placed, error) {
		waited = p.Wait
		return order.Placed{Order: someOrder(p)}, nil
	}
	for _, late := range []bool{true, false} {
		d.late = late
		r := purchaseRequest(t, `{"quantity":1}`)
		r.Header.Set("Prefer", "wait=3")
		if w := s.do(r); w.Code != 202 || (waited == 0) != late || (w.Header().Get("Preference-Applied") == "") != late {
			t.Errorf("late %v: %d after a wait of %v, Preference-Applied %q", late, w.Code, waited, w.Header().Get("Preference-Applied"))
		}
	}
}

// The refusal for a full queue says when there will be capacity.
func TestAdmission_FullQueueHasRetryAfter(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Admission = &door{wait: 7*time.Second + 1} })
	s.orders.place = func(context.Context, order.Purchase) (order.Placed, error) {
		return order.Placed{}, inventory.ErrOverloaded
	}
	resp := s.do(purchaseRequest(t, `{"quantity":1}`)).Result()
	wantProblem(t, resp, 503, "overloaded")
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err != nil || n < 8 || n > 16 {
		t.Errorf("Retry-After = %q, want 8 to 16", resp.Header.Get("Retry-After"))
	}
}

// BenchmarkRefused measures a purchase refused for lack of capacity.
func BenchmarkRefused(b *testing.B) {
	s := open(b, func(c *Config) { c.Admission = &door{wait: time.Second, shut: true} })
	r := purchaseRequest(b, `{"quantity":1}`)
	b.ReportAllocs()
	for b.Loop() {
		if w := s.do(r); w.Code != 503 {
			b.Fatal(w.Code)
		}
	}
}
