package inventory

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
)

// TestInventory_Rewound_Builds: a sale that two processes have built in turn, without a commit
// in between, does not count as older data.
func TestInventory_Rewound_Builds(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newShop(t, rdb, open(10, 1), 0)
		s.source.set(func(src *stored) {
			sale := src.sales[s.item]
			sale.Control = "paused"
			src.sales[s.item] = sale
		})
		var rewound atomic.Int64
		cfg := Config{Observe: Observers{OnLoss: func(_ context.Context, epoch int64) {
			if epoch != 0 {
				rewound.Add(1)
			}
		}}.For}
		a, b := s.inventory(t, cfg), s.inventory(t, cfg)
		for i, v := range []*Inventory{a, a, b, a} {
			if i > 0 && i < 3 {
				if err := Invalidate(t.Context(), rdb, 1, []string{s.item}); err != nil {
					t.Fatal(err)
				}
			}
			if o := buy(t, v, s.request("u", "k", 1)); !errors.Is(o.Err, ErrPaused) {
				t.Fatalf("outcome %+v", o)
			}
		}
		if n := rewound.Load(); n != 0 {
			t.Errorf("%d times a sale was taken for older data", n)
		}
	})
}
