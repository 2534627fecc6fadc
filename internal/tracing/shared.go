package tracing

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Shared is work that a batch of purchases shares. It has a span in a trace of its own for the
// whole, and a span in the trace of each sampled purchase, its part. The whole is linked to its
// parts and each part to the whole.
type Shared struct {
	whole trace.Span
	self  *Parent
	parts []trace.Span
}

// Part is a sampled purchase of a batch.
type Part struct {
	Parent *Parent
	From   time.Time // when its part begins
	// OrderID is known from the batch on.
	OrderID string
}

// Share begins the spans of a batch of several orders, of which those of parts, at least one, are sampled.
func Share(whole, part, item string, orders int, from time.Time, parts []Part) *Shared {
	s := &Shared{parts: make([]trace.Span, len(parts))}
	links := make([]trace.Link, len(parts))
	for i, p := range parts {
		s.parts[i] = p.Parent.start(part, p.From, trace.WithAttributes(keyOrderID.String(p.OrderID)))
		links[i].SpanContext = s.parts[i].SpanContext()
	}
	t := parts[0].Parent.tracer
	attributes := []attribute.KeyValue{keyOrders.Int(orders), keySampled.Int(len(parts))}
	if item != "" {
		attributes = append(attributes, keyItemID.String(item))
	}
	_, s.whole = t.spans.Start(t.base, whole, trace.WithNewRoot(), trace.WithTimestamp(from),
		trace.WithLinks(links...), trace.WithAttributes(attributes...))
	s.self = &Parent{t, s.whole.SpanContext()}
	for _, p := range s.parts {
		p.AddLink(trace.Link{SpanContext: s.whole.SpanContext()})
	}
	return s
}

// Step records a step of the batch, below the whole and below each part. err is why it failed.
func (s *Shared) Step(name string, from, to time.Time, err error) {
	s.step(s.self, name, from, to, err)
	for _, p := range s.parts {
		s.step(s.self.child(p), name, from, to, err)
	}
}

func (s *Shared) step(parent *Parent, name string, from, to time.Time, err error) {
	span := parent.start(name, from, trace.WithSpanKind(trace.SpanKindClient))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(to))
}

// Fail notes why one part has failed.
func (s *Shared) Fail(part int, reason string) {
	s.parts[part].SetAttributes(keyProblem.String(reason))
	s.parts[part].SetStatus(codes.Error, reason)
}

// End ends all spans.
func (s *Shared) End(at time.Time) {
	for _, p := range s.parts {
		p.End(trace.WithTimestamp(at))
	}
	s.whole.End(trace.WithTimestamp(at))
}
