package inventory

import (
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInventory_Held counts what the purchase script counts: not the units of released orders.
func TestInventory_Held(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		s := newShop(t, rdb, open(9, 4), 0)
		v := s.inventory(t, Config{})
		want := func(buyer string, units int64) {
			t.Helper()
			if n, err := v.Held(await.Context(t), s.item, buyer); n != units || err != nil {
				t.Errorf("%s holds %d, %v; want %d", buyer, n, err, units)
			}
		}
		want("u1", 0) // the sale is not loaded
		first := s.request("u1", "k1", 2)
		mustBuy(t, v, first)
		mustBuy(t, v, s.request("u1", "k2", 1))
		want("u1", 3)
		want("u2", 0)
		s.give(t, first)
		want("u1", 1)
		if err := rdb.HSet(await.Context(t), v.keys.buyers(s.item), "u3", "damaged").Err(); err != nil {
			t.Fatal(err)
		}
		if n, err := v.Held(await.Context(t), s.item, "u3"); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a damaged count: %d, %v", n, err)
		}
	})
}
