package checkout

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
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
)

// Listen starts a listener and ends it with the test.
func Listen(t *testing.T, w *Waiters, rdb redis.UniversalClient, s *store.Store, onError func(error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Listen(ctx, rdb, s, onError) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("listen: %v", err)
			}
		case <-time.After(ordertest.Limit):
			t.Error("the listener did not end with its context")
		}
	})
}

func awaitTicket(t *testing.T, what string, tk *ticket) settlement {
	t.Helper()
	select {
	case set := <-tk.settled:
		return set
	case <-time.After(ordertest.Limit):
		t.Fatalf("not settled: %s", what)
		return settlement{}
	}
}

func NewTicket(w *Waiters, id string) *ticket {
	tk := &ticket{settled: make(chan settlement, 1)}
	w.add(id, tk)
	return tk
}

// commitAndNotify does what a worker does with the tasks of one origin.
func commitAndNotify(t *testing.T, s *store.Store, rdb redis.UniversalClient, origin string, tasks []order.Task) {
	t.Helper()
	var message []byte
	for i, out := range storetest.MustCommit(t, s, tasks...) {
		message = order.AppendNotice(message, &order.Notice{ID: tasks[i].ID, Outcome: out})
	}
	if err := rdb.Publish(await.Context(t), order.ChannelOf(origin), message).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestWaiters_Listen(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := storetest.New(t)
		storetest.MustInsert(t, s, ordertest.NewItem("item", 3, 1))
		w := NewWaiters()
		tasks := ordertest.Distinct("n", "item", 6)
		for i := range tasks {
			tasks[i].Origin = w.Origin()
		}
		// Committed before the subscription: the message has no receiver.
		var early []*ticket
		for i := range tasks[:4] {
			early = append(early, NewTicket(w, tasks[i].ID))
		}
		commitAndNotify(t, s, rdb, w.Origin(), tasks[:4])
		Listen(t, w, rdb, s, func(err error) { t.Errorf("reported %v", err) })
		for i, tk := range early {
			set := awaitTicket(t, "catching up on "+tasks[i].ID, tk)
			want := []string{"confirmed", "confirmed", "confirmed", ordertest.RejectedPrefix + order.ReasonSoldOut}[i]
			if got := ordertest.Verdicts([]order.Outcome{set.notice.Outcome})[0]; !set.commit || got != want {
				t.Errorf("order %s: settled with %q, want %q", tasks[i].ID, got, want)
			}
		}
		// Committed while it listens: the message is received.
		late := NewTicket(w, tasks[4].ID)
		commitAndNotify(t, s, rdb, w.Origin(), tasks[4:])
		if set := awaitTicket(t, "the message", late); set.notice.Reason != order.ReasonSoldOut {
			t.Errorf("settled with %+v", set)
		}
		if n := len(w.ids()); n != 0 {
			t.Errorf("%d tickets are left", n)
		}
	})
}

// TestWaiters_Listen_Malformed: an unreadable message is reported, and the next one is
// handled.
func TestWaiters_Listen_Malformed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s, w := storetest.New(t), NewWaiters()
		heard := make(chan error, 10)
		Listen(t, w, rdb, s, func(err error) { heard <- err })
		await.True(t, "the subscription", func() bool {
			n, err := rdb.PubSubNumSub(await.Context(t), order.ChannelOf(w.Origin())).Result()
			return err == nil && n[order.ChannelOf(w.Origin())] == 1
		})
		tk := NewTicket(w, "id")
		for _, m := range []string{"?", "id confirmed  5 0 0\n"} {
			if err := rdb.Publish(await.Context(t), order.ChannelOf(w.Origin()), m).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if set := awaitTicket(t, "the good message", tk); set.notice.ConfirmedAt != 5 {
			t.Errorf("settled with %+v", set)
		}
		if err := <-heard; !errors.Is(err, order.ErrNoticeMalformed) {
			t.Errorf("reported %v", err)
		}
	})
}

// TestWaiters_Listen_Resubscribes: orders committed while Redis is down are settled once it
// is back.
func TestWaiters_Listen_Resubscribes(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	s, w := storetest.New(t), NewWaiters()
	storetest.MustInsert(t, s, ordertest.NewItem("item", 300, 1))
	heard := make(chan error, 1000)
	Listen(t, w, rdb, s, func(err error) {
		select {
		case heard <- err:
		default:
		}
	})
	await.True(t, "the subscription", func() bool {
		n, err := rdb.PubSubNumSub(await.Context(t), order.ChannelOf(w.Origin())).Result()
		return err == nil && n[order.ChannelOf(w.Origin())] == 1
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-heard:
		t.Logf("the listener reports %v", err)
	case <-time.After(ordertest.Limit):
		t.Fatal("the loss was not reported")
	}
	// More than one page of the query.
	tasks := ordertest.Distinct("n", "item", 300)
	var tickets []*ticket
	for i := range tasks {
		tickets = append(tickets, NewTicket(w, tasks[i].ID))
	}
	waits := NewTicket(w, "never committed")
	storetest.MustCommit(t, s, tasks...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for i, tk := range tickets {
		if set := awaitTicket(t, tasks[i].ID, tk); set.notice.ID != tasks[i].ID || set.notice.Status != order.StatusConfirmed {
			t.Errorf("settled with %+v", set)
		}
	}
	select {
	case set := <-waits.settled:
		t.Errorf("settled with an unknown order: %+v", set)
	default:
	}
}

func TestWaiters(t *testing.T) {
	t.Parallel()
	w := NewWaiters()
	if other := NewWaiters(); w.Origin() == other.Origin() || w.Origin() == "" {
		t.Errorf("origins %q and %q", w.Origin(), other.Origin())
	}
	for i := range 500 {
		NewTicket(w, fmt.Sprintf("id%d", i))
	}
	if n := len(w.ids()); n != 500 {
		t.Errorf("%d ids, want 500", n)
	}
	tk := NewTicket(w, "x")
	w.Settle(order.Notice{ID: "x"}, time.Time{})
	w.Settle(order.Notice{ID: "x"}, time.Time{}) // settled twice, received once, and neither call blocks
	if set := <-tk.settled; !set.commit {
		t.Errorf("settled with %+v", set)
	}
	w.remove("id3")
	w.Settle(order.Notice{ID: "id3"}, time.Time{})
	w.remove("")
	if n := len(w.ids()); n != 499 {
		t.Errorf("%d ids, want 499", n)
	}
}

// TestWaiters_Shards: the orders of one batch, and those of batches of one, are spread over the
// shards.
func TestWaiters_Shards(t *testing.T) {
	t.Parallel()
	w := NewWaiters()
	for name, format := range map[string]string{"one batch": "01a2063e-fed6-79f2-9fe6-21096af3%04x", "batches of one": "01a2063e-fed6-79f2-9fe6-2109%04x0001"} {
		used := map[*waiterShard]bool{}
		for i := range 256 {
			used[w.shard(fmt.Sprintf(format, i+1))] = true
		}
		if len(used) < waiterShards/2 {
			t.Errorf("%s: 256 orders in %d of %d shards", name, len(used), waiterShards)
		}
	}
}

// TestAttempt: a request that is sent again has only the ticket of its last id, and one that is sent
// after its wait has none.
func TestAttempt(t *testing.T) {
	t.Parallel()
	w := NewWaiters()
	a := &attempt{waiters: w}
	a.named("first")
	a.named("second")
	if ids := w.ids(); !slices.Equal(ids, []string{"second"}) {
		t.Errorf("sent twice: tickets %v, want the second", ids)
	}
	a.leave()
	a.named("third")
	if ids := w.ids(); len(ids) != 0 {
		t.Errorf("after the wait: tickets %v, want none", ids)
	}
}

// TestWaiters_receive: the time of a commit by the shop's clock is converted to this host's clock.
func TestWaiters_receive(t *testing.T) {
	t.Parallel()
	w, shop := NewWaiters(), time.Now().Add(-time.Hour)
	known, unknown := NewTicket(w, "known"), NewTicket(w, "unknown")
	var message []byte
	message = order.AppendNotice(message, &order.Notice{ID: "unknown"})
	message = order.AppendCommittedAt(message, shop.Add(-time.Minute).UnixMicro())
	message = order.AppendNotice(message, &order.Notice{ID: "known"})
	before := time.Now()
	if err := w.receive(string(message), func() time.Time { return shop }); err != nil {
		t.Fatal(err)
	}
	after := time.Now()
	if at := awaitTicket(t, "known", known).at.Add(time.Minute); at.Before(before.Add(-time.Millisecond)) || at.After(after.Add(time.Millisecond)) {
		t.Errorf("committed a minute before %v, want between %v and %v", at, before, after)
	}
	if at := awaitTicket(t, "unknown", unknown).at; !at.IsZero() {
		t.Errorf("committed at %v, want an unknown time", at)
	}
}
