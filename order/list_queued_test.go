package order

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
	"flashsale/queue"
)

// listing configures the site's service to list queued orders.
func (s *site) listing() *site {
	s.service.Queued = inventory.NewQueuedIndex(s.rdb, s.queue)
	return s
}

// listed reads all pages of a list. between runs after every page but the last.
func (s *site) listed(f Filter, between func()) []Order {
	s.t.Helper()
	var all []Order
	for {
		page, next, err := s.service.List(await.Context(s.t), f)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page) > f.Limit {
			s.t.Fatalf("%d orders on a page of %d", len(page), f.Limit)
		}
		all = append(all, page...)
		if next == "" {
			return all
		}
		if f.Before != "" && next >= f.Before {
			s.t.Fatalf("the page below %s continues below %s", f.Before, next)
		}
		f.Before = next
		if between != nil {
			between()
		}
	}
}

// wantListed compares a list, newest first, with ids in the order in which they were
// created.
func wantListed(t *testing.T, what string, got []Order, made []string, status Status) {
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
		s := newSite(t, rdb, false, newItem("", 20, 9)).listing()
		var made []string
		for i := range 3 {
			made = append(made, s.mustPlace(s.purchase("alice", fmt.Sprint("k", i), 2, 0)).Order.ID)
		}
		other := s.mustPlace(s.purchase("bob", "k", 1, 0)).Order.ID
		alice := Filter{UserID: "alice", Limit: 20}
		got := s.listed(alice, nil)
		wantListed(t, "queued", got, made, StatusQueued)
		for _, o := range got {
			if shown, err := s.service.Get(await.Context(t), o.ID); err != nil || shown != o {
				t.Errorf("listed as %+v, shown as %+v, %v", o, shown, err)
			}
		}
		wantListed(t, "another's", s.listed(Filter{UserID: "bob", Limit: 20}, nil), []string{other}, StatusQueued)
		wantListed(t, "nobody's", s.listed(Filter{UserID: "carol", Limit: 20}, nil), nil, "")
		for what, f := range map[string]Filter{
			"queued of the item":  {UserID: "alice", ItemID: s.item, Status: StatusQueued, Limit: 2},
			"queued":              {UserID: "alice", Status: StatusQueued, Limit: 2},
			"all of the item":     {UserID: "alice", ItemID: s.item, Limit: 2},
			"in pages of 1":       {UserID: "alice", Limit: 1},
			"in pages of exactly": {UserID: "alice", Limit: 3},
		} {
			wantListed(t, what, s.listed(f, nil), made, StatusQueued)
		}
		for what, f := range map[string]Filter{
			"of another item": {UserID: "alice", ItemID: "other", Limit: 2},
			"confirmed":       {UserID: "alice", Status: StatusConfirmed, Limit: 2},
			"of all buyers":   {Limit: 2},
		} {
			wantListed(t, what, s.listed(f, nil), nil, "")
		}
		s.work()
		s.drained()
		wantListed(t, "committed", s.listed(alice, nil), made, StatusConfirmed)
		wantListed(t, "still queued", s.listed(Filter{UserID: "alice", Status: StatusQueued, Limit: 2}, nil), nil, "")
	})
}

// TestService_List_Committing: orders are committed between the pages of a list. Each order
// that existed at the start is on exactly one page.
func TestService_List_Committing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 1000, 1000)).listing()
		added := 0
		add := func(n int) (ids []string) {
			for range n {
				added++
				ids = append(ids, s.mustPlace(s.purchase("alice", fmt.Sprint("k", added), 1, 0)).Order.ID)
			}
			return ids
		}
		// commit is a worker that acknowledges its tasks, or dies after its commit.
		commit := func(n int, ack bool) {
			f, err := s.queue.Dequeue(await.Context(t), n)
			if err != nil {
				t.Fatal(err)
			}
			for i, err := range s.fulfiller.Handle(await.Context(t), f.Tasks) {
				if err != nil {
					t.Fatalf("task %s: %v", f.Tasks[i].ID, err)
				}
			}
			if !ack {
				return
			}
			if _, err := s.queue.Ack(await.Context(t), f.Tasks...); err != nil {
				t.Fatal(err)
			}
		}
		for _, limit := range []int{1, 3, 7} {
			made := add(20)
			pages := 0
			got := s.listed(Filter{UserID: "alice", Limit: limit}, func() {
				pages++
				commit(3, pages%2 == 0)
				if pages%4 == 0 {
					add(1) // newer than all listed orders
					if err := inventory.TrimQueued(await.Context(t), rdb, s.queue); err != nil {
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
		s := newSite(t, rdb, false, newItem("", 20, 9)).listing()
		id := s.mustPlace(s.purchase("alice", "k", 1, 0)).Order.ID
		f, err := s.queue.Dequeue(await.Context(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.queue.Reject(await.Context(t), queue.Rejection{Task: f.Tasks[0], Dead: true}); err != nil {
			t.Fatal(err)
		}
		alice := Filter{UserID: "alice", Limit: 20}
		wantListed(t, "dead", s.listed(alice, nil), []string{id}, StatusQueued)
		letter, err := parseTask(id, f.Tasks[0].Payload)
		if err != nil {
			t.Fatal(err)
		}
		if n, _, err := s.store.rejectDead(await.Context(t), []task{letter}); err != nil || n != 1 {
			t.Fatalf("bury: %d, %v", n, err)
		}
		wantListed(t, "rejected, with its letter", s.listed(alice, nil), []string{id}, StatusRejected)
		alice.Status = StatusQueued
		wantListed(t, "queued", s.listed(alice, nil), nil, "")
		backlog := NewBacklog(s.store, s.service.Returns, nil, NamedQueue{"orders-0", s.queue})
		if _, err := backlog.Discard(await.Context(t), id); err != nil {
			t.Fatal(err)
		}
		alice.Status = ""
		wantListed(t, "discarded", s.listed(alice, nil), []string{id}, StatusRejected)
	})
}

// TestService_List_Floor: if more tasks have ended than one page reads, the next page
// continues after them.
func TestService_List_Floor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mustInsert(t, s, newItem("item", 100, 100))
	row := bought("00000000-0000-7000-8000-000000000002", "item", "alice", "row", 1)
	mustCommit(t, s, row)
	waiting := bought("00000000-0000-7000-8000-000000000001", "item", "alice", "waiting", 1)
	service := NewService(Config{Store: s, Queued: ended{floor: "00000000-0000-7000-8000-000000000003", task: waiting}})
	site := &site{t: t, service: service}
	wantListed(t, "in two pages", site.listed(Filter{UserID: "alice", Limit: 20}, nil), []string{waiting.ID, row.ID}, "")
}

// ended are queued tasks that only the second page finds.
type ended struct {
	floor string
	task  task
}

func (e ended) Tasks(_ context.Context, _, before string, _ int, fn func(id string, payload []byte) bool) (string, error) {
	if before == "" {
		return e.floor, nil
	}
	fn(e.task.ID, []byte(e.task.payload()))
	return "", nil
}

// TestService_List_Unavailable: without the queue, a buyer's list has the committed orders
// and an error that others are missing; a list of queued orders is refused; a list of all
// buyers' orders needs only the database.
func TestService_List_Unavailable(t *testing.T) {
	t.Parallel()
	service := NewService(Config{Store: newStore(t), Queued: unreached{}})
	mustInsert(t, service.Store, newItem("item", 9, 9))
	mustCommit(t, service.Store, bought("o1", "item", "alice", "k", 1))
	orders, _, err := service.List(await.Context(t), Filter{UserID: "alice", Limit: 20})
	if !errors.Is(err, ErrIncompleteList) || len(orders) != 1 || orders[0].ID != "o1" {
		t.Errorf("a buyer's list: %+v, %v, want the committed order and %v", orders, err, ErrIncompleteList)
	}
	if _, _, err := service.List(await.Context(t), Filter{UserID: "alice", Status: StatusQueued, Limit: 20}); !errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("a buyer's queued orders: %v, want %v", err, inventory.ErrUnavailable)
	}
	for _, f := range []Filter{{Limit: 20}, {UserID: "alice", Status: StatusPaid, Limit: 20}} {
		if _, _, err := service.List(await.Context(t), f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

type unreached struct{}

func (unreached) Tasks(context.Context, string, string, int, func(string, []byte) bool) (string, error) {
	return "", inventory.ErrUnavailable
}

// TestSweeper_Logs: a sweep removes from the log the orders that have left the queue.
func TestSweeper_Logs(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 9)).listing()
		s.work()
		s.mustPlace(s.purchase("alice", "k", 1, long))
		s.drained()
		key := s.queue.Prefix() + "accepted"
		if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != 1 {
			t.Fatalf("%d entries, %v", n, err)
		}
		sweeper := NewSweeper(s.fulfiller, SweeperConfig{Dead: []DeadLetters{s.queue}})
		sweeper.Logs = []*queue.Queue{s.queue}
		mustSweep(t, sweeper, Swept{})
		if n, err := rdb.XLen(await.Context(t), key).Result(); err != nil || n != 0 {
			t.Errorf("%d entries after a sweep, %v", n, err)
		}
	})
}

// lateLook calls a function before it reads the queue.
type lateLook struct {
	QueuedTasks
	before, after func()
}

func (l lateLook) Tasks(ctx context.Context, buyer, before string, limit int, fn func(string, []byte) bool) (string, error) {
	l.before()
	defer l.after()
	return l.QueuedTasks.Tasks(ctx, buyer, before, limit, fn)
}

// TestService_List_Meanwhile: an order that is committed just before or just after the read
// of the queue is on the page, once.
func TestService_List_Meanwhile(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newSite(t, rdb, false, newItem("", 20, 9)).listing()
		commit := func() {
			f, err := s.queue.Dequeue(await.Context(t), 1)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.fulfiller.Handle(await.Context(t), f.Tasks)[0]; err != nil {
				t.Fatal(err)
			}
			if _, err := s.queue.Ack(await.Context(t), f.Tasks...); err != nil {
				t.Fatal(err)
			}
		}
		var made []string
		for i := range 3 {
			made = append(made, s.mustPlace(s.purchase("alice", fmt.Sprint("k", i), 1, 0)).Order.ID)
		}
		s.service.Queued = lateLook{s.service.Queued, commit, commit}
		got := s.listed(Filter{UserID: "alice", Limit: 20}, nil)
		wantListed(t, "all", got, made, "")
		for i, want := range []Status{StatusQueued, StatusConfirmed, StatusConfirmed} {
			if i < len(got) && got[i].Status != want {
				t.Errorf("order %d is %s, want %s", i, got[i].Status, want)
			}
		}
	})
}
