package handler

import (
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"flashsale/handler/strictjson"
)

// The largest bodies, in bytes.
const (
	maxSmallBody = 4 << 10
	maxAdminBody = 16 << 10
	// maxDrain is how much of a body that is too large is read all the same,
	// in the hope of its end: then the connection can be used again, and the
	// client sees the answer instead of a reset.
	maxDrain = 64 << 10
)

// readBody reads the whole body into q.in.
func (q *call) readBody(limit int) error {
	r := q.c.Request
	if cap(q.in) < limit+1 {
		q.in = make([]byte, 0, limit+1)
	}
	q.in = q.in[:0]
	for len(q.in) <= limit {
		n, err := r.Body.Read(q.in[len(q.in) : limit+1])
		q.in = q.in[:len(q.in)+n]
		if errors.Is(err, io.EOF) {
			if len(q.in) > limit {
				break
			}
			return nil
		}
		if err != nil {
			return bodyError(err)
		}
	}
	q.drain(len(q.in))
	// The size is refused whatever the body says, with one exception: nesting
	// meant to exhaust a reader is told as what it is.
	doc := strictjson.Read(q.in)
	for doc.Next() {
	}
	if errors.Is(doc.Err(), strictjson.ErrTooDeep) {
		return problemJSONInvalid
	}
	return problemBodyTooLarge
}

// drain reads on to the body's end, up to maxDrain bytes in all. If the end is
// further away the connection is given up after the answer.
func (q *call) drain(read int) {
	r := q.c.Request
	if r.ContentLength <= maxDrain {
		// One byte is left for the limit reader below.
		if _, err := io.CopyN(io.Discard, r.Body, int64(maxDrain-1-read)); errors.Is(err, io.EOF) {
			return
		}
	}
	q.c.Writer.Header()["Connection"] = headerClose
	// The server itself would read another 256 KiB in search of the end. With
	// the deadline passed it stops at once, and a body that was cut by the
	// limit reader makes it linger until the client has the answer.
	var raw http.ResponseWriter = q.c.Writer
	if wrapped, ok := raw.(interface{ Unwrap() http.ResponseWriter }); ok {
		raw = wrapped.Unwrap()
	}
	if _, err := http.MaxBytesReader(raw, r.Body, 0).Read(make([]byte, 1)); err != nil {
		stopReading(raw)
	}
}

func stopReading(raw http.ResponseWriter) {
	if err := http.NewResponseController(raw).SetReadDeadline(time.Unix(1, 0)); err != nil {
		return // a recorder in a test has no deadline, and no connection to protect
	}
}

// bodyError tells a client that is slow from one that breaks the framing.
func bodyError(err error) error {
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return problemTimeout
	}
	return problemBodyCut
}

// readNothing reads the body of a route that needs none: it is empty, or an
// object without members.
func (q *call) readNothing() error {
	if err := q.readBody(q.route.MaxBody); err != nil {
		return err
	}
	if len(q.in) == 0 {
		return nil
	}
	if err := checkContent(q.c.Request.Header); err != nil {
		return err
	}
	return newFields(q.in).done()
}
