package handler

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/handler/metrics"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/handler/server"
	"flashsale/internal/tracing"
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
	// The results of the route's checks: the query, If-Match (nil: any version), the
	// Idempotency-Key and the form.
	query request.Query
	match order.Match
	key   string
	form  url.Values
	// showRefusal writes a refusal on the page of the form; nil: a page of its own shows it.
	showRefusal func(p *problem.Problem) error
	// counted means that the call is in the count of purchases in flight.
	counted bool
	gone    bool // the client has disconnected, or closed its sending side
	// bought is set when a purchase is answered with 201 or 202.
	bought      bool
	committed   bool      // that purchase is in the database
	committedAt time.Time // of that purchase; zero if unknown
	orderID     string    // the purchase's
	// trace is the request's span; nil: it is not sampled.
	trace *tracing.Request
	// shard spreads the counters of the metrics: calls are reused by the same processor.
	shard int
}

// maxKept is the size, in bytes, of the largest buffer that is kept for the next request.
const maxKept = 16 << 10

func newCall(shard int) *call {
	return &call{in: make([]byte, 0, maxSmallBody+1), out: make([]byte, 0, 1024), shard: shard}
}

func (q *call) release() {
	q.c, q.id, q.identity, q.query, q.match, q.key = nil, nil, auth.Identity{}, request.Query{}, nil, ""
	q.form, q.showRefusal = nil, nil
	q.orderID, q.trace = "", nil
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
	traced := r.Traced && e.Tracer != nil
	name := pathTemplate(r.Path)
	return func(c *gin.Context) {
		q := e.calls.Get().(*call)
		q.c, q.start, q.route, q.gone, q.bought = c, e.Now(), r, false, false
		defer e.finish(q, m)
		q.id = e.requestIDs.Of(c.Request)
		if traced {
			q.trace = e.Tracer.Request(c.Request, name, q.id[0], q.start)
		}
		h := c.Writer.Header()
		h["X-Request-Id"] = q.id
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
		end := e.Now()
		m.Observe(q.shard, q.c.Writer.Status(), end.Sub(q.start))
		if q.trace != nil {
			q.trace.End(q.c.Writer.Status(), end)
		}
		return
	}
	status := q.c.Writer.Status()
	if q.gone {
		status = statusClientGone
	}
	end := e.Now()
	took := end.Sub(q.start)
	m.Observe(q.shard, status, took)
	if q.bought {
		e.purchased(q, end, took)
	}
	if q.route.Counted && q.bought && e.Purchases != nil {
		e.Purchases.Answered(q.purchaseStatus(), took)
	}
	if q.trace != nil {
		e.endTrace(q, status, end)
	}
	if l := e.Log.Debug(); l != nil {
		r := q.c.Request
		l.Str("request_id", q.requestID()).Str("method", r.Method).Str("path", r.URL.Path).
			Int("status", status).Dur("took_ms", took).Str("sub", q.identity.Subject)
		if q.bought {
			l.Str("order_id", q.orderID)
		}
		if q.trace != nil {
			l.Str("trace_id", q.trace.TraceID())
		}
		l.Msg("request")
	}
	q.release()
	e.calls.Put(q)
}

// purchased observes an accepted purchase.
func (e *edge) purchased(q *call, end time.Time, took time.Duration) {
	notice := time.Duration(-1)
	if !q.committedAt.IsZero() {
		notice = max(end.Sub(q.committedAt), 0)
	}
	e.metrics.Purchased(q.shard, q.committed, took, notice)
}

// purchaseStatus is the status with which the API answers the purchase; a form is answered 303.
func (q *call) purchaseStatus() int {
	if q.committed {
		return http.StatusCreated
	}
	return http.StatusAccepted
}

// endTrace ends the span of a sampled request.
func (e *edge) endTrace(q *call, status int, end time.Time) {
	if q.bought {
		q.trace.Placed(q.orderID)
		if !q.committedAt.IsZero() {
			q.trace.Parent().Record("order.notice", q.committedAt, end)
		}
	}
	if q.gone {
		q.trace.Refused("client_gone")
	}
	q.trace.End(status, end)
}

// pathTemplate returns a route's path as OpenTelemetry writes it, with {item} instead of :item.
func pathTemplate(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if name, ok := strings.CutPrefix(p, ":"); ok {
			parts[i] = "{" + name + "}"
		}
	}
	return strings.Join(parts, "/")
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

// json writes q.out and a newline as the answer.
func (q *call) json(status int) error {
	q.out = append(q.out, '\n')
	return q.writeJSON(status, q.out)
}

// writeJSON writes a body, or a part of one, as it is.
func (q *call) writeJSON(status int, body []byte) error {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentJSON
	if q.route.Private {
		h["Cache-Control"] = headerNoStore
	}
	q.c.Writer.WriteHeader(status)
	// An error means that the client has disconnected.
	if _, err := q.c.Writer.Write(body); err != nil {
		return errClientGone
	}
	return nil
}
