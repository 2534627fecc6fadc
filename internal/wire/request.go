package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrRequest means that a request cannot be built from the given parts, for example because a
// header value contains a line break.
var ErrRequest = errors.New("wire: bad request part")

// Request builds the bytes of requests in a reusable buffer:
//
//	var q wire.Request
//	bytes, err := q.Start("POST", target, "/v1/items/shoe/orders").
//		Header("Authorization", "Bearer "+token).
//		Header("Content-Type", "application/json").
//		Body([]byte(`{"quantity":1}`))
//
// The bytes are valid until the next Start. The zero value is ready.
type Request struct {
	b   []byte
	err error
}

// Start begins a request with its method and route. The route follows the target's prefix and
// must already be escaped.
func (q *Request) Start(method string, t Target, route string) *Request {
	q.b, q.err = q.b[:0], nil
	if method == "" || strings.ContainsAny(method, " \r\n\x00") {
		q.fail("method", method)
	}
	if !strings.HasPrefix(route, "/") || strings.ContainsAny(route, " \r\n\x00") {
		q.fail("route", route)
	}
	q.b = append(q.b, method...)
	q.b = append(q.b, ' ')
	q.b = append(q.b, t.Prefix...)
	q.b = append(q.b, route...)
	q.b = append(q.b, " HTTP/1.1\r\n"...)
	return q.Header("Host", t.Host)
}

// Header adds a header line.
func (q *Request) Header(name, value string) *Request {
	if name == "" || strings.ContainsAny(name, " :\r\n\x00") {
		return q.fail("header name", name)
	}
	if strings.ContainsAny(value, "\r\n\x00") {
		return q.fail("value of "+name, value)
	}
	q.b = append(q.b, name...)
	q.b = append(q.b, ": "...)
	q.b = append(q.b, value...)
	q.b = append(q.b, "\r\n"...)
	return q
}

// Body ends the request with a body and its Content-Length.
func (q *Request) Body(body []byte) ([]byte, error) {
	q.b = append(q.b, "Content-Length: "...)
	q.b = strconv.AppendInt(q.b, int64(len(body)), 10)
	q.b = append(q.b, "\r\n\r\n"...)
	q.b = append(q.b, body...)
	return q.b, q.err
}

// NoBody ends a request without a body.
func (q *Request) NoBody() ([]byte, error) {
	q.b = append(q.b, "\r\n"...)
	return q.b, q.err
}

func (q *Request) fail(part, value string) *Request {
	if q.err == nil {
		q.err = fmt.Errorf("%w: %s %.60q", ErrRequest, part, value)
	}
	return q
}
