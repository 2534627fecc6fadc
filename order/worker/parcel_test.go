package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// TestFulfiller_Parcel: the orders of a task are committed together, a second delivery of it
// changes nothing, and one task expires those that are not paid.
func TestFulfiller_Parcel(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		c := storetest.SetClock(s)
		f, shelf := shoptest.OnShelf(t, s)
		storetest.MustInsert(t, s, ordertest.Asking("item", 100, 1, time.Minute))
		tasks := ordertest.Distinct("n", "item", 5)
		parcel := ordertest.Parcel("parcel", tasks...)
		leased := []queue.Leased{{ID: parcel.ID, Payload: parcel.Payload, Attempt: 1, Options: queue.Options{Type: parcel.Type, Entries: 5}}}
		for range 2 {
			if errs := f.Handle(await.Context(t), leased); !ordertest.Followed(errs[0]) {
				t.Fatalf("verdict %v", errs[0])
			}
			if rows := ordertest.AllRows(t, s); len(rows) != 5 || ordertest.ItemOf(t, s, "item").Sold != 5 {
				t.Fatalf("%d rows, %d sold, want 5", len(rows), ordertest.ItemOf(t, s, "item").Sold)
			}
		}
		ids := order.TaskIDs(tasks)
		if _, err := s.Pay(await.Context(t), ids[2], ordertest.Money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		next := order.ExpiryTask("parcel", "item", 1, ids...)
		expiry := []queue.Leased{{ID: next.ID, Payload: next.Payload, Attempt: 1, Options: queue.Options{Type: next.Type, Entries: next.Entries}}}
		if d, early := queue.Snoozed(f.Handle(await.Context(t), expiry)[0]); !early || d <= 0 || d > time.Minute {
			t.Errorf("before the time: wait %v, %v", d, early)
		}
		c.Add(time.Minute.Milliseconds())
		if errs := f.Handle(await.Context(t), expiry); errs[0] != nil {
			t.Errorf("expiry: %v", errs[0])
		}
		if len(shelf.Units) != 4 || ordertest.ItemOf(t, s, "item").Sold != 1 {
			t.Errorf("%d orders came back, %d are sold", len(shelf.Units), ordertest.ItemOf(t, s, "item").Sold)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestFulfiller_Parcel_Poison: of the orders of one task, one that the database refuses and one
// that cannot be read continue in tasks of their own, with their own attempts, and become dead
// letters. The others are committed at once.
func TestFulfiller_Parcel_Poison(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 1000, 1))
		q := ordertest.NewQueue(t, rdb, queue.Config{Lease: ordertest.Limit, MaxAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		tasks := ordertest.Distinct("n", "item", 10)
		tasks[3].Quantity, tasks[3].RequestID = 0, "request-3"
		parcel := ordertest.Parcel("parcel", tasks...)
		parcel.Payload = []byte(strings.Replace(string(parcel.Payload), tasks[7].Payload(), "garbage", 1))
		if _, err := q.Enqueue(await.Context(t), parcel); err != nil {
			t.Fatal(err)
		}
		seen := &fates{}
		f := worker.NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) }, worker.WithObserver(seen.observer()))
		worker.RunWorker(t, f, q, idle)
		await.True(t, "the dead letters", func() bool { return ordertest.StatsOf(t, q) == (queue.Stats{Dead: 2}) })
		// Each failed once in the parcel, and then in its own task until that was dead.
		seen.want(t, tasks[3].ID, "request-3", "1", "1", "2", "3 dead")
		seen.want(t, tasks[7].ID, "", "1", "1 dead")
		if n := len(seen.committed); n != 8 {
			t.Errorf("%d orders were reported as committed, want 8", n)
		}
		if rows := ordertest.AllRows(t, s); len(rows) != 8 {
			t.Errorf("%d rows, want 8", len(rows))
		}
		dead, err := q.List(await.Context(t), queue.Query{State: queue.StateDead, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		attempts := map[string]int{}
		for i := range dead.Tasks {
			for _, a := range accepted.OrdersOf(dead.Tasks[i].ID, dead.Tasks[i].Payload) {
				attempts[a.OrderID] = dead.Tasks[i].Attempt
			}
		}
		if len(attempts) != 2 || attempts[tasks[3].ID] != 3 || attempts[tasks[7].ID] != 1 {
			t.Errorf("attempts %v", attempts)
		}
		ordertest.AuditStore(t, s)
	})
}

// fates records what a Fulfiller reports of orders.
type fates struct {
	mu        sync.Mutex
	committed []string
	failed    []worker.Failure
}

func (f *fates) observer() worker.Observer {
	return worker.Observer{
		Committed: func(o *order.Task, _ *order.Outcome) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.committed = append(f.committed, o.ID)
		},
		Failed: func(failure worker.Failure) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.failed = append(f.failed, failure)
		},
	}
}

// want compares the failures of an order: the number of the attempt, and whether it was the last.
func (f *fates) want(t *testing.T, id, requestID string, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var got []string
	for _, failure := range f.failed {
		if failure.OrderID != id {
			continue
		}
		text := fmt.Sprint(failure.Attempt)
		if failure.Dead {
			text += " dead"
		}
		got = append(got, text)
		if failure.RequestID != requestID || failure.Err == nil || failure.TaskID == "" {
			t.Errorf("reported %+v, want the request %q", failure, requestID)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("order %s failed in %q, want %q", id, got, want)
	}
}

// TestFulfiller_Parcel_FullQueue: failed orders are split off a task although the queue is full.
func TestFulfiller_Parcel_FullQueue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 1000, 1))
		q := ordertest.NewQueue(t, rdb, queue.Config{Lease: ordertest.Limit, MaxLength: 10, MaxAttempts: 1})
		tasks := ordertest.Distinct("n", "item", 10)
		tasks[1].Quantity = 0
		if _, err := q.Enqueue(await.Context(t), ordertest.Parcel("parcel", tasks...)); err != nil {
			t.Fatal(err)
		}
		f := worker.NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) })
		worker.RunWorker(t, f, q, idle)
		await.True(t, "the one dead letter", func() bool { return ordertest.StatsOf(t, q) == (queue.Stats{Dead: 1}) })
		dead, err := q.List(await.Context(t), queue.Query{State: queue.StateDead, Limit: 10})
		if err != nil || accepted.OrdersOf(dead.Tasks[0].ID, dead.Tasks[0].Payload)[0].OrderID != tasks[1].ID {
			t.Errorf("dead: %+v, %v", dead, err)
		}
		if rows := ordertest.AllRows(t, s); len(rows) != 9 {
			t.Errorf("%d rows, want 9", len(rows))
		}
	})
}

// deadParcels sells n units in few batches, and makes their tasks dead letters.
func deadParcels(t *testing.T, s *shoptest.Shop, n int) (ids []string) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		all.Go(func() {
			id := s.MustPlace(s.Purchase(fmt.Sprint("u", i), "k", 1, 0)).Order.ID
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, id)
		})
	}
	all.Wait()
	st, err := s.Queue.Stats(await.Context(t))
	if err != nil || st.Entries != n || st.Ready >= n {
		t.Fatalf("%d orders in %d tasks, %v, want %d orders in fewer tasks", st.Entries, st.Ready, err, n)
	}
	if killed := s.Kill("the disk is on fire"); killed != st.Ready {
		t.Fatalf("%d of %d tasks died", killed, st.Ready)
	}
	return ids
}

// TestSweeper_DeadLetters_Parcel: all orders of a dead letter are rejected and their units return.
func TestSweeper_DeadLetters_Parcel(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 40
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", n, 1))
		ids := deadParcels(t, s, n)
		c := storetest.SetClock(s.Store)
		c.Add(worker.DeadLetterAfter.Milliseconds() + 1000)
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
		shoptest.MustSweep(t, sweeper, worker.Swept{Rejected: n})
		c.Add(worker.SweepGrace.Milliseconds())
		shoptest.MustSweep(t, sweeper, worker.Swept{Released: n})
		for _, id := range ids {
			if o := s.MustGet(id); o.Status != order.StatusRejected || o.Reason != order.ReasonFailed {
				t.Errorf("order %+v", o)
			}
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: n, Left: n}) {
			t.Errorf("ledger %+v", l)
		}
	})
}

// TestBacklog_Parcel: a dead letter of several orders is found by the id of each; it is retried
// or discarded with all of them.
func TestBacklog_Parcel(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 40
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", n, 1))
		ids := deadParcels(t, s, n)
		b := s.Backlog()
		letters, _, err := b.Dead(await.Context(t), "", worker.DeadPlace{}, 100)
		if err != nil {
			t.Fatal(err)
		}
		large := slices.MaxFunc(letters, func(a, b worker.DeadLetter) int { return a.Orders - b.Orders })
		if large.Orders < 2 || large.OrderID != "" || large.ItemID != s.Item {
			t.Fatalf("letter %+v, want one of several orders", large)
		}
		var of []string // its orders
		for _, id := range ids {
			if ordertest.TaskOf(t, s.Queue, id) == large.ID {
				of = append(of, id)
			}
		}
		if _, err := b.Discard(await.Context(t), of[1]); err != nil {
			t.Fatal(err)
		}
		for _, id := range of {
			if o := s.MustGet(id); o.Status != order.StatusRejected {
				t.Errorf("order %+v", o)
			}
		}
		if left, err := s.Stock.Left(await.Context(t), []string{s.Item}); err != nil || left[0] != int64(len(of)) {
			t.Errorf("%v left, %v, want %d", left, err, len(of))
		}
		for i := range letters {
			if letters[i].ID == large.ID {
				continue
			}
			if _, err := b.Retry(await.Context(t), letters[i].ID); err != nil {
				t.Fatal(err)
			}
		}
		s.Work()
		s.Drained()
		want := order.Ledger{Initial: n, Left: int64(len(of)), Sold: n - int64(len(of))}
		if l := reconciletest.LedgerOf(s); l != want {
			t.Errorf("ledger %+v, want %+v", l, want)
		}
		ordertest.AuditStore(t, s.Store)
	})
}
