package order

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
		// A busy machine must pay one order within this time; the test waits for it twice.
		s := newSite(t, rdb, false, asking("", 3, 2, 3*time.Second))
		runWorker(t, s.fulfiller, s.queue, idle)
		o := s.mustPlace(s.purchase("u", "k", 2, long)).Order
		paid := s.mustPlace(s.purchase("v", "k", 1, long)).Order
		if _, err := s.service.Pay(await.Context(t), paid.ID, money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		s.drained()
		for _, id := range []string{o.ID, paid.ID} {
			found, err := s.queue.Get(await.Context(t), expiryPrefix+id)
			if err != nil {
				t.Fatal(err)
			}
			info := found[0]
			if info.State == "" && !time.Now().Before(s.mustGet(id).ExpiresAt) {
				continue // read too late
			}
			if info.State != queue.StateDelayed || !info.At.Equal(s.mustGet(id).ExpiresAt) {
				t.Errorf("expiry of order %s: %+v", id, info)
			}
		}
		await.True(t, "the order to expire", func() bool { return s.mustGet(o.ID).Status == StatusExpired })
		if got := s.mustGet(o.ID); got.ClosedAt.Before(got.ExpiresAt) || got.Reason != reasonUnpaid || time.Now().Before(got.ExpiresAt) {
			t.Errorf("expired order %+v", got)
		}
		if got := s.mustGet(paid.ID); got.Status != StatusPaid {
			t.Errorf("paid order %+v", got)
		}
		await.True(t, "the units to be back", func() bool { return len(owedOf(t, s.store)) == 0 })
		// The paid order's task is done, and a later order expires too.
		next := s.mustPlace(s.purchase("u", "k2", 2, long)).Order
		await.True(t, "the next order to expire", func() bool { return s.mustGet(next.ID).Status == StatusExpired })
		await.True(t, "the queue to be empty", func() bool { return statsOf(t, s.queue) == (queue.Stats{}) })
		if l := ledgerOf(s); l != (Ledger{Initial: 3, Left: 2, Sold: 1}) {
			t.Errorf("ledger %+v", l)
		}
		if again := s.mustPlace(s.purchase("u", "k", 2, long)); again.Order.ID != o.ID || again.Order.Status != StatusExpired || !again.Replayed {
			t.Errorf("replay of an expired order: %+v", again)
		}
		auditStore(t, s.store)
	})
}

// TestFulfiller_Handle_Expiries: one batch with every kind of expiry.
func TestFulfiller_Handle_Expiries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	mustInsert(t, s, asking("item", 100, 5, time.Minute))
	mustInsert(t, s, newItem("free", 100, 5))
	for i, id := range []string{"due1", "paid", "broken1", "cancelled", "due2", "broken2"} {
		mustCommit(t, s, bought(id, "item", "u"+id, fmt.Sprint(i), 2))
	}
	mustCommit(t, s, bought("free", "free", "u", "k", 1))
	if _, err := s.pay(await.Context(t), "paid", money("psp", 2)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.cancel(await.Context(t), "cancelled", Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	// An order whose buyer has a lower count cannot expire.
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 1 WHERE user_id LIKE 'ubroken%'").Error; err != nil {
		t.Fatal(err)
	}
	c.Add(30_000)
	mustCommit(t, s, bought("early", "item", "early", "k", 1))
	c.Add(30_000)
	ids := []string{"due1", "paid", "broken1", "early", "cancelled", "none", "free", "due2", "broken2", "due1"}
	batch := expiries(ids...)
	batch = append(batch, leased(bought("new", "item", "new", "k", 1), bought("zero", "item", "zero", "k", 0))...)
	batch = append(batch, queue.Leased{ID: "y", Options: queue.Options{Type: "of tomorrow"}}, queue.Leased{ID: "garbage"})
	errs := f.Handle(await.Context(t), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d verdicts for %d tasks", len(errs), len(batch))
	}
	for i, err := range errs {
		id := strings.TrimPrefix(batch[i].ID, expiryPrefix)
		ok := err == nil
		switch id {
		case "broken1", "broken2":
			ok = err != nil && strings.Contains(err.Error(), "count is lower")
		case "early":
			ok = err != nil && err.Error() == queue.Snooze(30*time.Second).Error()
		case "new":
			ok = followed(err)
		case "y":
			ok = errors.Is(err, errTaskType)
		case "zero":
			ok = err != nil
		case "garbage":
			ok = errors.Is(err, errTaskMalformed)
		}
		if !ok {
			t.Errorf("verdict on %s: %v", id, err)
		}
	}
	for id, want := range map[string]Status{
		"due1": StatusExpired, "due2": StatusExpired, "paid": StatusPaid, "cancelled": StatusCancelled,
		"broken1": StatusConfirmed, "broken2": StatusConfirmed, "early": StatusConfirmed, "free": StatusConfirmed, "new": StatusConfirmed,
	} {
		if o, err := s.Order(await.Context(t), id); err != nil || o.Status != want {
			t.Errorf("order %s is %s, %v, want %s", id, o.Status, err, want)
		}
	}
	// The cancelled order's units had not been released: they are now.
	if fmt.Sprint(shelf.units) != fmt.Sprint(map[string]int64{"due1": 2, "due2": 2, "cancelled": 2}) || len(owedOf(t, s)) != 0 {
		t.Errorf("released %v, pending %v", shelf.units, owedOf(t, s))
	}
	if err := s.Writer().Exec("UPDATE buyers SET quantity = 2 WHERE user_id LIKE 'ubroken%'").Error; err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Handle(await.Context(t), expiries("broken1", "broken2"))...); err != nil {
		t.Errorf("repaired orders: %v", err)
	}
	auditStore(t, s)
}

// TestFulfiller_expire_NotGiven: the task of an order whose release has an unknown outcome
// is not done, and its next delivery retries the release.
func TestFulfiller_expire_NotGiven(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := setClock(s)
	f, shelf := onShelf(t, s)
	mustInsert(t, s, asking("item", 10, 5, time.Minute))
	mustCommit(t, s, bought("o1", "item", "u", "k", 2), bought("o2", "item", "v", "k", 1))
	c.Add(time.Minute.Milliseconds())
	shelf.set(0, errTest)
	for range 2 {
		for i, err := range f.Handle(await.Context(t), expiries("o1", "o2")) {
			if !errors.Is(err, errTest) {
				t.Errorf("order %d with Redis down: %v", i, err)
			}
		}
	}
	// Units of a sale that is not loaded are left to the sweeper; this is not a failure.
	shelf.set(inventory.ReleaseNotLoaded, nil)
	if err := errors.Join(f.Handle(await.Context(t), expiries("o1"))...); err != nil {
		t.Errorf("with the sale not loaded: %v", err)
	}
	if owed := owedOf(t, s); !slices.Equal(owed, []string{"o1", "o2"}) {
		t.Errorf("pending releases: %v", owed)
	}
	// The key belongs to another order: the sale is dropped, and if that fails, it is
	// retried.
	shelf.set(inventory.ReleaseForeign, nil)
	shelf.dropFail = errTest
	if err := errors.Join(f.Handle(await.Context(t), expiries("o1"))...); !errors.Is(err, errTest) || len(owedOf(t, s)) != 2 {
		t.Errorf("when the sale cannot be dropped: %v, %v", err, owedOf(t, s))
	}
	shelf.dropFail = nil
	if err := errors.Join(f.Handle(await.Context(t), expiries("o1"))...); err != nil {
		t.Errorf("with another order's key: %v", err)
	}
	if owed := owedOf(t, s); !slices.Equal(owed, []string{"o2"}) || !slices.Equal(shelf.dropped, []string{"item", "item"}) {
		t.Errorf("pending releases: %v, dropped %v", owed, shelf.dropped)
	}
	shelf.set(0, nil)
	if err := errors.Join(f.Handle(await.Context(t), expiries("o1", "o2"))...); err != nil || shelf.units["o2"] != 1 || len(owedOf(t, s)) != 0 {
		t.Errorf("with Redis back: %v, %v", err, shelf.units)
	}
	auditStore(t, s)
}

// TestFulfiller_expire_DatabaseBusy: expiries are retried, and the attempt is not counted,
// if the worker's time ends before the database is free.
func TestFulfiller_expire_DatabaseBusy(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	f, _ := onShelf(t, s)
	busyTimeout(t, s, time.Millisecond)
	occupy(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	f.onError = func(error) { cancel() }
	for i, err := range f.Handle(ctx, expiries("o1", "o2", "o3")) {
		if err == nil || err.Error() != queue.Snooze(0).Error() {
			t.Errorf("order %d: %v, want to be snoozed", i, err)
		}
	}
}

// TestFulfiller_Expiry_Redelivered: a purchase that is delivered again after its expiry was
// scheduled or done, or after the order was paid, schedules nothing twice and changes no
// order.
func TestFulfiller_Expiry_Redelivered(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t)
		c := setClock(s)
		f, _ := onShelf(t, s)
		mustInsert(t, s, asking("item", 10, 5, time.Hour))
		q := newQueue(t, rdb, queue.Config{Lease: 50 * time.Millisecond})
		mustEnqueue(t, q, leased(bought("o1", "item", "u", "k", 1), bought("o2", "item", "v", "k", 1)))
		deliver := func() []queue.Leased {
			var got []queue.Leased
			await.True(t, "the delivery", func() bool {
				f, err := q.Dequeue(await.Context(t), 2)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, f.Tasks...)
				return len(got) == 2
			})
			return got
		}
		first := deliver()
		if errs := f.Handle(await.Context(t), first); !followed(errs[0]) || !followed(errs[1]) {
			t.Fatalf("first delivery: %v", errs)
		}
		// The worker stalls; another one does everything.
		second := deliver()
		errs := f.Handle(await.Context(t), second)
		row := allRows(t, s)["o1"]
		for i, l := range second {
			if !followed(errs[i]) {
				t.Fatalf("second delivery: %v", errs[i])
			}
			next := expiryTask(&task{ID: l.ID, ItemID: "item"}, row.ExpiresAt)
			status, err := q.Complete(await.Context(t), queue.Completion{Task: l, Next: []queue.Task{next}})
			if err != nil || status[0] != queue.StatusOK {
				t.Fatalf("complete: %v, %v", status, err)
			}
			status, err = q.Complete(await.Context(t), queue.Completion{Task: first[i], Next: []queue.Task{next}})
			if err != nil || status[0] == queue.StatusOK {
				t.Errorf("the stalled worker's completion: %v, %v", status, err)
			}
		}
		if st := statsOf(t, q); st.Delayed != 2 || st.Ready+st.Leased+st.Dead != 0 {
			t.Errorf("queue %+v, want one expiry per order", st)
		}
		if _, err := s.pay(await.Context(t), "o1", money("psp", 1)); err != nil {
			t.Fatal(err)
		}
		c.Add(time.Hour.Milliseconds())
		if err := errors.Join(f.Handle(await.Context(t), expiries("o1", "o2"))...); err != nil {
			t.Fatal(err)
		}
		before := allRows(t, s)
		// An old copy of Redis contains the purchases again.
		if err := errors.Join(f.Handle(await.Context(t), first)...); err != nil {
			t.Errorf("delivered after the end: %v", err)
		}
		after := allRows(t, s)
		if fmt.Sprint(after) != fmt.Sprint(before) || after["o1"].Status != "paid" || after["o2"].Status != "expired" {
			t.Errorf("rows %v, were %v", after, before)
		}
		auditStore(t, s)
	})
}

// TestFulfiller_Expiry_OneFails: an order that cannot expire becomes a dead letter; the
// worker and the other orders continue.
func TestFulfiller_Expiry_OneFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t)
		c := setClock(s)
		f, shelf := onShelf(t, s)
		mustInsert(t, s, asking("item", 1000, 1, time.Minute))
		tasks := distinct("n", "item", 300)
		mustCommit(t, s, tasks...)
		c.Add(time.Minute.Milliseconds())
		if err := s.Writer().Exec("DELETE FROM buyers WHERE user_id = 'nu150'").Error; err != nil {
			t.Fatal(err)
		}
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		due := make([]queue.Task, len(tasks))
		for i := range tasks {
			due[i] = expiryTask(&tasks[i], time.Now().UnixMilli()-int64(len(tasks))+int64(i))
		}
		if _, err := q.Enqueue(await.Context(t), due...); err != nil {
			t.Fatal(err)
		}
		runWorker(t, f, q, idle)
		await.True(t, "all tasks but one to be done", func() bool { return statsOf(t, q) == (queue.Stats{Dead: 1}) })
		expired := 0
		for _, r := range allRows(t, s) {
			if Status(r.Status) == StatusExpired {
				expired++
			} else if r.UserID != "nu150" {
				t.Errorf("order %+v", r)
			}
		}
		if expired != 299 || len(shelf.units) != 299 || len(owedOf(t, s)) != 0 || itemOf(t, s, "item").Sold != 1 {
			t.Errorf("%d expired, %d came back", expired, len(shelf.units))
		}
		// The sweeper skips it, too, every time.
		c.Add(sweepGrace.Milliseconds())
		sweep, err := NewSweeper(f, SweeperConfig{}).Sweep(await.Context(t))
		if err == nil || sweep != (Swept{}) {
			t.Errorf("sweep %+v, %v, want the one order's error", sweep, err)
		}
	})
}
