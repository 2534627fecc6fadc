package recovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// recovery returns a new one for a site, as that of another process.
func recovery(s *shoptest.Shop) *Recovery {
	s.T.Helper()
	locks, err := lock.New(s.Rdb, ordertest.PatientLocks)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { s.End(locks.Close) })
	return NewRecovery(Config{
		Store: s.Store, Stock: s.Stock, Locks: locks, Resource: "fs:{p0}:recovery",
		Expiries: []*queue.Queue{s.Queue}, OnError: s.CollectError,
	})
}

// settled makes a check, and repeats one that has exceeded a time limit on a busy machine, as the next interval would.
func settled(s *shoptest.Shop, r *Recovery) {
	s.T.Helper()
	ctx := await.Context(s.T)
	await.True(s.T, "a check", func() bool {
		err := r.Check(ctx)
		if err != nil && !tooSlow(err) {
			s.T.Fatal(err)
		}
		return err == nil
	})
}

// bought places a purchase, and repeats one that has exceeded a time limit on a busy machine, as a buyer would.
func bought(s *shoptest.Shop, p order.Purchase) {
	s.T.Helper()
	ctx := await.Context(s.T)
	await.True(s.T, "a purchase", func() bool {
		_, err := s.Service.Place(ctx, p)
		if err != nil && !tooSlow(err) {
			s.T.Fatalf("place %+v: %v", p, err)
		}
		return err == nil
	})
}

// tooSlow reports whether a time limit of the service or of a connection has passed.
func tooSlow(err error) bool {
	var slow net.Error // also the end of a context
	return errors.As(err, &slow) && slow.Timeout()
}

// picture is all of Redis's data that does not expire on its own.
type picture map[string]any

func takePicture(t testing.TB, rdb *redis.Client) picture {
	t.Helper()
	ctx := await.Context(t)
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	p := picture{}
	for _, key := range keys {
		if ttl, err := rdb.PTTL(ctx, key).Result(); err != nil || ttl > 0 {
			if err != nil {
				t.Fatal(err)
			}
			continue // locks: they will have expired when the old data returns
		}
		kind, err := rdb.Type(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		switch kind {
		case "string":
			p[key], err = rdb.Get(ctx, key).Result()
		case "hash":
			p[key], err = rdb.HGetAll(ctx, key).Result()
		case "zset":
			p[key], err = rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		case "list":
			p[key], err = rdb.LRange(ctx, key, 0, -1).Result()
		case "stream":
			p[key], err = rdb.XRange(ctx, key, "-", "+").Result()
		case "none": // it expired in between
		default:
			t.Fatalf("%s is a %s", key, kind)
		}
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	return p
}

// rewind brings Redis back to what it held, as a replica that lags behind and
// becomes the master does.
func rewind(t testing.TB, rdb *redis.Client, p picture) {
	t.Helper()
	ctx := await.Context(t)
	_, err := rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.FlushAll(ctx)
		for key, v := range p {
			switch v := v.(type) {
			case string:
				tx.Set(ctx, key, v, 0)
			case map[string]string: // empty if the key was deleted while it was read
				if len(v) > 0 {
					tx.HSet(ctx, key, v)
				}
			case []redis.Z:
				if len(v) > 0 {
					tx.ZAdd(ctx, key, v...)
				}
			case []string:
				if len(v) > 0 {
					tx.RPush(ctx, key, v)
				}
			case []redis.XMessage:
				for _, m := range v {
					tx.XAdd(ctx, &redis.XAddArgs{Stream: key, ID: m.ID, Values: m.Values})
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// epochs reads the epochs in Redis and in the database.
func epochs(s *shoptest.Shop) (inRedis, inDatabase int64) {
	s.T.Helper()
	states, err := s.Stock.States(await.Context(s.T))
	if err != nil {
		s.T.Fatal(err)
	}
	inDatabase, err = s.Store.Epoch(await.Context(s.T))
	if err != nil {
		s.T.Fatal(err)
	}
	return states[0].Epoch, inDatabase
}

// sellOut buys until nothing is left and returns the accepted orders.
func sellOut(s *shoptest.Shop, prefix string, wait time.Duration) (ids []string) {
	s.T.Helper()
	for i := 0; ; i++ {
		placed, err := s.Service.Place(await.Context(s.T), s.Purchase(fmt.Sprintf("%s%d", prefix, i), "k", 1, wait))
		if errors.Is(err, inventory.ErrSoldOut) {
			return ids
		}
		if err != nil {
			s.T.Fatalf("purchase %d: %v", i, err)
		}
		ids = append(ids, placed.Order.ID)
	}
}

// TestRecovery_Lost: all of Redis is lost. Committed orders stay sold and keep their keys,
// and exactly the rest is sold.
func TestRecovery_Lost(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 50, 1))
		stop := s.Work()
		r := recovery(s)
		settled(s, r)
		if in, db := epochs(s); in != db {
			t.Fatalf("after the first check Redis has epoch %d, the database %d", in, db)
		}
		_, before := epochs(s)
		var first []order.Placed
		for i := range 20 {
			first = append(first, s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long)))
		}
		if _, now := epochs(s); now != before {
			t.Fatalf("the epoch rose from %d to %d though nothing was lost", before, now)
		}
		stop()
		if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
		settled(s, r)
		in, now := epochs(s)
		if in != now || now <= before {
			t.Errorf("epochs %d in Redis, %d in the database, after %d", in, now, before)
		}
		s.Work()
		for i, p := range first {
			again := s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
			if !again.Replayed || again.Order.ID != p.Order.ID {
				t.Errorf("the repeat of purchase %d got %+v, want order %s", i, again, p.Order.ID)
			}
		}
		if ids := sellOut(s, "v", ordertest.Long); len(ids) != 30 {
			t.Errorf("%d units sold after the loss, want 30", len(ids))
		}
		s.Drained()
		if l := reconciletest.LedgerOf(s); l.Sold != 50 || l.Left != 0 || l.Held != 0 {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestRecovery_OtherType: another program has overwritten the key of a sale. The recovery of all others goes on, and
// nothing is sold from that one until its key is deleted.
func TestRecovery_OtherType(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 10, 1))
		storetest.MustInsert(t, s.Store, ordertest.NewItem("overwritten", 10, 1))
		stop := s.Work()
		r := recovery(s)
		settled(s, r)
		s.MustPlace(s.Purchase("u", "k", 1, ordertest.Long))
		stop()
		const key = "fs:{p0}:sale:overwritten"
		if err := errors.Join(rdb.FlushAll(ctx).Err(), rdb.Set(ctx, key, "foreign", 0).Err()); err != nil {
			t.Fatal(err)
		}
		settled(s, r)
		loaded, err := s.Stock.ReloadAll(ctx, []inventory.Loadable{{Item: "overwritten"}, {Item: s.Item}})
		if loaded != 1 || !redisErrorIn(err, "WRONGTYPE") {
			t.Errorf("%d sales loaded, %v; want 1 and the error of the other", loaded, err)
		}
		settled(s, r) // the marks of both are read
		s.Work()
		if ids := sellOut(s, "v", ordertest.Long); len(ids) != 9 {
			t.Errorf("%d units sold after the loss, want 9", len(ids))
		}
		if left, err := s.Stock.Left(ctx, []string{"overwritten"}); err != nil || left[0] != -1 {
			t.Errorf("%v left, %v", left, err)
		}
		if was, err := rdb.GetDel(ctx, key).Result(); was != "foreign" || err != nil {
			t.Errorf("the foreign value is %q, %v", was, err)
		}
		p := s.Purchase("u", "k", 1, ordertest.Long)
		p.ItemID = "overwritten"
		s.MustPlace(p)
		s.Drained()
		ordertest.AuditStore(t, s.Store)
	})
}

// redisErrorIn reports whether an error has this error of Redis in its chain.
func redisErrorIn(err error, prefix string) bool {
	var re redis.Error
	return errors.As(err, &re) && redis.HasErrorPrefix(re, prefix)
}

// TestRecovery_LockLost: a process that loses the lock in the middle of a check, because it
// was paused for long, checks again, also if it notices that only when it releases the lock.
func TestRecovery_LockLost(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 50, 1))
		r := recovery(s)
		settled(s, r)
		if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
		losing := &losingLocks{Locks: r.Locks, left: 2}
		r.Locks = losing
		settled(s, r)
		if in, db := epochs(s); in != db || losing.left != 0 {
			t.Errorf("epoch %d in Redis, %d in the database, %d losses left", in, db, losing.left)
		}
	})
}

// losingLocks loses the lock in the first calls.
type losingLocks struct {
	Locks
	left int
}

func (d *losingLocks) Do(ctx context.Context, resource string, fn func(context.Context, *lock.Lock) error, opts ...lock.Option) error {
	if d.left == 0 {
		return d.Locks.Do(ctx, resource, fn, opts...)
	}
	d.left--
	return fmt.Errorf("do: %w", []error{lock.ErrNotHeld, lock.ErrLost}[d.left%2])
}

// TestRecovery_Rewound: Redis returns with data from before some orders. The rows show
// that, even to a process that has never sold, and nothing is sold twice.
func TestRecovery_Rewound(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 50, 1))
		s.Work()
		settled(s, recovery(s))
		for i := range 10 {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
		}
		s.Drained()
		old := takePicture(t, rdb)
		late := s.MustPlace(s.Purchase("late", "k", 1, ordertest.Long))
		s.Drained()
		_, before := epochs(s)
		rewind(t, rdb, old)
		fresh := recovery(s) // it has made no check before
		settled(s, fresh)
		if _, now := epochs(s); now <= before {
			t.Fatalf("the epoch is still %d: the loss was not detected", now)
		}
		if again := s.MustPlace(s.Purchase("late", "k", 1, ordertest.Long)); again.Order.ID != late.Order.ID || !again.Replayed {
			t.Errorf("the repeat got %+v, want order %s", again, late.Order.ID)
		}
		if ids := sellOut(s, "v", ordertest.Long); len(ids) != 39 {
			t.Errorf("%d units sold after the loss, want 39", len(ids))
		}
		s.Drained()
		if l := reconciletest.LedgerOf(s); l.Sold != 50 || l.Left != 0 {
			t.Errorf("ledger %+v", l)
		}
		for id, row := range ordertest.AllRows(t, s.Store) {
			if row.Status != string(order.StatusConfirmed) {
				t.Errorf("order %s was accepted, and is %s (%s)", id, row.Status, row.Reason)
			}
		}
		_, now := epochs(s)
		settled(s, fresh)
		if _, again := epochs(s); again != now {
			t.Errorf("the epoch rose from %d to %d though nothing was lost", now, again)
		}
	})
}

// TestRecovery_Rewound_Unseen: the older data lacks orders without a row, and their units
// are available again. The process that sold them refuses to sell from the older data, and
// triggers a check; the other processes cannot detect this, and need not.
func TestRecovery_Rewound_Unseen(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		var asked atomic.Int64
		s := shoptest.NewWith(t, rdb, ordertest.NewItem("", 50, 1), inventory.Config{Observe: inventory.Observers{OnLoss: func(context.Context, int64) { asked.Add(1) }}.For})
		settled(s, recovery(s))
		s.MustPlace(s.Purchase("a", "k", 1, 0))
		old := takePicture(t, rdb)
		lost := s.MustPlace(s.Purchase("b", "k", 1, 0))
		rewind(t, rdb, old)
		if n := asked.Load(); n != 0 {
			t.Fatalf("%d checks before the loss", n)
		}
		again := s.MustPlace(s.Purchase("b", "k", 1, 0))
		if again.Replayed || again.Order.ID == lost.Order.ID {
			t.Errorf("the order that Redis lost is answered again: %+v", again)
		}
		if asked.Load() == 0 {
			t.Error("the process sold on without asking")
		}
		s.Work()
		s.Drained()
		if l := reconciletest.LedgerOf(s); l.Sold != 2 || l.Left != 48 {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestRecovery_Rewound_Release: in the older data, released units are taken again; the
// database has recorded the sale's sequence after the release.
func TestRecovery_Rewound_Release(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 1))
		s.Work()
		r := recovery(s)
		settled(s, r)
		ids := sellOut(s, "u", ordertest.Long)
		s.Drained()
		old := takePicture(t, rdb)
		if _, err := s.Service.Cancel(await.Context(t), ids[0], order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
		if l := reconciletest.LedgerOf(s); l.Left != 1 {
			t.Fatalf("ledger after the cancel: %+v", l)
		}
		rewind(t, rdb, old)
		settled(s, recovery(s))
		if more := sellOut(s, "v", ordertest.Long); len(more) != 1 {
			t.Errorf("%d units sold after the cancel, want 1", len(more))
		}
		s.Drained()
		if l := reconciletest.LedgerOf(s); l.Sold != 5 || l.Left != 0 {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestRecovery_Lost_InHands: Redis is lost while a worker holds orders that exist nowhere
// else. They are committed after the sales were rebuilt; the sale must still count them.
func TestRecovery_Lost_InHands(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
		r := recovery(s)
		settled(s, r)
		for i := range 5 {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, 0))
		}
		f, err := s.Queue.Dequeue(await.Context(t), 5)
		if err != nil || len(f.Tasks) != 5 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
		settled(s, r)
		if err := s.Stock.Reload(await.Context(t), s.Item); err != nil {
			t.Fatal(err)
		}
		survivor := s.MustPlace(s.Purchase("w", "k", 1, 0)) // queued under the new epoch
		s.Fulfiller.Queued = []worker.Membership{accepted.NewOrders(s.Queue)}
		for i, err := range s.Fulfiller.Handle(await.Context(t), f.Tasks) {
			if err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		if ids := sellOut(s, "v", 0); len(ids) != 14 {
			t.Errorf("%d units sold after the loss, want 14", len(ids))
		}
		s.Work()
		s.Drained()
		if got := s.MustGet(survivor.Order.ID); got.Status != order.StatusConfirmed {
			t.Errorf("order %+v", got)
		}
		for id, row := range ordertest.AllRows(t, s.Store) {
			if row.Status != string(order.StatusConfirmed) {
				t.Errorf("order %s was accepted, and is %s (%s)", id, row.Status, row.Reason)
			}
		}
		if l := reconciletest.LedgerOf(s); l.Sold != 20 || l.Left != 0 {
			t.Errorf("ledger %+v", l)
		}
	})
}

// loadCounter counts how often a sale is loaded.
type loadCounter struct {
	Sellable
	loads atomic.Int64
}

func (c *loadCounter) ReloadAll(ctx context.Context, items []inventory.Loadable) (int, error) {
	c.loads.Add(int64(len(items)))
	return c.Sellable.ReloadAll(ctx, items)
}

// TestRecovery_Together: many processes detect the same loss concurrently, and the epoch is
// raised once; each order of an earlier epoch that survived in the queue is counted.
func TestRecovery_Together(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
		settled(s, recovery(s))
		for i := range 8 {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, 0))
		}
		_, before := epochs(s)
		// The queue survives: only the epoch of the data is lost.
		if err := rdb.Del(await.Context(t), "fs:{p0}:epoch").Err(); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 6 {
			r := recovery(s)
			all.Go(func() {
				if err := r.Check(await.Context(t)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if in, now := epochs(s); now != before+1 || in != now {
			t.Errorf("epochs %d in Redis, %d in the database, want %d", in, now, before+1)
		}
		build := func() string {
			t.Helper()
			if err := s.Stock.Reload(await.Context(t), s.Item); err != nil {
				t.Fatal(err)
			}
			return rdb.HGet(await.Context(t), "fs:{p0}:sale:"+s.Item, "version").Val()
		}
		first := build()
		stop := s.Work() // it commits orders of the previous epoch, which are counted
		s.Drained()
		if again := build(); again != first || first == "" {
			t.Errorf("the sale was rebuilt though it had all orders: version %s, then %s", first, again)
		}
		if ids := sellOut(s, "v", 0); len(ids) != 12 {
			t.Errorf("%d units sold after the loss, want 12", len(ids))
		}
		s.Drained()
		stop()
		if l := reconciletest.LedgerOf(s); l.Sold != 20 || l.Left != 0 {
			t.Errorf("ledger %+v", l)
		}
	})
}
