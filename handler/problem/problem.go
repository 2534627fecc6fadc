// Package problem is the refusal of a request, in the form of RFC 9457: a status, a stable code,
// and a text that names the fault and its fix.
//
// Each package below handler declares the problems that it returns; handler declares those of
// the orders and the table that maps errors to them (problems.go). docs/problems.md has a
// section for each code, and a test compares the two.
package problem

import (
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"

	"flashsale/handler/encode"
)

// Problem is a refusal. It is an error, so that an endpoint can return it. Problems are shared
// by all requests, so they never change; the methods below return copies.
type Problem struct {
	Status int
	Code   string
	Title  string
	Detail string // names the field and the fix; never an internal text
	Param  string // the field, parameter or header at fault; empty: none
	// retryAfter is in seconds; 0: none.
	retryAfter int64
	headers    []headerField
	// spread are copies with different times to retry; nil: all clients get the same.
	spread []*Problem
	// forRead and forChange replace it on routes without an Idempotency-Key; nil if it does not
	// mention the key.
	forRead, forChange *Problem

	// head is the body up to the request id, encoded once for a problem that does not vary.
	head []byte
}

type headerField struct {
	name  string
	value []string
}

// Error returns the code.
func (p *Problem) Error() string { return "handler: " + p.Code }

// statuses has the statuses of all codes. It is complete once all packages are initialized, and
// never changes after that.
var statuses = make(map[string]int)

// Statuses returns the statuses of all codes.
func Statuses() map[string]int { return maps.Clone(statuses) }

// New returns a new problem. It may only be called while packages are initialized; each
// code has one status, and a section in docs/problems.md.
func New(status int, code, title, detail string) *Problem {
	if known, ok := statuses[code]; ok && known != status {
		panic("handler: the code " + code + " has two statuses")
	}
	statuses[code] = status
	p := &Problem{Status: status, Code: code, Title: title, Detail: detail}
	p.head = p.appendHead(nil)
	return p
}

// With returns a copy about one parameter.
func (p *Problem) With(param, detail string) *Problem {
	own := *p
	own.Param, own.Detail, own.spread = param, detail, nil
	own.head = own.appendHead(nil)
	return &own
}

// Retry returns a copy with a Retry-After of the given seconds.
func (p *Problem) Retry(seconds int64) *Problem {
	own := *p
	own.retryAfter, own.spread = max(1, seconds), nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)],
		headerField{"Retry-After", []string{strconv.FormatInt(own.retryAfter, 10)}})
	own.head = own.appendHead(nil)
	return &own
}

// RetryAfter is the time after which the client may retry, in seconds; 0: none is stated.
func (p *Problem) RetryAfter() int64 { return p.retryAfter }

// Among is Retry for many clients: each gets its own time between the given seconds and twice
// as many.
func (p *Problem) Among(seconds int64) *Problem {
	own := p.Retry(seconds)
	for more := range seconds + 1 {
		own.spread = append(own.spread, p.Retry(seconds+more))
	}
	return own
}

// One returns the problem for one client.
func (p *Problem) One() *Problem {
	if len(p.spread) == 0 {
		return p
	}
	return p.spread[rand.N(len(p.spread))]
}

// Unkeyed returns a copy with other details for routes without an Idempotency-Key: one for
// reading requests, one for those that change something.
func (p *Problem) Unkeyed(read, change string) *Problem {
	own := *p
	own.forRead, own.forChange = p.worded(read), p.worded(change)
	return &own
}

// worded returns a copy with another detail.
func (p *Problem) worded(detail string) *Problem {
	own := p.With(p.Param, detail)
	for _, later := range p.spread {
		own.spread = append(own.spread, later.worded(detail))
	}
	return own
}

// For returns the problem for a request with the method, to a route with or without an
// Idempotency-Key.
func (p *Problem) For(keyed bool, method string) *Problem {
	switch {
	case keyed || p.forRead == nil:
		return p
	case method == http.MethodGet || method == http.MethodHead:
		return p.forRead
	default:
		return p.forChange
	}
}

// WithHeader returns a copy that sets one more header.
func (p *Problem) WithHeader(name, value string) *Problem {
	own := *p
	own.spread = nil
	own.headers = append(own.headers[:len(own.headers):len(own.headers)], headerField{name, []string{value}})
	return &own
}

// WithMembers returns a copy whose body begins with more members, each followed by a comma.
func (p *Problem) WithMembers(members []byte) *Problem {
	own := *p
	own.spread = nil
	own.head = append(append([]byte{'{'}, members...), p.head[1:]...)
	return &own
}

// SetHeaders sets the headers of the answer other than those of every answer.
func (p *Problem) SetHeaders(h http.Header) {
	h["Content-Type"] = contentProblem
	for _, f := range p.headers {
		h[f.name] = f.value
	}
}

// contentProblem is shared by all answers, and never changed.
var contentProblem = []string{"application/problem+json"}

// AppendBody appends the body of the answer. The request id must not contain a character that
// JSON would escape.
func (p *Problem) AppendBody(b []byte, requestID string) []byte {
	return append(append(append(b, p.head...), requestID...), "\"}\n"...)
}

func (p *Problem) appendHead(b []byte) []byte {
	b = append(b, `{"type":"/docs#`...)
	b = append(b, p.Code...)
	b = append(b, `","title":`...)
	b = encode.String(b, p.Title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.Status), 10)
	b = append(b, `,"detail":`...)
	b = encode.String(b, p.Detail)
	b = append(b, `,"code":`...)
	b = encode.String(b, p.Code)
	if p.Param != "" {
		b = append(b, `,"param":`...)
		b = encode.String(b, p.Param)
	}
	if p.retryAfter > 0 {
		b = append(b, `,"retry_after":`...)
		b = strconv.AppendInt(b, p.retryAfter, 10)
	}
	return append(b, `,"request_id":"`...)
}
