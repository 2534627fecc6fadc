package checkout

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order"
	"flashsale/order/ordertest"
)

// TestChangeNotifier: one message has up to some hundred orders. While there is no subscriber, only
// commits of rejected orders are published.
func TestChangeNotifier(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	b := NewChangeNotifier(rdb, func(err error) { t.Error(err) })
	tasks := ordertest.Distinct("n", "item", 2*messageIDs+1)
	out := make([]order.Outcome, len(tasks))
	for i := range out {
		out[i].Status = order.StatusConfirmed
	}
	out[7].Status = order.StatusRejected
	send := func() (messages int) {
		var sent []*redis.IntCmd
		_, err := rdb.Pipelined(await.Context(t), func(p redis.Pipeliner) error {
			sent = b.Add(await.Context(t), p, b.Due(tasks, out))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b.NoteReceivers(sent)
		return len(sent)
	}
	began := time.Now()
	if n := send(); n != 3 {
		t.Errorf("%d messages for %d orders, want 3", n, len(tasks))
	}
	if until := time.Unix(0, b.quietUntil.Load()); until.Before(began.Add(quietTime)) {
		t.Errorf("without subscribers the notifier is quiet for only %s", until.Sub(began))
	}
	b.quietUntil.Add(int64(ordertest.Limit)) // for a machine that needs longer for the rest
	if got := b.Due(tasks, out); !slices.Equal(got, []string{tasks[7].ID}) {
		t.Errorf("without subscribers it published %v", got)
	}
	sub := rdb.Subscribe(await.Context(t), order.ChangedChannel)
	t.Cleanup(func() { sub.Close() }) //nolint:errcheck // the test is over
	if _, err := sub.Receive(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	if n := send(); n != 1 {
		t.Errorf("%d messages of a rejected order, want 1", n)
	}
	if n := send(); n != 3 {
		t.Errorf("%d messages after one had a subscriber, want 3", n)
	}
	var got []string
	for range 4 {
		m, err := sub.ReceiveMessage(await.Context(t))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strings.Split(m.Payload, " ")...)
	}
	want := append([]string{tasks[7].ID}, order.TaskIDs(tasks)...)
	if !slices.Equal(got, want) {
		t.Errorf("received %d orders, want %d", len(got), len(want))
	}
	b.NoteReceivers(nil) // a batch of which nothing was published says nothing of subscribers
	if b.quietUntil.Load() != 0 {
		t.Error("quiet after no message at all")
	}
	(*ChangeNotifier)(nil).Notify(await.Context(t), "o1") // a process without notifications
}

// TestChangeNotifier_Notify: a change is published although its client has gone. An error is
// reported, and says nothing of subscribers.
func TestChangeNotifier_Notify(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	var reported []error
	b := NewChangeNotifier(rdb, func(err error) { reported = append(reported, err) })
	sub := rdb.Subscribe(await.Context(t), order.ChangedChannel)
	defer sub.Close()
	if _, err := sub.Receive(await.Context(t)); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if b.Notify(gone, "o1"); len(reported) != 0 {
		t.Fatalf("reported %v", reported)
	}
	if m, err := sub.ReceiveMessage(await.Context(t)); err != nil || m.Payload != "o1" {
		t.Fatalf("received %v, %v", m, err)
	}
	closed := redis.NewClient(redistest.Options(rdb.Options().Addr))
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	b.rdb = closed
	b.Notify(t.Context(), "o1")
	if len(reported) != 1 || !errors.Is(reported[0], redis.ErrClosed) {
		t.Errorf("reported %v, want %v", reported, redis.ErrClosed)
	}
	failed := redis.NewIntCmd(t.Context())
	failed.SetErr(redis.ErrClosed)
	if b.NoteReceivers([]*redis.IntCmd{failed}); b.quietUntil.Load() != 0 {
		t.Error("quiet although the subscribers are unknown")
	}
}
