package handler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/timeline"
)

// fakeTimelines returns one timeline, or an error.
type fakeTimelines struct {
	timeline timeline.Timeline
	err      error
	asked    []string
}

func (f *fakeTimelines) Timeline(_ context.Context, id string) (timeline.Timeline, error) {
	f.asked = append(f.asked, id)
	if f.err == nil && f.timeline.Order.ID == "" {
		return timeline.Timeline{}, order.ErrNotFound
	}
	return f.timeline, f.err
}

const timelinePath = "/v1/admin/orders/" + someOrderID + "/timeline"

// someTimeline has an event of every kind with all facts, which no real order has.
func someTimeline() timeline.Timeline {
	o := someOrder(order.Purchase{ItemID: "thing", UserID: "alice", Quantity: 2})
	o.Status, o.Reason, o.ExpiresAt, o.PaymentReference, o.Restocked = order.StatusRefunded, order.ReasonFailed, someTime.Add(time.Hour), "psp-1", true
	p := somePayment()
	p.Outcome, p.RefundedAt = order.PaymentRefunded, someTime
	dead := timeline.Task{
		ID: "t1", Queue: "orders-0", Type: timeline.TaskPurchase, Orders: 3, State: "dead", Attempts: 20, At: someTime, Reason: "poison",
	}
	t := timeline.Timeline{
		Order: o, Payments: []order.PaymentRecord{p}, IdempotencyKey: "key-1", RequestID: "r-1", Truncated: true, Incomplete: true,
		Tasks: []timeline.Task{dead, {ID: "x:t1", Queue: "expiries-0", Type: timeline.TaskExpire, Orders: 1, State: "delayed", At: someTime}},
	}
	for _, e := range []timeline.Event{
		{Kind: timeline.KindRequested}, {Kind: timeline.KindQueued, Task: timeline.Task{ID: "t1", Queue: "orders-0"}},
		{Kind: timeline.KindDeadLetter, Task: dead}, {Kind: timeline.KindCommitted, Latency: 1500 * time.Microsecond},
		{Kind: timeline.KindRejected, Latency: time.Second}, {Kind: timeline.KindPayment, Payment: &p}, {Kind: timeline.KindPaid},
		{Kind: timeline.KindCancelled}, {Kind: timeline.KindExpired}, {Kind: timeline.KindRefunded},
		{Kind: timeline.KindPaymentRefunded, Payment: &p}, {Kind: timeline.KindRelease}, {Kind: timeline.KindRelease, Pending: true},
		{Kind: timeline.KindAudit, Audit: &order.AuditEntry{ID: 7, Actor: "root", Action: "order.cancel", Before: `{"a":1}`, After: `{"a":2}`, RequestID: "r-2"}},
		{Kind: timeline.KindWebhook, Delivery: &timeline.Delivery{
			EndpointID: "we_" + strings.Repeat("0", 32), EventID: "msg_" + strings.Repeat("0", 32), Type: order.EventPaid, Status: "pending", Attempts: 2,
			NextAt: someTime, LastAt: someTime, LastStatus: 500, LastError: "answered 500 Internal Server Error", DeliveredAt: someTime,
		}},
		{Kind: timeline.KindWebhook, Delivery: &timeline.Delivery{
			EndpointID: "we_" + strings.Repeat("0", 32), EventID: "msg_" + strings.Repeat("1", 32), Type: order.EventConfirmed, Status: "pending", NextAt: someTime,
		}},
	} {
		e.At = someTime
		t.Events = append(t.Events, e)
	}
	return t
}

const (
	someAt         = `{"at":"2030-01-02T03:04:05.678Z","kind":`
	wantEventsJSON = `"events":[` + someAt + `"requested","detail":{"quantity":2,"idempotency_key":"key-1","request_id":"r-1"}},` +
		someAt + `"queued","detail":{"task":"t1","queue":"orders-0"}},` +
		someAt + `"dead_letter","detail":{"task":"t1","queue":"orders-0","attempts":20,"reason":"poison"}},` +
		someAt + `"committed","detail":{"latency_ms":1,"expires_at":"2030-01-02T04:04:05.678Z"}},` +
		someAt + `"rejected","detail":{"reason":"failed","latency_ms":1000}},` +
		someAt + `"payment","detail":{"payment_id":41,"reference":"psp-1","amount_minor":990,"currency":"EUR","received_as":"late","outcome":"refunded"}},` +
		someAt + `"paid","detail":{"reference":"psp-1"}},` +
		someAt + `"cancelled","detail":{"reason":"failed"}},` +
		someAt + `"expired","detail":{"reason":"failed"}},` +
		someAt + `"refunded","detail":{"restocked":true}},` +
		someAt + `"payment_refunded","detail":{"payment_id":41,"reference":"psp-1","amount_minor":990,"currency":"EUR"}},` +
		someAt + `"release","detail":{"quantity":2,"state":"returned"}},` +
		someAt + `"release","detail":{"quantity":2,"state":"pending"}},` +
		someAt + `"audit","detail":{"entry_id":7,"actor":"root","action":"order.cancel","before":{"a":1},"after":{"a":2},"request_id":"r-2"}},` +
		someAt + `"webhook","detail":{"webhook":"we_00000000000000000000000000000000","event":"msg_00000000000000000000000000000000",` +
		`"type":"order.paid","status":"pending","attempts":2,"next_attempt_at":"2030-01-02T03:04:05.678Z",` +
		`"last_attempt_at":"2030-01-02T03:04:05.678Z","last_status":500,"last_error":"answered 500 Internal Server Error","delivered_at":"2030-01-02T03:04:05.678Z"}},` +
		someAt + `"webhook","detail":{"webhook":"we_00000000000000000000000000000000","event":"msg_11111111111111111111111111111111",` +
		`"type":"order.confirmed","status":"pending","attempts":0,"next_attempt_at":"2030-01-02T03:04:05.678Z"}}],`
	wantTasksJSON = `"tasks":[{"task":"t1","queue":"orders-0","type":"purchase","orders":3,"state":"dead","attempts":20,"at":"2030-01-02T03:04:05.678Z",` +
		`"reason":"poison"},{"task":"x:t1","queue":"expiries-0","type":"expire","orders":1,"state":"delayed","attempts":0,"at":"2030-01-02T03:04:05.678Z"}],`
)

func TestOrderTimeline(t *testing.T) {
	t.Parallel()
	f := &fakeTimelines{timeline: someTimeline()}
	s := open(t, func(c *Config) { c.Timelines = f })
	w := s.get(t, timelinePath, "root", auth.RoleAdmin)
	if w.Code != 200 || w.Header().Get("Cache-Control") != "no-store" || len(f.asked) != 1 || f.asked[0] != someOrderID {
		t.Fatalf("%d %s, asked for %q", w.Code, w.Body, f.asked)
	}
	body := w.Body.String()
	for _, part := range []string{
		`{"order":{"id":"` + someOrderID + `","item_id":"thing"`, `"restocked":true,"payments":[{"id":41,`, wantEventsJSON, wantTasksJSON,
	} {
		if !strings.Contains(body, part) {
			t.Errorf("the answer lacks %s:\n%s", part, body)
		}
	}
	if !strings.HasSuffix(body, `],"truncated":true,"incomplete":true}`) {
		t.Errorf("the answer ends with %s", body[len(body)-60:])
	}

	// An order without payments and tasks.
	f.timeline.Payments, f.timeline.Tasks, f.timeline.Events = nil, nil, f.timeline.Events[:1]
	f.timeline.IdempotencyKey, f.timeline.RequestID, f.timeline.Truncated, f.timeline.Incomplete = "", "", false, false
	body = s.get(t, timelinePath, "root", auth.RoleAdmin).Body.String()
	want := `"payments":[]},"events":[` + someAt + `"requested","detail":{"quantity":2}}],"tasks":[],"truncated":false}`
	if !strings.HasSuffix(body, want) {
		t.Errorf("%s, want it to end with %s", body, want)
	}
}

func TestOrderTimeline_Refused(t *testing.T) {
	t.Parallel()
	f := &fakeTimelines{}
	s := open(t, func(c *Config) { c.Timelines = f })
	for err, want := range map[error]struct {
		status int
		code   string
	}{
		order.ErrNotFound:        {404, "order_not_found"},
		database.ErrUnavailable:  {503, "unavailable"},
		inventory.ErrUnavailable: {503, "unavailable"},
		inventory.ErrStopped:     {503, "sale_stopped"},
		database.ErrTooManyLists: {503, "overloaded"},
	} {
		f.err = fmt.Errorf("read timeline: %w", err)
		wantProblem(t, s.get(t, timelinePath, "root", auth.RoleAdmin).Result(), want.status, want.code)
	}
	for _, role := range []auth.Role{auth.RoleBuyer, auth.RoleService} {
		wantProblem(t, s.get(t, timelinePath, "alice", role).Result(), 403, "forbidden")
	}
	wantProblem(t, s.get(t, "/v1/admin/orders/7/timeline", "root", auth.RoleAdmin).Result(), 400, "id_invalid")
	wantProblem(t, open(t).get(t, timelinePath, "root", auth.RoleAdmin).Result(), 404, "route_not_found")
}
