package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// TestPostgres_Sweeper_Standby: the units of a cancelled order stay in place while a synchronous
// standby may lack the cancellation.
func TestPostgres_Sweeper_Standby(t *testing.T) {
	t.Parallel()
	d := storetest.NewDoubt(t)
	c := storetest.SetClock(d.Store)
	f, shelf := shoptest.OnShelf(t, d.Store)
	sweeper := worker.NewSweeper(f, worker.SweeperConfig{})
	storetest.MustInsert(t, d.Store, ordertest.NewItem("item", 10, 5))
	storetest.MustCommit(t, d.Store, ordertest.Bought("o", "item", "u", "k", 2))
	if _, _, err := d.Cancel(await.Context(t), "o", order.Canceller{UserID: "u"}); err != nil {
		t.Fatal(err)
	}
	c.Add(worker.SweepGrace.Milliseconds())
	d.Begin(t)
	d.Refuses(t, func(ctx context.Context) error { _, err := sweeper.Sweep(ctx); return err })
	if len(shelf.Units) != 0 {
		t.Errorf("units %v were released", shelf.Units)
	}
	d.End(t)
	shoptest.MustSweep(t, sweeper, worker.Swept{Released: 1})
	if shelf.Units["o"] != 2 {
		t.Errorf("units %v were released, want 2", shelf.Units)
	}
}

// TestSweeper_Crash: a process dies between the steps of a cancellation or an expiry. The
// units are released once, by any process and however often it tries.
func TestSweeper_Crash(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	sweeper := worker.NewSweeper(f, worker.SweeperConfig{})
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	storetest.MustCommit(t, s, ordertest.Bought("committed", "item", "u", "k1", 1), ordertest.Bought("released", "item", "u", "k2", 2), ordertest.Bought("expired", "item", "v", "k", 3))
	closed := map[string][]store.Release{}
	for _, id := range []string{"committed", "released"} {
		_, pending, err := s.Cancel(await.Context(t), id, order.Canceller{UserID: "u"})
		if err != nil || len(pending) != 1 {
			t.Fatal(pending, err)
		}
		closed[id] = pending // here the process dies
	}
	// This process had released the units, and died before it deleted the record.
	if _, _, err := f.Releaser.ReleaseToSale(await.Context(t), "item", closed["released"]); err != nil {
		t.Fatal(err)
	}
	c.Add(worker.SweepGrace.Milliseconds() - 1)
	shoptest.MustSweep(t, sweeper, worker.Swept{}) // still left to its process
	c.Add(1)
	shoptest.MustSweep(t, sweeper, worker.Swept{Released: 2})
	c.Add(time.Minute.Milliseconds())
	if _, _, err := s.Expire(await.Context(t), []string{"expired"}); err != nil {
		t.Fatal(err)
	}
	// The worker died after the commit; its task is delivered again.
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("expired"))...); err != nil {
		t.Fatal(err)
	}
	c.Add(worker.SweepGrace.Milliseconds())
	shoptest.MustSweep(t, sweeper, worker.Swept{})
	if fmt.Sprint(shelf.Units) != fmt.Sprint(map[string]int64{"committed": 1, "released": 2, "expired": 3}) {
		t.Errorf("released %v", shelf.Units)
	}
	if fmt.Sprint(shelf.Calls) != fmt.Sprint(map[string]int{"committed": 1, "released": 2, "expired": 1}) {
		t.Errorf("calls %v", shelf.Calls)
	}
	ordertest.AuditStore(t, s)
}

// TestSweeper_expiries_DatabaseBusy: while the database cannot write, a sweep tries one page of the overdue orders and
// not all of them.
func TestSweeper_expiries_DatabaseBusy(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t) // on Postgres, each attempt waits for the lock for seconds
	const orders = 2*worker.SweepPage + 30
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", orders, 1, time.Minute))
	storetest.MustCommit(t, s, ordertest.Distinct("n", "item", orders)...)
	c.Add(time.Minute.Milliseconds() + worker.SweepGrace.Milliseconds())
	ordertest.BusyTimeout(t, s, time.Millisecond)
	ordertest.Occupy(t, s)
	attempts := 0
	f := worker.NewFulfiller(s, nil, nil, func(error) { attempts++ })
	f.SetGiveUpAfter(time.Nanosecond)
	done, err := worker.NewSweeper(f, worker.SweeperConfig{}).Sweep(await.Context(t))
	if !database.Transient(err) || done.Expired != 0 || attempts != 1 {
		t.Errorf("%d attempts, %d expired, %v; want 1 attempt, and that the database is busy", attempts, done.Expired, err)
	}
}

// TestSweeper_Pages: there are more overdue orders than a page holds, and sweepers and
// workers run concurrently.
func TestSweeper_Pages(t *testing.T) {
	t.Parallel()
	const orders = 2*worker.SweepPage + 30
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", orders, 1, time.Minute))
	tasks := ordertest.Distinct("n", "item", orders)
	storetest.MustCommit(t, s, tasks...)
	c.Add(time.Minute.Milliseconds() + worker.SweepGrace.Milliseconds() - 1)
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{})
	c.Add(1)
	// The orders of the whole first page cannot expire.
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 0 WHERE user_id IN (SELECT user_id FROM orders ORDER BY id LIMIT ?)", worker.SweepPage).Error; err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := worker.NewSweeper(f, worker.SweeperConfig{}).Sweep(await.Context(t)); err == nil {
				t.Error("a sweep over orders that cannot be expired: no error")
			}
		})
	}
	wg.Wait()
	if len(shelf.Units) != orders-worker.SweepPage {
		t.Errorf("%d released, want %d", len(shelf.Units), orders-worker.SweepPage)
	}
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 1 WHERE user_id IN (SELECT user_id FROM orders ORDER BY id LIMIT ?)", worker.SweepPage).Error; err != nil {
		t.Fatal(err)
	}
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{Expired: worker.SweepPage})
	if len(shelf.Units) != orders || ordertest.ItemOf(t, s, "item").Sold != 0 {
		t.Errorf("%d released, %d sold", len(shelf.Units), ordertest.ItemOf(t, s, "item").Sold)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ordertest.ErrTest)
	if _, err := worker.NewSweeper(f, worker.SweeperConfig{}).Sweep(ctx); !errors.Is(err, ordertest.ErrTest) {
		t.Errorf("sweep with an ended context: %v", err)
	}
	ordertest.AuditStore(t, s)
}

// TestSweeper_NotLoaded: units wait for their sale to be loaded. A sale that has not had an
// order for long is dropped.
func TestSweeper_NotLoaded(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	const orders = worker.SweepPage + 3
	storetest.MustInsert(t, s, ordertest.NewItem("item", orders, 1))
	tasks := ordertest.Distinct("n", "item", orders)
	storetest.MustCommit(t, s, tasks...)
	for i := range tasks {
		if _, _, err := s.Cancel(await.Context(t), tasks[i].ID, order.Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(worker.SweepGrace.Milliseconds())
	shelf.Set(inventory.ReleaseNotLoaded, nil)
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{Waiting: orders})
	if len(shelf.Dropped) != 0 {
		t.Errorf("dropped %v", shelf.Dropped)
	}
	c.Add(worker.UnloadAfter.Milliseconds())
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{Waiting: orders})
	if len(shelf.Dropped) == 0 || shelf.Dropped[0] != "item" {
		t.Errorf("dropped %v, want the item's sale", shelf.Dropped)
	}
	shelf.Set(0, ordertest.ErrTest)
	if got, err := worker.NewSweeper(f, worker.SweeperConfig{}).Sweep(await.Context(t)); !errors.Is(err, ordertest.ErrTest) || got != (worker.Swept{Waiting: orders}) {
		t.Errorf("sweep with Redis down: %+v, %v", got, err)
	}
	shelf.Set(0, nil)
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{Released: orders})
	shoptest.MustSweep(t, worker.NewSweeper(f, worker.SweeperConfig{}), worker.Swept{})
}

// forget deletes all of Redis's data of the site.
func forget(s *shoptest.Shop) {
	s.T.Helper()
	keys, err := s.Rdb.Keys(await.Context(s.T), "fs:{p0}:t*").Result()
	if err != nil {
		s.T.Fatal(err)
	}
	prefix := strings.TrimSuffix(s.Queue.EnqueueKeys()[0], "ready")
	keys = slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) })
	if len(keys) == 0 {
		s.T.Fatal("the queue has no keys")
	}
	for _, kind := range []string{"sale", "idempotency", "buyers"} {
		keys = append(keys, "fs:{p0}:"+kind+":"+s.Item)
	}
	if err := s.Rdb.Del(await.Context(s.T), keys...).Err(); err != nil {
		s.T.Fatal(err)
	}
}

// TestSweeper_RedisLost: Redis loses the sale and all tasks. Due orders expire, pending
// releases are made, and both kinds of units can be bought.
func TestSweeper_RedisLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 6, 6, time.Hour))
		c := storetest.SetClock(s.Store)
		s.Work()
		unpaid := s.MustPlace(s.Purchase("u", "k1", 1, ordertest.Long)).Order
		before := s.MustPlace(s.Purchase("u", "k2", 2, ordertest.Long)).Order
		behind := s.MustPlace(s.Purchase("u", "k3", 3, ordertest.Long)).Order
		s.Drained()
		if _, _, err := s.Store.Cancel(await.Context(t), before.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		forget(s)
		c.Add(time.Hour.Milliseconds() - 1000)
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
		shoptest.MustSweep(t, sweeper, worker.Swept{Waiting: 1}) // no sale is loaded
		s.Load()
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 6, Left: 2, Held: 4}) {
			t.Errorf("ledger after the loss: %+v", l)
		}
		if _, _, err := s.Store.Cancel(await.Context(t), behind.ID, order.Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 6, Left: 5, Held: 1}) {
			t.Errorf("ledger while units are on their way: %+v", l)
		}
		c.Add(worker.SweepGrace.Milliseconds())
		shoptest.MustSweep(t, sweeper, worker.Swept{Released: 2})
		c.Add(1000)
		shoptest.MustSweep(t, sweeper, worker.Swept{Expired: 1})
		if o := s.MustGet(unpaid.ID); o.Status != order.StatusExpired {
			t.Errorf("order %+v", o)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 6, Left: 6}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		s.MustPlace(s.Purchase("v", "k", 6, ordertest.Long))
		ordertest.AuditStore(t, s.Store)
	})
}

// TestSweeper_DeadLetters: a purchase that no worker could commit is rejected, too; its units
// are released and its letter is kept.
func TestSweeper_DeadLetters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 5, 5))
		dead := s.MustPlace(s.Purchase("u", "k", 2, 0)).Order
		done := s.MustPlace(s.Purchase("v", "k", 3, 0)).Order
		f, err := s.Queue.Dequeue(await.Context(t), 2)
		if err != nil || len(f.Tasks) != 2 {
			t.Fatal(f, err)
		}
		// One of them was committed before it died.
		if err := errors.Join(s.Fulfiller.Handle(await.Context(t), f.Tasks[1:])...); err != nil {
			t.Fatal(err)
		}
		rejections := []queue.Rejection{{Task: f.Tasks[0], Dead: true}, {Task: f.Tasks[1], Dead: true}}
		if _, err := s.Queue.Reject(await.Context(t), rejections...); err != nil {
			t.Fatal(err)
		}
		c := storetest.SetClock(s.Store)
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		if o := s.MustGet(dead.ID); o.Status != order.StatusQueued {
			t.Errorf("order %+v before its time", o)
		}
		c.Add(worker.DeadLetterAfter.Milliseconds() + 1000)
		shoptest.MustSweep(t, sweeper, worker.Swept{Rejected: 1})
		o := s.MustGet(dead.ID)
		if o.Status != order.StatusRejected || o.Reason != order.ReasonFailed || o.ClosedAt.IsZero() || !o.ConfirmedAt.IsZero() {
			t.Errorf("order %+v", o)
		}
		c.Add(worker.SweepGrace.Milliseconds())
		shoptest.MustSweep(t, sweeper, worker.Swept{Released: 1})
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
		s.Mu.Lock()
		if len(s.Errors) > 0 {
			t.Errorf("reported %v", s.Errors)
		}
		s.Mu.Unlock()
		if again := s.MustPlace(s.Purchase("u", "k", 2, 0)); again.Order != o || !again.Replayed || !again.Committed {
			t.Errorf("replay %+v, want %+v", again, o)
		}
		if o := s.MustGet(done.ID); o.Status != order.StatusConfirmed {
			t.Errorf("the committed order became %+v", o)
		}
		// If it is retried after all, it keeps the result that the buyer got.
		if _, err := s.Queue.RunNow(await.Context(t), time.Time{}, dead.ID); err != nil {
			t.Fatal(err)
		}
		s.Work()
		s.Drained()
		if got := s.MustGet(dead.ID); got != o {
			t.Errorf("retried: %+v, want %+v", got, o)
		}
		if left, err := s.Stock.Left(await.Context(t), []string{s.Item}); err != nil || left[0] != 2 {
			t.Errorf("%d left, %v: the retry dropped the sale", left, err)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestService_Get_EndsFinal polls orders with every outcome: each reaches a final state,
// and stays in it.
func TestService_Get_EndsFinal(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 9, 3, time.Second))
		release := storetest.HoldClock(s.Store) // until two orders are paid and cancelled
		worker.RunWorker(t, s.Fulfiller, s.Queue, idle)
		// Redis would refuse it, too, if it had not lost its count.
		refused := ordertest.Bought("refused", s.Item, "x", "k", 10)
		ordertest.MustEnqueue(t, s.Queue, ordertest.Leased(refused))
		ids := map[string]order.Status{refused.ID: order.StatusRejected}
		for want, do := range map[order.Status]func(id string) (order.Order, error){
			order.StatusExpired: func(string) (order.Order, error) { return order.Order{}, nil },
			order.StatusPaid: func(id string) (order.Order, error) {
				return s.Service.Pay(await.Context(t), id, ordertest.Money("psp", 1))
			},
			order.StatusCancelled: func(id string) (order.Order, error) {
				return s.Service.Cancel(await.Context(t), id, order.Canceller{Admin: true})
			},
		} {
			o := s.MustPlace(s.Purchase(string(want), "k", 1, ordertest.Long)).Order
			ids[o.ID] = want
			if _, err := do(o.ID); err != nil {
				t.Fatal(err)
			}
		}
		release()
		for id, want := range ids {
			await.True(t, "order to be "+string(want), func() bool {
				o := s.MustGet(id)
				if o.Status != want && o.Status != order.StatusQueued && o.Status != order.StatusConfirmed {
					t.Fatalf("order %+v, want %s", o, want)
				}
				return o.Status == want
			})
		}
		await.True(t, "the queue to be empty", func() bool { return ordertest.StatsOf(t, s.Queue) == (queue.Stats{}) })
		for id, want := range ids {
			if o := s.MustGet(id); o.Status != want {
				t.Errorf("order %+v at the end, want %s", o, want)
			}
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 9, Left: 8, Sold: 1}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestSweeper_Run sweeps until its ctx ends.
func TestSweeper_Run(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	f, shelf := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 1, 1))
	storetest.MustCommit(t, s, ordertest.Bought("o", "item", "u", "k", 1))
	c := storetest.SetClock(s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		worker.NewSweeper(f, worker.SweeperConfig{}).Run(ctx, time.Millisecond)
	}()
	if _, _, err := s.Cancel(await.Context(t), "o", order.Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	c.Add(worker.SweepGrace.Milliseconds())
	await.True(t, "the sweep", func() bool { return len(ordertest.ReleasesOf(t, s)) == 0 })
	cancel()
	<-ended
	if shelf.Units["o"] != 1 {
		t.Errorf("released %v", shelf.Units)
	}
}
