package handler

import (
	"context"

	"flashsale/handler/encode"
	"flashsale/order/timeline"
)

// timelineService gathers what is recorded about an order.
type timelineService interface {
	// Timeline returns the timeline of an order. Errors: those of timeline.Service.Timeline.
	Timeline(ctx context.Context, id string) (timeline.Timeline, error)
}

// timelineRoutes show the timelines of orders.
type timelineRoutes struct{ timelines timelineService }

// show answers GET /v1/admin/orders/{order}/timeline.
func (rs *timelineRoutes) show(q *call) error {
	t, err := rs.timelines.Timeline(q.ctx(), q.c.Param("order"))
	if err != nil {
		return err
	}
	b := appendOrder(append(q.out[:0], `{"order":`...), &t.Order)
	b = append(appendPayments(append(b[:len(b)-1], `,"payments":`...), t.Payments), `},"events":[`...)
	b = encode.List(b, t.Events, func(b []byte, e *timeline.Event) []byte { return appendTimelineEvent(b, &t, e) })
	b = encode.List(append(b, `],"tasks":[`...), t.Tasks, appendTimelineTask)
	b = encode.BoolField(append(b, ']'), `,"truncated":`, t.Truncated)
	if t.Incomplete {
		b = append(b, `,"incomplete":true`...)
	}
	q.out = append(b, '}')
	return q.json(200)
}

func appendTimelineEvent(b []byte, t *timeline.Timeline, e *timeline.Event) []byte {
	b = encode.TimeField(b, `{"at":`, e.At)
	b = encode.TextField(b, `,"kind":`, string(e.Kind))
	return append(appendTimelineDetail(append(b, `,"detail":`...), t, e), '}')
}

// appendTimelineDetail appends the facts of an event.
func appendTimelineDetail(b []byte, t *timeline.Timeline, e *timeline.Event) []byte {
	o := &t.Order
	switch e.Kind {
	case timeline.KindRequested:
		b = encode.IntField(b, `{"quantity":`, o.Quantity)
		b = encode.TextIfSet(b, `,"idempotency_key":`, t.IdempotencyKey)
		b = encode.TextIfSet(b, `,"request_id":`, t.RequestID)
	case timeline.KindQueued:
		b = encode.TextField(b, `{"task":`, e.Task.ID)
		b = encode.TextField(b, `,"queue":`, e.Task.Queue)
	case timeline.KindDeadLetter:
		b = encode.TextField(b, `{"task":`, e.Task.ID)
		b = encode.TextField(b, `,"queue":`, e.Task.Queue)
		b = encode.IntField(b, `,"attempts":`, int64(e.Task.Attempts))
		b = encode.TextIfSet(b, `,"reason":`, e.Task.Reason)
	case timeline.KindCommitted:
		b = encode.IntField(b, `{"latency_ms":`, e.Latency.Milliseconds())
		b = encode.TimeIfSet(b, `,"expires_at":`, o.ExpiresAt)
	case timeline.KindRejected:
		b = encode.TextField(b, `{"reason":`, o.Reason)
		b = encode.IntField(b, `,"latency_ms":`, e.Latency.Milliseconds())
	case timeline.KindCancelled, timeline.KindExpired:
		b = encode.TextField(b, `{"reason":`, o.Reason)
	case timeline.KindPayment, timeline.KindPaymentRefunded:
		return appendTimelinePayment(b, e)
	case timeline.KindPaid:
		b = encode.TextField(b, `{"reference":`, o.PaymentReference)
	case timeline.KindRefunded:
		b = encode.BoolField(b, `{"restocked":`, o.Restocked)
	case timeline.KindRelease:
		b = encode.IntField(b, `{"quantity":`, o.Quantity)
		b = encode.TextField(b, `,"state":`, releaseState(e.Pending))
	case timeline.KindAudit:
		return appendTimelineAudit(b, e)
	case timeline.KindWebhook:
		return appendTimelineDelivery(b, e.Delivery)
	}
	return append(b, '}')
}

func releaseState(pending bool) string {
	if pending {
		return "pending"
	}
	return "returned"
}

func appendTimelinePayment(b []byte, e *timeline.Event) []byte {
	p := e.Payment
	b = encode.IntField(b, `{"payment_id":`, p.ID)
	b = encode.TextField(b, `,"reference":`, p.Reference)
	b = encode.IntField(b, `,"amount_minor":`, p.AmountMinor)
	b = encode.TextField(b, `,"currency":`, p.Currency)
	if e.Kind == timeline.KindPayment {
		b = encode.TextField(b, `,"received_as":`, string(p.ReceivedAs))
		b = encode.TextField(b, `,"outcome":`, string(p.Outcome))
	}
	return append(b, '}')
}

func appendTimelineAudit(b []byte, e *timeline.Event) []byte {
	a := e.Audit
	b = encode.IntField(b, `{"entry_id":`, a.ID)
	b = encode.TextField(b, `,"actor":`, a.Actor)
	b = encode.TextField(b, `,"action":`, a.Action)
	b = appendJSONIfSet(b, `,"before":`, a.Before)
	b = appendJSONIfSet(b, `,"after":`, a.After)
	return append(encode.TextIfSet(b, `,"request_id":`, a.RequestID), '}')
}

func appendTimelineDelivery(b []byte, d *timeline.Delivery) []byte {
	b = encode.TextField(b, `{"webhook":`, d.EndpointID)
	b = encode.TextField(b, `,"event":`, d.EventID)
	b = encode.TextField(b, `,"type":`, string(d.Type))
	b = encode.TextField(b, `,"status":`, d.Status)
	b = encode.IntField(b, `,"attempts":`, int64(d.Attempts))
	b = encode.TimeIfSet(b, `,"next_attempt_at":`, d.NextAt)
	b = encode.TimeIfSet(b, `,"last_attempt_at":`, d.LastAt)
	if d.LastStatus > 0 {
		b = encode.IntField(b, `,"last_status":`, int64(d.LastStatus))
	}
	b = encode.TextIfSet(b, `,"last_error":`, d.LastError)
	return append(encode.TimeIfSet(b, `,"delivered_at":`, d.DeliveredAt), '}')
}

func appendTimelineTask(b []byte, t *timeline.Task) []byte {
	b = encode.TextField(b, `{"task":`, t.ID)
	b = encode.TextField(b, `,"queue":`, t.Queue)
	b = encode.TextField(b, `,"type":`, string(t.Type))
	b = encode.IntField(b, `,"orders":`, int64(t.Orders))
	b = encode.TextField(b, `,"state":`, string(t.State))
	b = encode.IntField(b, `,"attempts":`, int64(t.Attempts))
	b = encode.TimeField(b, `,"at":`, t.At)
	return append(encode.TextIfSet(b, `,"reason":`, t.Reason), '}')
}
