package store

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestHighWater_Expiry: an unpaid order of a stopped sale does not expire, because the
// database may have lost its payment.
func TestHighWater_Expiry(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	n := ordertest.NewItem("i", 10, 5)
	n.PaymentWindow = time.Second
	mustInsert(t, s, n)
	ctx := await.Context(t)
	if _, err := s.Commit(ctx, []order.Task{ordertest.Bought("o1", "i", "u", "k", 1)}); err != nil {
		t.Fatal(err)
	}
	WithClock(ordertest.ClockFunc(func() time.Time { return time.Now().Add(time.Hour) }))(s)
	h := &HighWater{HighWaterConfig: HighWaterConfig{Partitions: 1}}
	s.highWater = h
	h.Redis = redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	if s.Postgres() { // the comparison with Redis is over
		life, err := s.ServerLife(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.comparedLife.Store(&life)
	}
	h.OnError = func(error) {}
	t.Cleanup(func() {
		if err := h.Redis.Close(); err != nil {
			t.Error(err)
		}
	})
	none := map[string]Behind{}
	for _, stop := range []func(){
		func() { h.stopped.Store(&map[string]Behind{"i": {ItemID: "i", Database: 1, Redis: 2}}) },
		func() { h.stopped.Store(&none); h.urgent.Store(&map[string]bool{"i": true}) }, // found before the first write
	} {
		stop()
		results, pending, err := s.Expire(ctx, []string{"o1"})
		if err != nil || len(pending) != 0 || results["o1"].Status != order.StatusConfirmed || results["o1"].In <= 0 {
			t.Errorf("expiry of a stopped sale's order: %+v, %d pending releases, %v; want it confirmed, to be retried later", results["o1"], len(pending), err)
		}
	}
	h.urgent.Store(nil)
	results, pending, err := s.Expire(ctx, []string{"o1"})
	if err != nil || len(pending) != 1 || results["o1"].Status != order.StatusExpired {
		t.Errorf("expiry afterwards: %+v, %d pending releases, %v", results["o1"], len(pending), err)
	}
}
