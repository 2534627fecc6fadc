package handler

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"flashsale/handler/auth"
)

func TestLimiter(t *testing.T) {
	t.Parallel()
	l := newLimiter(10, 3)
	now := someTime
	take := func(key string) bool { return l.allow(key, now) == nil }
	for i := range 3 {
		if !take("a") {
			t.Fatalf("request %d of the burst was refused", i)
		}
	}
	if take("a") {
		t.Error("a fourth was allowed")
	}
	if !take("b") {
		t.Error("another key uses the first one's bucket")
	}
	now = now.Add(99 * time.Millisecond)
	if take("a") {
		t.Error("allowed before a token was there")
	}
	now = now.Add(time.Millisecond)
	if !take("a") || take("a") {
		t.Error("after 100 ms there is exactly one token")
	}
	// The generations change; a bucket in use keeps its level.
	for range 50 {
		now = now.Add(100 * time.Millisecond)
		if !take("a") || take("a") {
			t.Fatal("a bucket in use was dropped")
		}
	}
	// An unused one is full again, but not above its burst.
	now = now.Add(time.Hour)
	for i := range 4 {
		if got := take("a"); got != (i < 3) {
			t.Errorf("after an hour, request %d: %t", i, got)
		}
	}
}

// The memory is bounded, whatever the number of keys.
func TestLimiter_MemoryIsBounded(t *testing.T) {
	t.Parallel()
	l := newLimiter(1, 1000)
	l.most = 8
	for i := range 100_000 {
		if err := l.allow(strconv.Itoa(i), someTime); err != nil {
			t.Fatal(err)
		}
	}
	kept := 0
	for i := range l.shards {
		kept += len(l.shards[i].young) + len(l.shards[i].old)
	}
	if most := 2 * 64 * l.most; kept > most {
		t.Errorf("%d buckets are kept, want at most %d", kept, most)
	}
}

func TestLimiter_Concurrent(t *testing.T) {
	t.Parallel()
	l := newLimiter(0.001, 50)
	var wg sync.WaitGroup
	var mu sync.Mutex
	allowed := 0
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if l.allow("a", someTime) == nil {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if allowed != 50 {
		t.Errorf("%d were allowed, want the burst of 50", allowed)
	}
}

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
