package handler

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"flashsale/handler/auth"
	"flashsale/order"
)

// Feed follows orders as they change.
type Feed interface {
	// Follow begins to follow an order. buyer is whose stream it is, empty for the
	// shop's own. next waits for a change and returns the order as it stands, which
	// may be as it stood before; its errors end the stream. stop has to be called.
	// Errors: those of order.Feed.Follow.
	Follow(id, buyer string) (next func(ctx context.Context) (order.Order, error), stop func(), err error)
}

// The pause after which a client comes back when its stream has ended. It is
// chosen for each stream, so that the clients of a process that ends do not come
// to the next one all at once.
const (
	reconnectMin = 1000 * time.Millisecond
	reconnectMax = 3000 * time.Millisecond
)

var contentEvents = []string{"text/event-stream"}

// orderEvents answers GET /v1/orders/{order}/events: the order's changes as
// server-sent events, until none is to be expected.
func (e *edge) orderEvents(q *call) error {
	id := q.c.Param("order")
	if !validOrderID(id) {
		return problemOrderID
	}
	h := q.c.Request.Header
	if err := checkAcceptEvents(h); err != nil {
		return err
	}
	if err := e.limit(q); err != nil {
		return err
	}
	seen, resumes, err := lastEventID(h)
	if err != nil {
		return err
	}
	buyer := ""
	if q.who.Role == auth.RoleBuyer {
		buyer = q.who.Subject
	}
	// Followed first and read then, so that no change falls between the two.
	next, stop, err := e.Feed.Follow(id, buyer)
	if err != nil {
		return err
	}
	defer stop()
	o, err := e.Orders.Get(q.ctx(), id)
	if err != nil {
		return err
	}
	if buyer != "" && o.UserID != buyer {
		return order.ErrNotFound
	}
	if !resumes {
		seen = o.Place() - 1 // who is new is told how it stands, not how it came to that
	}
	// What is not there yet nobody has seen.
	seen = min(seen, o.Place())
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	if o.Settled() && seen == o.Place() {
		// That ends it: a client that is told 204 does not come again.
		q.c.Writer.WriteHeader(http.StatusNoContent)
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	s := e.newStream(q, seen)
	if q.c.Request.Method == http.MethodHead {
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	e.metrics.streams.Inc()
	defer e.metrics.streams.Dec()
	ctx, cancel := context.WithTimeout(q.ctx(), e.streamLife(q))
	defer cancel()
	s.run(ctx, &o, next)
	return nil
}

// streamLife is how long a stream may last: no longer than its token is good.
func (e *edge) streamLife(q *call) time.Duration {
	if q.who.Expires.IsZero() {
		return e.StreamLife
	}
	return min(e.StreamLife, q.who.Expires.Sub(e.Now()))
}

// lastEventID reads the number of the last event that a client has seen, and
// whether it has seen any.
func lastEventID(h http.Header) (number int, seen bool, err error) {
	value, present, err := single(h, "Last-Event-Id")
	if err != nil || !present || value == "" {
		return 0, false, err
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, false, problemLastEventID
	}
	return int(n), true, nil
}

// checkAcceptEvents refuses a client that would not take a stream of events.
func checkAcceptEvents(h http.Header) error {
	values := h["Accept"]
	if len(values) == 0 || accepts(strings.Join(values, ","), "text/event-stream", "text/*") {
		return nil
	}
	return problemEventsNotAcceptable
}

// eventStream writes the events of one order.
type eventStream struct {
	e    *edge
	q    *call
	raw  *http.ResponseController
	seen int // the number of the last event that was written
}

// newStream sets the headers of a stream.
func (e *edge) newStream(q *call, seen int) *eventStream {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentEvents
	h["X-Accel-Buffering"] = []string{"no"} // a proxy that gathers would hold events back
	var w http.ResponseWriter = q.c.Writer
	if wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
		w = wrapped.Unwrap() // whose flush says what went wrong
	}
	return &eventStream{e: e, q: q, raw: http.NewResponseController(w), seen: seen}
}

// run writes what is new of the order, and then each change, until none is to be
// expected, the client is gone or too slow, or ctx ends.
func (s *eventStream) run(ctx context.Context, o *order.Order, next func(ctx context.Context) (order.Order, error)) {
	pause := reconnectMin + rand.N(reconnectMax-reconnectMin)
	s.q.out = appendIntField(s.q.out[:0], "retry: ", pause.Milliseconds())
	s.q.out = append(s.q.out, "\n\n"...)
	for now := *o; ; {
		s.append(&now)
		if len(s.q.out) > 0 && s.flush() != nil || now.Settled() {
			return
		}
		var err error
		if now, err = s.wait(ctx, next); err != nil {
			return
		}
	}
}

// append adds the events that were not written yet.
func (s *eventStream) append(o *order.Order) {
	for _, event := range o.EventsAfter(s.seen) {
		b := appendIntField(s.q.out, "id: ", int64(event.Number))
		b = append(b, "\nevent: order\ndata: "...)
		b = appendOrder(b, &event.Order) // which has no line breaks
		s.q.out = append(b, "\n\n"...)
		s.seen = event.Number
		s.e.metrics.events.Inc()
	}
}

// wait waits for a change, and gives signs of life meanwhile: by them proxies
// leave the connection open, and a client that is gone is noticed.
func (s *eventStream) wait(ctx context.Context, next func(ctx context.Context) (order.Order, error)) (order.Order, error) {
	for {
		beat, cancel := context.WithTimeout(ctx, s.e.Heartbeat)
		o, err := next(beat)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return o, err
		}
		s.q.out = append(s.q.out[:0], ": \n\n"...)
		if err := s.flush(); err != nil {
			return order.Order{}, err
		}
	}
}

// flush sends what was appended. The limit replaces the server's own, which is
// for whole answers.
func (s *eventStream) flush() error {
	// The connection's limits are of the real clock.
	err := s.raw.SetWriteDeadline(time.Now().Add(s.e.StreamStall))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err = s.q.c.Writer.Write(s.q.out)
	s.q.out = s.q.out[:0]
	if err != nil {
		return err
	}
	return s.raw.Flush()
}
