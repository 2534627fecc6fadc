package order

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
	"flashsale/queue"
)

// TestSweeper_Crash: a process dies between the steps of a cancellation or an expiry. The
// units are released once, by any process and however often it tries.
func TestSweeper_Crash(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	sweeper := NewSweeper(f, SweeperConfig{})
	mustInsert(t, s, asking("item", 10, 5, time.Minute))
	mustCommit(t, s, bought("committed", "item", "u", "k1", 1), bought("released", "item", "u", "k2", 2), bought("lapsed", "item", "v", "k", 3))
	closed := map[string][]returned{}
	for _, id := range []string{"committed", "released"} {
		_, owed, err := s.cancel(await.Context(t), id, Canceller{UserID: "u"})
		if err != nil || len(owed) != 1 {
			t.Fatal(owed, err)
		}
		closed[id] = owed // here the process dies
	}
	// This process had released the units, and died before it deleted the record.
	if _, _, err := f.returns.ask(await.Context(t), "item", closed["released"]); err != nil {
		t.Fatal(err)
	}
	c.Add(sweepGrace.Milliseconds() - 1)
	mustSweep(t, sweeper, Swept{}) // still left to its process
	c.Add(1)
	mustSweep(t, sweeper, Swept{Returned: 2})
	c.Add(time.Minute.Milliseconds())
	if _, _, err := s.expire(await.Context(t), []string{"lapsed"}); err != nil {
		t.Fatal(err)
	}
	// The worker died after the commit; its task is delivered again.
	if err := errors.Join(f.Handle(await.Context(t), expiries("lapsed"))...); err != nil {
		t.Fatal(err)
	}
	c.Add(sweepGrace.Milliseconds())
	mustSweep(t, sweeper, Swept{})
	if fmt.Sprint(shelf.units) != fmt.Sprint(map[string]int64{"committed": 1, "released": 2, "lapsed": 3}) {
		t.Errorf("released %v", shelf.units)
	}
	if fmt.Sprint(shelf.calls) != fmt.Sprint(map[string]int{"committed": 1, "released": 2, "lapsed": 1}) {
		t.Errorf("calls %v", shelf.calls)
	}
	auditStore(t, s)
}

// TestSweeper_Pages: there are more overdue orders than a page holds, and sweepers and
// workers run concurrently.
func TestSweeper_Pages(t *testing.T) {
	t.Parallel()
	const orders = 2*sweepPage + 30
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	mustInsert(t, s, asking("item", orders, 1, time.Minute))
	tasks := distinct("n", "item", orders)
	mustCommit(t, s, tasks...)
	c.Add(time.Minute.Milliseconds() + sweepGrace.Milliseconds() - 1)
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{})
	c.Add(1)
	// The orders of the whole first page cannot expire.
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 0 WHERE user_id IN (SELECT user_id FROM orders ORDER BY id LIMIT ?)", sweepPage).Error; err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := NewSweeper(f, SweeperConfig{}).Sweep(await.Context(t)); err == nil {
				t.Error("a sweep over orders that cannot be expired: no error")
			}
		})
	}
	wg.Wait()
	if len(shelf.units) != orders-sweepPage {
		t.Errorf("%d released, want %d", len(shelf.units), orders-sweepPage)
	}
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 1 WHERE user_id IN (SELECT user_id FROM orders ORDER BY id LIMIT ?)", sweepPage).Error; err != nil {
		t.Fatal(err)
	}
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{Expired: sweepPage})
	if len(shelf.units) != orders || itemOf(t, s, "item").Sold != 0 {
		t.Errorf("%d released, %d sold", len(shelf.units), itemOf(t, s, "item").Sold)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)
	if _, err := NewSweeper(f, SweeperConfig{}).Sweep(ctx); !errors.Is(err, errTest) {
		t.Errorf("sweep with an ended context: %v", err)
	}
	auditStore(t, s)
}

// TestSweeper_NotLoaded: units wait for their sale to be loaded. A sale that has not had an
// order for long is dropped.
func TestSweeper_NotLoaded(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	const orders = sweepPage + 3
	mustInsert(t, s, newItem("item", orders, 1))
	tasks := distinct("n", "item", orders)
	mustCommit(t, s, tasks...)
	for i := range tasks {
		if _, _, err := s.cancel(await.Context(t), tasks[i].ID, Canceller{Admin: true}); err != nil {
			t.Fatal(err)
		}
	}
	c.Add(sweepGrace.Milliseconds())
	shelf.set(inventory.ReleaseNotLoaded, nil)
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{Waiting: orders})
	if len(shelf.dropped) != 0 {
		t.Errorf("dropped %v", shelf.dropped)
	}
	c.Add(strangeAfter.Milliseconds())
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{Waiting: orders})
	if len(shelf.dropped) == 0 || shelf.dropped[0] != "item" {
		t.Errorf("dropped %v, want the item's sale", shelf.dropped)
	}
	shelf.set(0, errTest)
	if got, err := NewSweeper(f, SweeperConfig{}).Sweep(await.Context(t)); !errors.Is(err, errTest) || got != (Swept{Waiting: orders}) {
		t.Errorf("sweep with Redis down: %+v, %v", got, err)
	}
	shelf.set(0, nil)
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{Returned: orders})
	mustSweep(t, NewSweeper(f, SweeperConfig{}), Swept{})
}

// forget deletes all of Redis's data of the site.
func (s *site) forget() {
	s.t.Helper()
	keys, err := s.rdb.Keys(await.Context(s.t), "fs:{p0}:t*").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	prefix := strings.TrimSuffix(s.queue.EnqueueKeys()[0], "ready")
	keys = slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) })
	if len(keys) == 0 {
		s.t.Fatal("the queue has no keys")
	}
	for _, kind := range []string{"sale", "idempotency", "buyers"} {
		keys = append(keys, "fs:{p0}:"+kind+":"+s.item)
	}
	if err := s.rdb.Del(await.Context(s.t), keys...).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// TestSweeper_RedisLost: Redis loses the sale and all tasks. Due orders expire, pending
// releases are made, and both kinds of units can be bought.
func TestSweeper_RedisLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 6, 6, time.Hour))
		c := setClock(s.store)
		s.work()
		lapses := s.mustPlace(s.purchase("u", "k1", 1, long)).Order
		before := s.mustPlace(s.purchase("u", "k2", 2, long)).Order
		behind := s.mustPlace(s.purchase("u", "k3", 3, long)).Order
		s.drained()
		if _, _, err := s.store.cancel(await.Context(t), before.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		s.forget()
		c.Add(time.Hour.Milliseconds() - 1000)
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}})
		mustSweep(t, sweeper, Swept{Waiting: 1}) // no sale is loaded
		s.load()
		if l := ledgerOf(s); l != (Ledger{Initial: 6, Left: 2, Held: 4}) {
			t.Errorf("ledger after the loss: %+v", l)
		}
		if _, _, err := s.store.cancel(await.Context(t), behind.ID, Canceller{UserID: "u"}); err != nil {
			t.Fatal(err)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 6, Left: 5, Held: 1}) {
			t.Errorf("ledger while units are on their way: %+v", l)
		}
		c.Add(sweepGrace.Milliseconds())
		mustSweep(t, sweeper, Swept{Returned: 2})
		c.Add(1000)
		mustSweep(t, sweeper, Swept{Expired: 1})
		if o := s.mustGet(lapses.ID); o.Status != StatusExpired {
			t.Errorf("order %+v", o)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 6, Left: 6}) {
			t.Errorf("ledger at the end: %+v", l)
		}
		s.mustPlace(s.purchase("v", "k", 6, long))
		auditStore(t, s.store)
	})
}

// TestSweeper_Buried: a purchase that no worker could commit is rejected, too; its units
// are released and its letter is kept.
func TestSweeper_Buried(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 5, 5))
		dead := s.mustPlace(s.purchase("u", "k", 2, 0)).Order
		done := s.mustPlace(s.purchase("v", "k", 3, 0)).Order
		f, err := s.queue.Dequeue(await.Context(t), 2)
		if err != nil || len(f.Tasks) != 2 {
			t.Fatal(f, err)
		}
		// One of them was committed before it died.
		if err := errors.Join(s.fulfiller.Handle(await.Context(t), f.Tasks[1:])...); err != nil {
			t.Fatal(err)
		}
		rejections := []queue.Rejection{{Task: f.Tasks[0], Dead: true}, {Task: f.Tasks[1], Dead: true}}
		if _, err := s.queue.Reject(await.Context(t), rejections...); err != nil {
			t.Fatal(err)
		}
		c := setClock(s.store)
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}})
		mustSweep(t, sweeper, Swept{})
		if o := s.mustGet(dead.ID); o.Status != StatusQueued {
			t.Errorf("order %+v before its time", o)
		}
		c.Add(deadLetterAfter.Milliseconds() + 1000)
		mustSweep(t, sweeper, Swept{Rejected: 1})
		o := s.mustGet(dead.ID)
		if o.Status != StatusRejected || o.Reason != reasonFailed || o.ClosedAt.IsZero() || !o.ConfirmedAt.IsZero() {
			t.Errorf("order %+v", o)
		}
		c.Add(sweepGrace.Milliseconds())
		mustSweep(t, sweeper, Swept{Returned: 1})
		mustSweep(t, sweeper, Swept{})
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
		s.mu.Lock()
		if len(s.errors) > 0 {
			t.Errorf("reported %v", s.errors)
		}
		s.mu.Unlock()
		if again := s.mustPlace(s.purchase("u", "k", 2, 0)); again.Order != o || !again.Replayed || !again.Committed {
			t.Errorf("replay %+v, want %+v", again, o)
		}
		if o := s.mustGet(done.ID); o.Status != StatusConfirmed {
			t.Errorf("the committed order became %+v", o)
		}
		// If it is retried after all, it keeps the result that the buyer got.
		if _, err := s.queue.RunNow(await.Context(t), dead.ID); err != nil {
			t.Fatal(err)
		}
		s.work()
		s.drained()
		if got := s.mustGet(dead.ID); got != o {
			t.Errorf("retried: %+v, want %+v", got, o)
		}
		if left, err := s.stock.Left(await.Context(t), []string{s.item}); err != nil || left[0] != 2 {
			t.Errorf("%d left, %v: the retry dropped the sale", left, err)
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 5, Left: 2, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
	})
}

// TestService_Get_EndsFinal polls orders with every outcome: each reaches a final state,
// and stays in it.
func TestService_Get_EndsFinal(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, asking("", 9, 3, time.Second))
		runWorker(t, s.fulfiller, s.queue, idle)
		// Redis would refuse it, too, if it had not lost its count.
		refused := bought("refused", s.item, "x", "k", 10)
		mustEnqueue(t, s.queue, leased(refused))
		ids := map[string]Status{refused.ID: StatusRejected}
		for want, do := range map[Status]func(id string) (Order, error){
			StatusExpired:   func(string) (Order, error) { return Order{}, nil },
			StatusPaid:      func(id string) (Order, error) { return s.service.Pay(await.Context(t), id, money("psp", 1)) },
			StatusCancelled: func(id string) (Order, error) { return s.service.Cancel(await.Context(t), id, Canceller{Admin: true}) },
		} {
			o := s.mustPlace(s.purchase(string(want), "k", 1, long)).Order
			ids[o.ID] = want
			if _, err := do(o.ID); err != nil {
				t.Fatal(err)
			}
		}
		for id, want := range ids {
			await.True(t, "order to be "+string(want), func() bool {
				o := s.mustGet(id)
				if o.Status != want && o.Status != StatusQueued && o.Status != StatusConfirmed {
					t.Fatalf("order %+v, want %s", o, want)
				}
				return o.Status == want
			})
		}
		await.True(t, "the queue to be empty", func() bool { return statsOf(t, s.queue) == (queue.Stats{}) })
		for id, want := range ids {
			if o := s.mustGet(id); o.Status != want {
				t.Errorf("order %+v at the end, want %s", o, want)
			}
		}
		if l := ledgerOf(s); l != (Ledger{Initial: 9, Left: 8, Sold: 1}) {
			t.Errorf("ledger %+v", l)
		}
		auditStore(t, s.store)
	})
}

// TestSweeper_Run sweeps until its ctx ends.
func TestSweeper_Run(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	f, shelf := onShelf(t, s)
	mustInsert(t, s, newItem("item", 1, 1))
	mustCommit(t, s, bought("o", "item", "u", "k", 1))
	c := setClock(s)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		NewSweeper(f, SweeperConfig{}).Run(ctx, time.Millisecond)
	}()
	if _, _, err := s.cancel(await.Context(t), "o", Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	c.Add(sweepGrace.Milliseconds())
	await.True(t, "the sweep", func() bool { return len(owedOf(t, s)) == 0 })
	cancel()
	<-ended
	if shelf.units["o"] != 1 {
		t.Errorf("released %v", shelf.units)
	}
}
