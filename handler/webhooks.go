package handler

import (
	"context"
	"errors"
	"slices"
	"strings"

	"flashsale/handler/encode"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/webhooks"
	"flashsale/webhook"
)

// Webhooks administrates the endpoints that receive events. Errors: those of
// webhooks.Admin.
type Webhooks interface {
	Endpoints(ctx context.Context) ([]webhooks.Endpoint, error)
	Endpoint(ctx context.Context, id string) (webhooks.Endpoint, error)
	// CreateEndpoint and RotateSecret return the new secret, which is only shown once.
	CreateEndpoint(ctx context.Context, n webhooks.NewEndpoint, by order.By) (e webhooks.Endpoint, secret string, err error)
	RotateSecret(ctx context.Context, id string, by order.By) (e webhooks.Endpoint, secret string, err error)
	ChangeEndpoint(ctx context.Context, id string, c webhooks.EndpointChange, by order.By) (webhooks.Endpoint, error)
	DeleteEndpoint(ctx context.Context, id string, by order.By) error
	// TestEndpoint returns the id of the event that it sends.
	TestEndpoint(ctx context.Context, id string, by order.By) (event string, err error)
	// Deliveries returns a page of deliveries and the number at which the next one begins.
	Deliveries(ctx context.Context, f webhooks.DeliveryFilter) (list []webhooks.Delivery, next int64, err error)
	Redeliver(ctx context.Context, endpoint, event string, by order.By) error
}

// webhookRoutes manage webhooks.
type webhookRoutes struct {
	webhooks Webhooks
	cursors  sealer
}

func validEndpointID(id string) bool { return validWebhookID(id, "we_") }
func validEventID(id string) bool    { return validWebhookID(id, "msg_") }

// validWebhookID reports whether an id has a prefix and 32 hexadecimal digits.
func validWebhookID(id, prefix string) bool {
	digits, ok := strings.CutPrefix(id, prefix)
	return ok && len(digits) == 32 && strings.Trim(digits, "0123456789abcdef") == ""
}

// create answers POST /v1/admin/webhooks.
func (rs *webhookRoutes) create(q *call) error {
	f := request.ReadFields(q.in)
	n := webhooks.NewEndpoint{URL: f.Text("url", true), Description: f.Text("description", false)}
	events, given := f.Strings("events")
	if err := f.Done(); err != nil {
		return err
	}
	if n.Events = order.EventTypes; given {
		var err error
		if n.Events, err = readEvents(events); err != nil {
			return err
		}
	}
	if err := checkWebhookDescription(n.Description); err != nil {
		return err
	}
	made, secret, err := rs.webhooks.CreateEndpoint(q.ctx(), n, q.by())
	if err != nil {
		return webhookRefusal(err)
	}
	q.c.Writer.Header()["Location"] = []string{"/v1/admin/webhooks/" + made.ID}
	return writeWebhook(q, 201, &made, secret)
}

// readEvents checks a list of events.
func readEvents(names []string) ([]order.EventType, error) {
	var events []order.EventType
	for _, name := range names {
		kind := order.EventType(name)
		switch {
		case !slices.Contains(order.EventTypes, kind):
			return nil, request.ErrFieldRange.With("events", "events names an unknown one; known are "+knownEvents()+".")
		case slices.Contains(events, kind):
			return nil, request.ErrFieldRange.With("events", "events names "+name+" twice; name each once.")
		}
		events = append(events, kind)
	}
	if len(events) == 0 {
		return nil, request.ErrFieldRange.With("events", "events names at least one; leave it out for all.")
	}
	return events, nil
}

func knownEvents() string {
	names := make([]string, len(order.EventTypes))
	for i, kind := range order.EventTypes {
		names[i] = string(kind)
	}
	return strings.Join(names, ", ")
}

func checkWebhookDescription(text string) error {
	return request.CheckText("description", text, 0, maxName, false)
}

// webhookRefusal names the field of a URL that is not allowed.
func webhookRefusal(err error) error {
	var refused *webhook.URLError
	if errors.As(err, &refused) {
		return request.ErrFieldRange.With("url", refused.Detail)
	}
	return err
}

// list answers GET /v1/admin/webhooks.
func (rs *webhookRoutes) list(q *call) error {
	list, err := rs.webhooks.Endpoints(q.ctx())
	if err != nil {
		return err
	}
	b := encode.List(append(q.out[:0], `{"webhooks":[`...), list, func(b []byte, one *webhooks.Endpoint) []byte {
		return append(appendWebhook(b, one), '}')
	})
	q.out = append(b, `]}`...)
	return q.json(200)
}

// get answers GET /v1/admin/webhooks/{webhook}.
func (rs *webhookRoutes) get(q *call) error {
	id := q.c.Param("webhook")
	one, err := rs.webhooks.Endpoint(q.ctx(), id)
	if err != nil {
		return err
	}
	return writeWebhook(q, 200, &one, "")
}

// change answers PATCH /v1/admin/webhooks/{webhook}.
func (rs *webhookRoutes) change(q *call) error {
	id := q.c.Param("webhook")
	f := request.ReadFields(q.in)
	var c webhooks.EndpointChange
	if text := f.Text("url", false); f.Has("url") {
		c.URL = &text
	}
	if text := f.Text("description", false); f.Has("description") {
		c.Description = &text
	}
	if enabled, given := f.Bool("enabled", false); given {
		c.Enabled = &enabled
	}
	events, given := f.Strings("events")
	if err := f.Done(); err != nil {
		return err
	}
	if given {
		var err error
		if c.Events, err = readEvents(events); err != nil {
			return err
		}
	}
	if c.Description != nil {
		if err := checkWebhookDescription(*c.Description); err != nil {
			return err
		}
	}
	one, err := rs.webhooks.ChangeEndpoint(q.ctx(), id, c, q.by())
	if err != nil {
		return webhookRefusal(err)
	}
	return writeWebhook(q, 200, &one, "")
}

// delete answers DELETE /v1/admin/webhooks/{webhook}.
func (rs *webhookRoutes) delete(q *call) error {
	id := q.c.Param("webhook")
	if err := rs.webhooks.DeleteEndpoint(q.ctx(), id, q.by()); err != nil {
		return err
	}
	q.c.Status(204)
	q.c.Writer.WriteHeaderNow()
	return nil
}

// rotate answers POST /v1/admin/webhooks/{webhook}/rotate.
func (rs *webhookRoutes) rotate(q *call) error {
	id := q.c.Param("webhook")
	one, secret, err := rs.webhooks.RotateSecret(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	return writeWebhook(q, 200, &one, secret)
}

// test answers POST /v1/admin/webhooks/{webhook}/test.
func (rs *webhookRoutes) test(q *call) error {
	id := q.c.Param("webhook")
	event, err := rs.webhooks.TestEndpoint(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	return writeEvent(q, event)
}

// redeliver answers POST /v1/admin/webhooks/{webhook}/deliveries/{event}/redeliver.
func (rs *webhookRoutes) redeliver(q *call) error {
	id := q.c.Param("webhook")
	event := q.c.Param("event")
	if err := rs.webhooks.Redeliver(q.ctx(), id, event, q.by()); err != nil {
		return err
	}
	return writeEvent(q, event)
}

// writeEvent answers that an event will be sent.
func writeEvent(q *call, id string) error {
	q.out = append(encode.TextField(q.out[:0], `{"event":`, id), '}')
	return q.json(202)
}

// deliveries answers GET /v1/admin/webhooks/{webhook}/deliveries.
func (rs *webhookRoutes) deliveries(q *call) error {
	id := q.c.Param("webhook")
	f, err := rs.readFilter(q, id)
	if err != nil {
		return err
	}
	list, after, err := rs.webhooks.Deliveries(q.ctx(), f)
	if err != nil {
		return err
	}
	b := encode.List(append(q.out[:0], `{"deliveries":[`...), list, appendDelivery)
	next := rs.cursors.after(after, after > 0, deliveryList(f))
	q.out = append(encode.TextField(b, `],"next_cursor":`, next), '}')
	return q.json(200)
}

var deliveryStates = []webhooks.DeliveryState{webhooks.DeliveryPending, webhooks.DeliveryDelivered, webhooks.DeliveryDead}

func (rs *webhookRoutes) readFilter(q *call, id string) (f webhooks.DeliveryFilter, err error) {
	f.EndpointID = id
	if f.Limit, err = q.query.Limit(); err != nil {
		return f, err
	}
	if f.State, err = request.Choice(q.query, "status", deliveryStates); err != nil {
		return f, err
	}
	f.Before, err = rs.cursors.before(q.query, deliveryList(f))
	return f, err
}

// writeWebhook writes one endpoint as the answer, with its secret if it is new.
func writeWebhook(q *call, status int, one *webhooks.Endpoint, secret string) error {
	b := appendWebhook(q.out[:0], one)
	q.out = append(encode.TextIfSet(b, `,"secret":`, secret), '}')
	return q.json(status)
}

// appendWebhook appends an endpoint without its closing brace.
func appendWebhook(b []byte, one *webhooks.Endpoint) []byte {
	b = encode.TextField(b, `{"id":`, one.ID)
	b = encode.TextField(b, `,"url":`, one.URL)
	b = encode.TextField(b, `,"description":`, one.Description)
	b = append(b, `,"events":[`...)
	for i, kind := range one.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = encode.String(b, string(kind))
	}
	b = encode.BoolField(b, `],"enabled":`, one.Enabled)
	b = encode.TextIfSet(b, `,"disabled_reason":`, one.DisabledReason)
	b = encode.TimeField(b, `,"created_at":`, one.CreatedAt)
	b = encode.TimeField(b, `,"updated_at":`, one.UpdatedAt)
	return encode.TimeIfSet(b, `,"old_secret_until":`, one.OldSecretUntil)
}

// appendDelivery appends one delivery.
func appendDelivery(b []byte, d *webhooks.Delivery) []byte {
	b = encode.TextField(b, `{"event":`, d.EventID)
	b = encode.TextField(b, `,"type":`, string(d.Type))
	b = encode.TextIfSet(b, `,"order_id":`, d.OrderID)
	b = encode.TextIfSet(b, `,"item_id":`, d.ItemID)
	b = encode.TextField(b, `,"status":`, string(d.State))
	b = encode.IntField(b, `,"attempts":`, int64(d.Attempts))
	b = encode.TimeField(b, `,"created_at":`, d.CreatedAt)
	b = encode.TimeIfSet(b, `,"next_attempt_at":`, d.NextAt)
	b = encode.TimeIfSet(b, `,"last_attempt_at":`, d.LastAt)
	if d.LastStatus != 0 {
		b = encode.IntField(b, `,"last_status":`, int64(d.LastStatus))
	}
	b = encode.TextIfSet(b, `,"last_error":`, d.LastError)
	b = encode.TimeIfSet(b, `,"delivered_at":`, d.DeliveredAt)
	return append(b, '}')
}
