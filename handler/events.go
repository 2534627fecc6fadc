package handler

import (
	"net/http"
	"strconv"

	"flashsale/handler/auth"
	"flashsale/handler/encode"
	"flashsale/handler/metrics"
	"flashsale/handler/request"
	"flashsale/order"
)

// orderFeed notifies of changes of orders.
type orderFeed interface {
	// Follow begins to follow an order. buyer is the owner of the stream, empty for
	// admins and services. wake is called when look has something to return. look returns the
	// current order if it has changed, else nil; its errors end the stream. stop
	// has to be called. Errors: those of feed.Feed.Follow.
	Follow(id, buyer string, wake func()) (look func() (*order.Order, error), stop func(), err error)
}

// streamRoutes send the changes of orders as server-sent events.
type streamRoutes struct {
	streams
	orders orderReader
}

// follow answers GET /v1/orders/{order}/events: the order's changes as server-sent events,
// until no more are expected.
func (rs *streamRoutes) follow(q *call) error {
	id := q.c.Param("order")
	seen, resumes, err := lastEventID(q.c.Request.Header)
	if err != nil {
		return err
	}
	buyer := ""
	if q.identity.Role == auth.RoleBuyer {
		buyer = q.identity.Subject
	}
	// Follow before reading, so that no change between the two is missed.
	source := &orderEvents{metrics: rs.metrics}
	s := &eventStream{rs: &rs.streams, source: source}
	if source.look, source.stop, err = rs.Feed.Follow(id, buyer, s.wake); err != nil {
		rs.metrics.StreamRefused(err)
		// Close the connection, because its descriptor is needed elsewhere while the client
		// waits before it retries.
		q.c.Writer.Header()["Connection"] = headerClose
		return err
	}
	detached := false
	defer func() {
		if !detached {
			source.stop()
		}
	}()
	o, err := rs.orders.Get(q.ctx(), id)
	if err != nil {
		return err
	}
	if buyer != "" && o.UserID != buyer {
		return order.ErrNotFound
	}
	if !resumes {
		seen = o.Place() - 1 // a new client gets the current state, not the previous ones
	}
	// A client cannot have seen an event that does not exist yet.
	source.seen = min(seen, o.Place())
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	if o.Settled() && source.seen == o.Place() {
		// A browser's EventSource does not reconnect after 204.
		q.c.Writer.WriteHeader(http.StatusNoContent)
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	detached = s.begin(q, !o.Settled(), func(b []byte) []byte { return source.append(b, &o) })
	return nil
}

// lastEventID returns the number of the last event that a client has seen, and whether it has
// seen any.
func lastEventID(h http.Header) (number int, seen bool, err error) {
	value, present, err := request.Single(h, "Last-Event-Id")
	if err != nil || !present || value == "" {
		return 0, false, err
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, false, problemLastEventID
	}
	return int(n), true, nil
}

// orderEvents are the events of one order.
type orderEvents struct {
	metrics *metrics.Metrics
	look    func() (*order.Order, error)
	stop    func()
	seen    int // the number of the last event sent
}

// next appends the changes until the order's last one, or until the feed ends.
func (s *orderEvents) next(b []byte) (_ []byte, more bool) {
	for {
		o, err := s.look()
		switch {
		case err != nil:
			return b, false
		case o == nil:
			return b, true
		}
		if b = s.append(b, o); o.Settled() {
			return b, false
		}
	}
}

// append appends the events that have not been sent yet.
func (s *orderEvents) append(b []byte, o *order.Order) []byte {
	for _, event := range o.EventsAfter(s.seen) {
		b = encode.IntField(b, "id: ", int64(event.Number))
		b = append(b, "\nevent: order\ndata: "...)
		b = appendOrder(b, &event.Order) // which has no line breaks
		b = append(b, "\n\n"...)
		s.seen = event.Number
		s.metrics.EventSent()
	}
	return b
}

func (s *orderEvents) opened() { s.metrics.StreamOpened() }

func (s *orderEvents) closed() {
	s.metrics.StreamClosed()
	s.stop()
}
