package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// idle keeps a worker from polling its queue while it is idle, so a test does not pass
// because of a poll.
var idle = queue.RunConfig{MaxIdle: 10 * time.Minute}

// TestFulfiller_Expiry: an unpaid order expires on its own, not before its time, and others
// can buy its units.
func TestFulfiller_Expiry(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		// The test waits for this time twice.
		s := shoptest.New(t, rdb, false, ordertest.Asking("", 3, 2, 3*time.Second))
		release := storetest.HoldClock(s.Store)
		worker.RunWorker(t, s.Fulfiller, s.Queue, idle)
		o := s.MustPlace(s.Purchase("u", "k", 2, ordertest.Long)).Order
		paid := s.MustPlace(s.Purchase("v", "k", 1, ordertest.Long)).Order
		if _, err := s.Service.Pay(await.Context(t), paid.ID, ordertest.Money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		release()
		s.Drained()
		for _, id := range []string{o.ID, paid.ID} {
			// The task of the purchase has ended; its id has zeros for the order's place.
			found, err := s.Queue.List(await.Context(t), queue.Query{IDs: []string{order.ExpiryPrefix + id[:len(id)-4] + "0000"}})
			if err != nil {
				t.Fatal(err)
			}
			info := found.Tasks[0]
			if !time.Now().Before(s.MustGet(id).ExpiresAt) {
				continue // read too late
			}
			if info.State != queue.StateDelayed || !info.At.Equal(s.MustGet(id).ExpiresAt) {
				t.Errorf("expiry of order %s: %+v", id, info)
			}
		}
		await.True(t, "the order to expire", func() bool { return s.MustGet(o.ID).Status == order.StatusExpired })
		if got := s.MustGet(o.ID); got.ClosedAt.Before(got.ExpiresAt) || got.Reason != order.ReasonUnpaid || time.Now().Before(got.ExpiresAt) {
			t.Errorf("expired order %+v", got)
		}
		if got := s.MustGet(paid.ID); got.Status != order.StatusPaid {
			t.Errorf("paid order %+v", got)
		}
		await.True(t, "the units to be back", func() bool { return len(ordertest.ReleasesOf(t, s.Store)) == 0 })
		// The paid order's task is done, and a later order expires too.
		next := s.MustPlace(s.Purchase("u", "k2", 2, ordertest.Long)).Order
		await.True(t, "the next order to expire", func() bool { return s.MustGet(next.ID).Status == order.StatusExpired })
		await.True(t, "the queue to be empty", func() bool { return ordertest.StatsOf(t, s.Queue) == (queue.Stats{}) })
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 3, Left: 2, Sold: 1}) {
			t.Errorf("ledger %+v", l)
		}
		if again := s.MustPlace(s.Purchase("u", "k", 2, ordertest.Long)); again.Order.ID != o.ID || again.Order.Status != order.StatusExpired || !again.Replayed {
			t.Errorf("replay of an expired order: %+v", again)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestFulfiller_Handle_ExpiryText: an expiry task with text that Postgres cannot store is a dead letter at its
// first attempt, and the others of its batch are handled.
func TestFulfiller_Handle_ExpiryText(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, _ := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 1, time.Minute))
	storetest.MustCommit(t, s, ordertest.Bought("due", "item", "u", "k", 1))
	c.Add(time.Minute.Milliseconds())
	errs := f.Handle(await.Context(t), ordertest.Expiries("a\x00", "due", "a\xff"))
	if !errors.Is(errs[0], order.ErrTaskMalformed) || errs[1] != nil || !errors.Is(errs[2], order.ErrTaskMalformed) {
		t.Errorf("verdicts %v", errs)
	}
	if row := ordertest.AllRows(t, s)["due"]; row.Status != string(order.StatusExpired) {
		t.Errorf("row %+v", row)
	}
}

// TestFulfiller_Handle_Expiries: one batch with every kind of expiry.
func TestFulfiller_Handle_Expiries(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 100, 5, time.Minute))
	storetest.MustInsert(t, s, ordertest.NewItem("free", 100, 5))
	for i, id := range []string{"due1", "paid", "broken1", "cancelled", "due2", "broken2"} {
		storetest.MustCommit(t, s, ordertest.Bought(id, "item", "u"+id, fmt.Sprint(i), 2))
	}
	storetest.MustCommit(t, s, ordertest.Bought("free", "free", "u", "k", 1))
	if _, err := s.Pay(await.Context(t), "paid", ordertest.Money("psp", 2)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Cancel(await.Context(t), "cancelled", order.Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	// An order whose buyer has a lower count cannot expire.
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 1 WHERE user_id LIKE 'ubroken%'").Error; err != nil {
		t.Fatal(err)
	}
	c.Add(30_000)
	storetest.MustCommit(t, s, ordertest.Bought("early", "item", "early", "k", 1))
	c.Add(30_000)
	ids := []string{"due1", "paid", "broken1", "early", "cancelled", "none", "free", "due2", "broken2", "due1"}
	batch := ordertest.Expiries(ids...)
	batch = append(batch, ordertest.Leased(ordertest.Bought("new", "item", "new", "k", 1), ordertest.Bought("zero", "item", "zero", "k", 0))...)
	batch = append(batch, queue.Leased{ID: "y", Options: queue.Options{Type: "of tomorrow"}}, queue.Leased{ID: "garbage"})
	errs := f.Handle(await.Context(t), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d verdicts for %d tasks", len(errs), len(batch))
	}
	for i, err := range errs {
		id := strings.TrimPrefix(batch[i].ID, order.ExpiryPrefix)
		ok := err == nil
		switch id {
		case "broken1", "broken2":
			ok = err != nil && strings.Contains(err.Error(), "of them hold fewer")
		case "early":
			ok = err != nil && err.Error() == queue.Snooze(30*time.Second).Error()
		case "new":
			ok = ordertest.Followed(err)
		case "y":
			ok = errors.Is(err, worker.ErrTaskType)
		case "zero":
			ok = err != nil
		case "garbage":
			ok = errors.Is(err, order.ErrTaskMalformed)
		}
		if !ok {
			t.Errorf("verdict on %s: %v", id, err)
		}
	}
	for id, want := range map[string]order.Status{
		"due1": order.StatusExpired, "due2": order.StatusExpired, "paid": order.StatusPaid, "cancelled": order.StatusCancelled,
		"broken1": order.StatusConfirmed, "broken2": order.StatusConfirmed, "early": order.StatusConfirmed, "free": order.StatusConfirmed, "new": order.StatusConfirmed,
	} {
		if o, err := s.Order(await.Context(t), id); err != nil || o.Status != want {
			t.Errorf("order %s is %s, %v, want %s", id, o.Status, err, want)
		}
	}
	// The cancelled order's units had not been released: they are now.
	if fmt.Sprint(shelf.Units) != fmt.Sprint(map[string]int64{"due1": 2, "due2": 2, "cancelled": 2}) || len(ordertest.ReleasesOf(t, s)) != 0 {
		t.Errorf("released %v, pending %v", shelf.Units, ordertest.ReleasesOf(t, s))
	}
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 2 WHERE user_id LIKE 'ubroken%'").Error; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("broken1", "broken2"))...); err != nil {
		t.Errorf("repaired orders: %v", err)
	}
	ordertest.AuditStore(t, s)
}

// TestFulfiller_expire_NotGiven: the task of an order whose release has an unknown outcome
// is not done, and its next delivery retries the release.
func TestFulfiller_expire_NotGiven(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	f, shelf := shoptest.OnShelf(t, s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Minute))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "k", 2), ordertest.Bought("o2", "item", "v", "k", 1))
	c.Add(time.Minute.Milliseconds())
	shelf.Set(0, ordertest.ErrTest)
	for range 2 {
		for i, err := range f.Handle(await.Context(t), ordertest.Expiries("o1", "o2")) {
			if !errors.Is(err, ordertest.ErrTest) {
				t.Errorf("order %d with Redis down: %v", i, err)
			}
		}
	}
	// Units of a sale that is not loaded are left to the sweeper; this is not a failure.
	shelf.Set(inventory.ReleaseNotLoaded, nil)
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("o1"))...); err != nil {
		t.Errorf("with the sale not loaded: %v", err)
	}
	if pending := ordertest.ReleasesOf(t, s); !slices.Equal(pending, []string{"o1", "o2"}) {
		t.Errorf("pending releases: %v", pending)
	}
	// The key belongs to another order: the sale is dropped, and if that fails, it is
	// retried.
	shelf.Set(inventory.ReleaseForeign, nil)
	shelf.DropFail = ordertest.ErrTest
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("o1"))...); !errors.Is(err, ordertest.ErrTest) || len(ordertest.ReleasesOf(t, s)) != 2 {
		t.Errorf("when the sale cannot be dropped: %v, %v", err, ordertest.ReleasesOf(t, s))
	}
	shelf.DropFail = nil
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("o1"))...); err != nil {
		t.Errorf("with another order's key: %v", err)
	}
	if pending := ordertest.ReleasesOf(t, s); !slices.Equal(pending, []string{"o2"}) || !slices.Equal(shelf.Dropped, []string{"item", "item"}) {
		t.Errorf("pending releases: %v, dropped %v", pending, shelf.Dropped)
	}
	shelf.Set(0, nil)
	if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("o1", "o2"))...); err != nil || shelf.Units["o2"] != 1 || len(ordertest.ReleasesOf(t, s)) != 0 {
		t.Errorf("with Redis back: %v, %v", err, shelf.Units)
	}
	ordertest.AuditStore(t, s)
}

// TestFulfiller_expire_DatabaseBusy: expiries are retried, and the attempt is not counted,
// if the worker's time ends before the database is free.
func TestFulfiller_expire_DatabaseBusy(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ordertest.BusyTimeout(t, s, time.Millisecond)
	ordertest.Occupy(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	f := worker.NewFulfiller(s, nil, nil, func(error) { cancel() })
	for i, err := range f.Handle(ctx, ordertest.Expiries("o1", "o2", "o3")) {
		if !queue.Returned(err) {
			t.Errorf("order %d: %v, want to be returned", i, err)
		}
	}
}

// TestFulfiller_Expiry_Redelivered: a purchase that is delivered again after its expiry was
// scheduled or done, or after the order was paid, schedules nothing twice and changes no
// order.
func TestFulfiller_Expiry_Redelivered(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		c := storetest.SetClock(s)
		f, _ := shoptest.OnShelf(t, s)
		storetest.MustInsert(t, s, ordertest.Asking("item", 10, 5, time.Hour))
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		brief, err := queue.New(rdb, queue.Config{Prefix: q.Prefix(), Lease: 50 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		ordertest.MustEnqueue(t, q, ordertest.Leased(ordertest.Bought("o1", "item", "u", "k", 1), ordertest.Bought("o2", "item", "v", "k", 1)))
		deliver := func(to *queue.Queue) []queue.Leased {
			var got []queue.Leased
			await.True(t, "the delivery", func() bool {
				f, err := to.Dequeue(await.Context(t), 2)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, f.Tasks...)
				return len(got) == 2
			})
			return got
		}
		first := deliver(brief)
		if errs := f.Handle(await.Context(t), first); !ordertest.Followed(errs[0]) || !ordertest.Followed(errs[1]) {
			t.Fatalf("first delivery: %v", errs)
		}
		// The worker stalls; another one does everything.
		second := deliver(q)
		errs := f.Handle(await.Context(t), second)
		row := ordertest.AllRows(t, s)["o1"]
		for i, l := range second {
			if !ordertest.Followed(errs[i]) {
				t.Fatalf("second delivery: %v", errs[i])
			}
			next := order.ExpiryTask(l.ID, "item", row.ExpiresAt, l.ID)
			status, err := q.Complete(await.Context(t), queue.Completion{Task: l, Next: []queue.Task{next}})
			if err != nil || status[0] != queue.StatusOK {
				t.Fatalf("complete: %v, %v", status, err)
			}
			status, err = q.Complete(await.Context(t), queue.Completion{Task: first[i], Next: []queue.Task{next}})
			if err != nil || status[0] == queue.StatusOK {
				t.Errorf("the stalled worker's completion: %v, %v", status, err)
			}
		}
		if st := ordertest.StatsOf(t, q); st.Delayed != 2 || st.Ready+st.Leased+st.Dead != 0 {
			t.Errorf("queue %+v, want one expiry per order", st)
		}
		if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		c.Add(time.Hour.Milliseconds())
		if err := errors.Join(f.Handle(await.Context(t), ordertest.Expiries("o1", "o2"))...); err != nil {
			t.Fatal(err)
		}
		before := ordertest.AllRows(t, s)
		// An old copy of Redis contains the purchases again.
		if err := errors.Join(f.Handle(await.Context(t), first)...); err != nil {
			t.Errorf("delivered after the end: %v", err)
		}
		after := ordertest.AllRows(t, s)
		if fmt.Sprint(after) != fmt.Sprint(before) || after["o1"].Status != "paid" || after["o2"].Status != "expired" {
			t.Errorf("rows %v, were %v", after, before)
		}
		ordertest.AuditStore(t, s)
	})
}

// TestFulfiller_Expiry_OneFails: an order that cannot expire becomes a dead letter; the
// worker and the other orders continue.
func TestFulfiller_Expiry_OneFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		c := storetest.SetClock(s)
		f, shelf := shoptest.OnShelf(t, s)
		storetest.MustInsert(t, s, ordertest.Asking("item", 1000, 1, time.Minute))
		tasks := ordertest.Distinct("n", "item", 300)
		storetest.MustCommit(t, s, tasks...)
		c.Add(time.Minute.Milliseconds())
		if err := s.Writer().Exec("DELETE FROM buyers WHERE user_id = 'nu150'").Error; err != nil {
			t.Fatal(err)
		}
		q := ordertest.NewQueue(t, rdb, queue.Config{Lease: ordertest.Limit, MaxAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		due := make([]queue.Task, len(tasks))
		for i := range tasks {
			due[i] = order.ExpiryTask(tasks[i].ID, tasks[i].ItemID, time.Now().UnixMilli()-int64(len(tasks))+int64(i), tasks[i].ID)
		}
		if _, err := q.Enqueue(await.Context(t), due...); err != nil {
			t.Fatal(err)
		}
		worker.RunWorker(t, f, q, idle)
		await.True(t, "all tasks but one to be done", func() bool { return ordertest.StatsOf(t, q) == (queue.Stats{Dead: 1}) })
		expired := 0
		for _, r := range ordertest.AllRows(t, s) {
			if order.Status(r.Status) == order.StatusExpired {
				expired++
			} else if r.UserID != "nu150" {
				t.Errorf("order %+v", r)
			}
		}
		if expired != 299 || len(shelf.Units) != 299 || len(ordertest.ReleasesOf(t, s)) != 0 || ordertest.ItemOf(t, s, "item").Sold != 1 {
			t.Errorf("%d expired, %d came back", expired, len(shelf.Units))
		}
		// The sweeper skips it, too, every time.
		c.Add(worker.SweepGrace.Milliseconds())
		sweep, err := worker.NewSweeper(f, worker.SweeperConfig{}).Sweep(await.Context(t))
		if err == nil || sweep != (worker.Swept{}) {
			t.Errorf("sweep %+v, %v, want the one order's error", sweep, err)
		}
	})
}
