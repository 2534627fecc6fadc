package items_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
)

// down is a Stock on which one bucket cannot be changed, as while its master is away.
type down struct {
	items.Stock
	id string
}

func (d *down) Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (int64, error)) error {
	if item == d.id {
		return inventory.ErrUnavailable
	}
	return d.Stock.Change(ctx, item, c, commit)
}

// TestBuckets_PauseOneDown: while the master of one bucket is away, a pause stops the others.
func TestBuckets_PauseOneDown(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 10)
		_, err := other(s, &down{Stock: s.Stock, id: bucket.ID(s.Item, 7)}).ControlItem(await.Context(t), s.Item, items.Control{To: catalog.ControlPaused}, ordertest.Root)
		if !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("pause: %v", err)
		}
		for _, id := range bucket.IDs(s.Item, 7) {
			if row := ordertest.ItemOf(t, s.Store, id); row.Control != "paused" {
				t.Errorf("%s is %s", id, row.Control)
			}
		}
	})
}

// TestBuckets_OneBucketDrifts: a bucket whose row disagrees with its sale does not keep units of the
// other buckets from a refill.
func TestBuckets_OneBucketDrifts(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := divided(t, rdb, 80, 80)
		if err := s.Store.Writer().Exec("UPDATE items SET sold = total WHERE id = ?", s.Item).Error; err != nil {
			t.Fatal(err)
		}
		ok, err := s.Sales.Refill(await.Context(t), &catalog.Item{ID: s.Item, Buckets: 8}, bucket.ID(s.Item, 3), 11)
		if err != nil || !ok {
			t.Errorf("%v, %v; 60 units are free in six other buckets", ok, err)
		}
	})
}

// TestBuckets_Flushed: Redis loses all data during a sale.
func TestBuckets_Flushed(t *testing.T) {
	t.Parallel()
	s := divided(t, redistest.Embedded(t), 100, 1)
	first := contend(s, "a", 60)
	s.Drained()
	if err := s.Rdb.FlushAll(await.Context(t)).Err(); err != nil {
		t.Fatal(err)
	}
	second := contend(s, "b", 200)
	if len(first)+len(second) != 100 {
		t.Errorf("%d and %d", len(first), len(second))
	}
	s.Drained()
	l := reconciletest.LedgerOf(s)
	if !l.Balanced() || l.Left != 0 {
		t.Errorf("%+v", l)
	}
	_ = order.Ledger{}
}
