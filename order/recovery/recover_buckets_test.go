package recovery

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
	"flashsale/internal/testing/redistest"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
)

// TestBuckets_RecoverMoved: a backup that lacks moves between buckets is recovered from Redis.
func TestBuckets_RecoverMoved(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 80, 80)
		n.Buckets = 8
		s := shoptest.New(t, rdb, false, n)
		s.HighWater()
		stop := s.Work()
		s.MustPlace(s.Purchase("first", "k", 1, ordertest.Long))
		s.Drained()
		saved := backup(s)
		buyer := "x"
		for i := 0; bucket.Home(s.Item, buyer, 8) != bucket.ID(s.Item, 3); i++ {
			buyer = fmt.Sprint("x", i)
		}
		s.MustPlace(s.Purchase(buyer, "k", 70, ordertest.Long))
		s.Drained()
		stop()
		h := restore(s, saved)
		stopped := shoptest.MustCheck(h, t)
		t.Logf("%d stopped: %+v", len(stopped), stopped)
		if _, actions, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		} else {
			t.Logf("%v", actions)
		}
		if left := shoptest.MustCheck(h, t); len(left) > 0 {
			t.Errorf("still stopped %+v", left)
		}
		s.Work()
		var total, sold int64
		for _, id := range bucket.IDs(s.Item, 8) {
			row := ordertest.ItemOf(t, s.Store, id)
			total += row.Total
			sold += row.Sold
		}
		if total != 80 || sold != 71 {
			t.Errorf("total %d, sold %d", total, sold)
		}
		var users []string
		for i := range 30 {
			users = append(users, fmt.Sprint("late", i))
		}
		if n := buys(s, users...); n != 9 {
			t.Errorf("%d units were sold after the recovery, want 9", n)
		}
	})
}
