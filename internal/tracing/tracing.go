// Package tracing makes the spans of sampled purchases. A purchase that is not sampled has a nil
// *Request, and callers make no span for it.
//
// The spans of a purchase are made by several goroutines and processes, often after the fact
// and with their times, so what they share is a [Parent] and not a context.Context.
package tracing

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Names of attributes. Spans have no personal data: no buyer, client address or idempotency key.
const (
	keyMethod    = attribute.Key("http.request.method")
	keyRoute     = attribute.Key("http.route")
	keyStatus    = attribute.Key("http.response.status_code")
	keyRequestID = attribute.Key("flashsale.request_id")
	keyOrderID   = attribute.Key("flashsale.order_id")
	keyItemID    = attribute.Key("flashsale.item_id")
	keyQuantity  = attribute.Key("flashsale.quantity")
	keyProblem   = attribute.Key("flashsale.problem")
	keyOrders    = attribute.Key("flashsale.orders")
	keySampled   = attribute.Key("flashsale.orders_sampled")
)

// Scope names the instrumentation in the spans.
const Scope = "flashsale"

// ErrRatio says that a ratio is out of range.
var ErrRatio = errors.New("tracing: the ratio must be 0 to 1")

// Tracer samples purchases and makes their spans.
type Tracer struct {
	base  context.Context // of spans without a parent
	spans trace.Tracer
	limit uint64 // a purchase whose draw of 63 bits is below it is sampled
	draw  func() uint64
}

// New returns a Tracer that samples this part of the purchases, 0 to 1. The provider must record
// every span that it is asked for. Errors: ErrRatio.
func New(ctx context.Context, provider trace.TracerProvider, ratio float64) (*Tracer, error) {
	if !(ratio >= 0 && ratio <= 1) {
		return nil, ErrRatio
	}
	return &Tracer{
		base: context.WithoutCancel(ctx), spans: provider.Tracer(Scope),
		limit: uint64(ratio * (1 << 63)), draw: rand.Uint64,
	}, nil
}

// Request is the server span of a sampled purchase. It belongs to the request's goroutine.
type Request struct {
	parent Parent
	span   trace.Span
}

// Request decides whether a request is sampled, and begins its span; nil: it is not. A valid
// traceparent gives the trace and the parent; its flag cannot make a request sampled, but
// without the flag the request is not sampled.
func (t *Tracer) Request(r *http.Request, route, requestID string, at time.Time) *Request {
	if t.draw()>>1 >= t.limit {
		return nil
	}
	ctx := t.base
	if own := r.Header["Traceparent"]; len(own) == 1 {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": own[0]})
		if parent := trace.SpanContextFromContext(ctx); parent.IsValid() && !parent.IsSampled() {
			return nil
		}
	}
	_, span := t.spans.Start(ctx, r.Method+" "+route, trace.WithTimestamp(at), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(keyMethod.String(r.Method), keyRoute.String(route), keyRequestID.String(requestID)))
	return &Request{parent: Parent{t, span.SpanContext()}, span: span}
}

// Parent is the parent of the purchase's other spans; nil for a request that is not sampled.
func (q *Request) Parent() *Parent {
	if q == nil {
		return nil
	}
	return &q.parent
}

// Purchase notes what is bought.
func (q *Request) Purchase(item string, quantity int64) {
	q.span.SetAttributes(keyItemID.String(item), keyQuantity.Int64(quantity))
}

// Placed notes the order.
func (q *Request) Placed(orderID string) { q.span.SetAttributes(keyOrderID.String(orderID)) }

// Refused notes the code of a refusal or an error.
func (q *Request) Refused(code string) {
	q.span.SetAttributes(keyProblem.String(code))
	q.span.SetStatus(codes.Error, code)
}

// TraceID identifies the trace in the log.
func (q *Request) TraceID() string { return q.parent.of.TraceID().String() }

// End ends the span when the answer is complete.
func (q *Request) End(status int, at time.Time) {
	q.span.SetAttributes(keyStatus.Int(status))
	q.span.End(trace.WithTimestamp(at))
}

// Parent is the span of a sampled purchase, as the parent of spans that other goroutines and
// processes make.
type Parent struct {
	tracer *Tracer
	of     trace.SpanContext
}

// textSize is the length of Parent.String.
const textSize = 2 * (len(trace.TraceID{}) + len(trace.SpanID{}))

// String is the parent as Tracer.Parse reads it: 48 hexadecimal digits.
func (p *Parent) String() string { return p.of.TraceID().String() + p.of.SpanID().String() }

// Parse reads what Parent.String has written, in any process; nil if it cannot be read.
func (t *Tracer) Parse(text string) *Parent {
	var raw [textSize / 2]byte
	if len(text) != textSize {
		return nil
	}
	if _, err := hex.Decode(raw[:], []byte(text)); err != nil {
		return nil
	}
	of := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
	copy(of.SpanID[:], raw[copy(of.TraceID[:], raw[:]):])
	p := &Parent{t, trace.NewSpanContext(of)}
	if !p.of.IsValid() {
		return nil
	}
	return p
}

// start begins a child.
func (p *Parent) start(name string, from time.Time, options ...trace.SpanStartOption) trace.Span {
	ctx := trace.ContextWithSpanContext(p.tracer.base, p.of)
	_, span := p.tracer.spans.Start(ctx, name, append(options, trace.WithTimestamp(from))...)
	return span
}

// Record makes a child that has ended. from may be by another clock: a child never begins after its end.
func (p *Parent) Record(name string, from, to time.Time) {
	if from.After(to) {
		from = to
	}
	p.start(name, from).End(trace.WithTimestamp(to))
}

// Fail makes a child that has ended with an error.
func (p *Parent) Fail(name, orderID string, from, to time.Time, err error) {
	span := p.start(name, from, trace.WithAttributes(keyOrderID.String(orderID)))
	span.SetStatus(codes.Error, err.Error())
	span.End(trace.WithTimestamp(to))
}

// child returns a span as a parent.
func (p *Parent) child(span trace.Span) *Parent { return &Parent{p.tracer, span.SpanContext()} }
