package inventory

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/lock"
)

// breakable returns a client behind a proxy and a breaker that opens at the first failure.
// Calls may take seconds, so that a slow answer on a busy machine is not a failure.
func breakable(t *testing.T) (*redis.Client, *breaker.Breakers, *redistest.Proxy) {
	t.Helper()
	proxy := redistest.NewProxy(t, redistest.Redis(t).Options().Addr)
	o := redistest.Options(proxy.Addr())
	o.DialerRetries = 1
	rdb := redis.NewClient(o)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	guard := breaker.New(breaker.Config{
		Failures: 1, Span: 1, Patience: time.Second, Pause: 50 * time.Millisecond, Probe: 3 * time.Second,
	})
	guard.Guard(rdb)
	return rdb, guard, proxy
}

// TestInventory_BreakerOpen buys while the breaker is open: nothing is sent, so the buyer is
// answered before the patience ends.
func TestInventory_BreakerOpen(t *testing.T) {
	t.Parallel()
	rdb, guard, proxy := breakable(t)
	s := newShop(t, rdb, open(10, 1), 0)
	// Locks that could not be released during the outage expire.
	locks := newLocks(t, rdb, lock.Config{TTL: time.Second})
	v := s.inventoryOn(t, rdb, locks, Config{Patience: time.Hour})
	mustBuyAtLast(t, v, s.request("u", "k", 1))
	proxy.Refuse(true)
	proxy.Sever()
	await.True(t, "the breaker opens", func() bool {
		return errors.Is(rdb.Ping(t.Context()).Err(), breaker.ErrOpen)
	})
	if o := buy(t, v, s.request("v", "k", 1)); !errors.Is(o.Err, ErrUnavailable) {
		t.Errorf("a purchase while Redis is away: %+v, want %v", o, ErrUnavailable)
	}
	proxy.Refuse(false)
	await.True(t, "the breaker closes", func() bool { return guard.Open() == 0 || rdb.Ping(t.Context()).Err() == nil })
	mustBuyAtLast(t, v, s.request("v", "k", 1))
	if left := s.audit(t); left.left(t) != 8 {
		t.Errorf("%d are left, want 8", left.left(t))
	}
}

// TestInventory_BreakerOpensOnUnknown loses the reply to a purchase, which opens the breaker.
// The next attempts are not sent, but the purchase must not fail for that: it is repeated
// until its outcome is known.
func TestInventory_BreakerOpensOnUnknown(t *testing.T) {
	t.Parallel()
	rdb, guard, proxy := breakable(t)
	s := newShop(t, rdb, open(10, 1), 0)
	// The lock is held while idle: a purchase that had to acquire it would not be sent.
	v := s.inventoryOn(t, rdb, newLocks(t, rdb, lockConfig), Config{LockIdle: limit})
	mustBuy(t, v, s.request("u", "k", 1))
	proxy.DropReplies(true)
	done := make(chan Outcome, 1)
	r := s.request("v", "k", 1)
	r.Done = func(o Outcome) { done <- o }
	if err := v.Submit(r); err != nil {
		t.Fatal(err)
	}
	await.True(t, "tries of the batch are refused", func() bool { return guard.Refused() >= 3 })
	select {
	case o := <-done:
		t.Fatalf("while the outcome is unknown: %+v", o)
	default:
	}
	proxy.Sever()
	proxy.DropReplies(false)
	if o := <-done; o.Err != nil || o.ReplayOf != "" {
		t.Errorf("the purchase whose answer was lost: %+v, want it accepted", o)
	}
	if left := s.audit(t); left.left(t) != 8 {
		t.Errorf("%d are left, want 8", left.left(t))
	}
}
