package handler

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/order"
)

// call is one request on its way. Calls are reused: nothing may keep one, or
// a part of its buffers, beyond the answer.
type call struct {
	c  *gin.Context
	id []string // the request id, in the form of a header's value
	// identity is that of the sender; zero on routes for anyone
	identity auth.Identity
	start    time.Time
	in       []byte // the request's body
	out      []byte // the answer's body
	route    *route
	// What the checks of the route read: the query, If-Match (nil: any version) and
	// the Idempotency-Key.
	query url.Values
	match order.Match
	key   string
	// counted: it is one of those in flight.
	counted bool
	gone    bool // the client has left, or closed its sending side
}

// maxKept is the largest buffer, in bytes, that is kept for the next request.
const maxKept = 16 << 10

func newCall() *call {
	return &call{in: make([]byte, 0, maxSmallBody+1), out: make([]byte, 0, 1024)}
}

func (q *call) release() {
	q.c, q.id, q.identity, q.query, q.match, q.key = nil, nil, auth.Identity{}, nil, nil, ""
	q.in, q.out = q.in[:0], q.out[:0]
	if cap(q.in) > maxKept {
		q.in = make([]byte, 0, maxSmallBody+1)
	}
	if cap(q.out) > maxKept {
		q.out = make([]byte, 0, 1024)
	}
}

func (q *call) ctx() context.Context { return q.c.Request.Context() }

// serve wraps an endpoint in what all routes share. It is one function and not
// a chain of middlewares because the purchase route pays for each link.
func (e *edge) serve(r *route) gin.HandlerFunc {
	m := e.metrics.route(r.Path)
	params := r.params()
	return func(c *gin.Context) {
		q := e.calls.Get().(*call)
		q.c, q.start, q.route, q.gone = c, e.Now(), r, false
		defer e.finish(q, m)
		q.id = e.requestIDs.of(c.Request)
		h := c.Writer.Header()
		h["X-Request-Id"] = q.id
		if r.Cache == cacheNever {
			h["Cache-Control"] = headerNoStore
		}
		if err := e.admit(q, params); err != nil {
			e.refuse(q, err)
			return
		}
		if err := r.Handle(q); err != nil {
			e.refuse(q, err)
		}
	}
}

// finish observes the answer, and answers for an endpoint that panicked.
func (e *edge) finish(q *call, m *routeMetrics) {
	e.ungate(q)
	if p := recover(); p != nil {
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p) // the server's own way to cut a connection
		}
		e.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).
			Str("request_id", q.requestID()).Msg("request panicked")
		if !q.c.Writer.Written() {
			e.write(q, problemInternal)
		}
		// Whatever the endpoint left half done may still hold the buffers.
		m.observe(q.c.Writer.Status(), e.Now().Sub(q.start))
		return
	}
	status := q.c.Writer.Status()
	if q.gone {
		status = statusClientGone
	}
	took := e.Now().Sub(q.start)
	m.observe(status, took)
	if l := e.Log.Debug(); l != nil {
		r := q.c.Request
		l.Str("request_id", q.requestID()).Str("method", r.Method).Str("path", r.URL.Path).
			Int("status", status).Dur("took_ms", took).Str("sub", q.identity.Subject).Msg("request")
	}
	q.release()
	e.calls.Put(q)
}

// by is the sender of the request, for the audit log.
func (q *call) by() order.By { return order.By{Actor: q.identity.Subject, RequestID: q.requestID()} }

// takeTime lets a request take longer than the server allows to others. The time
// for reading it is over when it is read.
func (q *call) takeTime(d time.Duration, log zerolog.Logger) {
	err := http.NewResponseController(q.c.Writer).SetWriteDeadline(time.Now().Add(d + writeTimeout))
	if err != nil {
		log.Debug().Str("request_id", q.requestID()).Err(err).Msg("could not extend the write deadline")
	}
}

func (q *call) requestID() string {
	if len(q.id) == 0 {
		return ""
	}
	return q.id[0]
}

// The values of headers that are written often, ready made. They are shared by
// all answers and never changed.
var (
	contentJSON    = []string{"application/json"}
	contentProblem = []string{"application/problem+json"}
	headerClose    = []string{"close"}
	headerTrue     = []string{"true"}
	headerNoStore  = []string{"no-store"}
)

// json writes q.out as the answer.
func (q *call) json(status int) error {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentJSON
	if q.route.Cache == cachePrivate {
		h["Cache-Control"] = headerNoStore
	}
	q.c.Writer.WriteHeader(status)
	// An error here means that the client is gone.
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return errClientGone
	}
	return nil
}

// requestIDs names requests. A name is the process's random prefix and a
// number, so it is unique without a random number per request.
type requestIDs struct {
	prefix string
	last   *atomic.Uint64
}

func newRequestIDs() requestIDs {
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic(err) // documented never to happen
	}
	return requestIDs{prefix: hex.EncodeToString(random[:]) + "-", last: new(atomic.Uint64)}
}

// of returns the request's own id when it is harmless, and a new one otherwise,
// in the form of a header's value.
func (g *requestIDs) of(r *http.Request) []string {
	if own := r.Header["X-Request-Id"]; len(own) == 1 && validRequestID(own[0]) {
		return own
	}
	return []string{g.mint()}
}

// mint makes a new id.
func (g *requestIDs) mint() string {
	var buf [40]byte
	b := append(buf[:0], g.prefix...)
	b = strconv.AppendUint(b, g.last.Add(1), 36)
	return string(b)
}

// validRequestID restricts ids to characters that need no escaping in a header, a
// log and a JSON string.
func validRequestID(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
