package checkout_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// listing configures the site's service to list queued orders.
func listing(s *shoptest.Shop) *shoptest.Shop {
	s.Service.Queued = accepted.NewIndex(s.Rdb, s.Queue)
	return s
}

// listed reads all pages of a list. between runs after every page but the last.
func listed(s *shoptest.Shop, f order.Filter, between func()) []order.Order {
	s.T.Helper()
	var all []order.Order
	for {
		page, next, err := s.Service.List(await.Context(s.T), f)
		if err != nil {
			s.T.Fatal(err)
		}
		if len(page) > f.Limit {
			s.T.Fatalf("%d orders on a page of %d", len(page), f.Limit)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if f.Before != "" && next >= f.Before {
			s.T.Fatalf("the page below %s continues below %s", f.Before, next)
		}
		f.Before = next
		if between != nil {
			between()
		}
	}
}

// wantListed compares a list, newest first, with ids in the order in which they were
// created.
func wantListed(t *testing.T, what string, got []order.Order, made []string, status order.Status) {
	t.Helper()
	want := slices.Clone(made)
	slices.Reverse(want)
	ids := make([]string, len(got))
	for i := range got {
		ids[i] = got[i].ID
		if status != "" && got[i].Status != status {
			t.Errorf("%s: order %s is %s, want %s", what, got[i].ID, got[i].Status, status)
		}
	}
	if !slices.Equal(ids, want) {
		t.Errorf("%s: %v, want %v", what, ids, want)
	}
}

// TestService_List_Queued: an order is listed from its acceptance on, in the same form as a
// single order, and once after its commit.
func TestService_List_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := listing(shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 9)))
		var made []string
		for i := range 3 {
			made = append(made, s.MustPlace(s.Purchase("alice", fmt.Sprint("k", i), 2, 0)).Order.ID)
		}
		other := s.MustPlace(s.Purchase("bob", "k", 1, 0)).Order.ID
		alice := order.Filter{UserID: "alice", Limit: 20}
		got := listed(s, alice, nil)
		wantListed(t, "queued", got, made, order.StatusQueued)
		for _, o := range got {
			if shown, err := s.Service.Get(await.Context(t), o.ID); err != nil || shown != o {
				t.Errorf("listed as %+v, shown as %+v, %v", o, shown, err)
			}
		}
		wantListed(t, "another's", listed(s, order.Filter{UserID: "bob", Limit: 20}, nil), []string{other}, order.StatusQueued)
		wantListed(t, "nobody's", listed(s, order.Filter{UserID: "carol", Limit: 20}, nil), nil, "")
		for what, f := range map[string]order.Filter{
			"queued of the item":  {UserID: "alice", ItemID: s.Item, Status: order.StatusQueued, Limit: 2},
			"queued":              {UserID: "alice", Status: order.StatusQueued, Limit: 2},
			"all of the item":     {UserID: "alice", ItemID: s.Item, Limit: 2},
			"in pages of 1":       {UserID: "alice", Limit: 1},
			"in pages of exactly": {UserID: "alice", Limit: 3},
		} {
			wantListed(t, what, listed(s, f, nil), made, order.StatusQueued)
		}
		for what, f := range map[string]order.Filter{
			"of another item": {UserID: "alice", ItemID: "other", Limit: 2},
			"confirmed":       {UserID: "alice", Status: order.StatusConfirmed, Limit: 2},
			"of all buyers":   {Limit: 2},
		} {
			wantListed(t, what, listed(s, f, nil), nil, "")
		}
		s.Work()
		s.Drained()
		wantListed(t, "committed", listed(s, alice, nil), made, order.StatusConfirmed)
		wantListed(t, "still queued", listed(s, order.Filter{UserID: "alice", Status: order.StatusQueued, Limit: 2}, nil), nil, "")
	})
}

// TestService_List_Committing: orders are committed between the pages of a list. Each order
// that existed at the start is on exactly one page.
func TestService_List_Committing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := listing(shoptest.New(t, rdb, false, ordertest.NewItem("", 1000, 1000)))
		added := 0
		add := func(n int) (ids []string) {
			for range n {
				added++
				ids = append(ids, s.MustPlace(s.Purchase("alice", fmt.Sprint("k", added), 1, 0)).Order.ID)
			}
			return ids
		}
		// commit is a worker that acknowledges its tasks, or dies after its commit.
		commit := func(n int, ack bool) {
			f, err := s.Queue.Dequeue(await.Context(t), n)
			if err != nil {
				t.Fatal(err)
			}
			for i, err := range s.Fulfiller.Handle(await.Context(t), f.Tasks) {
				if err != nil {
					t.Fatalf("task %s: %v", f.Tasks[i].ID, err)
				}
			}
			if !ack {
				return
			}
			if _, err := s.Queue.Ack(await.Context(t), f.Tasks...); err != nil {
				t.Fatal(err)
			}
		}
		for _, limit := range []int{1, 3, 7} {
			made := add(20)
			pages := 0
			got := listed(s, order.Filter{UserID: "alice", Limit: limit}, func() {
				pages++
				commit(3, pages%2 == 0)
				if pages%4 == 0 {
					add(1) // newer than all listed orders
					if err := accepted.Trim(await.Context(t), rdb, s.Queue); err != nil {
						t.Fatal(err)
					}
				}
			})
			if len(got) < len(made) {
				t.Fatalf("pages of %d: %d orders, want at least %d", limit, len(got), len(made))
			}
			wantListed(t, fmt.Sprint("pages of ", limit), got[:len(made)], made, "")
			seen := map[string]bool{}
			for _, o := range got {
				if seen[o.ID] {
					t.Errorf("pages of %d: %s is listed twice", limit, o.ID)
				}
				seen[o.ID] = true
			}
			commit(100, true)
		}
	})
}

// TestService_List_Dead: a dead letter is listed as a queued order, until it is rejected.
func TestService_List_Dead(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := listing(shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 9)))
		id := s.MustPlace(s.Purchase("alice", "k", 1, 0)).Order.ID
		f, err := s.Queue.Dequeue(await.Context(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		alice := order.Filter{UserID: "alice", Limit: 20}
		wantListed(t, "dead", listed(s, alice, nil), []string{id}, order.StatusQueued)
		letter, err := order.ParseAccepted(accepted.OrdersOf(id, f.Tasks[0].Payload)[0])
		if err != nil {
			t.Fatal(err)
		}
		if n, _, err := worker.RejectDead(await.Context(t), s.Store, []order.Task{letter}); err != nil || n != 1 {
			t.Fatalf("bury: %d, %v", n, err)
		}
		wantListed(t, "rejected, with its letter", listed(s, alice, nil), []string{id}, order.StatusRejected)
		alice.Status = order.StatusQueued
		wantListed(t, "queued", listed(s, alice, nil), nil, "")
		backlog := worker.NewBacklog(s.Store, s.Service.Releaser, nil, worker.NamedQueue{Name: "orders-0", Queue: s.Queue})
		if _, err := backlog.Discard(await.Context(t), id); err != nil {
			t.Fatal(err)
		}
		alice.Status = ""
		wantListed(t, "discarded", listed(s, alice, nil), []string{id}, order.StatusRejected)
	})
}

// TestService_List_Floor: if more tasks have ended than one page reads, the next page
// continues after them.
func TestService_List_Floor(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 100, 100))
	row := ordertest.Bought("00000000-0000-7000-8000-000000000002", "item", "alice", "row", 1)
	storetest.MustCommit(t, s, row)
	waiting := ordertest.Bought("00000000-0000-7000-8000-000000000001", "item", "alice", "waiting", 1)
	service := checkout.NewService(checkout.Config{Store: s, Queued: ended{floor: "00000000-0000-7000-8000-000000000003", task: waiting}})
	site := &shoptest.Shop{T: t, Service: service}
	wantListed(t, "in two pages", listed(site, order.Filter{UserID: "alice", Limit: 20}, nil), []string{waiting.ID, row.ID}, "")
}

// ended are queued tasks that only the second page finds.
type ended struct {
	floor string
	task  order.Task
}

func (e ended) Orders(_ context.Context, _, before string, _ int, fn func(accepted.Order) bool) (string, error) {
	if before == "" {
		return e.floor, nil
	}
	fn(accepted.Order{OrderID: e.task.ID, Payload: e.task.Payload()})
	return "", nil
}

// TestService_List_Unavailable: without the queue, a buyer's list has the committed orders
// and an error that others are missing; a list of queued orders is refused; a list of all
// buyers' orders needs only the database.
func TestService_List_Unavailable(t *testing.T) {
	t.Parallel()
	service := checkout.NewService(checkout.Config{Store: storetest.New(t), Queued: unreached{}})
	storetest.MustInsert(t, service.Store, ordertest.NewItem("item", 9, 9))
	storetest.MustCommit(t, service.Store, ordertest.Bought("o1", "item", "alice", "k", 1))
	orders, _, err := service.List(await.Context(t), order.Filter{UserID: "alice", Limit: 20})
	if !errors.Is(err, checkout.ErrIncompleteList) || len(orders) != 1 || orders[0].ID != "o1" {
		t.Errorf("a buyer's list: %+v, %v, want the committed order and %v", orders, err, checkout.ErrIncompleteList)
	}
	if _, _, err := service.List(await.Context(t), order.Filter{UserID: "alice", Status: order.StatusQueued, Limit: 20}); !errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("a buyer's queued orders: %v, want %v", err, inventory.ErrUnavailable)
	}
	for _, f := range []order.Filter{{Limit: 20}, {UserID: "alice", Status: order.StatusPaid, Limit: 20}} {
		if _, _, err := service.List(await.Context(t), f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

type unreached struct{}

func (unreached) Orders(context.Context, string, string, int, func(accepted.Order) bool) (string, error) {
	return "", inventory.ErrUnavailable
}

// TestSweeper_Logs: a sweep removes from the log the orders that have left the queue.
func TestSweeper_Logs(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := listing(shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 9)))
		s.Work()
		s.MustPlace(s.Purchase("alice", "k", 1, ordertest.Long))
		s.Drained()
		key := s.Queue.Prefix() + "accepted"
		if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != 1 {
			t.Fatalf("%d entries, %v", n, err)
		}
		sweeper := worker.NewSweeper(s.Fulfiller, worker.SweeperConfig{Dead: []worker.DeadLetters{s.Queue}})
		sweeper.Logs = []*queue.Queue{s.Queue}
		shoptest.MustSweep(t, sweeper, worker.Swept{})
		if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != 0 {
			t.Errorf("%d entries after a sweep, %v", n, err)
		}
	})
}

// lateLook calls a function before it reads the queue.
type lateLook struct {
	order.BuyersQueued
	before, after func()
}

func (l lateLook) Orders(ctx context.Context, buyer, before string, limit int, fn func(accepted.Order) bool) (string, error) {
	l.before()
	defer l.after()
	return l.BuyersQueued.Orders(ctx, buyer, before, limit, fn)
}

// TestService_List_Meanwhile: an order that is committed just before or just after the read
// of the queue is on the page, once.
func TestService_List_Meanwhile(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := listing(shoptest.New(t, rdb, false, ordertest.NewItem("", 20, 9)))
		commit := func() {
			f, err := s.Queue.Dequeue(await.Context(t), 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Fulfiller.Handle(await.Context(t), f.Tasks)[0]; err != nil {
				t.Fatal(err)
			}
			if _, err := s.Queue.Ack(await.Context(t), f.Tasks...); err != nil {
				t.Fatal(err)
			}
		}
		var made []string
		for i := range 3 {
			made = append(made, s.MustPlace(s.Purchase("alice", fmt.Sprint("k", i), 1, 0)).Order.ID)
		}
		s.Service.Queued = lateLook{s.Service.Queued, commit, commit}
		got := listed(s, order.Filter{UserID: "alice", Limit: 20}, nil)
		wantListed(t, "all", got, made, "")
		for i, want := range []order.Status{order.StatusQueued, order.StatusConfirmed, order.StatusConfirmed} {
			if i < len(got) && got[i].Status != want {
				t.Errorf("order %d is %s, want %s", i, got[i].Status, want)
			}
		}
	})
}
