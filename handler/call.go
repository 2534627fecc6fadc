package handler

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/handler/metrics"
	"flashsale/handler/request"
	"flashsale/handler/server"
	"flashsale/order"
)

// call is one request in progress. Calls are reused: no part of one may be kept after the
// answer.
type call struct {
	c  *gin.Context
	id []string // the request id, as a header value
	// identity is the sender's identity; zero on routes without a token.
	identity auth.Identity
	start    time.Time
	in       []byte // the request's body
	out      []byte // the answer's body
	route    *route
	// The results of the route's checks: the query, If-Match (nil: any version) and the
	// Idempotency-Key.
	query request.Query
	match order.Match
	key   string
	// counted means that the call is in the count of purchases in flight.
	counted bool
	gone    bool // the client has disconnected, or closed its sending side
}

// maxKept is the size, in bytes, of the largest buffer that is kept for the next request.
const maxKept = 16 << 10

func newCall() *call {
	return &call{in: make([]byte, 0, maxSmallBody+1), out: make([]byte, 0, 1024)}
}

func (q *call) release() {
	q.c, q.id, q.identity, q.query, q.match, q.key = nil, nil, auth.Identity{}, request.Query{}, nil, ""
	q.in, q.out = q.in[:0], q.out[:0]
	if cap(q.in) > maxKept {
		q.in = make([]byte, 0, maxSmallBody+1)
	}
	if cap(q.out) > maxKept {
		q.out = make([]byte, 0, 1024)
	}
}

func (q *call) ctx() context.Context { return q.c.Request.Context() }

// serve wraps an endpoint with everything that the routes share. It is a single function and
// not a chain of middlewares, because each link would slow down the purchase route.
func (e *edge) serve(r *route) gin.HandlerFunc {
	m := e.metrics.Route(r.Path)
	params := r.params()
	return func(c *gin.Context) {
		q := e.calls.Get().(*call)
		q.c, q.start, q.route, q.gone = c, e.Now(), r, false
		defer e.finish(q, m)
		q.id = e.requestIDs.Of(c.Request)
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

// finish records the answer, and answers for an endpoint that panicked.
func (e *edge) finish(q *call, m *metrics.Route) {
	e.ungate(q)
	if p := recover(); p != nil {
		if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(p) // the server's own way to abort a connection
		}
		e.Log.Error().Interface("panic", p).Bytes("stack", debug.Stack()).
			Str("request_id", q.requestID()).Msg("request panicked")
		if !q.c.Writer.Written() {
			e.write(q, problemInternal)
		}
		// Do not reuse the call: the endpoint may still use its buffers.
		m.Observe(q.c.Writer.Status(), e.Now().Sub(q.start))
		return
	}
	status := q.c.Writer.Status()
	if q.gone {
		status = statusClientGone
	}
	took := e.Now().Sub(q.start)
	m.Observe(status, took)
	if l := e.Log.Debug(); l != nil {
		r := q.c.Request
		l.Str("request_id", q.requestID()).Str("method", r.Method).Str("path", r.URL.Path).
			Int("status", status).Dur("took_ms", took).Str("sub", q.identity.Subject).Msg("request")
	}
	q.release()
	e.calls.Put(q)
}

// by identifies the sender for the audit log.
func (q *call) by() order.By { return order.By{Actor: q.identity.Subject, RequestID: q.requestID()} }

// takeTime extends the time limits of a request. The time for reading ends when the request is
// read.
func (q *call) takeTime(d time.Duration, log zerolog.Logger) {
	err := http.NewResponseController(q.c.Writer).SetWriteDeadline(time.Now().Add(d + server.WriteTimeout))
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

// Values of frequent headers. All answers share them, and they are never changed.
var (
	contentJSON   = []string{"application/json"}
	headerClose   = []string{"close"}
	headerTrue    = []string{"true"}
	headerNoStore = []string{"no-store"}
)

// json writes q.out as the answer.
func (q *call) json(status int) error {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentJSON
	if q.route.Cache == cachePrivate {
		h["Cache-Control"] = headerNoStore
	}
	q.c.Writer.WriteHeader(status)
	// An error means that the client has disconnected.
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return errClientGone
	}
	return nil
}
