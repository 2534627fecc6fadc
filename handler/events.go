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
	"flashsale/order"
)

// orderFeed follows orders as they change.
type orderFeed interface {
	// Follow begins to follow an order. buyer is the owner of the stream, empty for
	// admins and services. wake is called when look has something to return. look returns the
	// current order if it has changed, else nil; its errors end the stream. stop
	// has to be called. Errors: those of feed.Feed.Follow.
	Follow(id, buyer string, wake func()) (look func() (*order.Order, error), stop func(), err error)
}

// The pause after which a client comes back when its stream has ended. It is
// chosen for each stream, so that the clients of a process that ends do not come
// to the next one all at once.
const (
	reconnectMin = 1000 * time.Millisecond
	reconnectMax = 3000 * time.Millisecond
)

var contentEvents = []string{"text/event-stream"}

// streamRoutes send the changes of orders as server-sent events.
type streamRoutes struct {
	Streams
	orders  orderService
	metrics *metrics
	now     func() time.Time
	log     zerolog.Logger
}

// Streams configures event streams.
type Streams struct {
	// orderFeed follows orders for GET /v1/orders/{order}/events. Default nil: the
	// route does not exist.
	Feed orderFeed
	// Heartbeat is how often a stream on which nothing happens gives a sign of
	// life. Default 15 s.
	Heartbeat time.Duration
	// Life is how long a stream may last; the client reconnects then.
	// Default 30 minutes.
	Life time.Duration
	// Stall is how long a stream's client may take no byte. Default 10 s.
	Stall time.Duration
}

// withDefaults fills in the defaults and checks the rest.
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

// follow answers GET /v1/orders/{order}/events: the order's changes as
// server-sent events, until none is to be expected.
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
	// Followed first and read then, so that no change falls between the two.
	s := &eventStream{rs: rs}
	if s.look, s.stop, err = rs.Feed.Follow(id, buyer, s.wake); err != nil {
		rs.metrics.streamRefused(err)
		// The descriptor is needed elsewhere, and the client waits before it retries.
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
		seen = o.Place() - 1 // a new client gets the present state, not the ones before it
	}
	// No client has seen an event that does not exist yet.
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

// lifeOf is how long a stream may last: no longer than its token is good.
func (rs *streamRoutes) lifeOf(q *call) time.Duration {
	if q.identity.Expires.IsZero() {
		return rs.Life
	}
	return min(rs.Life, q.identity.Expires.Sub(rs.now()))
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

// eventStream writes the events of one order. It begins as an ordinary answer.
// Then it takes the connection over from the HTTP server, and waits for changes
// and for the client's departure in one read, on a goroutine of its own. The
// request, the server's buffers and the handler's stack are free by then, so that
// thousands of streams cost little.
type eventStream struct {
	rs   *streamRoutes
	look func() (*order.Order, error)
	stop func()
	seen int // the number of the last event that was written

	chunked bool // HTTP/1.1; for an older client the stream ends with the connection
	input   int  // bytes that the client has sent

	mu   sync.Mutex
	news bool     // the order may have changed
	conn net.Conn // nil until it has been taken over
}

// begin writes the headers and the events that the client has not seen, and runs
// the stream in the background if more are to be expected. It reports whether it
// does, and then the stream calls its own stop.
func (s *eventStream) begin(q *call, o *order.Order) (detached bool) {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentEvents
	h["X-Accel-Buffering"] = []string{"no"} // a proxy that gathers would hold events back
	if !o.Settled() {
		h["Connection"] = headerClose // the server reads no further request from it
	}
	if q.c.Request.Method == http.MethodHead {
		q.c.Writer.WriteHeaderNow()
		return false
	}
	pause := reconnectMin + rand.N(reconnectMax-reconnectMin)
	b := appendIntField(q.out[:0], "retry: ", pause.Milliseconds())
	q.out = s.append(append(b, "\n\n"...), o)
	raw := http.NewResponseController(unwrapped(q.c.Writer)) // whose flush reports errors
	if err := s.flush(q, raw); err != nil || o.Settled() {
		return false
	}
	conn, _, err := raw.Hijack()
	if err != nil {
		s.rs.log.Error().Str("request_id", q.requestID()).Err(err).Msg("could not take over the connection of an event stream")
		return false
	}
	if strict, ok := conn.(*strictConn); ok {
		conn = strict.TCPConn // nothing of HTTP follows, and it refers to the server's buffer
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	s.chunked = q.c.Request.ProtoAtLeast(1, 1)
	s.rs.metrics.streams.Inc()
	go s.run(time.Now().Add(s.rs.lifeOf(q)))
	return true
}

// unwrapped is the server's own writer behind Gin's.
func unwrapped(w http.ResponseWriter) http.ResponseWriter {
	if wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter }); ok {
		return wrapped.Unwrap()
	}
	return w
}

// flush sends q.out through the server. The limit replaces the server's own,
// which is for whole answers.
func (s *eventStream) flush(q *call, raw *http.ResponseController) error {
	// The connection's limits are of the real clock.
	err := raw.SetWriteDeadline(time.Now().Add(s.rs.Stall))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return err
	}
	return raw.Flush()
}

// append appends the events that were not written yet.
func (s *eventStream) append(b []byte, o *order.Order) []byte {
	for _, event := range o.EventsAfter(s.seen) {
		b = appendIntField(b, "id: ", int64(event.Number))
		b = append(b, "\nevent: order\ndata: "...)
		b = appendOrder(b, &event.Order) // which has no line breaks
		b = append(b, "\n\n"...)
		s.seen = event.Number
		s.rs.metrics.events.Inc()
	}
	return b
}

// run writes each change until none is to be expected, the client is gone or too
// slow, the feed ends the stream, or its time is up. Its frames are small, since
// its stack is most of what a waiting stream costs.
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
			return // the client is gone
		case !time.Now().Before(end):
			s.finish()
			return
		default:
			// Because of heartbeats proxies leave the connection open, and a client
			// that has vanished is noticed.
			if s.send(heartbeat) != nil {
				return
			}
		}
	}
}

var errStreamInput = errors.New("handler: client sends on an event stream")

// await waits until there may be news, and returns nil then; or until the client
// is gone, or for as long as it may: os.ErrDeadlineExceeded. News wake it by the
// deadline of the read.
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

// wake ends the wait for news. It may be called before the connection was taken
// over, and then there is no wait.
func (s *eventStream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = true
	if s.conn != nil {
		// An error means that the stream has ended.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // see above
	}
}

// advance writes what is new. It reports whether more is to be expected.
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

// finish ends the stream properly, so that the client knows it was not cut.
func (s *eventStream) finish() {
	if s.chunked {
		// An error means that the client is gone.
		_ = s.write(lastChunk) //nolint:errcheck // see above
	}
}

// close releases what the stream holds. Its place in the feed comes last: a
// process that stops waits for it.
func (s *eventStream) close() {
	if p := recover(); p != nil {
		s.rs.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("event stream panicked")
	}
	_ = s.conn.Close() //nolint:errcheck // everything was written, or the client is gone
	s.rs.metrics.streams.Dec()
	s.stop()
}

// maxStreamInput bounds what a client may send after its request, in bytes. It has
// no reason to send anything.
const maxStreamInput = 4 << 10

var (
	// heartbeat is a comment, which clients ignore.
	heartbeat = []byte(": \n\n")
	// lastChunk ends a chunked body.
	lastChunk = []byte("0\r\n\r\n")
)

// send sends a piece of the body.
func (s *eventStream) send(b []byte) error {
	if !s.chunked {
		return s.write(b)
	}
	chunk := strconv.AppendInt(make([]byte, 0, len(b)+16), int64(len(b)), 16)
	chunk = append(append(append(chunk, "\r\n"...), b...), "\r\n"...)
	return s.write(chunk)
}

// write writes to the connection, for at most as long as a client may stall.
func (s *eventStream) write(b []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.rs.Stall)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}
