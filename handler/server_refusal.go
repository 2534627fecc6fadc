package handler

import (
	"bytes"
	"io"
	"strconv"
	"time"
)

// Refusals of requests so malformed that the server never hands them on.
var (
	problemMalformed = newProblem(400, "request_malformed", "Malformed request",
		"The request's line, headers or framing break the rules of HTTP/1.1.")
	problemCoding = newProblem(501, "transfer_encoding", "Unknown transfer encoding",
		"The only Transfer-Encoding taken is chunked; better send a Content-Length.")
	problemExpectation = newProblem(417, "expectation_failed", "Expectation failed",
		"The only supported expectation is Expect: 100-continue.").with("Expect",
		"The only supported expectation is Expect: 100-continue.")
	problemVersion = newProblem(505, "http_version", "Unknown HTTP version",
		"Speak HTTP/1.1.")
)

// plainRefusal stands in every refusal that the server writes itself, and in
// no answer of a route: those have other headers.
var plainRefusal = []byte("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n")

// Write writes, except that a refusal of the server itself is put into the
// contract's form. The server writes each of them in one piece.
func (c *strictConn) Write(b []byte) (int, error) {
	p := c.refusal(b)
	if p == nil {
		return c.TCPConn.Write(b)
	}
	id := c.requestIDs.mint()
	body := append(append(append([]byte(nil), p.head...), id...), `"}`...)
	head := "HTTP/1.1 " + strconv.Itoa(p.status) + " " + p.title +
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

// linger ends the connection's sending side and reads on for a little. The server
// closes it after a refusal, and unread bytes would then reset the
// connection of a client that is still sending and has not seen the answer.
func (c *strictConn) linger() {
	if c.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return // the client is gone
	}
	if _, err := io.CopyN(io.Discard, c.TCPConn, lingerBytes); err != nil {
		return // the client has seen the answer, or takes too long
	}
}

// refusal returns the problem that stands for a plain refusal, or nil when b
// is anything else.
func (c *strictConn) refusal(b []byte) *problem {
	const line = "HTTP/1.1 "
	if len(b) < len(line)+3 || len(b) > 512 || string(b[:len(line)]) != line || b[len(line)] < '4' {
		return nil
	}
	status := string(b[len(line) : len(line)+3])
	if status == "417" { // has no body, and no route answers so
		return problemExpectation
	}
	if !bytes.Contains(b, plainRefusal) {
		return nil
	}
	switch status {
	case "431":
		return problemHeaderTooLarge
	case "501":
		return problemCoding
	case "505":
		return problemVersion
	case "400":
		switch {
		case c.longLine:
			return problemHeaderTooLarge
		case badKeyLine(c.recent):
			return problemKeyInvalid
		}
		return problemMalformed
	default:
		return nil
	}
}

// badKeyLine reports whether the headers hold an Idempotency-Key with a
// control character, which the server refuses before any route sees it.
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
