package webhooks

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/checkout"
	"flashsale/order/ordertest"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/storetest"
	"flashsale/order/worker"
)

// addHook adds an endpoint for these events; for all, if there are none.
func addHook(t testing.TB, s *store.Store, url string, events ...order.EventType) (Endpoint, string) {
	t.Helper()
	if events == nil {
		events = order.EventTypes
	}
	e, secret, err := addEndpoint(await.Context(t), s, NewEndpoint{URL: url, Events: events}, order.By{Actor: "root", RequestID: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	return e, secret
}

// toldEvent is a row of the outbox, with the number of its deliveries.
type toldEvent struct {
	Seq                       int64
	ID, Type, ItemID, OrderID string
	Body                      string
	At                        int64
	Owed                      int
}

// allTold reads the outbox.
func allTold(t testing.TB, s *store.Store) []toldEvent {
	t.Helper()
	var list []toldEvent
	err := s.Reader().WithContext(await.Context(t)).Raw(`SELECT v.*, (SELECT COUNT(*) FROM webhook_deliveries d WHERE d.event_seq = v.seq) AS owed
		FROM webhook_events v ORDER BY seq`).Scan(&list).Error
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// toldSince returns the events after a number, as "type subject".
func toldSince(t testing.TB, s *store.Store, seq int64) []string {
	t.Helper()
	var out []string
	for _, e := range allTold(t, s) {
		if e.Seq > seq {
			subject := e.OrderID
			if subject == "" {
				subject = e.ItemID
			}
			out = append(out, e.Type+" "+subject)
		}
	}
	slices.Sort(out)
	return out
}

// dump returns all of the database's data about orders and events.
func dump(t testing.TB, s *store.Store) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"items", "orders", "buyers", "payments", "releases", "webhook_events", "webhook_deliveries"} {
		var rows []map[string]any
		if err := s.Reader().WithContext(await.Context(t)).Raw("SELECT * FROM " + table).Scan(&rows).Error; err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s %v\n", table, rows)
	}
	return all.String()
}

// telltale is one change, and the events that it must have.
type telltale struct {
	name string
	do   func(ctx context.Context, s *store.Store, c *ordertest.Clock) error
	want []string
}

// telltales are all changes with events, in their order.
var telltales = []telltale{
	{"commit", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Commit(ctx, ordertest.Distinct("n", "item", 7))
		return err
	}, []string{
		"order.confirmed n0000", "order.confirmed n0001", "order.confirmed n0002", "order.confirmed n0003",
		"order.confirmed n0004", "order.confirmed n0005", "order.confirmed n0006",
	}},
	{"commit one by one", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Commit(ctx, []order.Task{
			ordertest.Bought("n0000", "item", "nu0", "k", 1), // delivered again: no new event
			ordertest.Bought("e1", "item", "e", "k", 1), ordertest.Bought("e2", "none", "e", "k", 1), ordertest.Bought("e3", "item", "f", "k", 9),
		})
		return err
	}, []string{"order.confirmed e1", "order.rejected e2", "order.rejected e3"}},
	{"bury", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := worker.RejectDead(ctx, s, []order.Task{ordertest.Bought("b1", "item", "b", "k", 1), ordertest.Bought("e1", "item", "e", "k", 1)})
		return err
	}, []string{"order.rejected b1"}},
	{"pay", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0000", ordertest.Money("psp-1", 1))
		return err
	}, []string{"order.paid n0000"}},
	{"pay again", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0000", ordertest.Money("psp-1", 1))
		return err
	}, nil},
	{"pay something else", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0001", ordertest.Money("psp-2", 5))
		return ordertest.Ignore(err, order.ErrAmountMismatch)
	}, []string{"payment.late n0001"}},
	{"pay something else again", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0001", ordertest.Money("psp-2", 5))
		return ordertest.Ignore(err, order.ErrAmountMismatch)
	}, nil},
	{"pay twice", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0000", ordertest.Money("psp-3", 1))
		return ordertest.Ignore(err, order.ErrPaidAlready)
	}, []string{"payment.late n0000"}},
	{"cancel", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := s.Cancel(ctx, "n0001", order.Canceller{UserID: "nu1"})
		return err
	}, []string{"order.cancelled n0001"}},
	{"cancel again", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := s.Cancel(ctx, "n0001", order.Canceller{UserID: "nu1"})
		return err
	}, nil},
	{"expire", func(ctx context.Context, s *store.Store, c *ordertest.Clock) error {
		c.Add(time.Minute.Milliseconds())
		_, _, err := s.Expire(ctx, []string{"n0000", "n0001", "n0002", "n0003"})
		return err
	}, []string{"order.expired n0002", "order.expired n0003"}},
	{"expire again", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := s.Expire(ctx, []string{"n0002", "n0003"})
		return err
	}, nil},
	{"pay late", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, err := s.Pay(ctx, "n0002", ordertest.Money("psp-4", 1))
		return ordertest.Ignore(err, order.ErrOrderExpired)
	}, []string{"payment.late n0002"}},
	{"refund", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := checkout.RefundInStore(ctx, s, "n0000", checkout.Refund{Restock: true})
		return err
	}, []string{"order.refunded n0000"}},
	{"refund again", func(ctx context.Context, s *store.Store, _ *ordertest.Clock) error {
		_, _, err := checkout.RefundInStore(ctx, s, "n0000", checkout.Refund{Restock: true})
		return err
	}, nil},
}

// TestStore_Telling: each change writes its events in its transaction, and no other change
// writes events. If the events cannot be written, nothing has changed.
func TestStore_Telling(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	storetest.MustInsert(t, s, ordertest.Asking("item", 100, 2, time.Minute))
	addHook(t, s, "https://a.example")
	addHook(t, s, "https://b.example")
	last := int64(0)
	for _, step := range telltales {
		before, at := dump(t, s), c.Load()
		if step.want != nil {
			allow := ordertest.Refuse(t, s, "INSERT", "webhook_deliveries", "")
			if err := step.do(await.Context(t), s, c); err == nil || !strings.Contains(err.Error(), ordertest.ErrRefused) {
				t.Fatalf("%s, while events are refused: %v", step.name, err)
			}
			allow()
			c.Store(at)
			if after := dump(t, s); after != before {
				t.Errorf("%s: the change stayed without its event:\n%s\nwas\n%s", step.name, after, before)
			}
		}
		if err := step.do(await.Context(t), s, c); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := toldSince(t, s, last); !slices.Equal(got, step.want) {
			t.Errorf("%s wrote %q, want %q", step.name, got, step.want)
		}
		for _, e := range allTold(t, s) {
			if last = max(last, e.Seq); e.Owed != 2 {
				t.Errorf("%s: %s has %d deliveries", step.name, e.Type, e.Owed)
			}
		}
	}
	ordertest.AuditStore(t, s)
}

// TestStore_Telling_Nobody: without a subscribed endpoint no event is written.
func TestStore_Telling_Nobody(t *testing.T) {
	t.Parallel()
	for name, who := range map[string]func(t *testing.T, s *store.Store){
		"none":  func(*testing.T, *store.Store) {},
		"other": func(t *testing.T, s *store.Store) { addHook(t, s, "https://a.example", order.EventSoldOut) },
		"disabled": func(t *testing.T, s *store.Store) {
			e, _ := addHook(t, s, "https://a.example")
			off := false
			if _, err := (&Admin{Store: s}).ChangeEndpoint(await.Context(t), e.ID, EndpointChange{Enabled: &off}, order.By{}); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(t *testing.T, s *store.Store) {
			e, _ := addHook(t, s, "https://a.example")
			if err := (&Admin{Store: s}).DeleteEndpoint(await.Context(t), e.ID, order.By{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := storetest.New(t)
			c := storetest.SetClock(s)
			storetest.MustInsert(t, s, ordertest.Asking("item", 100, 2, time.Minute))
			who(t, s)
			for _, step := range telltales {
				if err := step.do(await.Context(t), s, c); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
			}
			if got := allTold(t, s); len(got) != 0 {
				t.Errorf("events %+v", got)
			}
			select {
			case <-s.EventsCommitted:
				t.Error("the deliverer was woken for nothing")
			default:
			}
		})
	}
}

// TestStore_Telling_Bodies checks the bodies of events.
func TestStore_Telling_Bodies(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	c := storetest.SetClock(s)
	c.Store(time.Date(2030, 1, 2, 3, 4, 5, 60_000_000, time.UTC).UnixMilli())
	storetest.MustInsert(t, s, ordertest.Asking("item", 1, 2, time.Minute))
	addHook(t, s, "https://a.example")
	storetest.MustCommit(t, s, ordertest.Bought("o1", "item", "<u>", "secret key", 1))
	c.Add(1500)
	if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp-1", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pay(await.Context(t), "o1", ordertest.Money("psp-2", 3)); err == nil {
		t.Fatal("a second payment was accepted")
	}
	c.Add(1000)
	if _, _, err := checkout.RefundInStore(await.Context(t), s, "o1", checkout.Refund{}); err != nil {
		t.Fatal(err)
	}
	const head = `"id":"o1","item_id":"item","user_id":"<u>","quantity":1,"unit_price_minor":1999,"currency":"EUR",`
	const times = `"created_at":"2026-09-21T14:13:20.000Z","confirmed_at":"2030-01-02T03:04:05.060Z","expires_at":"2030-01-02T03:05:05.060Z"`
	const paid = `{` + head + `"status":"paid",` + times + `,"paid_at":"2030-01-02T03:04:06.560Z","payment_reference":"psp-1"}`
	const refunded = `{` + head + `"status":"refunded",` + times + `,"paid_at":"2030-01-02T03:04:06.560Z","closed_at":"2030-01-02T03:04:07.560Z",` +
		`"payment_reference":"psp-1","restocked":false}`
	want := map[string]string{
		"order.confirmed": `{"type":"order.confirmed","timestamp":"2030-01-02T03:04:05.060Z","data":{` + head + `"status":"confirmed",` + times + `}}`,
		"item.sold_out":   `{"type":"item.sold_out","timestamp":"2030-01-02T03:04:05.060Z","data":{"item_id":"item","stock_total":1}}`,
		"order.paid":      `{"type":"order.paid","timestamp":"2030-01-02T03:04:06.560Z","data":` + paid + `}`,
		"payment.late": `{"type":"payment.late","timestamp":"2030-01-02T03:04:06.560Z","data":{"id":2,"reference":"psp-2","amount_minor":5997,` +
			`"currency":"EUR","outcome":"mismatch","received_at":"2030-01-02T03:04:06.560Z","order":` + paid + `}}`,
		"order.refunded": `{"type":"order.refunded","timestamp":"2030-01-02T03:04:07.560Z","data":` + refunded + `}`,
	}
	events := allTold(t, s)
	for _, e := range events {
		var got, wanted any
		if err := json.Unmarshal([]byte(e.Body), &got); err != nil {
			t.Fatalf("%s: %v", e.Body, err)
		}
		if err := json.Unmarshal([]byte(want[e.Type]), &wanted); err != nil {
			t.Fatalf("%s: %v", e.Type, err)
		}
		if !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s\nwant\n%s", e.Body, want[e.Type])
		}
		if strings.Contains(e.Body, "secret key") || !strings.HasPrefix(e.ID, "msg_") || len(e.ID) != 36 {
			t.Errorf("event %+v", e)
		}
	}
	if len(events) != len(want) {
		t.Errorf("%d events", len(events))
	}
}

// TestStore_Telling_SoldOut: one event each time that the last unit is sold.
func TestStore_Telling_SoldOut(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	storetest.MustInsert(t, s, ordertest.NewItem("item", 5, 5))
	storetest.MustInsert(t, s, ordertest.NewItem("other", 1, 5))
	addHook(t, s, "https://a.example", order.EventSoldOut)
	n := 0
	buy := func(tasks ...order.Task) []string {
		t.Helper()
		last := int64(0)
		for _, e := range allTold(t, s) {
			last = e.Seq
		}
		storetest.MustCommit(t, s, tasks...)
		return toldSince(t, s, last)
	}
	next := func(item string, quantity int64) order.Task {
		n++
		return ordertest.Bought(fmt.Sprintf("o%d", n), item, fmt.Sprintf("u%d", n), "k", quantity)
	}
	want := func(what string, got []string, events ...string) {
		t.Helper()
		if !slices.Equal(got, events) {
			t.Errorf("%s: events %q, want %q", what, got, events)
		}
	}
	soldOut := []string{"item.sold_out item"}
	want("some are left", buy(next("item", 2), next("item", 1)))
	first := next("item", 1)
	want("the last ones, and another item's", buy(first, next("other", 1), next("item", 1)), "item.sold_out item", "item.sold_out other")
	want("more than there are", buy(next("item", 1)))
	want("delivered again", buy(first))
	if _, _, err := s.Cancel(await.Context(t), first.ID, order.Canceller{Admin: true}); err != nil {
		t.Fatal(err)
	}
	// One by one: the first is refused, and has not sold out the item.
	want("one came back", buy(next("item", 3), next("item", 1)), soldOut...)
	if err := s.Writer().Exec("UPDATE items SET total = total + 2 WHERE id = 'item'").Error; err != nil {
		t.Fatal(err)
	}
	want("one of two more", buy(next("item", 1)))
	want("the other", buy(next("item", 1)), soldOut...)
}

// TestOutbox_Plans: frequent queries find their rows by an index.
func TestOutbox_Plans(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for query, want := range map[string]string{
		selectDue: "webhook_deliveries_due (endpoint_id=? AND next_at<?)",
		selectJob: "PRIMARY KEY (endpoint_id=? AND event_seq=?)",
		"SELECT 1 FROM webhook_deliveries WHERE " + whereFarOff:                 "webhook_deliveries_due (endpoint_id=? AND next_at>?)",
		`SELECT MIN(event_seq) FROM webhook_deliveries WHERE state = 'pending'`: "webhook_deliveries_pending",
	} {
		db, err := s.Reader().DB()
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		args := make([]any, min(4, strings.Count(query, "?")))
		err = database.Each(await.Context(t), db, "EXPLAIN QUERY PLAN "+query, args, func(rows *sql.Rows) error {
			var id, parent, unused int
			var detail string
			err := rows.Scan(&id, &parent, &unused, &detail)
			text.WriteString(detail + "\n")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		// Endpoints are few, and a page has a limit.
		scans := strings.Contains(strings.NewReplacer("SCAN e", "", "SCAN webhook_endpoints", "", "SCAN page", "").Replace(text.String()), "SCAN")
		if !strings.Contains(text.String(), want) || scans || strings.Contains(text.String(), "TEMP B-TREE") {
			t.Errorf("plan of %s:\n%s", query, text.String())
		}
	}
}
