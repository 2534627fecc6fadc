package recovery

import (
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/items"
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
		s.MustPlace(s.Purchase(buyerOf(s, 3, 8), "k", 70, ordertest.Long))
		s.Drained()
		stop()
		h := restore(s, saved)
		stopped := shoptest.MustCheck(h, t)
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		}
		if left := shoptest.MustCheck(h, t); len(left) > 0 {
			t.Errorf("still stopped %+v", left)
		}
		s.Work()
		if total, sold := stockOf(t, s, 8); total != 80 || sold != 71 {
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

// TestBuckets_RecoverLostMaster: a backup is restored, and a master has lost its data, too. Units
// that were moved between its buckets and others since the backup exist once.
func TestBuckets_RecoverLostMaster(t *testing.T) {
	t.Parallel()
	const buckets, full, receiver = 8, 80, 3
	for name, c := range map[string]struct {
		lost []int // buckets whose data in Redis is lost
		from RecoverFrom
		sold int64 // after the recovery
	}{
		"buckets that gave units":     {[]int{4, 5}, RecoverFromRedis, 71},
		"the bucket that got units":   {[]int{receiver}, RecoverFromRedis, 1},
		"both":                        {[]int{receiver, 5}, RecoverFromRedis, 1},
		"all":                         {[]int{0, 1, 2, 3, 4, 5, 6, 7}, RecoverFromRedis, 1},
		"the database decides anyway": {[]int{4, 5}, RecoverFromDatabase, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				n := ordertest.NewItem("", full, full)
				n.Buckets = buckets
				s := shoptest.New(t, rdb, false, n)
				h := s.HighWater()
				stop := s.Work()
				s.MustPlace(s.Purchase(buyerOf(s, 0, buckets), "k", 1, ordertest.Long))
				s.Drained()
				saved := backup(s)
				s.MustPlace(s.Purchase(buyerOf(s, receiver, buckets), "k", 70, ordertest.Long))
				s.Drained()
				stop()
				for _, b := range c.lost {
					loseBucket(s, h.Lineage, bucket.ID(s.Item, b))
				}
				h = restore(s, saved)
				s.Restart()
				stopped := shoptest.MustCheck(h, t)
				if len(c.lost) == buckets {
					if len(stopped) > 0 {
						t.Fatalf("stopped %+v, and Redis knows nothing", stopped)
					}
				} else if len(stopped) != buckets {
					t.Fatalf("stopped %+v, want all %d buckets of the item", stopped, buckets)
				}
				if _, _, err := recoverItem(s, h, c.from, stopped, nil); err != nil {
					t.Fatal(err)
				}
				if left := shoptest.MustCheck(h, t); len(left) > 0 {
					t.Fatalf("still stopped %+v", left)
				}
				s.Work()
				total, sold := stockOf(t, s, buckets)
				if total != full || sold != c.sold {
					t.Errorf("total %d, sold %d, want %d, %d", total, sold, full, c.sold)
				}
				users := make([]string, full+10)
				for i := range users {
					users[i] = fmt.Sprint("late", i)
				}
				if n := int64(buys(s, users...)); n != full-c.sold {
					t.Errorf("%d units were sold after the recovery, want %d", n, full-c.sold)
				}
			})
		})
	}
}

// TestBuckets_RecoverInterruptedMove: a process died in a move when one bucket had got the units in
// Redis, and the other one still had them. They exist once.
func TestBuckets_RecoverInterruptedMove(t *testing.T) {
	t.Parallel()
	const buckets, full, receiver, giver = 8, 80, 3, 5
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", full, full)
		n.Buckets = buckets
		s := shoptest.New(t, rdb, false, n)
		s.HighWater()
		stop := s.Work()
		s.MustPlace(s.Purchase(buyerOf(s, 0, buckets), "k", 1, ordertest.Long))
		s.Drained()
		saved := backup(s)
		ctx := await.Context(t)
		key := s.Rdb.Keys(ctx, "fs:*sale:"+bucket.ID(s.Item, giver)).Val()[0]
		before, err := s.Rdb.HGetAll(ctx, key).Result()
		if err != nil || before["left"] != "10" {
			t.Fatal(before, err)
		}
		s.MustPlace(s.Purchase(buyerOf(s, receiver, buckets), "k", 79, ordertest.Long))
		s.Drained()
		stop()
		before["changing"] = "1-died"
		if err := s.Rdb.HSet(ctx, key, before).Err(); err != nil {
			t.Fatal(err)
		}
		h := restore(s, saved)
		s.Restart()
		if _, _, err := recoverItem(s, h, RecoverFromRedis, shoptest.MustCheck(h, t), nil); err != nil {
			t.Fatal(err)
		}
		if left := shoptest.MustCheck(h, t); len(left) > 0 {
			t.Fatalf("still stopped %+v", left)
		}
		s.Work()
		if total, sold := stockOf(t, s, buckets); total != full || sold != full {
			t.Errorf("total %d, sold %d, want %d, %d", total, sold, full, full)
		}
		if n := buys(s, buyerOf(s, giver, buckets)); n != 0 {
			t.Errorf("%d more units are sold", n)
		}
	})
}

// TestBuckets_RecoverTerms: the sale was closed after the backup. It stays closed, whichever bucket's
// data in Redis is lost.
func TestBuckets_RecoverTerms(t *testing.T) {
	t.Parallel()
	const buckets = 4
	for _, lost := range []int{0, 1} {
		t.Run(fmt.Sprint("bucket ", lost), func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				n := ordertest.NewItem("", 40, 1)
				n.Buckets = buckets
				s := shoptest.New(t, rdb, false, n)
				h := s.HighWater()
				saved := backup(s)
				ctx := await.Context(t)
				if _, err := s.Sales.ChangeItem(ctx, s.Item, items.Change{PerUserLimit: ordertest.Ptr(int64(3))}, ordertest.Root); err != nil {
					t.Fatal(err)
				}
				if _, err := s.Sales.ControlItem(ctx, s.Item, items.Control{To: catalog.ControlClosed}, ordertest.Root); err != nil {
					t.Fatal(err)
				}
				loseBucket(s, h.Lineage, bucket.ID(s.Item, lost))
				h = restore(s, saved)
				s.Restart()
				if _, _, err := recoverItem(s, h, RecoverFromRedis, shoptest.MustCheck(h, t), nil); err != nil {
					t.Fatal(err)
				}
				for _, id := range bucket.IDs(s.Item, buckets) {
					if row := ordertest.ItemOf(t, s.Store, id); row.Control != string(catalog.ControlClosed) || row.PerUserLimit != 3 {
						t.Errorf("%s: %s, limit %d, want closed, 3", id, row.Control, row.PerUserLimit)
					}
				}
			})
		})
	}
}

// TestBuckets_RecoverQueued: a bucket has queued orders of units that moved to it after the backup. They
// are committed although the database's side is chosen.
func TestBuckets_RecoverQueued(t *testing.T) {
	t.Parallel()
	const buckets, full, receiver = 4, 40, 2
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", full, full)
		n.Buckets = buckets
		s := shoptest.New(t, rdb, false, n)
		s.HighWater()
		saved := backup(s)
		queued := s.MustPlace(s.Purchase(buyerOf(s, receiver, buckets), "k", 35, 0))
		h := restore(s, saved)
		s.Restart()
		if _, _, err := recoverItem(s, h, RecoverFromDatabase, shoptest.MustCheck(h, t), nil); err != nil {
			t.Fatal(err)
		}
		if left := shoptest.MustCheck(h, t); len(left) > 0 {
			t.Fatalf("still stopped %+v", left)
		}
		s.Work()
		await.True(t, "the queued order to be decided", func() bool {
			o, err := s.Store.Order(await.Context(t), queued.Order.ID)
			if err == nil && o.Status != order.StatusConfirmed {
				t.Fatalf("the queued order is %s", o.Status)
			}
			return err == nil
		})
		if total, sold := stockOf(t, s, buckets); total != full || sold != 35 {
			t.Errorf("total %d, sold %d, want %d, 35", total, sold, full)
		}
	})
}

// TestBuckets_RecoverPartlyMarked: a payment raised a bucket's revision while the item was marked, so that
// this bucket has no mark. The item can be recovered.
func TestBuckets_RecoverPartlyMarked(t *testing.T) {
	t.Parallel()
	const buckets = 4
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 40, 40)
		n.Buckets = buckets
		s := shoptest.New(t, rdb, false, n)
		s.HighWater()
		stop := s.Work()
		saved := backup(s)
		s.MustPlace(s.Purchase(buyerOf(s, 2, buckets), "k", 1, ordertest.Long))
		s.Drained()
		stop()
		h := restore(s, saved)
		stopped := shoptest.MustCheck(h, t)
		mustRun(s, "UPDATE items SET revision = revision + 1, behind = 0 WHERE id = ?", s.Item)
		if _, _, err := recoverItem(s, h, RecoverFromRedis, stopped, nil); err != nil {
			t.Fatal(err)
		}
		if left := shoptest.MustCheck(h, t); len(left) > 0 {
			t.Errorf("still stopped %+v", left)
		}
	})
}

// A restock that only Redis knows is not counted twice either, and its units in a lost bucket are
// not sold.
func TestDivide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		total int64
		sales []stock
		want  []int64
	}{
		"one item, known":                  {50, []stock{{total: 60, sold: 5, known: true}}, []int64{60}},
		"one item, lost":                   {50, []stock{{total: 50, sold: 5}}, []int64{50}},
		"one item, lost, more sold":        {50, []stock{{total: 50, sold: 55}}, []int64{55}},
		"all known, restocked":             {20, []stock{{total: 15, known: true}, {total: 15, known: true}}, []int64{15, 15}},
		"none known":                       {20, []stock{{total: 10, sold: 3}, {total: 10}}, []int64{10, 10}},
		"the known one has got units":      {20, []stock{{total: 17, sold: 12, known: true}, {total: 10, sold: 1}}, []int64{17, 3}},
		"the known one has given units":    {20, []stock{{total: 4, sold: 4, known: true}, {total: 10, sold: 1}}, []int64{4, 16}},
		"the known one was restocked":      {20, []stock{{total: 25, known: true}, {total: 10, sold: 2}}, []int64{25, 2}},
		"two lost ones, one is sold out":   {30, []stock{{total: 15, known: true}, {total: 10, sold: 10}, {total: 10}}, []int64{15, 10, 5}},
		"queued orders get units first":    {30, []stock{{total: 12, known: true}, {total: 10, sold: 1}, {total: 10, outstanding: 9}}, []int64{12, 9, 9}},
		"more is queued than is left":      {10, []stock{{total: 10, sold: 9, outstanding: 3}}, []int64{10}},
		"two lost ones, one has sold more": {30, []stock{{total: 5, known: true}, {total: 10, sold: 14}, {total: 10}}, []int64{5, 15, 10}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			divide(c.total, c.sales)
			for i, s := range c.sales {
				if s.total != c.want[i] {
					t.Errorf("bucket %d has %d units, want %d", i, s.total, c.want[i])
				}
			}
		})
	}
}

// TestBuckets_CreatedAgainUnsold: the database has lost an item of which no order is committed. It cannot be
// created again with fewer buckets, because orders may be queued for each of them.
func TestBuckets_CreatedAgainUnsold(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const had = 4
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 1, 1))
		s.HighWater()
		before := backup(s)
		n := ordertest.NewItem(s.Item+"-new", 40, 40)
		n.Buckets = had
		if _, err := s.Sales.CreateItem(await.Context(t), n); err != nil {
			t.Fatal(err)
		}
		restore(s, before)
		s.Restart()
		n.Buckets = had - 1
		_, err := s.Sales.CreateItem(await.Context(t), n)
		if more := (*order.BucketsError)(nil); !errors.As(err, &more) || more.Buckets != had {
			t.Errorf("creation: %v, want a BucketsError with %d", err, had)
		}
	})
}

// TestBuckets_CreatedAgain: the database has lost an item that was created after the backup. Its
// orders in Redis are recovered if it is created with as many buckets again.
func TestBuckets_CreatedAgain(t *testing.T) {
	t.Parallel()
	const had, full = 4, 40
	for name, c := range map[string]struct {
		buckets int
		total   int64 // 0: it is not created
	}{
		"not divided":   {1, 0},
		"fewer buckets": {3, 0},
		"the same":      {had, full},
		"more buckets":  {8, full}, // they get no units
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				n := ordertest.NewItem("", full, full)
				n.Buckets = had
				s := shoptest.New(t, rdb, false, n)
				s.HighWater()
				empty := backup(s)
				stop := s.Work()
				for b := range had {
					s.MustPlace(s.Purchase(buyerOf(s, b, had), "k", 2, ordertest.Long))
				}
				s.Drained()
				stop()
				h := restore(s, empty)
				mustRun(s, "DELETE FROM items") // which the backup had
				s.Restart()
				n.ID, n.Buckets = s.Item, c.buckets
				_, err := s.Sales.CreateItem(await.Context(t), n)
				if c.total == 0 {
					if more := (*order.BucketsError)(nil); !errors.As(err, &more) || more.Buckets != had {
						t.Errorf("creation: %v, want a BucketsError with %d", err, had)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Sales.CreateItem(await.Context(t), n); !errors.Is(err, order.ErrItemExists) {
					t.Errorf("second creation: %v, want ErrItemExists", err)
				}
				if _, _, err := recoverItem(s, h, RecoverFromRedis, shoptest.MustCheck(h, t), nil); err != nil {
					t.Fatal(err)
				}
				if total, sold := stockOf(t, s, c.buckets); total != c.total || sold != 2*had {
					t.Errorf("total %d, sold %d, want %d, %d", total, sold, c.total, 2*had)
				}
			})
		})
	}
}

// buyerOf returns a buyer who buys from bucket n of the item.
func buyerOf(s *shoptest.Shop, n, buckets int) string {
	for i := 0; ; i++ {
		if buyer := fmt.Sprint("x", i); bucket.Home(s.Item, buyer, buckets) == bucket.ID(s.Item, n) {
			return buyer
		}
	}
}

// stockOf sums the stock of an item's buckets in the database.
func stockOf(t *testing.T, s *shoptest.Shop, buckets int) (total, sold int64) {
	for _, id := range bucket.IDs(s.Item, buckets) {
		row := ordertest.ItemOf(t, s.Store, id)
		total += row.Total
		sold += row.Sold
	}
	return total, sold
}

// loseBucket deletes all data of a bucket from Redis, as the loss of its master does.
func loseBucket(s *shoptest.Shop, lineage, id string) {
	s.T.Helper()
	ctx := await.Context(s.T)
	keys, err := s.Rdb.Keys(ctx, "fs:*:"+id).Result()
	if err != nil || len(keys) == 0 {
		s.T.Fatalf("keys of %s: %v, %v", id, keys, err)
	}
	if err := s.Rdb.Del(ctx, keys...).Err(); err != nil {
		s.T.Fatal(err)
	}
	marks, err := s.Rdb.Keys(ctx, "fs:*:"+lineage).Result()
	if err != nil || len(marks) != 1 {
		s.T.Fatalf("keys of the lineage: %v, %v", marks, err)
	}
	if err := s.Rdb.ZRem(ctx, marks[0], id).Err(); err != nil {
		s.T.Fatal(err)
	}
}
