package timeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"flashsale/internal/testing/await"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/storetest"
	"flashsale/queue"
)

const (
	someBatch = "0197a0f2-3c4d-7abc-8def-012345670000"
	someID    = "0197a0f2-3c4d-7abc-8def-012345670002"
)

// fakeQueue has tasks by their ids. before is called first, and its error returned.
type fakeQueue struct {
	tasks  map[string]queue.TaskInfo
	before func() error
	asked  int
}

func (f *fakeQueue) List(_ context.Context, q queue.Query) (page queue.Page, err error) {
	f.asked++
	if f.before != nil {
		if err := f.before(); err != nil {
			return page, err
		}
	}
	for _, id := range q.IDs {
		page.Tasks = append(page.Tasks, f.tasks[id])
	}
	return page, nil
}

// with returns a queue with one task.
func with(task queue.Task) *fakeQueue {
	return &fakeQueue{tasks: map[string]queue.TaskInfo{task.ID: {ID: task.ID, Payload: task.Payload, State: queue.StateReady, Attempt: 1}}}
}

func bought(item string) order.Task {
	t := ordertest.Bought(someID, item, "alice", "k", 1)
	t.RequestID = "r-1"
	return t
}

// TestFind_Tasks: the task of an order is found in each form that it may have.
func TestFind_Tasks(t *testing.T) {
	t.Parallel()
	own := bought("item")
	neighbour := own
	neighbour.ID = someBatch[:32] + "0001"
	single, payload := accepted.SingleTask(accepted.Order{OrderID: someID, Payload: own.Payload(), Stamp: "7.8"})
	for name, x := range map[string]struct {
		task queue.Task
		want Task
	}{
		"Batch":   {ordertest.Parcel(someBatch, neighbour, own), Task{ID: someBatch, Orders: 2}},
		"Split":   {queue.Task{ID: single, Payload: payload}, Task{ID: single, Orders: 1}},
		"Earlier": {queue.Task{ID: someID, Payload: []byte(own.Payload())}, Task{ID: someID, Orders: 1}},
	} {
		x.want.Queue, x.want.Type, x.want.State, x.want.Attempts = "q", TaskPurchase, queue.StateReady, 1
		l, err := find(t.Context(), Queue{"q", with(x.task)}, someID, purchaseTasks)
		if err != nil || !l.found || !l.readable || l.Task != x.want || l.task.RequestID != "r-1" {
			t.Errorf("%s: %+v, %v, want %+v", name, l, err, x.want)
		}
		expiry := order.ExpiryTask(x.task.ID, "item", 1, neighbour.ID, someID)
		x.want.ID, x.want.Type, x.want.Orders = expiry.ID, TaskExpire, 2
		if l, err = find(t.Context(), Queue{"q", with(expiry)}, someID, expiryTasks); err != nil || !l.found || l.Task != x.want {
			t.Errorf("%s: expiry %+v, %v, want %+v", name, l, err, x.want)
		}
	}
	// A task of the batch that does not have the order.
	if l, err := find(t.Context(), Queue{"q", with(ordertest.Parcel(someBatch, neighbour))}, someID, purchaseTasks); err != nil || l.found {
		t.Errorf("found %+v, %v in another order's task", l, err)
	}
	other := order.ExpiryTask(someBatch, "item", 1, neighbour.ID, neighbour.ID)
	if l, err := find(t.Context(), Queue{"q", with(other)}, someID, expiryTasks); err != nil || l.found {
		t.Errorf("found %+v, %v in another order's expiry", l, err)
	}
}

// newService returns a service with the queues, one per partition.
func newService(t *testing.T, queues ...*fakeQueue) *Service {
	t.Helper()
	s := &Service{Store: storetest.New(t)}
	for i, q := range queues {
		s.Orders = append(s.Orders, Queue{fmt.Sprint("orders-", i), q})
		s.Expiries = append(s.Expiries, Queue{fmt.Sprint("expiries-", i), q})
	}
	return s
}

// TestTimeline_Partitions: an order without a row is searched for in all queues, one with a row
// in that of its item.
func TestTimeline_Partitions(t *testing.T) {
	t.Parallel()
	item := "item"
	for i := 0; inventory.PartitionOf(item, 2) != 1; i++ {
		item = fmt.Sprint("item", i)
	}
	first, second := &fakeQueue{}, with(ordertest.Parcel(someBatch, bought(item)))
	s := newService(t, first, second)
	for _, asked := range []int{1, 1} { // of the first queue
		got, err := s.Timeline(await.Context(t), someID)
		if err != nil || len(got.Tasks) != 1 || got.Tasks[0].Queue != "orders-1" || got.Events[1].Task.Queue != "orders-1" {
			t.Fatalf("timeline %+v, %v", got, err)
		}
		if first.asked != asked {
			t.Errorf("the first queue was asked %d times, want %d", first.asked, asked)
		}
		if got.Order.Status == order.StatusQueued {
			storetest.MustInsert(t, s.Store, ordertest.NewItem(item, 5, 5))
			storetest.MustCommit(t, s.Store, bought(item))
		}
	}
}

// TestTimeline_CommittedMeanwhile: an order that is committed after the first read of the
// database is found by the second one.
func TestTimeline_CommittedMeanwhile(t *testing.T) {
	t.Parallel()
	q := &fakeQueue{}
	s := newService(t, q)
	storetest.MustInsert(t, s.Store, ordertest.NewItem("item", 5, 5))
	q.before = func() error {
		storetest.MustCommit(t, s.Store, bought("item"))
		return nil
	}
	got, err := s.Timeline(await.Context(t), someID)
	if err != nil || got.Order.Status != order.StatusConfirmed || names(got.Events) != "requested queued committed" {
		t.Errorf("timeline %+v, %v", got, err)
	}
}

// TestTimeline_WithoutRedis: a row is shown without what only the queues know.
func TestTimeline_WithoutRedis(t *testing.T) {
	t.Parallel()
	q := &fakeQueue{before: func() error { return ordertest.ErrTest }}
	s := newService(t, q)
	if _, err := s.Timeline(await.Context(t), someID); !errors.Is(err, inventory.ErrUnavailable) {
		t.Errorf("timeline of an order without a row: %v, want ErrUnavailable", err)
	}
	storetest.MustInsert(t, s.Store, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, s.Store, bought("item"))
	got, err := s.Timeline(await.Context(t), someID)
	if err != nil || !got.Incomplete || names(got.Events) != "requested queued committed" {
		t.Errorf("timeline %+v, %v", got, err)
	}
}

// TestTimeline_Keys: the client's key is shown, if it is stored.
func TestTimeline_Keys(t *testing.T) {
	t.Parallel()
	s := newService(t, &fakeQueue{})
	storetest.MustInsert(t, s.Store, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, s.Store, bought("item"))
	for stored, want := range map[string]string{"k": "k", "k " + someID: "k", someID: ""} {
		if err := s.Store.Writer().Exec("UPDATE orders SET idempotency_key = ?", stored).Error; err != nil {
			t.Fatal(err)
		}
		if got, err := s.Timeline(await.Context(t), someID); err != nil || got.IdempotencyKey != want {
			t.Errorf("stored %q: key %q, %v, want %q", stored, got.IdempotencyKey, err, want)
		}
	}
}

// TestTimeline_Bounds: an order with many records has the latest ones.
func TestTimeline_Bounds(t *testing.T) {
	t.Parallel()
	s := newService(t, &fakeQueue{})
	storetest.MustInsert(t, s.Store, ordertest.NewItem("item", 5, 5))
	storetest.MustCommit(t, s.Store, bought("item"))
	db, err := s.Store.Writer().DB()
	if err != nil {
		t.Fatal(err)
	}
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := db.ExecContext(await.Context(t), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	const series = `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) `
	const now = 1_790_000_001_000
	exec(series+`INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at)
		SELECT CAST(?2 AS TEXT), 'p' || i, 1, 'EUR', 'mismatch', 'mismatch', CAST(?3 AS BIGINT) + i FROM n`, store.MaxPayments, someID, now)
	exec(series+`INSERT INTO audit (at, actor, action, order_id) SELECT CAST(?3 AS BIGINT) + i, 'root', 'a' || i, CAST(?2 AS TEXT) FROM n`, maxEntries, someID, now)
	exec(`INSERT INTO webhook_endpoints (id, url, events, secret, created_at, updated_at) VALUES ('we_1', '', '', '', 1, 1), ('we_2', '', '', '', 1, 1)`)
	exec(series+`INSERT INTO webhook_events (id, type, order_id, body, at) SELECT 'msg_' || i, 'order.paid', CAST(?2 AS TEXT), '', CAST(?3 AS BIGINT) + i FROM n`, maxEntries/2, someID, now)
	exec(`INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at) SELECT e.id, v.seq, v.at FROM webhook_endpoints e, webhook_events v`)
	check := func(truncated bool, latest string) {
		t.Helper()
		got, err := s.Timeline(await.Context(t), someID)
		if err != nil {
			t.Fatal(err)
		}
		if want := 3 + store.MaxPayments + 2*maxEntries; len(got.Events) != want || got.Truncated != truncated {
			t.Errorf("%d events, truncated %t, want %d, %t", len(got.Events), got.Truncated, want, truncated)
		}
		for _, kind := range []string{"a", "msg_"} {
			if !strings.Contains(fmt.Sprint(ids(got.Events)), " "+kind+latest+" ") {
				t.Errorf("the timeline lacks %s%s", kind, latest)
			}
		}
	}
	check(false, "50")
	exec(`INSERT INTO audit (at, actor, action, order_id) VALUES (?1, 'root', 'a-new', ?2)`, now+1000, someID)
	exec(`INSERT INTO webhook_events (id, type, order_id, body, at) VALUES ('msg_-new', 'order.paid', ?1, '', ?2)`, someID, now+1000)
	exec(`INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at) SELECT 'we_1', max(seq), 1 FROM webhook_events`)
	check(true, "-new")
}

// ids returns what names the audit entries and the webhook events.
func ids(events []Event) (all []string) {
	for i := range events {
		switch e := &events[i]; e.Kind {
		case KindAudit:
			all = append(all, e.Audit.Action)
		case KindWebhook:
			all = append(all, e.Delivery.EventID)
		default:
		}
	}
	return append(all, "end")
}

// TestRows_Plans: an index leads to everything about an order. Only the endpoints, at most 50, are
// scanned.
func TestRows_Plans(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := newService(t)
	for query, want := range map[string]string{
		selectPayments:   "SEARCH o USING INDEX sqlite_autoindex_orders_1 (id=?)\nSEARCH p USING INDEX payments_order (order_id=?)",
		selectReleasing:  "SCAN CONSTANT ROW\nSCALAR SUBQUERY 1\nSEARCH releases USING PRIMARY KEY (order_id=?)",
		selectDeliveries: "SEARCH v USING INDEX webhook_events_order (order_id=?)\nSCAN e\nSEARCH d USING PRIMARY KEY (endpoint_id=? AND event_seq=?)",
	} {
		if plan := ordertest.Plan(t, s.Store, query, someID, maxEntries); plan != want {
			t.Errorf("plan of %s:\n%s\nwant\n%s", query, plan, want)
		}
	}
}
