package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// die adds tasks to a queue and makes them dead letters, many at once.
func die(t *testing.T, q *queue.Queue, reason func(i int) string, tasks ...queue.Task) {
	t.Helper()
	ctx := await.Context(t)
	if _, err := q.Enqueue(ctx, tasks...); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(tasks); {
		f, err := q.Dequeue(ctx, 512)
		if err != nil || len(f.Tasks) == 0 {
			t.Fatalf("%d of %d tasks, %v", i, len(tasks), err)
		}
		var back []queue.Rejection
		for _, l := range f.Tasks {
			back = append(back, queue.Rejection{Task: l, Dead: true, Reason: reason(i)})
			i++
		}
		if _, err := q.Reject(ctx, back...); err != nil {
			t.Fatal(err)
		}
	}
}

func purchaseTasks(orders []order.Task) []queue.Task {
	tasks := make([]queue.Task, len(orders))
	for i := range orders {
		tasks[i] = queue.Task{ID: orders[i].ID, Type: order.PurchaseType, Payload: order.AppendTask(nil, &orders[i])}
	}
	return tasks
}

func plainTasks(prefix string, n int) []queue.Task {
	tasks := make([]queue.Task, n)
	for i := range tasks {
		tasks[i] = queue.Task{ID: fmt.Sprintf("%s%05d", prefix, i), Type: "t", Payload: []byte("p")}
	}
	return tasks
}

func always(reason string) func(int) string { return func(int) string { return reason } }

type bulkCall func(context.Context, worker.DeadSelection, worker.DeadPlace) (worker.BulkResult, error)

// bulk calls until the end, and returns the sums and the number of calls.
func bulk(t *testing.T, call bulkCall, sel worker.DeadSelection) (sum worker.BulkResult, calls int) {
	t.Helper()
	var at worker.DeadPlace
	for calls = 1; calls < 1000; calls++ {
		r, err := call(await.Context(t), sel, at)
		if err != nil {
			t.Fatalf("call %d: %v", calls, err)
		}
		if r.Matched > 1000 {
			t.Errorf("call %d: %d letters", calls, r.Matched)
		}
		sum.Matched, sum.Failed, sum.Done = sum.Matched+r.Matched, sum.Failed+r.Failed, append(sum.Done, r.Done...)
		if r.Err != nil {
			sum.Err = r.Err
		}
		if r.Next == nil {
			if r.Remaining != 0 {
				t.Errorf("%d remain at the end", r.Remaining)
			}
			return sum, calls
		}
		if (sel.Group == "") != (r.Remaining > 0) {
			t.Errorf("call %d: %d remain", calls, r.Remaining)
		}
		at, sel.Before = *r.Next, r.Before
	}
	t.Fatal("no end")
	return sum, calls
}

func wantDead(t *testing.T, q *queue.Queue, want int) {
	t.Helper()
	if s, err := q.Stats(await.Context(t)); err != nil || s.Dead != want {
		t.Errorf("%d dead letters, %v, want %d", s.Dead, err, want)
	}
}

// TestBacklog_Groups: reasons that differ in ids only are one group, in any queue; the group selects its letters.
func TestBacklog_Groups(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		one, two := ordertest.NewQueue(t, rdb, queue.Config{}), ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: one}, worker.NamedQueue{Name: "two", Queue: two})
		b.SetGroupsTime(await.Limit)
		if g, err := b.Groups(await.Context(t)); err != nil || len(g.Groups) != 0 || !g.Complete {
			t.Fatalf("%+v, %v", g, err)
		}
		die(t, one, func(i int) string { return fmt.Sprintf("order %d is bad", i) }, plainTasks("a", 30)...)
		die(t, one, always("the disk is full"), plainTasks("b", 7)...)
		die(t, two, always("order 99 is bad"), plainTasks("c", 5)...)
		g, err := b.Groups(await.Context(t))
		if err != nil || len(g.Groups) != 2 || g.Counted != 42 || g.Total != 42 || !g.Complete || g.Omitted != 0 {
			t.Fatalf("%+v, %v", g, err)
		}
		bad := g.Groups[0]
		if bad.Reason != "order {n} is bad" || bad.Count != 35 || g.Groups[1].Count != 7 || bad.FirstAt.After(bad.LastAt) || bad.FirstAt.IsZero() || bad.Example == "" {
			t.Errorf("%+v", g.Groups)
		}
		seen := make(map[string]int)
		for at, pages := (&worker.DeadPlace{}), 0; at != nil && pages < 50; pages++ {
			page, next, err := b.Dead(await.Context(t), bad.ID, *at, 4)
			if err != nil || len(page) > 4 {
				t.Fatalf("%d letters, %v", len(page), err)
			}
			for i := range page {
				seen[page[i].ID]++
				if page[i].Group != bad.ID {
					t.Errorf("letter %+v", page[i])
				}
			}
			at = next
		}
		if len(seen) != 35 {
			t.Errorf("%d letters listed, want 35: %v", len(seen), seen)
		}
		sum, _ := bulk(t, b.DiscardMany, worker.DeadSelection{Group: bad.ID})
		if sum.Matched != 35 || len(sum.Done) != 35 || sum.Failed != 0 {
			t.Errorf("discarded %d of %d", len(sum.Done), sum.Matched)
		}
		wantDead(t, one, 7)
		wantDead(t, two, 0)
	})
}

// TestBacklog_Groups_Bounded: with more letters than one call examines, the answer says so.
func TestBacklog_Groups_Bounded(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := ordertest.NewQueue(t, rdb, queue.Config{MaxDead: 100_000})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q}, worker.NamedQueue{Name: "two", Queue: ordertest.NewQueue(t, rdb, queue.Config{})})
		die(t, q, func(i int) string { return "reason " + string(rune('A'+i%150)) }, plainTasks("a", 21_000)...)
		b.SetGroupsTime(await.Limit) // a busy machine may need longer
		g, err := b.Groups(await.Context(t))
		if err != nil || g.Counted != 20_000 || g.Total != 21_000 || g.Complete || len(g.Groups) != 100 || g.Omitted == 0 {
			t.Errorf("%d counted of %d, complete %v, %d groups, %d omitted, %v", g.Counted, g.Total, g.Complete, len(g.Groups), g.Omitted, err)
		}
		b.SetGroupsTime(0)
		if g, err := b.Groups(await.Context(t)); err != nil || g.Counted != 0 || g.Total != 21_000 || g.Complete {
			t.Errorf("without time: %d counted of %d, complete %v, %v", g.Counted, g.Total, g.Complete, err)
		}
	})
}

// TestBacklog_Groups_CountedAt: the time of the count, as the bound of a selection, spares letters that died later.
func TestBacklog_Groups_CountedAt(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		one, two := ordertest.NewQueue(t, rdb, queue.Config{}), ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: one}, worker.NamedQueue{Name: "two", Queue: two})
		b.SetGroupsTime(await.Limit)
		die(t, one, always("x"), plainTasks("a", 3)...)
		die(t, two, always("x"), plainTasks("b", 2)...)
		var g worker.DeadGroups
		await.True(t, "a count in a later millisecond", func() (ok bool) {
			var err error
			g, err = b.Groups(await.Context(t))
			return err == nil && len(g.Groups) == 1 && g.CountedAt.After(g.Groups[0].LastAt)
		})
		die(t, one, always("x"), plainTasks("c", 4)...)
		die(t, two, always("x"), plainTasks("d", 1)...)
		if sum, _ := bulk(t, b.RetryMany, worker.DeadSelection{Group: g.Groups[0].ID, Before: g.CountedAt}); sum.Matched != 5 || len(sum.Done) != 5 {
			t.Errorf("retried %d of %d letters, want 5", len(sum.Done), sum.Matched)
		}
		if sum, _ := bulk(t, b.RetryMany, worker.DeadSelection{Before: g.CountedAt}); sum.Matched != 0 {
			t.Errorf("selected %d letters that died after the count", sum.Matched)
		}
		wantDead(t, one, 4)
		wantDead(t, two, 1)
	})
}

// TestBacklog_RetryMany retries thousands of letters in bounded calls, while those that were retried die again: each is
// retried once, and those that died again stay.
func TestBacklog_RetryMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 4000
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		other := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q}, worker.NamedQueue{Name: "two", Queue: other})
		die(t, q, always("x"), plainTasks("a", n)...)
		die(t, other, always("x"), plainTasks("b", 3)...)
		retried := make(map[string]int)
		var last worker.DeadPlace
		var before time.Time
		call := func(ctx context.Context, sel worker.DeadSelection, at worker.DeadPlace) (worker.BulkResult, error) {
			r, err := b.RetryMany(ctx, sel, at)
			for i := range r.Done {
				retried[r.Done[i].ID]++
			}
			// They die again before the next call, at a time that is certainly later.
			f, derr := q.Dequeue(ctx, 512)
			for ; derr == nil && len(f.Tasks) > 0; f, derr = q.Dequeue(ctx, 512) {
				var back []queue.Rejection
				for _, l := range f.Tasks {
					back = append(back, queue.Rejection{Task: l, Dead: true, Reason: "again"})
				}
				if _, rerr := q.Reject(ctx, back...); rerr != nil {
					t.Fatal(rerr)
				}
				for _, l := range f.Tasks {
					if zerr := rdb.ZAddXX(ctx, q.Prefix()+"dead", redis.Z{Score: float64(r.Before.Add(time.Minute).UnixMilli()), Member: l.ID}).Err(); zerr != nil {
						t.Fatal(zerr)
					}
				}
			}
			last, before = at, r.Before
			return r, errors.Join(err, derr)
		}
		sum, calls := bulk(t, call, worker.DeadSelection{})
		if sum.Matched != n+3 || len(sum.Done) != n+3 || sum.Failed != 0 || calls < n/1000 {
			t.Errorf("%d done of %d, %d failed, in %d calls", len(sum.Done), sum.Matched, sum.Failed, calls)
		}
		for id, times := range retried {
			if times != 1 {
				t.Errorf("%s was retried %d times", id, times)
			}
		}
		wantDead(t, q, n)
		wantDead(t, other, 0)
		// A repeat of the last call changes nothing.
		if r, err := b.RetryMany(await.Context(t), worker.DeadSelection{Before: before}, last); err != nil || r.Matched != 0 {
			t.Errorf("repeat: %+v, %v", r, err)
		}
	})
}

// TestBacklog_RetryMany_Full: a full queue ends a call, within a page of letters or after one; the next call continues with
// the letter that had no room, and one that can retry nothing is refused. The bound of a selection is never in the future.
func TestBacklog_RetryMany_Full(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, room := range []int{10, worker.RetryPage} {
			q := ordertest.NewQueue(t, rdb, queue.Config{MaxLength: room})
			b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q})
			b.SetBulkTime(await.Limit) // which would end a call too
			die(t, q, always("x"), plainTasks("a", room)...)
			die(t, q, always("x"), plainTasks("b", 5)...)
			r, err := b.RetryMany(await.Context(t), worker.DeadSelection{Before: time.Now().Add(time.Hour)}, worker.DeadPlace{})
			if err != nil || len(r.Done) != room || r.Matched != room || r.Next == nil || r.Remaining != 5 || !errors.Is(r.Err, inventory.ErrOverloaded) {
				t.Fatalf("room for %d: %+v, %v", room, r, err)
			}
			if r.Before.After(time.Now().Add(time.Minute)) {
				t.Errorf("the bound of the selection is %v", r.Before)
			}
			if _, err := b.RetryMany(await.Context(t), worker.DeadSelection{Before: r.Before}, *r.Next); !errors.Is(err, inventory.ErrOverloaded) {
				t.Errorf("with a full queue: %v", err)
			}
			if _, err := q.Empty(await.Context(t), queue.StateReady); err != nil {
				t.Fatal(err)
			}
			r, err = b.RetryMany(await.Context(t), worker.DeadSelection{Before: r.Before}, *r.Next)
			if err != nil || len(r.Done) != 5 || r.Next != nil {
				t.Errorf("room for %d: %+v, %v", room, r, err)
			}
		}
	})
}

// TestBacklog_DiscardMany_Kept: letters whose orders cannot be rejected stay. So does one whose orders cannot be read; a
// parcel stays for any of its orders, and a letter with an impossible order goes.
func TestBacklog_DiscardMany_Kept(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 10))
		f, shelf := shoptest.OnShelf(t, s)
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(s, f.Releaser, nil, worker.NamedQueue{Name: "one", Queue: q})
		die(t, q, always("x"), ordertest.Parcel("parcel", ordertest.Distinct("o", "item", 3)...))
		exec := func(statement string) {
			t.Helper()
			if err := s.Writer().Exec(statement).Error; err != nil {
				t.Fatal(err)
			}
		}
		exec("ALTER TABLE orders RENAME TO away")
		if r, err := b.DiscardMany(await.Context(t), worker.DeadSelection{}, worker.DeadPlace{}); err != nil || r.Err == nil || r.Failed != 1 || len(r.Done) != 0 {
			t.Errorf("without orders to read: %+v, %v, want the letter to stay", r, err)
		}
		exec("ALTER TABLE away RENAME TO orders")
		wantDead(t, q, 1)
		die(t, q, always("x"), purchaseTasks([]order.Task{ordertest.Bought("zero", "item", "u", "k", 0)})...)
		allow := ordertest.Refuse(t, s, "INSERT", "orders", "NEW.id = 'o0000'")
		r, err := b.DiscardMany(await.Context(t), worker.DeadSelection{}, worker.DeadPlace{})
		if err != nil || len(r.Done) != 1 || r.Done[0].ID != "zero" || r.Failed != 1 || r.Err == nil {
			t.Errorf("with an order that is refused: %+v, %v", r, err)
		}
		wantDead(t, q, 1)
		allow()
		if sum, _ := bulk(t, b.DiscardMany, worker.DeadSelection{}); len(sum.Done) != 1 || sum.Err != nil || len(shelf.Units) != 3 {
			t.Errorf("afterwards: %+v, units of %d orders returned", sum, len(shelf.Units))
		}
		wantDead(t, q, 0)
	})
}

// TestBacklog_DiscardMany_Group: a group of more letters than a page is discarded to its end.
func TestBacklog_DiscardMany_Group(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q})
		b.SetGroupsTime(await.Limit)
		die(t, q, always("x"), plainTasks("a", 600)...)
		die(t, q, always("y"), plainTasks("b", 2)...)
		g, err := b.Groups(await.Context(t))
		if err != nil || len(g.Groups) != 2 || g.Groups[0].Count != 600 {
			t.Fatalf("%+v, %v", g, err)
		}
		if sum, _ := bulk(t, b.DiscardMany, worker.DeadSelection{Group: g.Groups[0].ID}); len(sum.Done) != 600 {
			t.Errorf("discarded %d of 600", len(sum.Done))
		}
		wantDead(t, q, 2)
	})
}

// TestBacklog_DiscardMany discards thousands of letters: the orders without a row are rejected and their units return
// once; a letter whose order cannot be rejected stays.
func TestBacklog_DiscardMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 2500
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", n, n))
		f, shelf := shoptest.OnShelf(t, s)
		orders := ordertest.Distinct("o", "item", n)
		storetest.MustCommit(t, s, orders[:200]...) // these have a row
		allow := ordertest.Refuse(t, s, "INSERT", "orders", "new.id IN ('o0700', 'o1500')")
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(s, f.Releaser, nil, worker.NamedQueue{Name: "one", Queue: q})
		die(t, q, always("x"), purchaseTasks(orders)...)
		die(t, q, always("x"), queue.Task{ID: "unreadable", Type: order.PurchaseType, Payload: []byte("?")})
		sum, calls := bulk(t, b.DiscardMany, worker.DeadSelection{})
		if sum.Matched != n+1 || len(sum.Done) != n-1 || sum.Failed != 2 || sum.Err == nil || calls < 2 {
			t.Errorf("%d done of %d, %d failed, in %d calls, %v", len(sum.Done), sum.Matched, sum.Failed, calls, sum.Err)
		}
		wantDead(t, q, 2)
		if len(shelf.Units) != n-202 {
			t.Errorf("units of %d orders returned, want %d", len(shelf.Units), n-202)
		}
		for i, want := range map[int]order.Status{0: order.StatusConfirmed, 200: order.StatusRejected, n - 1: order.StatusRejected} {
			found, err := s.Settled(await.Context(t), []string{orders[i].ID})
			if err != nil || len(found) != 1 || found[0].Status != want {
				t.Errorf("order %d: %+v, %v, want %s", i, found, err, want)
			}
		}
		if pending := ordertest.ReleasesOf(t, s); len(pending) != 0 {
			t.Errorf("pending releases: %d", len(pending))
		}
		allow()
		if sum, _ := bulk(t, b.DiscardMany, worker.DeadSelection{}); len(sum.Done) != 2 || sum.Err != nil {
			t.Errorf("again: %+v", sum)
		}
		for id, times := range shelf.Calls {
			if times != 1 {
				t.Errorf("the units of %s were returned %d times", id, times)
			}
		}
		ordertest.AuditStore(t, s)
	})
}

// TestBacklog_DiscardMany_Sale: the units of discarded parcels can be bought again, and those of a letter that is retried
// at the same time are sold or returned, not both.
func TestBacklog_DiscardMany_Sale(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const n = 40
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", n, 1))
		ids := deadParcels(t, s, n)
		b := s.Backlog()
		letter, payload, err := b.Letter(await.Context(t), ids[0])
		if err != nil || letter.Orders != len(payload.Orders) || !slices.ContainsFunc(payload.Orders, func(o order.Task) bool { return o.ID == ids[0] && o.Quantity == 1 && o.UserID != "" }) {
			t.Fatalf("letter %+v: %+v, %v", letter, payload, err)
		}
		once := false
		b.BacklogReleaser().Stock = meanwhile{b.BacklogReleaser().Stock, func() {
			if !once {
				once = true
				if _, err := b.Retry(await.Context(t), ids[0]); err != nil {
					t.Errorf("retry: %v", err)
				}
			}
		}}
		sum, _ := bulk(t, b.DiscardMany, worker.DeadSelection{})
		discarded := 0
		for i := range sum.Done {
			discarded += sum.Done[i].Orders
		}
		if discarded != n || sum.Failed != 0 || sum.Matched != len(sum.Done) {
			t.Errorf("%d orders discarded of %d; %d letters of %d", discarded, n, len(sum.Done), sum.Matched)
		}
		s.MustPlace(s.Purchase("late", "k", 1, 0))
		s.Work()
		s.Drained()
		for _, id := range ids {
			if o := s.MustGet(id); o.Status != order.StatusRejected || o.Reason != order.ReasonFailed {
				t.Errorf("order %+v", o)
			}
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: n, Left: n - 1, Sold: 1}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

func TestBacklog_Letter(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q})
		many := make([]string, 300)
		for i := range many {
			many[i] = fmt.Sprint("o", i)
		}
		die(t, q, always("x"), order.ExpiryTask("p", "item", 0, many...), queue.Task{ID: "odd", Type: "t", Payload: append(make([]byte, 0, 3000), "\xffabc"...)},
			queue.Task{ID: "broken", Type: order.PurchaseType, Payload: make([]byte, 3000)})
		for id, want := range map[string]worker.DeadPayload{
			"x:p":    {Omitted: 44},
			"odd":    {Raw: "\uFFFDabc", Bytes: 4},
			"broken": {Raw: string(make([]byte, 2048)), Unreadable: 1, Bytes: 3000},
		} {
			l, p, err := b.Letter(await.Context(t), id)
			if id == "x:p" {
				if len(p.Orders) != 256 || p.Orders[0].ID != "o0" || p.Orders[0].ItemID != "item" || l.Orders != 300 || l.Type != "expire" {
					t.Errorf("%+v of %+v", p, l)
				}
				p.Bytes, p.Orders = 0, nil
			}
			if err != nil || p.Omitted != want.Omitted || p.Raw != want.Raw || p.Unreadable != want.Unreadable || p.Bytes != want.Bytes || p.Orders != nil {
				t.Errorf("%s: %+v, %v", id, p, err)
			}
		}
		if _, _, err := b.Letter(await.Context(t), "none"); !errors.Is(err, worker.ErrTaskNotFound) {
			t.Error(err)
		}
	})
}
