package worker

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

// TestFulfiller_Poison: a payload that cannot be parsed becomes a dead letter at once. Of a
// batch with a row that the database refuses, only that row fails.
func TestFulfiller_Poison(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 1000, 1))
		q := ordertest.NewQueue(t, rdb, queue.Config{Lease: ordertest.Limit, MaxAttempts: 2, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		tasks := ordertest.Leased(ordertest.Distinct("n", "item", 100)...)
		for _, i := range []int{0, 41, 99} {
			tasks[i].Payload = []byte("garbage")
		}
		broken := ordertest.Leased(ordertest.Bought("zero1", "item", "z", "1", 0), ordertest.Bought("zero2", "item", "z", "2", 0))
		tasks = slices.Insert(tasks, 50, broken...)
		ordertest.MustEnqueue(t, q, tasks)
		var committed atomic.Int64
		f := NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) })
		WithCommits(func(n int) { committed.Add(int64(n)) })(f)
		RunWorker(t, f, q, queue.RunConfig{})
		await.True(t, "the dead letters", func() bool {
			st := ordertest.StatsOf(t, q)
			return st.Dead == 5 && st.Ready+st.Delayed+st.Leased == 0
		})
		if rows := ordertest.AllRows(t, s); len(rows) != 97 || committed.Load() != 97 {
			t.Errorf("%d rows, %d reported as committed, want 97", len(rows), committed.Load())
		}
		dead, err := q.List(await.Context(t), queue.Query{State: queue.StateDead, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		attempts := map[string]int{}
		for _, d := range dead.Tasks {
			attempts[d.ID] = d.Attempt
			if d.Reason == "" {
				t.Errorf("dead letter %s without a reason", d.ID)
			}
		}
		// The unreadable ones die at their first attempt; the others may fail for a
		// temporary reason.
		want := map[string]int{"n0000": 1, "n0041": 1, "n0099": 1, "zero1": 2, "zero2": 2}
		if !maps.Equal(attempts, want) {
			t.Errorf("attempts of the dead letters are %v, want %v", attempts, want)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestFulfiller_Handle_Halving: a task that breaks the transaction is found at each
// position of the batch.
func TestFulfiller_Handle_Halving(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	f := NewFulfiller(s, nil, nil, func(err error) { t.Errorf("reported %v", err) })
	for n, broken := range map[int][]int{1: {0}, 2: {1}, 3: {0, 2}, 8: {3, 4}, 33: {0, 16, 32}, 40: {7, 8, 9, 31}} {
		item := fmt.Sprintf("item%d", n)
		storetest.MustInsert(t, s, ordertest.NewItem(item, 100, 1))
		tasks := ordertest.Distinct(item+"-", item, n)
		for _, i := range broken {
			tasks[i].Quantity = 0
		}
		// One unreadable payload in front shifts the tasks against the leases.
		batch := append([]queue.Leased{{ID: "garbage", Payload: []byte("?")}}, ordertest.Leased(tasks...)...)
		errs := f.Handle(await.Context(t), batch)
		if len(errs) != n+1 || !errors.Is(errs[0], order.ErrTaskMalformed) {
			t.Fatalf("%d errors for %d tasks, the first %v", len(errs), n+1, errs[0])
		}
		for i, err := range errs[1:] {
			if (err != nil) != slices.Contains(broken, i) {
				t.Errorf("task %d of %d with %v broken: %v", i, n, broken, err)
			}
		}
		if sold := ordertest.ItemOf(t, s, item).Sold; int(sold) != n-len(broken) {
			t.Errorf("%d of %d tasks committed, want %d", sold, n, n-len(broken))
		}
	}
	ordertest.AuditStore(t, s)
}

func TestFulfiller_Handle_DatabaseBusy(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
	ordertest.BusyTimeout(t, s, 5*time.Millisecond)
	release := ordertest.Occupy(t, s)
	heard := make(chan error, 100)
	f := NewFulfiller(s, nil, nil, func(err error) { heard <- err })
	f.giveUpAfter = ordertest.Limit
	result := make(chan []error, 1)
	go func() { result <- f.Handle(await.Context(t), ordertest.Leased(ordertest.Distinct("n", "item", 10)...)) }()
	for range 2 {
		select {
		case err := <-heard:
			if !database.Transient(err) {
				t.Errorf("reported %v, want a busy database", err)
			}
		case errs := <-result:
			t.Fatalf("handled while the database was busy: %v", errs)
		case <-time.After(ordertest.Limit):
			t.Fatal("the busy database was not reported")
		}
	}
	release()
	select {
	case errs := <-result:
		if err := errors.Join(errs...); err != nil {
			t.Errorf("after the database was free: %v", err)
		}
	case <-time.After(ordertest.Limit):
		t.Fatal("the batch was not committed")
	}
	if n := len(ordertest.AllRows(t, s)); n != 10 {
		t.Errorf("%d rows, want 10", n)
	}
	ordertest.AuditStore(t, s)
}

// TestFulfiller_Work_DatabaseBusyAtShutdown: a worker that stops while the database is busy
// returns its tasks without counting an attempt, and the next one commits them.
func TestFulfiller_Work_DatabaseBusyAtShutdown(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		if s.Postgres() {
			t.Skip("the wait for another process's transaction is longer than the worker's end")
		}
		storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
		ordertest.BusyTimeout(t, s, 5*time.Millisecond)
		release := ordertest.Occupy(t, s)
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		tasks := ordertest.Leased(ordertest.Distinct("n", "item", 10)...)
		ordertest.MustEnqueue(t, q, tasks)
		heard := make(chan error, 1000)
		f := NewFulfiller(s, rdb, nil, func(err error) { heard <- err })
		stop := RunWorker(t, f, q, queue.RunConfig{Drain: 50 * time.Millisecond})
		select {
		case err := <-heard:
			if !database.Transient(err) {
				t.Errorf("reported %v, want a busy database", err)
			}
		case <-time.After(ordertest.Limit):
			t.Fatal("the busy database was not reported")
		}
		// On a busy machine the handler may end later than the worker waits for it.
		if err := stop(); err != nil && !errors.Is(err, queue.ErrAbandoned) {
			t.Fatalf("worker: %v", err)
		}
		if n := len(ordertest.AllRows(t, s)); n != 0 {
			t.Errorf("%d rows were written through the lock", n)
		}
		// None is lost, and no attempt is counted.
		for _, l := range tasks {
			found, err := q.List(await.Context(t), queue.Query{IDs: []string{l.ID}})
			if err != nil {
				t.Fatal(err)
			}
			info := found.Tasks[0]
			if info.State != queue.StateReady && info.State != queue.StateDelayed || info.Attempt != 0 {
				t.Errorf("task %s is %s at attempt %d, want it back at attempt 0", l.ID, info.State, info.Attempt)
			}
		}
		release()
		RunWorker(t, NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) }), q, queue.RunConfig{})
		await.True(t, "the handed back tasks", func() bool { return len(ordertest.AllRows(t, s)) == 10 })
		ordertest.AuditStore(t, s)
	})
}

// TestFulfiller_Handle_ContextEndedWhileBusy: if the database is busy until the worker's
// time is over, each task is retried, and the attempt is not counted.
func TestFulfiller_Handle_ContextEndedWhileBusy(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
	ordertest.BusyTimeout(t, s, time.Millisecond)
	ordertest.Occupy(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	f := NewFulfiller(s, nil, nil, func(error) { cancel() })
	errs := f.Handle(ctx, ordertest.Leased(ordertest.Distinct("n", "item", 7)...))
	for i, err := range errs {
		if !queue.Returned(err) {
			t.Errorf("task %d: %v, want to be returned", i, err)
		}
	}
}

// TestFulfiller_Handle_GivesUp: a worker whose writes keep failing returns its tasks, without counting an attempt,
// so that another worker can commit them. Until one of its writes succeeds, it tries each batch once.
func TestFulfiller_Handle_GivesUp(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t) // on Postgres, each attempt waits for the lock for seconds
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
	ordertest.BusyTimeout(t, s, time.Millisecond)
	release := ordertest.Occupy(t, s)
	failures := 0
	var last error
	f := NewFulfiller(s, nil, nil, func(err error) { failures, last = failures+1, err })
	f.giveUpAfter = 20 * time.Millisecond
	handle := func() []error {
		return f.Handle(await.Context(t), ordertest.Leased(ordertest.Distinct("n", "item", 7)...))
	}
	for round := range 3 {
		failures = 0
		for i, err := range handle() {
			if !queue.Returned(err) || !database.Transient(err) {
				t.Errorf("round %d, task %d: %v, want to be returned because the database is busy", round, i, err)
			}
		}
		if !errors.Is(last, ErrReturned) {
			t.Errorf("round %d: reported %v, want that the orders are returned", round, last)
		}
		if !f.Failing() || f.hold() == 0 {
			t.Errorf("round %d: failing %t, holds for %v", round, f.Failing(), f.hold())
		}
		if round > 0 && failures != 1 {
			t.Errorf("round %d: %d attempts after the worker has given up, want 1", round, failures)
		}
	}
	release()
	if err := errors.Join(handle()...); err != nil || f.Failing() {
		t.Errorf("after the database was free: %v, still failing: %t", err, f.Failing())
	}
	if n := len(ordertest.AllRows(t, s)); n != 7 {
		t.Errorf("%d rows, want 7", n)
	}
	ordertest.AuditStore(t, s)
}

// TestFulfiller_Work_OwnWritesFail: if one of two workers cannot write, the other commits all orders.
func TestFulfiller_Work_OwnWritesFail(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t) // its limit on pages belongs to a connection
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		healthy := storetest.New(t)
		broken, err := store.Open(await.Context(t), "sqlite:"+healthy.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := broken.Close(); err != nil {
				t.Error(err)
			}
		})
		storetest.MustInsert(t, healthy, ordertest.NewItem("item", 1000, 1))
		if err := broken.Writer().Exec("PRAGMA max_page_count = 1").Error; err != nil { // no new pages
			t.Fatal(err)
		}
		const orders = 500 // they need many pages
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		ordertest.MustEnqueue(t, q, ordertest.Leased(ordertest.Distinct("n", "item", orders)...))
		failed := make(chan error, 1000)
		f := NewFulfiller(broken, rdb, nil, func(err error) { failed <- err })
		f.giveUpAfter = 10 * time.Millisecond
		RunWorker(t, f, q, queue.RunConfig{Batch: orders})
		await.True(t, "the worker gives up", f.Failing)
		if err := <-failed; !database.Transient(err) {
			t.Errorf("reported %v, want a full database", err)
		}
		RunWorker(t, NewFulfiller(healthy, rdb, nil, func(err error) { t.Errorf("reported %v", err) }), q, queue.RunConfig{})
		await.True(t, "the other worker commits the orders", func() bool { return len(ordertest.AllRows(t, healthy)) == orders })
		ordertest.AuditStore(t, healthy)
	})
}

// TestFulfiller_Handle_RedisAway: a commit stays even if its notice cannot be published, and its revision is
// recorded later.
func TestFulfiller_Handle_RedisAway(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	h, err := store.NewHighWater(await.Context(t), store.HighWaterConfig{Store: s, Redis: redistest.Embedded(t), Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(redistest.Options("127.0.0.1:1"))
	defer rdb.Close()
	heard := make(chan error, 10)
	f := NewFulfiller(s, rdb, nil, func(err error) { heard <- err })
	tasks := ordertest.Distinct("n", "item", 3)
	tasks[1].Origin = "somewhere"
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Leased(tasks...))...); err != nil {
		t.Errorf("handled with %v", err)
	}
	if len(heard) != 1 {
		t.Errorf("%d errors were reported, want the failure to publish", len(heard))
	}
	if n := len(ordertest.AllRows(t, s)); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	if revisions := h.Take(); len(revisions) != 1 || revisions["item"] == 0 {
		t.Errorf("revisions to record: %v, want that of the item", revisions)
	}
}

// TestFulfiller_Handle_Distrust: the task of an order that the database refused is not done
// before its item's sale has been dropped, unless it was rejected as a dead letter before.
func TestFulfiller_Handle_Distrust(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 1, 1))
	away := redis.NewClient(redistest.Options("127.0.0.1:1"))
	defer away.Close()
	tasks := ordertest.Leased(ordertest.Distinct("n", "item", 2)...)
	errs := NewFulfiller(s, away, nil, func(error) {}).Handle(await.Context(t), tasks)
	if errs[0] != nil || errs[1] == nil {
		t.Errorf("with Redis down: %v, want the refused order to be retried", errs)
	}
	f := NewFulfiller(s, redistest.Embedded(t), nil, func(err error) { t.Errorf("reported %v", err) })
	if err := errors.Join(f.Handle(await.Context(t), tasks[1:])...); err != nil {
		t.Errorf("with Redis back: %v", err)
	}
	if err := s.Writer().Exec("UPDATE orders SET reason = ? WHERE status = 'rejected'", order.ReasonFailed).Error; err != nil {
		t.Fatal(err)
	}
	f = NewFulfiller(s, away, nil, func(error) {})
	if err := errors.Join(f.Handle(await.Context(t), tasks[1:])...); err != nil {
		t.Errorf("of an order that was a dead letter, with Redis down: %v", err)
	}
}

// TestFulfiller_Handle_Stopped: of a batch with orders of a stopped sale, only the others are committed.
func TestFulfiller_Handle_Stopped(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("stopped", 10, 1))
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
	rdb := redistest.Embedded(t)
	h, err := store.NewHighWater(await.Context(t), store.HighWaterConfig{Store: s, Redis: rdb, Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Writer().Exec("UPDATE items SET behind = 9 WHERE id = 'stopped'").Error; err != nil {
		t.Fatal(err)
	}
	if err := h.Check(await.Context(t)); err != nil || !h.IsStopped("stopped") || h.IsStopped("item") {
		t.Fatalf("stopped: %+v, %v", h.Stopped(), err)
	}
	f := NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) })
	errs := f.Handle(await.Context(t), ordertest.Leased(ordertest.Bought("a", "stopped", "u", "k", 1), ordertest.Bought("b", "item", "u", "k", 1)))
	if d, snoozed := queue.Snoozed(errs[0]); !snoozed || d <= 0 || errs[1] != nil {
		t.Errorf("verdicts %v, want the first order to wait", errs)
	}
	if rows := ordertest.AllRows(t, s); len(rows) != 1 || rows["b"].Status != string(order.StatusConfirmed) {
		t.Errorf("rows %v", rows)
	}
}

// TestPurchaseTask_verdict: the orders of a task expire together, at the time of the first, and one that fails is split off.
func TestPurchaseTask_verdict(t *testing.T) {
	t.Parallel()
	orders := ordertest.Distinct("o", "item", 4)
	parcel := ordertest.Parcel("p", orders[1:]...)
	task := purchaseTask{leased: &queue.Leased{ID: "p"}, from: 1, to: 4, accepted: accepted.OrdersOf("p", parcel.Payload)}
	results := []orderResult{{}, {expiresAt: 30}, {expiresAt: 20}, {expiresAt: 40}}
	want := queue.Then(order.ExpiryTask("p", "item", 20, "o0001", "o0002", "o0003"))
	if got := task.verdict(orders, results); !reflect.DeepEqual(got, want) {
		t.Errorf("verdict %+v, want %+v", got, want)
	}
	results[3] = orderResult{poison: ordertest.ErrTest}
	want = queue.Split([]queue.Task{single(task.accepted[2])}, order.ExpiryTask("p", "item", 20, "o0001", "o0002"))
	if got := task.verdict(orders, results); !reflect.DeepEqual(got, want) {
		t.Errorf("verdict with a failed order %+v, want %+v", got, want)
	}
}

// TestFulfiller_Redelivery kills a worker between commit and acknowledge, simulated by the
// end of the lease: the same tasks are delivered again, and make one row each.
func TestFulfiller_Redelivery(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 1))
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		ordertest.MustEnqueue(t, q, ordertest.Leased(ordertest.Distinct("n", "item", 20)...))
		brief, err := queue.New(rdb, queue.Config{Prefix: q.Prefix(), Lease: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		first, err := brief.Dequeue(await.Context(t), 12)
		if err != nil {
			t.Fatal(err)
		}
		f := NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) })
		if err := errors.Join(f.Handle(await.Context(t), first.Tasks)...); err != nil {
			t.Fatal(err)
		}
		RunWorker(t, f, q, queue.RunConfig{}) // the first worker never acknowledges
		await.True(t, "all to be acknowledged", func() bool {
			st := ordertest.StatsOf(t, q)
			return st.Ready+st.Delayed+st.Leased == 0
		})
		if n := len(ordertest.AllRows(t, s)); n != 20 || ordertest.ItemOf(t, s, "item").Sold != 20 {
			t.Errorf("%d rows, %d sold, want 20", n, ordertest.ItemOf(t, s, "item").Sold)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestFulfiller_Handle_Rings: the commit of a batch is published, even if no request waits
// for it.
func TestFulfiller_Handle_Rings(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 1))
		f := NewFulfiller(s, rdb, nil, func(err error) { t.Error(err) })
		sub := rdb.Subscribe(await.Context(t), order.ChangedChannel)
		t.Cleanup(func() { sub.Close() }) //nolint:errcheck // the test is over
		if _, err := sub.Receive(await.Context(t)); err != nil {
			t.Fatal(err)
		}
		tasks := ordertest.Distinct(ordertest.RandomName(t), "item", 3)
		for i, err := range f.Handle(await.Context(t), ordertest.Leased(tasks...)) {
			if err != nil {
				t.Fatalf("task %d: %v", i, err)
			}
		}
		want := strings.Join(order.TaskIDs(tasks), " ")
		for { // other tests share the channel
			m, err := sub.ReceiveMessage(await.Context(t))
			if err != nil {
				t.Fatal(fmt.Errorf("no message of the batch: %w", err))
			}
			if m.Payload == want {
				return
			}
		}
	})
}

// TestFulfiller_Handle_DatabaseFull fills the database: the batch waits, and is committed
// whole once there is space.
func TestFulfiller_Handle_DatabaseFull(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 5000, 1))
	var pages int
	if err := s.Writer().Raw("PRAGMA page_count").Scan(&pages).Error; err != nil {
		t.Fatal(err)
	}
	bound := func(n int) {
		t.Helper()
		if err := s.Writer().Exec(fmt.Sprintf("PRAGMA max_page_count = %d", n)).Error; err != nil {
			t.Fatal(err)
		}
	}
	bound(pages + 1)
	heard := make(chan error, 1000)
	f := NewFulfiller(s, nil, nil, func(err error) { heard <- err })
	result := make(chan []error, 1)
	go func() {
		result <- f.Handle(await.Context(t), ordertest.Leased(ordertest.Distinct("n", "item", 500)...))
	}()
	for range 2 {
		select {
		case err := <-heard:
			var se sqlite3.Error
			if !errors.As(err, &se) || se.Code != sqlite3.ErrFull {
				t.Errorf("reported %v, want a full database", err)
			}
		case errs := <-result:
			t.Fatalf("handled in a full database: %v", errors.Join(errs...))
		case <-time.After(ordertest.Limit):
			t.Fatal("the full database was not reported")
		}
	}
	if n := len(ordertest.AllRows(t, s)); n != 0 {
		t.Errorf("%d rows of a batch that did not fit", n)
	}
	bound(1_000_000)
	select {
	case errs := <-result:
		if err := errors.Join(errs...); err != nil {
			t.Errorf("after there was room: %v", err)
		}
	case <-time.After(ordertest.Limit):
		t.Fatal("the batch was not committed")
	}
	if n := len(ordertest.AllRows(t, s)); n != 500 {
		t.Errorf("%d rows, want 500", n)
	}
	ordertest.AuditStore(t, s)
}

func TestLinger(t *testing.T) {
	t.Parallel()
	order := func(origin string) queue.Leased {
		return queue.Leased{Payload: order.AppendTask(nil, &order.Task{ItemID: "i", UserID: "u", Quantity: 1, Currency: "EUR", Origin: origin, IdempotencyKey: "k"})}
	}
	garbage := queue.Leased{Payload: []byte("1\t2\t3\t4\t5\t6\t7")}
	for name, c := range map[string]struct {
		tasks []queue.Leased
		want  time.Duration
	}{
		"nothing":          {nil, time.Millisecond},
		"no waiter":        {[]queue.Leased{order(""), order(""), garbage}, time.Millisecond},
		"one of them":      {[]queue.Leased{order(""), order("origin"), order("")}, 0},
		"cannot be read":   {[]queue.Leased{garbage, {Payload: nil}, {Payload: []byte("\t\t\t\t\t\t\t")}}, time.Millisecond},
		"looks like a key": {[]queue.Leased{{Payload: []byte("1\t\t\t\t\t\t\t\tkey")}}, time.Millisecond},
	} {
		if got := Linger(time.Millisecond)(c.tasks); got != c.want {
			t.Errorf("%s: linger %v, want %v", name, got, c.want)
		}
	}
}

// RunWorker starts a worker on q; stop ends it and returns Run's error.
func RunWorker(t *testing.T, f *Fulfiller, q *queue.Queue, cfg queue.RunConfig) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Work(ctx, []*queue.Queue{q}, nil, cfg) }()
	done := false
	stop = func() error {
		if done {
			return nil
		}
		done = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(ordertest.Limit):
			return errors.New("the worker did not stop")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	return stop
}

// TestFulfiller_Failing_WroteNothing: while the disk is full, the expiry of an order that is not due, or is
// closed, succeeds, because it writes nothing. The worker stays failing.
func TestFulfiller_Failing_WroteNothing(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	clock := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 1000, 1, time.Minute))
	f := NewFulfiller(s, redistest.Embedded(t), nil, func(error) {})
	f.giveUpAfter = time.Nanosecond
	old := ordertest.Distinct("old", "item", 2)
	storetest.MustCommit(t, s, old...)
	expire := func(id string) error {
		task := order.ExpiryTask(id, "item", 0, id)
		return errors.Join(f.Handle(await.Context(t), []queue.Leased{{ID: task.ID, Payload: task.Payload, Options: queue.Options{Type: task.Type}}})...)
	}
	end := ordertest.DatabaseFaults[0].Begin(t, s)                                                  // full
	errs := f.Handle(await.Context(t), ordertest.Leased(ordertest.Distinct("new", "item", 500)...)) // more than a page has room for
	if !queue.Returned(errs[0]) || !f.Failing() {
		t.Fatalf("purchases: %v, failing: %t", errs[0], f.Failing())
	}
	if err := expire(old[0].ID); err == nil {
		t.Error("an order expired early")
	} else if _, waits := queue.Snoozed(err); !waits || !f.Failing() {
		t.Errorf("an expiry that is not due: %v, failing: %t", err, f.Failing())
	}
	end()
	clock.Add(time.Hour.Milliseconds())
	if err := expire(old[1].ID); err != nil || f.Failing() {
		t.Errorf("an expiry that is due, on a disk that has space: %v, failing: %t", err, f.Failing())
	}
	f.gaveUp.Store(new(time.Now()))
	if err := expire(old[1].ID); err != nil || !f.Failing() {
		t.Errorf("the expiry of an expired order: %v, failing: %t", err, f.Failing())
	}
}

// TestFulfiller_persist_Repeats: a commit that fails because of the state of the database is
// repeated until it succeeds, and every failure is reported. Another error ends the tries.
func TestFulfiller_persist_Repeats(t *testing.T) {
	t.Parallel()
	var reported []error
	f := NewFulfiller(storetest.New(t), nil, nil, func(err error) { reported = append(reported, err) })
	tries := 0
	err := f.persist(await.Context(t), func() (bool, error) {
		if tries++; tries <= 2 {
			return false, fmt.Errorf("commit: %w", driver.ErrBadConn)
		}
		return true, nil
	})
	if err != nil || tries != 3 || len(reported) != 2 || !errors.Is(reported[1], driver.ErrBadConn) {
		t.Errorf("%d tries, reported %v, %v; want 3 tries and 2 reports", tries, reported, err)
	}
	if err := f.persist(await.Context(t), func() (bool, error) { tries++; return false, ordertest.ErrTest }); !errors.Is(err, ordertest.ErrTest) || tries != 4 {
		t.Errorf("a lasting error after %d tries: %v", tries-3, err)
	}
}
