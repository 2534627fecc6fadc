package recovery

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/schema"
	"flashsale/order/shoptest"
	"flashsale/queue"
)

// stopping is an inventory whose process dies at a step of the recovery.
type stopping struct {
	Sellable
	at string
}

func (s stopping) Void(ctx context.Context, epoch int64, items []string) error {
	if s.at == "void" {
		return ordertest.ErrTest
	}
	return s.Sellable.Void(ctx, epoch, items)
}

func (s stopping) Declare(ctx context.Context, epoch int64) error {
	if s.at == "declare" {
		return ordertest.ErrTest
	}
	return s.Sellable.Declare(ctx, epoch)
}

// TestRecovery_Dies: the process that recovers may die between any two steps; the next one
// finishes the recovery, under its own epoch.
func TestRecovery_Dies(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		for _, at := range []string{"void", "declare"} {
			s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
			s.Work()
			r := recovery(s)
			settled(s, r)
			for i := range 6 {
				s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
			}
			s.Drained()
			old := takePicture(t, rdb)
			s.MustPlace(s.Purchase("late", "k", 1, ordertest.Long))
			// The buyer gets the answer before the task is acknowledged. If the rewind had
			// removed the task, its acknowledgement would show the loss to the worker,
			// which drops the sale: no check could detect the loss then.
			s.Drained()
			_, before := epochs(s)
			rewind(t, rdb, old)
			dying := recovery(s)
			dying.Stock = stopping{s.Stock, at}
			if err := dying.Check(await.Context(t)); !errors.Is(err, ordertest.ErrTest) {
				t.Fatalf("%s: the check ended with %v", at, err)
			}
			if in, now := epochs(s); now != before+1 || in != before {
				t.Errorf("%s: epochs %d in Redis, %d in the database after the death, want %d and %d", at, in, now, before, before+1)
			}
			settled(s, r)
			// It is unknown whether the process before has sold anything under its epoch.
			if in, now := epochs(s); now != before+2 || in != now {
				t.Errorf("%s: epochs %d in Redis, %d in the database, want %d", at, in, now, before+2)
			}
			if ids := sellOut(s, "v", ordertest.Long); len(ids) != 13 {
				t.Errorf("%s: %d units sold after the loss, want 13", at, len(ids))
			}
			ordertest.AuditStore(t, s.Store)
		}
	})
}

// TestRecovery_Run: the loss is detected without a purchase, the sales on sale are loaded
// again, and unpaid orders expire on time.
func TestRecovery_Run(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 20, 1)
		n.PaymentWindow = time.Hour
		s := shoptest.New(t, rdb, false, n)
		closed := ordertest.NewItem("closed-"+ordertest.RandomName(t), 5, 1)
		if _, err := s.Sales.CreateItem(await.Context(t), closed); err != nil {
			t.Fatal(err)
		}
		if err := s.Store.Writer().Exec("UPDATE items SET control = 'closed' WHERE id = ?", closed.ID).Error; err != nil {
			t.Fatal(err)
		}
		stop := s.Work()
		r := recovery(s)
		settled(s, r)
		count := &loadCounter{Sellable: s.Stock}
		r.Stock = count
		var lost, done sync.Map
		r.OnLoss = func(what string) { lost.Store(what, true) }
		recovered := make(chan Recovered, 8)
		r.OnRecovered = func(r Recovered) { done.Store(r.Epoch, r); recovered <- r }
		ctx, cancel := context.WithCancel(await.Context(t))
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, 20*time.Millisecond) })
		defer running.Wait()
		defer cancel()
		<-recovered // the first check has found nothing
		for i := range 3 {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
		}
		await.True(t, "the expiry tasks", func() bool { return delayed(t, s.Queue) == 3 })
		stop() // a worker that acknowledges late would add one
		before := count.loads.Load()
		if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-recovered:
			if got.Sales != 1 || got.Expiries != 3 {
				t.Errorf("recovered %+v, want 1 sale and 3 expiries", got)
			}
		case <-time.After(ordertest.Limit):
			t.Fatal("the loss was not noticed")
		}
		if n := count.loads.Load() - before; n != 1 {
			t.Errorf("%d sales were loaded, want only that of the open item", n)
		}
		if n := willExpire(t, s.Queue); n != 3 {
			t.Errorf("%d orders will expire, want 3", n)
		}
		left, err := s.Stock.Left(await.Context(t), []string{s.Item, closed.ID})
		if err != nil || left[0] != 17 || left[1] != -1 {
			t.Errorf("left %v, %v, want 17 and none", left, err)
		}
	})
}

// TestRecovery_DiesLoading: the process that has set the new epoch dies before the sales
// are loaded. Another process finds no loss, loads them and restores the expiry tasks;
// after that no process does it again.
func TestRecovery_DiesLoading(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 20, 1)
		n.PaymentWindow = time.Hour
		s := shoptest.New(t, rdb, false, n)
		stop := s.Work()
		settled(s, recovery(s))
		for i := range 3 {
			s.MustPlace(s.Purchase(fmt.Sprintf("u%d", i), "k", 1, ordertest.Long))
		}
		await.True(t, "the expiry tasks", func() bool { return delayed(t, s.Queue) == 3 })
		stop()
		if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
			t.Fatal(err)
		}
		settled(s, recovery(s)) // it never runs, so it loads nothing
		r := recovery(s)
		recovered := make(chan Recovered, 8)
		r.OnLoss = func(what string) { t.Errorf("nothing was lost again, but: %s", what) }
		r.OnRecovered = func(r Recovered) { recovered <- r }
		ctx, cancel := context.WithCancel(await.Context(t))
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, 20*time.Millisecond) })
		defer running.Wait()
		defer cancel()
		select {
		case got := <-recovered:
			if got.Sales != 1 || got.Expiries != 3 {
				t.Errorf("recovered %+v, want 1 sale and 3 expiries", got)
			}
		case <-time.After(ordertest.Limit):
			t.Fatal("no other process has loaded the sales")
		}
		if n := willExpire(t, s.Queue); n != 3 {
			t.Errorf("%d orders will expire, want 3", n)
		}
		await.True(t, "the sales to be recorded as loaded", func() bool {
			third := recovery(s)
			settled(s, third)
			return len(third.reload) == 0
		})
	})
}

func delayed(t testing.TB, q *queue.Queue) int {
	t.Helper()
	st, err := q.Stats(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return st.Delayed
}

// willExpire returns the number of orders in expiry tasks, in a queue without other tasks.
func willExpire(t testing.TB, q *queue.Queue) int {
	t.Helper()
	st, err := q.Stats(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return st.Pending()
}

// TestRecovery_expiries: orders that were committed from one task share an expiry task, with its former id, however the rows
// are distributed over pages. A repeat adds none.
func TestRecovery_expiries(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		const tasks, ordersEach = 5, 200
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
		var rows []schema.Order
		want := make(map[string][]string)
		for i := range tasks {
			task, err := accepted.NewTaskID()
			if err != nil {
				t.Fatal(err)
			}
			for n := range ordersEach {
				id := string(accepted.AppendOrderID(nil, task, n+1))
				rows = append(rows, schema.Order{
					ID: id, ItemID: s.Item, UserID: "u", Quantity: 1, Currency: "EUR", Status: string(order.StatusConfirmed), IdempotencyKey: id,
					ExpiresAt: 4102444800000 + int64(i/3), // in the year 2100; three tasks have the same time
				})
				want[order.ExpiryPrefix+task] = append(want[order.ExpiryPrefix+task], id)
			}
		}
		if err := s.Store.Writer().CreateInBatches(rows, 100).Error; err != nil {
			t.Fatal(err)
		}
		r := recovery(s)
		for _, wantAdded := range []int{tasks * ordersEach, 0} {
			if added, err := r.expiries(await.Context(t)); err != nil || added != wantAdded {
				t.Errorf("%d orders got an expiry task, %v; want %d", added, err, wantAdded)
			}
		}
		page, err := s.Queue.List(await.Context(t), queue.Query{State: queue.StateDelayed, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string][]string)
		for _, task := range page.Tasks {
			_, got[task.ID] = order.ParseExpiry(task.ID, task.Payload)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d expiry tasks with %d orders, want %d with %d each", len(got), willExpire(t, s.Queue), tasks, ordersEach)
		}
	})
}

// TestByTask: rows are grouped by task, in their order. The last task of a full page is left for the next page.
func TestByTask(t *testing.T) {
	t.Parallel()
	rows := []expiring{{"a-0001", "i", 7}, {"b-0001", "i", 7}, {"a-0002", "i", 8}, {"c-0001", "j", 8}, {"c-0002", "j", 8}}
	want := [][]expiring{{rows[0], rows[2]}, {rows[1]}, {rows[3], rows[4]}}
	if got := byTask(rows); !reflect.DeepEqual(got, want) {
		t.Errorf("groups %v, want %v", got, want)
	}
	for from, left := range map[int]int{0: 3, 1: 2, 3: 2} {
		if got := wholeTasks(rows[from:]); len(got) != left {
			t.Errorf("the page from row %d has %d rows of whole tasks, want %d", from, len(got), left)
		}
	}
}

// TestRecovery_OlderDatabase: the database was restored from a backup, and Redis is newer.
// The data in Redis is dropped.
func TestRecovery_OlderDatabase(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
		s.Work()
		settled(s, recovery(s))
		s.MustPlace(s.Purchase("a", "k", 1, ordertest.Long))
		s.Drained()
		in, _ := epochs(s)
		ahead := in + 7
		if err := rdb.Set(await.Context(t), "fs:{p0}:epoch", ahead, 0).Err(); err != nil {
			t.Fatal(err)
		}
		r := recovery(s)
		settled(s, r)
		if in, now := epochs(s); in != now || now <= ahead {
			t.Errorf("epochs %d in Redis, %d in the database, want more than %d", in, now, ahead)
		}
		if ids := sellOut(s, "v", ordertest.Long); len(ids) != 19 {
			t.Errorf("%d units sold, want 19", len(ids))
		}
	})
}

// TestRecovery_Nudge: a new connection triggers a check, long before the next interval.
func TestRecovery_Nudge(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 1))
		r := recovery(s)
		ctx, cancel := context.WithCancel(await.Context(t))
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx, time.Hour) })
		defer running.Wait()
		defer cancel()
		for range 2 {
			if err := rdb.FlushAll(await.Context(t)).Err(); err != nil {
				t.Fatal(err)
			}
			_, before := epochs(s)
			for range 10 {
				r.Nudges.Nudge()
			}
			await.True(t, "the loss to be noticed", func() bool {
				in, db := epochs(s)
				return in == db && db > before
			})
		}
	})
}

// TestService_Place_HalfKept: Redis has kept a key and lost its order. The first repeat
// fails; the next one buys.
func TestService_Place_HalfKept(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 1))
		lost := s.MustPlace(s.Purchase("u", "k", 1, 0))
		f, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil || len(f.Tasks) != 1 {
			t.Fatalf("dequeue: %+v, %v", f, err)
		}
		if _, err := s.Queue.Ack(await.Context(t), f.Tasks[0]); err != nil {
			t.Fatal(err)
		}
		if p, err := s.Service.Place(await.Context(t), s.Purchase("u", "k", 1, 0)); !errors.Is(err, inventory.ErrUnavailable) {
			t.Fatalf("the repeat of a lost order got %+v, %v", p, err)
		}
		again := s.MustPlace(s.Purchase("u", "k", 1, 0))
		if again.Replayed || again.Order.ID == lost.Order.ID {
			t.Errorf("the second repeat got %+v", again)
		}
		s.Work()
		s.Drained()
		if l := reconciletest.LedgerOf(s); l.Sold != 1 || l.Left != 2 {
			t.Errorf("ledger %+v", l)
		}
	})
}

// rewriting is an inventory whose servers' run ids the test sets.
type rewriting struct {
	Sellable
	run      string
	up       time.Duration
	rewrites int
}

func (r *rewriting) States(ctx context.Context) ([]inventory.State, error) {
	states, err := r.Sellable.States(ctx)
	for p := range states {
		states[p].RunID, states[p].Uptime = r.run, r.up
	}
	return states, err
}

func (r *rewriting) RewriteLogs(ctx context.Context) error {
	err := r.Sellable.RewriteLogs(ctx)
	if err == nil {
		r.rewrites++
	}
	return err
}

// TestRecovery_RewritesLogs: a restarted server rewrites its log, once.
func TestRecovery_RewritesLogs(t *testing.T) {
	t.Parallel()
	shoptest.OnOwnEngine(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 1))
		r := recovery(s)
		server := &rewriting{Sellable: s.Stock}
		r.Stock = server
		for _, step := range []struct {
			run  string
			up   time.Duration
			want int
		}{
			{"a", time.Hour, 0}, {"a", time.Hour, 0}, {"b", time.Hour, 1}, {"b", 0, 1}, {"c", 0, 2},
		} {
			server.run, server.up = step.run, step.up
			settled(s, r)
			settled(s, r) // the first one may have set only the epoch
			if server.rewrites != step.want {
				t.Errorf("run %s, up %v: %d rewrites, want %d", step.run, step.up, server.rewrites, step.want)
			}
		}
		// A process that starts together with its server cannot know the previous run id.
		for up, want := range map[time.Duration]int{time.Second: 1, time.Hour: 0, -1: 0} {
			r := recovery(s)
			server := &rewriting{Sellable: s.Stock, run: "a", up: up}
			r.Stock = server
			settled(s, r)
			if server.rewrites != want {
				t.Errorf("first check, up %v: %d rewrites, want %d", up, server.rewrites, want)
			}
		}
	})
}
