package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/reconcile/reconciletest"
	"flashsale/order/release"
	"flashsale/order/shoptest"
	"flashsale/order/worker"
	"flashsale/queue"
)

func TestBacklog_Discard(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 3))
		b := s.Backlog()
		dead := s.MustPlace(s.Purchase("u", "k", 3, 0)).Order
		if _, err := b.Discard(await.Context(t), dead.ID); !errors.Is(err, worker.ErrTaskNotFound) {
			t.Fatalf("discard of an order that waits: %v", err)
		}
		if n := s.Kill("the disk is on fire"); n != 1 {
			t.Fatalf("%d tasks", n)
		}
		letters, next, err := b.Dead(await.Context(t), "", worker.DeadPlace{}, 10)
		if err != nil || next != nil || len(letters) != 1 {
			t.Fatalf("dead: %+v, %v, %v", letters, next, err)
		}
		l := letters[0]
		if l.DiedAt.IsZero() {
			t.Error("the letter does not say when it died")
		}
		if l.Group == "" {
			t.Error("the letter has no group")
		}
		l.DiedAt, l.Group = worker.DeadLetter{}.DiedAt, ""
		want := worker.DeadLetter{Queue: "first", ID: l.ID, Type: "purchase", Orders: 1, OrderID: dead.ID, ItemID: s.Item, Attempts: 1, Reason: "the disk is on fire"}
		if l != want {
			t.Errorf("letter %+v, want %+v", l, want)
		}
		if letter, err := b.Discard(await.Context(t), dead.ID); err != nil || letter.Queue != "first" {
			t.Fatalf("discard: %+v, %v", letter, err)
		}
		if o := s.MustGet(dead.ID); o.Status != order.StatusRejected || o.Reason != order.ReasonFailed {
			t.Errorf("the buyer gets %+v", o)
		}
		if pending := ordertest.ReleasesOf(t, s.Store); len(pending) != 0 {
			t.Errorf("pending releases: %v", pending)
		}
		// The units can be sold again at once.
		s.MustPlace(s.Purchase("v", "k", 3, 0))
		for _, id := range []string{dead.ID, "nothing"} {
			if _, err := b.Discard(await.Context(t), id); !errors.Is(err, worker.ErrTaskNotFound) {
				t.Errorf("discard %s again: %v", id, err)
			}
		}
		s.Work()
		s.Drained()
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 3, Sold: 3}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

// TestBacklog_Discard_Database: a letter stays until its order can be rejected. Otherwise
// its buyer's order would not be found anywhere.
func TestBacklog_Discard_Database(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 3))
		dead := s.MustPlace(s.Purchase("u", "k", 3, 0)).Order
		s.Kill("x")
		ordertest.Refuse(t, s.Store, "INSERT", "orders", "")
		if _, err := s.Backlog().Discard(await.Context(t), dead.ID); err == nil || errors.Is(err, worker.ErrTaskNotFound) {
			t.Errorf("discard: %v", err)
		}
		if o := s.MustGet(dead.ID); o.Status != order.StatusQueued {
			t.Errorf("order %+v", o)
		}
	})
}

// meanwhile is a Stock that calls a function before each release.
type meanwhile struct {
	release.Stock
	happens func()
}

func (m meanwhile) Release(ctx context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	m.happens()
	return m.Stock.Release(ctx, item, orders)
}

// TestBacklog_Discard_Retried: a letter that is concurrently discarded and retried is
// discarded, once its order is rejected, and both callers get the result of their call.
func TestBacklog_Discard_Retried(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 3))
		b := s.Backlog()
		dead := s.MustPlace(s.Purchase("u", "k", 3, 0)).Order
		s.Kill("x")
		b.BacklogReleaser().Stock = meanwhile{b.BacklogReleaser().Stock, func() {
			if _, err := b.Retry(await.Context(t), dead.ID); err != nil {
				t.Errorf("retry: %v", err)
			}
		}}
		if letter, err := b.Discard(await.Context(t), dead.ID); err != nil || letter.Queue != "first" {
			t.Errorf("discard: %+v, %v", letter, err)
		}
		s.Work()
		s.Drained()
		if o := s.MustGet(dead.ID); o.Status != order.StatusRejected {
			t.Errorf("order %+v", o)
		}
		if l := reconciletest.LedgerOf(s); l != (order.Ledger{Initial: 3, Left: 3}) {
			t.Errorf("ledger %+v", l)
		}
		ordertest.AuditStore(t, s.Store)
	})
}

func TestBacklog_Retry(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 3))
		b := s.Backlog()
		o := s.MustPlace(s.Purchase("u", "k", 1, 0)).Order
		s.Kill("x")
		s.Work()
		if letter, err := b.Retry(await.Context(t), o.ID); err != nil || letter.Queue != "first" {
			t.Fatalf("retry: %+v, %v", letter, err)
		}
		s.Drained()
		if o := s.MustGet(o.ID); o.Status != order.StatusConfirmed {
			t.Errorf("order %+v", o)
		}
		if _, err := b.Retry(await.Context(t), o.ID); !errors.Is(err, worker.ErrTaskNotFound) {
			t.Errorf("retry of a finished task: %v", err)
		}
	})
}

// TestBacklog_Dead_Pages lists the letters of two queues in pages, with page ends at and
// between the ends of the queues.
func TestBacklog_Dead_Pages(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 9, 9))
		other := ordertest.NewQueue(t, rdb, queue.Config{})
		b := worker.NewBacklog(s.Store, s.Service.Releaser, nil, worker.NamedQueue{Name: "first", Queue: s.Queue}, worker.NamedQueue{Name: "second", Queue: other})
		for i := range 4 {
			s.MustPlace(s.Purchase("u", fmt.Sprint(i), 1, 0))
			if _, err := other.Enqueue(await.Context(t), queue.Task{ID: fmt.Sprintf("x:o%d", i), Type: order.ExpiryType, Payload: []byte("it")}); err != nil {
				t.Fatal(err)
			}
		}
		s.Kill("x")
		s.Queue = other
		s.Kill("y")
		for limit := 1; limit <= 9; limit++ {
			seen := make(map[string]int)
			for at, pages := (&worker.DeadPlace{}), 0; at != nil && pages < 20; pages++ {
				page, next, err := b.Dead(await.Context(t), "", *at, limit)
				if err != nil || len(page) > limit {
					t.Fatalf("limit %d: %d letters, %v", limit, len(page), err)
				}
				for _, l := range page {
					seen[l.Queue+" "+l.Type+" "+l.OrderID]++
				}
				at = next
			}
			if len(seen) != 8 || seen["second expire o3"] != 1 {
				t.Errorf("limit %d: %v", limit, seen)
			}
		}
		depths, err := b.Depths(await.Context(t))
		if err != nil || len(depths) != 2 || depths[0].Name != "first" || depths[0].Dead != 4 || depths[1].Dead != 4 {
			t.Errorf("depths %+v, %v", depths, err)
		}
	})
}

// TestBacklog_Dead_Resolved: letters that are resolved between two pages do not shift the pages, of all letters or a group.
func TestBacklog_Dead_Resolved(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, ofGroup := range []bool{false, true} {
			q := ordertest.NewQueue(t, rdb, queue.Config{})
			b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "one", Queue: q})
			die(t, q, always("bad"), plainTasks("a", 9)...)
			group := ""
			if ofGroup {
				g, err := b.Groups(await.Context(t))
				if err != nil || len(g.Groups) != 1 {
					t.Fatalf("%+v, %v", g, err)
				}
				group = g.Groups[0].ID
			}
			listed := 0
			for at := (&worker.DeadPlace{}); at != nil; {
				page, next, err := b.Dead(await.Context(t), group, *at, 2)
				if err != nil {
					t.Fatal(err)
				}
				for i := range page {
					if _, err := b.Retry(await.Context(t), page[i].ID); err != nil {
						t.Fatal(err)
					}
				}
				listed += len(page)
				at = next
			}
			if listed != 9 {
				t.Errorf("group %q: %d letters listed, want 9", group, listed)
			}
		}
	})
}

func TestBacklog_Verify(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := shoptest.New(t, rdb, false, ordertest.NewItem("", 3, 3))
		b := s.Backlog()
		o := s.MustPlace(s.Purchase("u", "k", 1, 0)).Order
		// An operator removed the task from its state by hand.
		keys, err := rdb.Keys(await.Context(t), "fs:{p0}:t*ready").Result()
		if err != nil {
			t.Fatal(err)
		}
		task, removed := ordertest.TaskOf(t, s.Queue, o.ID), int64(0)
		for _, k := range keys {
			n, err := rdb.ZRem(await.Context(t), k, task).Result()
			if err != nil {
				t.Fatal(err)
			}
			removed += n
		}
		if removed != 1 {
			t.Fatalf("%d removed", removed)
		}
		for _, want := range []worker.QueueCheck{
			{Name: "first", Lost: 1}, {Name: "first", Tasks: 1, Lost: 1, Repaired: true}, {Name: "first", Tasks: 1},
		} {
			got, err := b.Verify(await.Context(t), want.Repaired)
			if err != nil || len(got) != 1 {
				t.Fatalf("verify: %v, %v", got, err)
			}
			if got[0] != want {
				t.Errorf("%+v, want %+v", got[0], want)
			}
		}
		s.Work()
		s.Drained()
		if o := s.MustGet(o.ID); o.Status != order.StatusConfirmed {
			t.Errorf("order %+v", o)
		}
	})
}

func TestBacklog_Unavailable(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	b := worker.NewBacklog(nil, nil, nil, worker.NamedQueue{Name: "first", Queue: ordertest.NewQueue(t, rdb, queue.Config{})})
	_, err1 := b.Depths(await.Context(t))
	_, _, err2 := b.Dead(await.Context(t), "", worker.DeadPlace{}, 1)
	_, err3 := b.Retry(await.Context(t), "x")
	_, err4 := b.Discard(await.Context(t), "x")
	_, err5 := b.Verify(await.Context(t), true)
	for i, err := range []error{err1, err2, err3, err4, err5} {
		if !errors.Is(err, inventory.ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
