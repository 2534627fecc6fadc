package order

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// listen starts a listener and ends it with the test.
func listen(t *testing.T, w *Waiters, rdb redis.UniversalClient, s *Store, onError func(error)) {
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
		case <-time.After(limit):
			t.Error("the listener did not end with its context")
		}
	})
}

func awaitTicket(t *testing.T, what string, tk *ticket) settlement {
	t.Helper()
	select {
	case set := <-tk.settled:
		return set
	case <-time.After(limit):
		t.Fatalf("not settled: %s", what)
		return settlement{}
	}
}

func newTicket(w *Waiters, id string) *ticket {
	tk := &ticket{settled: make(chan settlement, 1)}
	w.add(id, tk)
	return tk
}

func TestWaiters_Listen(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := newStore(t)
		mustInsert(t, s, newItem("item", 3, 1))
		w := NewWaiters()
		tasks := distinct("n", "item", 6)
		for i := range tasks {
			tasks[i].Origin = w.Origin()
		}
		worker := NewFulfiller(s, rdb, nil, func(err error) { t.Errorf("reported %v", err) })
		// Committed before the subscription: the message has no receiver.
		var early []*ticket
		for i := range tasks[:4] {
			early = append(early, newTicket(w, tasks[i].ID))
		}
		if err := errors.Join(worker.Handle(await.Context(t), leased(tasks[:4]...))...); err != nil {
			t.Fatal(err)
		}
		listen(t, w, rdb, s, func(err error) { t.Errorf("reported %v", err) })
		for i, tk := range early {
			set := awaitTicket(t, "catching up on "+tasks[i].ID, tk)
			want := []string{"confirmed", "confirmed", "confirmed", rejectedPrefix + reasonSoldOut}[i]
			if got := verdicts([]outcome{set.notice.outcome})[0]; !set.commit || got != want {
				t.Errorf("order %s: settled with %q, want %q", tasks[i].ID, got, want)
			}
		}
		// Committed while it listens: the message is received.
		late := newTicket(w, tasks[4].ID)
		if err := errors.Join(worker.Handle(await.Context(t), leased(tasks[4:]...))...); err != nil {
			t.Fatal(err)
		}
		if set := awaitTicket(t, "the message", late); set.notice.reason != reasonSoldOut {
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
		s, w := newStore(t), NewWaiters()
		heard := make(chan error, 10)
		listen(t, w, rdb, s, func(err error) { heard <- err })
		await.True(t, "the subscription", func() bool {
			n, err := rdb.PubSubNumSub(await.Context(t), channelOf(w.Origin())).Result()
			return err == nil && n[channelOf(w.Origin())] == 1
		})
		tk := newTicket(w, "id")
		for _, m := range []string{"?", "id confirmed  5 0 0\n"} {
			if err := rdb.Publish(await.Context(t), channelOf(w.Origin()), m).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if set := awaitTicket(t, "the good message", tk); set.notice.confirmedAt != 5 {
			t.Errorf("settled with %+v", set)
		}
		if err := <-heard; !errors.Is(err, errNoticeMalformed) {
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
	s, w := newStore(t), NewWaiters()
	mustInsert(t, s, newItem("item", 300, 1))
	heard := make(chan error, 1000)
	listen(t, w, rdb, s, func(err error) {
		select {
		case heard <- err:
		default:
		}
	})
	await.True(t, "the subscription", func() bool {
		n, err := rdb.PubSubNumSub(await.Context(t), channelOf(w.Origin())).Result()
		return err == nil && n[channelOf(w.Origin())] == 1
	})
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-heard:
		t.Logf("the listener reports %v", err)
	case <-time.After(limit):
		t.Fatal("the loss was not reported")
	}
	// More than one page of the query.
	tasks := distinct("n", "item", 300)
	var tickets []*ticket
	for i := range tasks {
		tickets = append(tickets, newTicket(w, tasks[i].ID))
	}
	waits := newTicket(w, "never committed")
	mustCommit(t, s, tasks...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	for i, tk := range tickets {
		if set := awaitTicket(t, tasks[i].ID, tk); set.notice.id != tasks[i].ID || set.notice.status != StatusConfirmed {
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
		newTicket(w, fmt.Sprintf("id%d", i))
	}
	if n := len(w.ids()); n != 500 {
		t.Errorf("%d ids, want 500", n)
	}
	tk := newTicket(w, "x")
	w.settle(notice{id: "x"})
	w.settle(notice{id: "x"}) // settled twice, received once, and neither call blocks
	if set := <-tk.settled; !set.commit {
		t.Errorf("settled with %+v", set)
	}
	w.remove("id3")
	w.settle(notice{id: "id3"})
	w.remove("")
	if n := len(w.ids()); n != 499 {
		t.Errorf("%d ids, want 499", n)
	}
}
