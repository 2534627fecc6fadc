package handler

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"

	"flashsale/handler/auth"
)

// endpoint answers one request: it writes the answer and returns nil, or
// returns the error that the error table turns into one.
type endpoint func(q *call) error

// access says who may use a route.
type access struct {
	// roles that may; none: anybody, and no token is looked at.
	roles []auth.Role
	// gated: only while there is room, which is asked before the token.
	gated bool
	// keyed: it requires an Idempotency-Key, so a repeat is safe.
	keyed bool
}

// call is one request on its way. Calls are reused: nothing may keep one, or
// a part of its buffers, beyond the answer.
type call struct {
	c  *gin.Context
	id []string // the request id, in the form of a header's value
	// who sends it; zero on routes for anybody
	who   Identity
	start time.Time
	in    []byte // the request's body
	out   []byte // the answer's body
	// counted: it is one of those in flight.
	counted bool
	keyed   bool // the route requires an Idempotency-Key
	gone    bool // the client has left, or closed its sending side
}

// maxKept is the largest buffer, in bytes, that is kept for the next request.
const maxKept = 16 << 10

func newCall() *call {
	return &call{in: make([]byte, 0, maxPurchaseBody+1), out: make([]byte, 0, 1024)}
}

func (q *call) release() {
	q.c, q.id, q.who = nil, nil, Identity{}
	q.in, q.out = q.in[:0], q.out[:0]
	if cap(q.in) > maxKept {
		q.in = make([]byte, 0, maxPurchaseBody+1)
	}
	if cap(q.out) > maxKept {
		q.out = make([]byte, 0, 1024)
	}
}

func (q *call) ctx() context.Context { return q.c.Request.Context() }

// serve wraps an endpoint in what all routes share. It is one function and not
// a chain of middlewares because the purchase route pays for each link.
func (e *edge) serve(route string, who access, do endpoint) gin.HandlerFunc {
	m := e.metrics.route(route)
	return func(c *gin.Context) {
		q := e.calls.Get().(*call)
		q.c, q.start, q.keyed, q.gone = c, e.Now(), who.keyed, false
		defer e.finish(q, m)
		q.id = e.requestIDs.of(c.Request)
		c.Writer.Header()["X-Request-Id"] = q.id
		if err := e.admit(q, who); err != nil {
			e.refuse(q, err)
			return
		}
		if err := do(q); err != nil {
			e.refuse(q, err)
		}
	}
}

// admit makes the checks that come before any route's own.
func (e *edge) admit(q *call, who access) error {
	if headersTooLarge(q.c.Request) {
		return problemHeaderTooLarge
	}
	if e.addresses != nil {
		if err := e.addresses.allow(addressKey(q.c.ClientIP()), q.start); err != nil {
			return err
		}
	}
	if who.gated {
		if err := e.gate(q); err != nil {
			return err
		}
	}
	if len(who.roles) == 0 {
		return nil
	}
	id, err := e.authenticate(q.c.Request.Header)
	if err != nil {
		return err
	}
	q.who = id
	for _, role := range who.roles {
		if id.Role == role {
			return nil
		}
	}
	return problemForbidden
}

// limit counts the request against its buyer's rate. The shop's own people and
// programs are not limited: a burst of payments is theirs to send.
func (e *edge) limit(q *call) error {
	if e.buyers == nil || q.who.Role != auth.RoleBuyer {
		return nil
	}
	return e.buyers.allow(q.who.Subject, q.start)
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
			Int("status", status).Dur("took_ms", took).Str("sub", q.who.Subject).Msg("request")
	}
	q.release()
	e.calls.Put(q)
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
	q.c.Writer.Header()["Content-Type"] = contentJSON
	q.c.Writer.WriteHeader(status)
	// An error here means that the client is gone; there is nobody to tell.
	if _, err := q.c.Writer.Write(q.out); err != nil {
		return errClientGone
	}
	return nil
}
