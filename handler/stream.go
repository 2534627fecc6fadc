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

	"flashsale/handler/encode"
	"flashsale/handler/metrics"
	"flashsale/handler/server"
)

// The pause after which a client reconnects when its stream has ended. It is random for each
// stream, so that the clients of a process that stops do not all reconnect to the next one at
// once.
const (
	reconnectMin = 1000 * time.Millisecond
	reconnectMax = 3000 * time.Millisecond
)

var contentEvents = []string{"text/event-stream"}

// Streams configures event streams.
type Streams struct {
	// Feed follows orders for GET /v1/orders/{order}/events. Default nil: the route does not
	// exist.
	Feed orderFeed
	// Figures shows the deployment for GET /v1/admin/events. Default nil: the route does not
	// exist.
	Figures figuresFeed
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
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"Heartbeat", &s.Heartbeat, 15 * time.Second},
		{"Life", &s.Life, 30 * time.Minute},
		{"Stall", &s.Stall, 10 * time.Second},
	} {
		if *d.value < 0 {
			return s, fmt.Errorf("handler: Streams.%s is %s; it must not be negative", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	return s, nil
}

// streams is what all event streams of the process share.
type streams struct {
	Streams
	metrics *metrics.Metrics
	now     func() time.Time
	log     zerolog.Logger
}

// lifeOf returns the maximum duration of a stream, at most until its token expires.
func (rs *streams) lifeOf(q *call) time.Duration {
	if q.identity.Expires.IsZero() {
		return rs.Life
	}
	return min(rs.Life, q.identity.Expires.Sub(rs.now()))
}

// eventSource is what a stream sends.
type eventSource interface {
	// next appends the events that have not been sent yet. more is false if no others follow:
	// the stream then ends.
	next(b []byte) (_ []byte, more bool)
	// opened is called when the stream runs on its own, and closed when it has ended.
	opened()
	closed()
}

// eventStream writes the events of one source. It begins as an ordinary response. Then it takes
// the connection over from the HTTP server, and waits for changes and for the client's
// disconnect in one read, in its own goroutine. The request, the server's buffers and the
// handler's stack are freed by then, so that thousands of streams need little memory.
type eventStream struct {
	rs     *streams
	source eventSource

	chunked bool      // HTTP/1.1; for an older client the end of the connection ends the stream
	input   int       // bytes received from the client
	end     time.Time // when the token expires or the stream's life is over

	mu   sync.Mutex
	news bool     // the source may have an event
	conn net.Conn // nil until it is taken over
}

// begin writes the headers and the events that first appends. If more are expected, it runs the
// stream in the background and returns true; the stream then closes its source.
func (s *eventStream) begin(q *call, more bool, first func(b []byte) []byte) (detached bool) {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentEvents
	h["X-Accel-Buffering"] = []string{"no"} // a buffering proxy would delay events
	if more {
		h["Connection"] = headerClose // the server reads no further request from the connection
	}
	if q.c.Request.Method == http.MethodHead {
		q.c.Writer.WriteHeaderNow()
		return false
	}
	pause := reconnectMin + rand.N(reconnectMax-reconnectMin)
	b := encode.IntField(q.out[:0], "retry: ", pause.Milliseconds())
	q.out = first(append(b, "\n\n"...))
	raw := http.NewResponseController(unwrapped(q.c.Writer)) // its flush returns errors
	if err := s.flush(q, raw); err != nil || !more {
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
	s.source.opened()
	s.end = time.Now().Add(s.rs.lifeOf(q))
	go s.run()
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

// run writes each event until no more are expected, the client has disconnected or is too
// slow, the source ends the stream, or its time is over. Its stack frames are small, because the
// stack is most of the memory of a waiting stream.
func (s *eventStream) run() {
	defer s.close()
	for {
		// A source that always has news must not extend the stream.
		now := time.Now()
		if !now.Before(s.end) {
			s.finish()
			return
		}
		err := s.await(earlier(now.Add(s.rs.Heartbeat), s.end))
		switch {
		case err == nil:
			if !s.advance() {
				return
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return // the client has disconnected
		case !time.Now().Before(s.end):
			// The next round ends the stream.
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
	b, more := s.source.next(nil)
	if len(b) > 0 && s.send(b) != nil {
		return false
	}
	if !more {
		s.finish()
	}
	return more
}

// finish ends the stream properly, so that the client can detect that it is complete.
func (s *eventStream) finish() {
	if s.chunked {
		// An error means that the client has disconnected.
		_ = s.write(lastChunk, time.Now().Add(s.rs.Stall)) //nolint:errcheck // see above
	}
}

// close releases the stream's resources. Its source comes last, because a process that stops
// waits for it.
func (s *eventStream) close() {
	if p := recover(); p != nil {
		s.rs.log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).Msg("event stream panicked")
	}
	_ = s.conn.Close() //nolint:errcheck // everything was written, or the client has disconnected
	s.source.closed()
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

// send sends a part of the body, for at most Stall, and not after the stream's end.
func (s *eventStream) send(b []byte) error {
	deadline := earlier(time.Now().Add(s.rs.Stall), s.end)
	if !s.chunked {
		return s.write(b, deadline)
	}
	chunk := strconv.AppendInt(make([]byte, 0, len(b)+16), int64(len(b)), 16)
	chunk = append(append(append(chunk, "\r\n"...), b...), "\r\n"...)
	return s.write(chunk, deadline)
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// write writes to the connection until the deadline.
func (s *eventStream) write(b []byte, deadline time.Time) error {
	if err := s.conn.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}
