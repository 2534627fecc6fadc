package handler

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
)

// errClientGone says that nobody is there to read an answer.
var errClientGone = errors.New("handler: client gone")

// statusClientGone stands in logs and metrics for a request whose client left
// before the answer; it is never sent.
const statusClientGone = 499

// problem is a refusal as RFC 9457 spells it. It is an error, so that an
// endpoint can return it.
type problem struct {
	status int
	code   string
	title  string
	detail string // names the field and the mend; never an internal text
	param  string // the field, parameter or header at fault; empty: none
	// retryAfter is in seconds; 0: none.
	retryAfter int64
	headers    []headerField
	// spread are the same with other times to come back; nil: all get the one.
	spread []*problem
	// forRead and forChange stand in for it where the route knows no Idempotency-Key:
	// nil where it says nothing of the key.
	forRead, forChange *problem

	// head is the body up to the request id, made once for a problem that
	// does not vary.
	head []byte
}

type headerField struct {
	name  string
	value []string
}

func (p *problem) Error() string { return "handler: " + p.code }

// problemStatus are the codes that there are, with their statuses. It is complete
// once the package is initialised, and never changed after that.
var problemStatus = make(map[string]int)

// newProblem makes a problem of the table. It is called only while the package is
// initialised; each code has one status, and a section in docs/problems.md.
func newProblem(status int, code, title, detail string) *problem {
	if known, ok := problemStatus[code]; ok && known != status {
		panic("handler: the code " + code + " has two statuses")
	}
	problemStatus[code] = status
	p := &problem{status: status, code: code, title: title, detail: detail}
	p.head = p.appendHead(nil)
	return p
}

// with returns a copy that speaks of one parameter.
func (p *problem) with(param, detail string) *problem {
	own := *p
	own.param, own.detail, own.spread = param, detail, nil
	own.head = own.appendHead(nil)
	return &own
}

// retry returns a copy that asks to come back after the given seconds.
func (p *problem) retry(seconds int64) *problem {
	own := *p
	own.retryAfter, own.spread = max(1, seconds), nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)],
		headerField{"Retry-After", []string{strconv.FormatInt(own.retryAfter, 10)}})
	own.head = own.appendHead(nil)
	return &own
}

// among is retry for a crowd: each client is given a time of its own, from the given
// seconds to twice as many.
func (p *problem) among(seconds int64) *problem {
	own := p.retry(seconds)
	for more := range seconds + 1 {
		own.spread = append(own.spread, p.retry(seconds+more))
	}
	return own
}

// one is the problem for one client.
func (p *problem) one() *problem {
	if len(p.spread) == 0 {
		return p
	}
	return p.spread[rand.N(len(p.spread))]
}

// unkeyed returns a copy with other details for routes that know no Idempotency-Key:
// one for reading requests, one for those that change something.
func (p *problem) unkeyed(read, change string) *problem {
	own := *p
	own.forRead, own.forChange = p.worded(read), p.worded(change)
	return &own
}

// worded returns a copy with another detail.
func (p *problem) worded(detail string) *problem {
	own := p.with(p.param, detail)
	for _, later := range p.spread {
		own.spread = append(own.spread, later.worded(detail))
	}
	return own
}

// unlessKeyed is the problem for a request with the method, to a route that
// requires an Idempotency-Key or knows none.
func (p *problem) unlessKeyed(keyed bool, method string) *problem {
	switch {
	case keyed || p.forRead == nil:
		return p
	case method == http.MethodGet || method == http.MethodHead:
		return p.forRead
	default:
		return p.forChange
	}
}

// header returns a copy that sets one more header.
func (p *problem) header(name, value string) *problem {
	own := *p
	own.spread = nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)], headerField{name, []string{value}})
	return &own
}

func (p *problem) appendHead(b []byte) []byte {
	b = append(b, `{"type":"/docs#`...)
	b = append(b, p.code...)
	b = append(b, `","title":`...)
	b = appendString(b, p.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	b = append(b, `,"detail":`...)
	b = appendString(b, p.detail)
	b = append(b, `,"code":`...)
	b = appendString(b, p.code)
	if p.param != "" {
		b = append(b, `,"param":`...)
		b = appendString(b, p.param)
	}
	if p.retryAfter > 0 {
		b = append(b, `,"retry_after":`...)
		b = strconv.AppendInt(b, p.retryAfter, 10)
	}
	return append(b, `,"request_id":"`...)
}

// write sends a problem.
func (e *edge) write(q *call, p *problem) {
	h := q.c.Writer.Header()
	h["Content-Type"] = contentProblem
	for _, f := range p.headers {
		h[f.name] = f.value
	}
	// A request id holds nothing that JSON would escape.
	q.out = append(append(append(q.out[:0], p.head...), q.requestID()...), `"}`...)
	q.c.Writer.WriteHeader(p.status)
	if _, err := q.c.Writer.Write(q.out); err != nil {
		e.Log.Debug().Str("request_id", q.requestID()).Msg("client left before the answer")
	}
	if !q.gone {
		e.metrics.problem(p.code)
	}
}

// refuse turns an error into the answer that the table gives it.
func (e *edge) refuse(q *call, err error) {
	p := lookUp(err)
	if p == nil && (errors.Is(err, errClientGone) || q.ctx().Err() != nil) {
		// A client that has only closed its sending side still reads: it learns that the
		// outcome is unknown. For the metrics it has left.
		q.gone = true
		if !q.c.Writer.Written() {
			e.write(q, problemUnavailable.unlessKeyed(q.route.Keyed, q.c.Request.Method).one())
		}
		e.Log.Debug().Str("request_id", q.requestID()).Err(err).Msg("client left before the answer")
		return
	}
	if p == nil {
		e.Log.Error().Str("request_id", q.requestID()).Str("method", q.c.Request.Method).
			Str("path", q.c.Request.URL.Path).Err(err).Msg("request failed")
		p = problemInternal
	}
	if p.status == http.StatusServiceUnavailable {
		e.refusals.Warn().Str("request_id", q.requestID()).Err(err).Msg("request refused")
	}
	e.write(q, p.unlessKeyed(q.route.Keyed, q.c.Request.Method).one())
}
