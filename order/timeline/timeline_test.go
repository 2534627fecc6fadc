package timeline

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
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/payments"
	"flashsale/order/shoptest"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
	"flashsale/queue"
)

// shop is a shop with timelines. Its clock moves with tick only, so that each step of a test has
// its own time.
type shop struct {
	*shoptest.Shop
	clock     *ordertest.Clock
	timelines *Service
}

func open(t *testing.T, rdb *redis.Client, n order.NewItem) *shop {
	t.Helper()
	s := shoptest.New(t, rdb, false, n)
	ordertest.SubscribeAll(t, s.Store)
	// A shop of the tests adds expiries to the queue of its orders.
	q := []Queue{{Name: "orders-0", Tasks: s.Queue}}
	return &shop{s, storetest.SetClock(s.Store), &Service{Store: s.Store, Orders: q, Expiries: q}}
}

func (s *shop) tick() { s.clock.Add(time.Second.Milliseconds()) }

// of reads a timeline and checks its order.
func (s *shop) of(id string) Timeline {
	s.T.Helper()
	t, err := s.timelines.Timeline(await.Context(s.T), id)
	if err != nil {
		s.T.Fatalf("timeline of %s: %v", id, err)
	}
	if !slices.IsSortedFunc(t.Events, func(a, b Event) int { return a.At.Compare(b.At) }) {
		s.T.Errorf("the events are not in the order of their times: %+v", t.Events)
	}
	return t
}

// want checks the kinds of an order's events. A webhook has its event's type, an audit entry its
// action, a payment its outcome, and a release its state.
func (s *shop) want(id, events string) Timeline {
	s.T.Helper()
	t := s.of(id)
	if got := names(t.Events); got != events {
		s.T.Errorf("order %s %s has the events\n%s\nwant\n%s", id, t.Order.Status, got, events)
	}
	return t
}

func names(events []Event) string {
	var all []string
	for i := range events {
		switch e := &events[i]; e.Kind {
		case KindWebhook:
			all = append(all, string(e.Delivery.Type))
		case KindAudit:
			all = append(all, "audit:"+e.Audit.Action)
		case KindPayment:
			all = append(all, "payment:"+string(e.Payment.ReceivedAs))
		case KindRelease:
			all = append(all, fmt.Sprintf("release:%t", !e.Pending))
		default:
			all = append(all, string(e.Kind))
		}
	}
	return strings.Join(all, " ")
}

// buy places a purchase that a worker commits.
func (s *shop) buy(user string) string {
	s.T.Helper()
	placed := s.MustPlace(s.Purchase(user, "k", 1, ordertest.Limit))
	if !placed.Committed {
		s.T.Fatalf("order %+v is not committed", placed)
	}
	s.Drained() // its task is acknowledged after the answer
	s.tick()
	return placed.Order.ID
}

// must fails the test on an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestTimeline_Queued(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := open(t, rdb, ordertest.Asking("", 5, 3, time.Hour))
		p := s.Purchase("alice", "key-1", 2, 0)
		p.RequestID = "r-1"
		id := s.MustPlace(p).Order.ID
		got := s.want(id, "requested queued")
		if o := got.Order; o.ID != id || o.Status != order.StatusQueued || o.UserID != "alice" || o.Quantity != 2 || o.CreatedAt.IsZero() {
			t.Errorf("order %+v", o)
		}
		if got.RequestID != "r-1" || got.IdempotencyKey != "key-1" || got.Truncated || got.Incomplete || len(got.Payments) != 0 {
			t.Errorf("timeline %+v", got)
		}
		task := ordertest.TaskOf(t, s.Queue, id)
		want := Task{ID: task, Queue: "orders-0", Type: TaskPurchase, Orders: 1, State: queue.StateReady}
		wantTasks(t, &got, want)
		if q := got.Events[1].Task; q.ID != task || q.Queue != "orders-0" {
			t.Errorf("queued as %+v, want task %s", q, task)
		}

		// The attempt fails for good.
		s.Kill("no reason")
		got = s.want(id, "requested queued dead_letter")
		want.State, want.Attempts, want.Reason = queue.StateDead, 1, "no reason"
		wantTasks(t, &got, want)
		if e := got.Events[2]; e.Task != got.Tasks[0] || !e.At.Equal(got.Tasks[0].At) || got.RequestID != "r-1" {
			t.Errorf("dead letter %+v, request %q", e, got.RequestID)
		}
		// The sweeper rejects it, and the letter stays.
		s.tick()
		s.clock.Add(worker.DeadLetterAfter.Milliseconds())
		tasks := []order.Task{ordertest.Bought(id, s.Item, "alice", "key-1", 2)}
		tasks[0].CreatedAt = got.Order.CreatedAt.UnixMilli()
		if n, _, err := worker.RejectDead(await.Context(t), s.Store, tasks); n != 1 || err != nil {
			t.Fatalf("%d rejected, %v", n, err)
		}
		got = s.want(id, "requested queued dead_letter rejected release:false order.rejected")
		wantTasks(t, &got, want)
		if got.RequestID != "r-1" || got.Order.Reason != order.ReasonFailed || got.Events[3].Latency < worker.DeadLetterAfter {
			t.Errorf("timeline %+v", got)
		}
	})
}

// wantTasks compares the tasks of a timeline, without their times.
func wantTasks(t *testing.T, got *Timeline, want ...Task) {
	t.Helper()
	tasks := slices.Clone(got.Tasks)
	for i := range tasks {
		if tasks[i].At.IsZero() {
			t.Errorf("task without a time: %+v", tasks[i])
		}
		tasks[i].At = time.Time{}
	}
	if !slices.Equal(tasks, want) {
		t.Errorf("tasks %+v, want %+v", tasks, want)
	}
}

func TestTimeline_Committed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := open(t, rdb, ordertest.Asking("", 10, 3, time.Hour))
		s.Work()
		ctx := await.Context(t)
		const committed = "requested queued committed order.confirmed"

		id := s.buy("confirmed")
		got := s.want(id, committed)
		if got.IdempotencyKey != "k" || got.RequestID != "" {
			t.Errorf("key %q, request %q", got.IdempotencyKey, got.RequestID)
		}
		task := got.Events[1].Task.ID
		wantTasks(t, &got, Task{ID: order.ExpiryPrefix + task, Queue: "orders-0", Type: TaskExpire, Orders: 1, State: queue.StateDelayed})
		if d := got.Events[3].Delivery; d.EndpointID != "we_1" || d.Status != "pending" || d.NextAt.IsZero() || !d.DeliveredAt.IsZero() {
			t.Errorf("delivery %+v", d)
		}

		id = s.buy("paid")
		must[order.Order](t)(s.Service.Pay(ctx, id, ordertest.Money("psp-"+id, 1)))
		s.tick()
		got = s.want(id, committed+" payment:accepted paid order.paid")
		if len(got.Tasks) != 0 || len(got.Payments) != 1 || got.Events[4].Payment.Reference != "psp-"+id {
			t.Errorf("timeline %+v", got)
		}
		must[order.Order](t)(s.Service.Refund(ctx, id, checkout.Refund{Restock: true, By: ordertest.Root}))
		s.want(id, committed+" payment:accepted paid order.paid refunded payment_refunded release:true audit:order.refund order.refunded")

		id = s.buy("kept")
		must[order.Order](t)(s.Service.Pay(ctx, id, ordertest.Money("psp-"+id, 1)))
		s.tick()
		must[order.Order](t)(s.Service.Refund(ctx, id, checkout.Refund{By: ordertest.Root}))
		s.want(id, committed+" payment:accepted paid order.paid refunded payment_refunded audit:order.refund order.refunded")

		id = s.buy("cancelled")
		must[order.Order](t)(s.Service.Cancel(ctx, id, order.Canceller{UserID: "root", Admin: true, RequestID: "r-9"}))
		s.tick()
		if _, err := s.Service.Pay(ctx, id, ordertest.Money("psp-"+id, 1)); !errors.Is(err, order.ErrOrderExpired) {
			t.Errorf("pay a cancelled order: %v", err)
		}
		s.tick()
		late := s.of(id).Payments[0].ID
		must[order.PaymentRecord](t)((&payments.Service{Store: s.Store}).MarkRefunded(ctx, late, ordertest.Root))
		got = s.want(id, committed+" cancelled release:true audit:order.cancel order.cancelled payment:late payment.late payment_refunded audit:payment.refund")
		if a := got.Events[6].Audit; a.Actor != "root" || a.RequestID != "r-9" || !strings.Contains(a.After, "cancelled") {
			t.Errorf("audit %+v", a)
		}

		id = s.buy("expired")
		s.clock.Add(time.Hour.Milliseconds())
		if _, _, err := s.Store.Expire(ctx, []string{id}); err != nil {
			t.Fatal(err)
		}
		s.want(id, committed+" expired release:false order.expired") // nothing has returned its units yet
	})
}

func TestTimeline_Rejected(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := open(t, rdb, ordertest.NewItem("", 5, 1))
		id := "0197a0f2-3c4d-7abc-8def-012345670002"
		first, again := ordertest.Bought("0197a0f2-3c4d-7abc-8def-012345670001", s.Item, "bob", "k", 1), ordertest.Bought(id, s.Item, "bob", "k2", 1)
		out := storetest.MustCommit(t, s.Store, first, again)
		ordertest.WantVerdicts(t, out, "confirmed", "rejected user_limit")
		got := s.want(id, "requested queued rejected order.rejected")
		if got.Order.Reason != order.ReasonUserLimit || len(got.Tasks) != 0 || got.IdempotencyKey != "k2" {
			t.Errorf("timeline %+v", got)
		}
		if q := got.Events[1]; q.Task.ID != "0197a0f2-3c4d-7abc-8def-012345670000" {
			t.Errorf("queued as %+v", q)
		}
	})
}

func TestTimeline_Unknown(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		s := open(t, rdb, ordertest.NewItem("", 5, 1))
		queued := s.MustPlace(s.Purchase("alice", "k", 1, 0)).Order.ID
		// The second id is of the same batch.
		for _, id := range []string{"0197a0f2-3c4d-7abc-8def-012345670001", queued[:len(queued)-4] + "0fff"} {
			if _, err := s.timelines.Timeline(await.Context(t), id); !errors.Is(err, order.ErrNotFound) {
				t.Errorf("timeline of %s: %v, want ErrNotFound", id, err)
			}
		}
		// A task that cannot be read names no order; it is a dead letter, soon.
		bad := "0197a0f2-3c4d-7abc-8def-0123456700ff"
		must[[]queue.Status](t)(s.Queue.Enqueue(await.Context(t), queue.Task{ID: bad, Payload: []byte("what?")}))
		if _, err := s.timelines.Timeline(await.Context(t), bad); !errors.Is(err, order.ErrNotFound) {
			t.Errorf("timeline of an unreadable order: %v, want ErrNotFound", err)
		}
	})
}

// TestPostgres_Timeline_Standby: no timeline is shown whose rows a synchronous standby may lack.
func TestPostgres_Timeline_Standby(t *testing.T) {
	t.Parallel()
	d := storetest.NewDoubt(t)
	s := &Service{Store: d.Store, Orders: []Queue{{"orders", &fakeQueue{}}}, Expiries: []Queue{{"expiries", &fakeQueue{}}}}
	storetest.MustInsert(t, d.Store, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, d.Store, bought("item"))
	d.Begin(t)
	d.Refuses(t, func(ctx context.Context) error { _, err := s.Timeline(ctx, someID); return err })
	d.Refuses(t, func(ctx context.Context) error {
		_, _, err := d.Audit(ctx, order.AuditFilter{Limit: 1})
		return err
	})
	d.End(t)
	if got, err := s.Timeline(await.Context(t), someID); err != nil || got.Order.ID != someID {
		t.Errorf("once no standby is required: %+v, %v", got, err)
	}
}
