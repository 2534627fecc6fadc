package server

import (
	"bytes"
	"io"
	"strconv"
	"time"

	"flashsale/handler/problem"
	"flashsale/handler/request"
)

// Refusals of requests so malformed that the server does not pass them to a handler.
var (
	errMalformed = problem.New(400, "request_malformed", "Malformed request",
		"The request line, headers or framing violate HTTP/1.1.")
	errCoding = problem.New(501, "transfer_encoding", "Unknown transfer encoding",
		"The only supported Transfer-Encoding is chunked; prefer a Content-Length.")
	errExpectation = problem.New(417, "expectation_failed", "Expectation failed",
		"The only supported expectation is 100-continue.").With("Expect",
		"The only supported expectation is 100-continue.")
	errVersion = problem.New(505, "http_version", "Unknown HTTP version",
		"Use HTTP/1.1.")
)

// plainRefusal is part of every refusal that the server writes itself, and of no answer of a
// route, because those have other headers.
var plainRefusal = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// Write replaces a refusal of the server itself by a problem of the API. The server writes each
// refusal in one call.
func (c *strictConn) Write(b []byte) (int, error) {
	p := c.refusal(b)
	if p == nil {
		return c.TCPConn.Write(b)
	}
	id := c.requestIDs.New()
	body := p.AppendBody(nil, id)
	head := "HTTP/1.1 " + strconv.Itoa(p.Status) + " " + p.Title +
		"\r\nContent-Type: application/problem+json\r\nX-Request-Id: " + id +
		"\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\nConnection: close\r\n\r\n"
	if _, err := c.TCPConn.Write(append([]byte(head), body...)); err != nil {
		return 0, err
	}
	c.linger()
	return len(b), nil
}

// The bounds of linger.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// linger closes the sending side of the connection and keeps reading for a short time. The
// server closes the connection after a refusal; unread bytes would then cause a reset before a
// client that is still sending has read the answer.
func (c *strictConn) linger() {
	if c.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return // the client has disconnected
	}
	if _, err := io.CopyN(io.Discard, c.TCPConn, lingerBytes); err != nil {
		return // the client has read the answer, or takes too long
	}
}

// refusal returns the problem that replaces a plain refusal, or nil if b is something else.
func (c *strictConn) refusal(b []byte) *problem.Problem {
	const line = "HTTP/1.1 "
	if len(b) < len(line)+3 || len(b) > 512 || string(b[:len(line)]) != line || b[len(line)] < '4' {
		return nil
	}
	status := string(b[len(line) : len(line)+3])
	if status == "417" { // has no body, and no route answers with it
		return errExpectation
	}
	if !bytes.Contains(b, plainRefusal) {
		return nil
	}
	switch status {
	case "431":
		return request.ErrHeaderTooLarge
	case "501":
		return errCoding
	case "505":
		return errVersion
	case "400":
		switch {
		case c.longLine:
			return request.ErrHeaderTooLarge
		case c.expired: // the server reads the part of a line that has arrived as a whole one
			return request.ErrTimeout
		case badKeyLine(c.recent):
			return request.ErrKeyInvalid
		}
		return errMalformed
	default:
		return nil
	}
}

// badKeyLine reports whether the headers contain an Idempotency-Key with a control character,
// which the server refuses before any route is called.
func badKeyLine(headers []byte) bool {
	const name = "idempotency-key:"
	for line := range bytes.SplitSeq(headers, []byte("\r\n")) {
		if len(line) == 0 {
			return false
		}
		if len(line) > len(name) && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
		}
	}
	return false
}
