package handler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/handler/encode"
	"flashsale/handler/metrics"
	"flashsale/handler/request"
	"flashsale/handler/server"
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

// The pause after which a client reconnects when its stream has ended. It is random for each
// stream, so that the clients of a process that stops do not all reconnect to the next one at
// once.
const (
	reconnectMin = 1000 * time.Millisecond
	reconnectMax = 3000 * time.Millisecond
)

var contentEvents = []string{"text/event-stream"}

// streamRoutes send the changes of orders as server-sent events.
type streamRoutes struct {
	Streams
	orders  orderReader
	metrics *metrics.Metrics
	now     func() time.Time
	log     zerolog.Logger
}

// Streams configures event streams.
type Streams struct {
	// Feed follows orders for GET /v1/orders/{order}/events. Default nil: the route does not
	// exist.
	Feed orderFeed
	// Heartbeat is the interval between heartbeats on an idle stream. Default 15 s.
	Heartbeat time.Duration
	// Life is the maximum duration of a stream, after which the client reconnects. Default 30
	// minutes.
	Life time.Duration
	// Stall is how long a client may read nothing. Default 10 s.
	Stall time.Duration
}

// withDefaults sets the defaults and checks the other fields.
func (s Streams) withDefaults() (Streams, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		usual time.Duration
	}{
		{"Heartbeat", &s.Heartbeat, 15 * time.Second},
		{"Life", &s.Life, 30 * time.Minute},
		{"Stall", &s.Stall, 10 * time.Second},
	} {
		if *d.value < 0 {
			return s, fmt.Errorf("handler: Streams.%s is %s; it must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	return s, nil
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
	s := &eventStream{rs: rs}
	if s.look, s.stop, err = rs.Feed.Follow(id, buyer, s.wake); err != nil {
		rs.metrics.StreamRefused(err)
		// Close the connection, because its descriptor is needed elsewhere while the client
		// waits before it retries.
		q.c.Writer.Header()["Connection"] = headerClose
		return err
	}
	detached := false
	defer func() {
		if !detached {
			s.stop()
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
	s.seen = min(seen, o.Place())
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	if o.Settled() && s.seen == o.Place() {
		// A browser's EventSource does not reconnect after 204.
		q.c.Writer.WriteHeader(http.StatusNoContent)
		q.c.Writer.WriteHeaderNow()
		return nil
	}
	detached = s.begin(q, &o)
	return nil
}

// lifeOf returns the maximum duration of a stream, at most until its token expires.
func (rs *streamRoutes) lifeOf(q *call) time.Duration {
	if q.identity.Expires.IsZero() {
		return rs.Life
	}
	return min(rs.Life, q.identity.Expires.Sub(rs.now()))
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

// eventStream writes the events of one order. It begins as an ordinary response. Then it takes
// the connection over from the HTTP server, and waits for changes and for the client's
// disconnect in one read, in its own goroutine. The request, the server's buffers and the
// handler's stack are freed by then, so that thousands of streams need little memory.
type eventStream struct {
	rs   *streamRoutes
	look func() (*order.Order, error)
	stop func()
	seen int // the number of the last event written

	chunked bool // HTTP/1.1; for an older client the end of the connection ends the stream
	input   int  // bytes received from the client

	mu   sync.Mutex
	news bool     // the order may have changed
	conn net.Conn // nil until it is taken over
}

// begin writes the headers and the events that the client has not seen. If more are expected,
// it runs the stream in the background and returns true; the stream then calls its own stop.
func (s *eventStream) begin(q *call, o *order.Order) (detached bool) {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentEvents
	h["X-Accel-Buffering"] = []string{"no"} // a buffering proxy would delay events
	if !o.Settled() {
		h["Connection"] = headerClose // the server reads no further request from the connection
	}
	if q.c.Request.Method == http.MethodHead {
		q.c.Writer.WriteHeaderNow()
		return false
	}
	pause := reconnectMin + rand.N(reconnectMax-reconnectMin)
	b := encode.IntField(q.out[:0], "retry: ", pause.Milliseconds())
	q.out = s.append(append(b, "\n\n"...), o)
	raw := http.NewResponseController(unwrapped(q.c.Writer)) // its flush returns errors
	if err := s.flush(q, raw); err != nil || o.Settled() {
		return false
	}
	conn, _, err := raw.Hijack()
	if err != nil {
		s.rs.log.Error().Str("request_id", q.requestID()).Err(err).Msg("could not take over the connection of an event stream")
		return false
	}
	conn = server.Unwrap(conn) // no more HTTP follows, and the other one refers to the server's buffer
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	s.chunked = q.c.Request.ProtoAtLeast(1, 1)
	s.rs.metrics.StreamOpened()
	go s.run(time.Now().Add(s.rs.lifeOf(q)))
	return true
}

// unwrapped returns the server's own writer behind Gin's.
func unwrapped(w http.ResponseWriter) http.ResponseWriter {
	if wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
		return wrapped.Unwrap()
	}
	return w
}

// flush sends q.out through the server. Its deadline replaces the server's, which is for
// complete answers.
func (s *eventStream) flush(q *call, raw *http.ResponseController) error {
	// Deadlines of connections use the real clock.
	err := raw.SetWriteDeadline(time.Now().Add(s.rs.Stall))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return err
	}
	return raw.Flush()
}

// append appends the events that have not been written yet.
func (s *eventStream) append(b []byte, o *order.Order) []byte {
	for _, event := range o.EventsAfter(s.seen) {
		b = encode.IntField(b, "id: ", int64(event.Number))
		b = append(b, "\nevent: order\ndata: "...)
		b = appendOrder(b, &event.Order) // which has no line breaks
		b = append(b, "\n\n"...)
		s.seen = event.Number
		s.rs.metrics.EventSent()
	}
	return b
}

// run writes each change until no more are expected, the client has disconnected or is too
// slow, the feed ends the stream, or its time is over. Its stack frames are small, because the
// stack is most of the memory of a waiting stream.
func (s *eventStream) run(end time.Time) {
	defer s.close()
	for {
		until := time.Now().Add(s.rs.Heartbeat)
		if end.Before(until) {
			until = end
		}
		err := s.await(until)
		switch {
		case err == nil:
			if !s.advance() {
				return
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return // the client has disconnected
		case !time.Now().Before(end):
			s.finish()
			return
		default:
			// Because of heartbeats proxies keep the connection open, and a lost client is
			// detected.
			if s.send(heartbeat) != nil {
				return
			}
		}
	}
}

var errStreamInput = errors.New("handler: client sends on an event stream")

// await waits until there may be news and returns nil. It returns an error if the client
// disconnects, and os.ErrDeadlineExceeded at the given time. wake interrupts it through the
// read deadline.
func (s *eventStream) await(until time.Time) error {
	s.mu.Lock()
	if s.news {
		s.news = false
		s.mu.Unlock()
		return nil
	}
	err := s.conn.SetReadDeadline(until)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	var b [64]byte
	n, err := s.conn.Read(b[:])
	if s.input += n; s.input > maxStreamInput {
		return errStreamInput
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.news {
		s.news = false
		return nil
	}
	return err
}

// wake ends the wait for news. If the connection has not been taken over yet, there is no wait.
func (s *eventStream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = true
	if s.conn != nil {
		// An error means that the stream has ended.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // see above
	}
}

// advance writes new events. It reports whether more are expected.
func (s *eventStream) advance() bool {
	for {
		o, err := s.look()
		switch {
		case err != nil:
			s.finish()
			return false
		case o == nil:
			return true
		}
		if b := s.append(nil, o); len(b) > 0 && s.send(b) != nil {
			return false
		}
		if o.Settled() {
			s.finish()
			return false
		}
	}
}

// finish ends the stream properly, so that the client can detect that it is complete.
func (s *eventStream) finish() {
	if s.chunked {
		// An error means that the client has disconnected.
		_ = s.write(lastChunk) //nolint:errcheck // see above
	}
}

// close releases the stream's resources. Its place in the feed comes last, because a process
// that stops waits for it.
func (s *eventStream) close() {
	if p := recover(); p != nil {
		s.rs.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("event stream panicked")
	}
	_ = s.conn.Close() //nolint:errcheck // everything was written, or the client has disconnected
	s.rs.metrics.StreamClosed()
	s.stop()
}

// maxStreamInput bounds the bytes that a client may send after its request. Clients have no
// reason to send any.
const maxStreamInput = 4 << 10

var (
	// heartbeat is a comment, which clients ignore.
	heartbeat = []byte(": \n\n")
	// lastChunk ends a chunked body.
	lastChunk = []byte("0\r\n\r\n")
)

// send sends a part of the body.
func (s *eventStream) send(b []byte) error {
	if !s.chunked {
		return s.write(b)
	}
	chunk := strconv.AppendInt(make([]byte, 0, len(b)+16), int64(len(b)), 16)
	chunk = append(append(append(chunk, "\r\n"...), b...), "\r\n"...)
	return s.write(chunk)
}

// write writes to the connection, for at most Stall.
func (s *eventStream) write(b []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.rs.Stall)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}
