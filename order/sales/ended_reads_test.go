package sales

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
)

// listedTasks are the queued orders of buyers in one place.
type listedTasks struct {
	place  int
	orders []accepted.Order
	err    error
}

func (l *listedTasks) OfBuyers(_ context.Context, place int, _ []string, fn func(accepted.Order)) error {
	l.place = place
	for _, a := range l.orders {
		fn(a)
	}
	return l.err
}

// TestEndedSales_Entries: of the orders under one key, the committed one counts, and without one the
// oldest of the queue.
func TestEndedSales_Entries(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 10, 5))
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "u", "both", 1))
	tasks := new(listedTasks)
	for _, tk := range []order.Task{
		ordertest.Bought("o0", "item", "u", "both", 1),
		ordertest.Bought("o3", "item", "u", "queued", 2), ordertest.Bought("o2", "item", "u", "queued", 2), ordertest.Bought("o4", "item", "u", "queued", 2),
		ordertest.Bought("o5", "other", "u", "none", 2),
	} {
		tasks.orders = append(tasks.orders, accepted.Order{OrderID: tk.ID, Payload: tk.Payload()})
	}
	e := NewEndedSales(s, tasks, func(string) int { return 3 })
	var keys []inventory.EntryKey
	for _, key := range []string{"queued", "none", "both"} {
		keys = append(keys, inventory.EntryKey{Buyer: "u", IdempotencyKey: key})
	}
	want := []inventory.Entry{
		{EntryKey: keys[0], Known: true, OrderID: "o2", Quantity: 2}, {EntryKey: keys[1]}, {EntryKey: keys[2], Known: true, OrderID: "o1", Quantity: 1},
	}
	if got, err := e.Entries(await.Context(t), "item", keys); err != nil || !slices.Equal(got, want) || tasks.place != 3 {
		t.Errorf("entries %+v, %v, of place %d, want %+v of place 3", got, err, tasks.place, want)
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if err := entries(late, s, "item", keys, nil); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("a database that does not answer: %v, want ErrUnavailable", err)
	}
	tasks.err = ordertest.ErrTest
	if _, err := e.Entries(await.Context(t), "item", keys); !errors.Is(err, inventory.ErrUnavailable) || !errors.Is(err, ordertest.ErrTest) {
		t.Errorf("a queue that cannot be read: %v, want ErrUnavailable and its error", err)
	}
}

// saleClock is a clock of the sales that differs from the host's.
type saleClock struct{ host, sale time.Time }

func (c saleClock) Now() time.Time           { return c.host }
func (c saleClock) ItemNow(string) time.Time { return c.sale }

// TestEndedSales_Ended: a sale ends by the clock of the sales. An item that does not exist has not
// ended. A request that waits for another's read ends with its context.
func TestEndedSales_Ended(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	n := ordertest.NewItem("item", 10, 5)
	n.OpensAt = time.Now().Truncate(time.Millisecond)
	n.ClosesAt = n.OpensAt.Add(time.Hour)
	storetest.MustInsert(t, s, n)
	e := NewEndedSales(s, new(listedTasks), func(string) int { return 0 })
	for _, tt := range []struct {
		item string
		now  time.Time
		want bool
	}{{"item", n.ClosesAt.Add(-time.Millisecond), false}, {"item", n.ClosesAt, true}, {"none", n.ClosesAt, false}} {
		host := n.ClosesAt
		if tt.want {
			host = n.OpensAt
		}
		store.WithClock(saleClock{host, tt.now})(s)
		if got, err := e.Ended(await.Context(t), tt.item); err != nil || got != tt.want {
			t.Errorf("%s at %v: ended %v, %v, want %v", tt.item, tt.now, got, err, tt.want)
		}
	}
	late, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := ended(late, s, "item"); !errors.Is(err, database.ErrUnavailable) {
		t.Errorf("a database that does not answer: %v, want ErrUnavailable", err)
	}
	end, err := e.begin(await.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	gone, leave := context.WithCancelCause(t.Context())
	leave(ordertest.ErrTest)
	if _, err := e.Ended(gone, "item"); !errors.Is(err, ordertest.ErrTest) {
		t.Errorf("during another read: %v, want the context's cause", err)
	}
}
