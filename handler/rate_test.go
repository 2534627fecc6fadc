package handler

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"flashsale/handler/auth"
)

func TestRate_BuyerHasOneBucket(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Limits.RateBuyer, c.Limits.BurstBuyer = 0.5, 3 })
	for i, body := range []string{`{"quantity":1}`, `{`, ``} { // malformed bodies count
		if code := s.do(purchaseRequest(t, body)).Code; code == http.StatusTooManyRequests {
			t.Errorf("request %d: %d", i, code)
		}
	}
	resp := s.do(purchaseRequest(t, `{"quantity":1}`)).Result()
	body := wantProblem(t, resp, 429, "rate_limited")
	for name, want := range map[string]string{
		"Retry-After": "2", "RateLimit-Limit": "3", "RateLimit-Remaining": "0", "RateLimit-Reset": "2",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if body["retry_after"] != 2.0 {
		t.Errorf("retry_after = %v", body["retry_after"])
	}
	if n := len(s.orders.purchases()); n != 1 {
		t.Errorf("%d purchases, want 1", n)
	}
	// All routes share the buyer's bucket, and other buyers have their own.
	wantProblem(t, s.get(t, "/v1/orders", "alice", auth.RoleBuyer).Result(), 429, "rate_limited")
	if w := s.get(t, "/v1/orders", "bob", auth.RoleBuyer); w.Code != 200 {
		t.Errorf("another buyer: %d", w.Code)
	}
	for range 10 {
		if w := s.get(t, "/v1/orders", "root", auth.RoleAdmin); w.Code != 200 {
			t.Errorf("an admin is limited: %d", w.Code)
		}
	}
}

// Without a trusted proxy X-Forwarded-For is ignored.
func TestRate_AddressHasOneBucket(t *testing.T) {
	t.Parallel()
	limited := func(c *Config) { c.Limits.RateAddress = 5 }
	flood := func(s *shop, forwarded func(i int) string) (refused int) {
		for i := range 1000 {
			r := httptest.NewRequest(http.MethodGet, "/v1/items", http.NoBody)
			r.Header.Set("X-Forwarded-For", forwarded(i))
			r.Header.Set("X-Real-Ip", forwarded(i))
			if s.do(r).Code == http.StatusTooManyRequests {
				refused++
			}
		}
		return refused
	}
	changing := func(i int) string { return fmt.Sprintf("10.1.%d.%d", i/250, i%250) }
	if got := flood(open(t, limited), changing); got != 990 {
		t.Errorf("%d of 1000 were refused, want 990", got)
	}
	trusting := func(c *Config) { c.Limits.TrustedProxies = []string{"192.0.2.0/24"} } // httptest's client
	if got := flood(open(t, limited, trusting), changing); got != 0 {
		t.Errorf("behind a trusted proxy %d of 1000 clients were refused", got)
	}
	sameNetwork := func(i int) string { return fmt.Sprintf("2001:db8::%x", i+1) }
	if got := flood(open(t, limited, trusting), sameNetwork); got != 990 {
		t.Errorf("one IPv6 network: %d of 1000 were refused, want 990", got)
	}
}

// A proxy that does not know X-Real-Ip passes it on, so it does not select the bucket of a client,
// also when X-Forwarded-For has no address.
func TestRate_RealIPIsNotTrusted(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) { c.Limits.RateAddress, c.Limits.TrustedProxies = 5, []string{"192.0.2.0/24"} })
	for _, forwarded := range []string{"", "203.0.113.7:4711", "unknown"} {
		refused := 0
		for i := range 100 {
			r := httptest.NewRequest(http.MethodGet, "/v1/items", http.NoBody)
			if forwarded != "" {
				r.Header.Set("X-Forwarded-For", forwarded)
			}
			r.Header.Set("X-Real-Ip", fmt.Sprintf("10.1.0.%d", i))
			if s.do(r).Code == http.StatusTooManyRequests {
				refused++
			}
		}
		if refused < 90 {
			t.Errorf("X-Forwarded-For %q: %d of 100 were refused, want at least 90", forwarded, refused)
		}
	}
}
