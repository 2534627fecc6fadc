package inventory

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// OnAccepted counts each accepted order once: no refusals, and no repeats of the same key.
func TestInventory_OnAccepted(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		var accepted atomic.Int64
		v := s.inventory(t, Config{OnAccepted: func(item string, orders int) {
			if item != s.item {
				t.Errorf("item %s", item)
			}
			accepted.Add(int64(orders))
		}})
		buyers := func(key string, n int) {
			requests := make([]*Request, n)
			for i := range requests {
				requests[i] = s.request(fmt.Sprintf("u%d", i), key, 1)
			}
			outcomes(t, v, requests)
		}
		buyers("k", 5)
		if n := accepted.Load(); n != 5 {
			t.Errorf("%d accepted, want 5", n)
		}
		buyers("k", 5)     // repeats
		buyers("other", 5) // above the limit
		if n := accepted.Load(); n != 5 {
			t.Errorf("%d accepted after repeats and refusals, want 5", n)
		}
		buyers("k", 100)
		if n := accepted.Load(); n != 10 {
			t.Errorf("%d accepted of a stock of 10", n)
		}
	})
}
