package handler

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"flashsale/handler/strictjson"
	"flashsale/order"
	"flashsale/webhook"
)

// Webhooks is the administration of the endpoints that are told of events.
type Webhooks interface {
	WebhookEndpoints
	WebhookSecrets
	WebhookDeliveries
}

// WebhookEndpoints reads and changes endpoints. Errors: those of order.Webhooks.
type WebhookEndpoints interface {
	Endpoints(ctx context.Context) ([]order.Endpoint, error)
	Endpoint(ctx context.Context, id string) (order.Endpoint, error)
	ChangeEndpoint(ctx context.Context, id string, c order.EndpointChange, by order.By) (order.Endpoint, error)
	DeleteEndpoint(ctx context.Context, id string, by order.By) error
}

// WebhookSecrets makes secrets, which are shown this once. Errors: those of
// order.Webhooks.
type WebhookSecrets interface {
	CreateEndpoint(ctx context.Context, n order.NewEndpoint, by order.By) (e order.Endpoint, secret string, err error)
	RotateSecret(ctx context.Context, id string, by order.By) (e order.Endpoint, secret string, err error)
}

// WebhookDeliveries reads deliveries and asks for more. Errors: those of
// order.Webhooks.
type WebhookDeliveries interface {
	Deliveries(ctx context.Context, f order.DeliveryFilter) (list []order.Delivery, next int64, err error)
	TestEndpoint(ctx context.Context, id string, by order.By) (event string, err error)
	Redeliver(ctx context.Context, endpoint, event string, by order.By) error
}

// webhookRoutes adds the routes of the administration of webhooks.
func (e *edge) webhookRoutes(r gin.IRoutes, admin access) {
	const all, one = "/v1/admin/webhooks", "/v1/admin/webhooks/:webhook"
	e.get(r, all, admin, e.listWebhooks)
	e.post(r, all, admin, e.createWebhook)
	e.get(r, one, admin, e.getWebhook)
	r.PATCH(one, e.serve(one, admin, e.changeWebhook))
	r.DELETE(one, e.serve(one, admin, e.deleteWebhook))
	e.post(r, one+"/rotate", admin, e.rotateWebhook)
	e.post(r, one+"/test", admin, e.testWebhook)
	e.get(r, one+"/deliveries", admin, e.listDeliveries)
	e.post(r, one+"/deliveries/:event/redeliver", admin, e.redeliver)
}

// validWebhookID reports whether an id has a prefix and 32 hexadecimal digits.
func validWebhookID(id, prefix string) bool {
	digits, ok := strings.CutPrefix(id, prefix)
	return ok && len(digits) == 32 && strings.Trim(digits, hexDigits) == ""
}

// webhookID is the endpoint that the path names.
func (q *call) webhookID() (string, error) {
	id := q.c.Param("webhook")
	if !validWebhookID(id, "we_") {
		return "", problemWebhookID
	}
	return id, checkAccept(q.c.Request.Header)
}

// createWebhook answers POST /v1/admin/webhooks.
func (e *edge) createWebhook(q *call) error {
	f, err := q.webhookBody()
	if err != nil {
		return err
	}
	n := order.NewEndpoint{URL: f.text("url", true), Description: f.text("description", false)}
	events, given := f.events()
	if err := f.done(); err != nil {
		return err
	}
	if n.Events = order.EventTypes; given {
		if n.Events, err = readEvents(events); err != nil {
			return err
		}
	}
	if err := checkWebhookDescription(n.Description); err != nil {
		return err
	}
	made, secret, err := e.Webhooks.CreateEndpoint(q.ctx(), n, q.by())
	if err != nil {
		return webhookRefusal(err)
	}
	q.c.Writer.Header()["Location"] = []string{"/v1/admin/webhooks/" + made.ID}
	return q.webhook(201, &made, secret)
}

// webhookBody reads the body of a route that changes an endpoint.
func (q *call) webhookBody() (*fields, error) {
	h := q.c.Request.Header
	if err := checkContent(h); err != nil {
		return nil, err
	}
	if err := checkAccept(h); err != nil {
		return nil, err
	}
	if err := q.readBody(maxAdminBody); err != nil {
		return nil, err
	}
	return newFields(q.in), nil
}

// events is the member of that name.
func (f *fields) events() ([]string, bool) {
	const want = "an array of strings"
	v, given := f.take("events", strictjson.Array, false, want)
	if !given {
		return nil, false
	}
	var names []string
	if !v.Strings(func(text []byte) { names = append(names, string(text)) }) && f.badType == nil {
		f.badType = problemFieldType.with("events", "events must be "+want+".")
	}
	return names, true
}

// readEvents checks a list of events.
func readEvents(names []string) ([]order.EventType, error) {
	var events []order.EventType
	for _, name := range names {
		kind := order.EventType(name)
		switch {
		case !slices.Contains(order.EventTypes, kind):
			return nil, problemFieldRange.with("events", "events names an unknown one; known are "+knownEvents()+".")
		case slices.Contains(events, kind):
			return nil, problemFieldRange.with("events", "events names "+name+" twice; name each once.")
		}
		events = append(events, kind)
	}
	if len(events) == 0 {
		return nil, problemFieldRange.with("events", "events names at least one; leave it out for all.")
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
	return checkText("description", text, 0, maxName, false)
}

// webhookRefusal names the field of a URL that nothing may be sent to.
func webhookRefusal(err error) error {
	var refused *webhook.URLError
	if errors.As(err, &refused) {
		return problemFieldRange.with("url", refused.Detail)
	}
	return err
}

// listWebhooks answers GET /v1/admin/webhooks.
func (e *edge) listWebhooks(q *call) error {
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	if _, err := q.query(); err != nil {
		return err
	}
	list, err := e.Webhooks.Endpoints(q.ctx())
	if err != nil {
		return err
	}
	b := append(q.out[:0], `{"webhooks":[`...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendWebhook(b, &list[i]), '}')
	}
	q.out = append(b, `]}`...)
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.json(200)
}

// getWebhook answers GET /v1/admin/webhooks/{webhook}.
func (e *edge) getWebhook(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	one, err := e.Webhooks.Endpoint(q.ctx(), id)
	if err != nil {
		return err
	}
	return q.webhook(200, &one, "")
}

// changeWebhook answers PATCH /v1/admin/webhooks/{webhook}.
func (e *edge) changeWebhook(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	f, err := q.webhookBody()
	if err != nil {
		return err
	}
	var c order.EndpointChange
	if text := f.text("url", false); f.has("url") {
		c.URL = &text
	}
	if text := f.text("description", false); f.has("description") {
		c.Description = &text
	}
	if v, given := f.take("enabled", strictjson.Bool, false, "true or false"); given {
		enabled := v.Bool()
		c.Enabled = &enabled
	}
	events, given := f.events()
	if err := f.done(); err != nil {
		return err
	}
	if given {
		if c.Events, err = readEvents(events); err != nil {
			return err
		}
	}
	if c.Description != nil {
		if err := checkWebhookDescription(*c.Description); err != nil {
			return err
		}
	}
	one, err := e.Webhooks.ChangeEndpoint(q.ctx(), id, c, q.by())
	if err != nil {
		return webhookRefusal(err)
	}
	return q.webhook(200, &one, "")
}

// deleteWebhook answers DELETE /v1/admin/webhooks/{webhook}.
func (e *edge) deleteWebhook(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	if err := q.readNothing(); err != nil {
		return err
	}
	if err := e.Webhooks.DeleteEndpoint(q.ctx(), id, q.by()); err != nil {
		return err
	}
	q.c.Status(204)
	q.c.Writer.WriteHeaderNow()
	return nil
}

// rotateWebhook answers POST /v1/admin/webhooks/{webhook}/rotate.
func (e *edge) rotateWebhook(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	if err := q.readNothing(); err != nil {
		return err
	}
	one, secret, err := e.Webhooks.RotateSecret(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	return q.webhook(200, &one, secret)
}

// testWebhook answers POST /v1/admin/webhooks/{webhook}/test.
func (e *edge) testWebhook(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	if err := q.readNothing(); err != nil {
		return err
	}
	event, err := e.Webhooks.TestEndpoint(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	return q.event(event)
}

// redeliver answers POST /v1/admin/webhooks/{webhook}/deliveries/{event}/redeliver.
func (e *edge) redeliver(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	event := q.c.Param("event")
	if !validWebhookID(event, "msg_") {
		return problemEventID
	}
	if err := q.readNothing(); err != nil {
		return err
	}
	if err := e.Webhooks.Redeliver(q.ctx(), id, event, q.by()); err != nil {
		return err
	}
	return q.event(event)
}

// event answers that an event is on its way.
func (q *call) event(id string) error {
	q.out = append(appendTextField(q.out[:0], `{"event":`, id), '}')
	return q.json(202)
}

// listDeliveries answers GET /v1/admin/webhooks/{webhook}/deliveries.
func (e *edge) listDeliveries(q *call) error {
	id, err := q.webhookID()
	if err != nil {
		return err
	}
	f, err := e.readDeliveryFilter(q, id)
	if err != nil {
		return err
	}
	list, after, err := e.Webhooks.Deliveries(q.ctx(), f)
	if err != nil {
		return err
	}
	b := append(q.out[:0], `{"deliveries":[`...)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendDelivery(b, &list[i])
	}
	next := ""
	if after > 0 {
		next = e.deliveryCursor(f, after)
	}
	q.out = append(appendTextField(append(b, ']'), `,"next_cursor":`, next), '}')
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.json(200)
}

// readDeliveryFilter reads the query of a list of deliveries.
func (e *edge) readDeliveryFilter(q *call, id string) (order.DeliveryFilter, error) {
	f := order.DeliveryFilter{EndpointID: id, Limit: defaultPage}
	values, err := q.query("status", "limit", "cursor")
	if err != nil {
		return f, err
	}
	if values.Has("limit") {
		if f.Limit, err = readLimit(values.Get("limit")); err != nil {
			return f, err
		}
	}
	if values.Has("status") {
		switch s := order.DeliveryState(values.Get("status")); s {
		case order.DeliveryPending, order.DeliveryDelivered, order.DeliveryDead:
			f.State = s
		default:
			return f, problemParameter.with("status", "status is one of pending, delivered, dead.")
		}
	}
	if values.Has("cursor") {
		if f.Before = e.readDeliveryCursor(f, values.Get("cursor")); f.Before <= 0 {
			return f, problemCursor
		}
	}
	return f, nil
}

// deliveryCursor returns the cursor that goes on after a position: its number
// and a seal, which covers the filters as well.
func (e *edge) deliveryCursor(f order.DeliveryFilter, position int64) string {
	raw := binary.BigEndian.AppendUint64(nil, uint64(position))
	return cursorText.EncodeToString(append(raw, e.sealDeliveryCursor(f, raw)...))
}

// readDeliveryCursor returns the position in a cursor of these filters, or 0.
func (e *edge) readDeliveryCursor(f order.DeliveryFilter, cursor string) int64 {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) != 8+sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return 0
	}
	if !hmac.Equal(raw[8:], e.sealDeliveryCursor(f, raw[:8])) {
		return 0
	}
	return int64(binary.BigEndian.Uint64(raw))
}

func (e *edge) sealDeliveryCursor(f order.DeliveryFilter, position []byte) []byte {
	mac := hmac.New(sha256.New, e.CursorKey)
	mac.Write(position)
	// An order's cursor seals 16 bytes in this place and no such text.
	mac.Write([]byte("deliveries\x00" + f.EndpointID + "\x00" + string(f.State)))
	return mac.Sum(nil)[:sealLength]
}

// webhook writes one endpoint as the answer, with its secret when it is new.
func (q *call) webhook(status int, one *order.Endpoint, secret string) error {
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	b := appendWebhook(q.out[:0], one)
	q.out = append(appendTextIfSet(b, `,"secret":`, secret), '}')
	return q.json(status)
}

// appendWebhook appends an endpoint but for the brace at its end.
func appendWebhook(b []byte, one *order.Endpoint) []byte {
	b = appendTextField(b, `{"id":`, one.ID)
	b = appendTextField(b, `,"url":`, one.URL)
	b = appendTextField(b, `,"description":`, one.Description)
	b = append(b, `,"events":[`...)
	for i, kind := range one.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, string(kind))
	}
	b = append(b, `],"enabled":`...)
	if one.Enabled {
		b = append(b, `true`...)
	} else {
		b = append(b, `false`...)
	}
	b = appendTextIfSet(b, `,"disabled_reason":`, one.DisabledReason)
	b = appendTimeField(b, `,"created_at":`, one.CreatedAt)
	b = appendTimeField(b, `,"updated_at":`, one.UpdatedAt)
	return appendTimeIfSet(b, `,"old_secret_until":`, one.OldSecretUntil)
}

// appendDelivery appends one delivery.
func appendDelivery(b []byte, d *order.Delivery) []byte {
	b = appendTextField(b, `{"event":`, d.EventID)
	b = appendTextField(b, `,"type":`, string(d.Type))
	b = appendTextIfSet(b, `,"order_id":`, d.OrderID)
	b = appendTextIfSet(b, `,"item_id":`, d.ItemID)
	b = appendTextField(b, `,"status":`, string(d.State))
	b = appendIntField(b, `,"attempts":`, int64(d.Attempts))
	b = appendTimeField(b, `,"created_at":`, d.CreatedAt)
	b = appendTimeIfSet(b, `,"next_attempt_at":`, d.NextAt)
	b = appendTimeIfSet(b, `,"last_attempt_at":`, d.LastAt)
	if d.LastStatus != 0 {
		b = appendIntField(b, `,"last_status":`, int64(d.LastStatus))
	}
	b = appendTextIfSet(b, `,"last_error":`, d.LastError)
	b = appendTimeIfSet(b, `,"delivered_at":`, d.DeliveredAt)
	return append(b, '}')
}
