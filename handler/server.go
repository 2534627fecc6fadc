package handler

import (
	"bytes"
	"context"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// The time limits of a server.
const (
	// readTimeout bounds the time from a request's first byte to the last byte of its body,
	// which limits how long a slow client can hold a connection.
	readTimeout = 4 * time.Second
	// writeTimeout bounds the time from the headers to the end of the answer, including a
	// purchase's wait for its commit. Streams set their own limit.
	writeTimeout = 30 * time.Second
	// idleTimeout is how long a connection may be idle between requests.
	idleTimeout = 2 * time.Minute
)

// NewServer returns a server for the routes of New or NewOps, with bounds on time and size. Its
// fields can be changed until it serves. Serve it on a StrictListener, and set ErrorLog (see
// ServerLog).
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if mustClose(r) {
				w.Header()["Connection"] = headerClose
			}
			h.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		// The routes refuse headers above 16 KiB, and a strictConn refuses longer request
		// lines. The server's own limit applies to heads that do not end.
		MaxHeaderBytes: 256 << 10,
		// Disables the server's own answer to `OPTIONS *`.
		DisableGeneralOptionsHandler: true,

		ErrorLog: ServerLog(zerolog.Nop()),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if strict, ok := c.(*strictConn); ok {
				return context.WithValue(ctx, strictConnKey{}, strict)
			}
			return ctx
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if strict, ok := c.(*strictConn); ok {
				strict.enter(state)
			}
		},
	}
}

// ServerLog returns a logger for http.Server.ErrorLog that writes to log at debug level,
// because clients cause most of a server's errors.
func ServerLog(log zerolog.Logger) *stdlog.Logger { //nolint:forbidigo // net/http takes no other logger; this one writes to ours
	return stdlog.New(logWriter{log}, "", 0) //nolint:forbidigo // the same
}

// logWriter converts the lines of the standard logger to events.
type logWriter struct{ log zerolog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.log.Debug().Str("from", "net/http").Msg(string(bytes.TrimSpace(line)))
	return len(line), nil
}

// mustClose reports whether the connection must be closed after this answer, because the server
// and a proxy may disagree about the end of the request. It only costs the client a connection:
//   - HTTP/1.0 has no chunks. The server ignores a Transfer-Encoding there, and would treat
//     the body as the next request.
//   - Chunked bodies are legal, but one that came with a Content-Length as well can no longer
//     be distinguished.
func mustClose(r *http.Request) bool {
	if !r.ProtoAtLeast(1, 1) || len(r.TransferEncoding) > 0 {
		return true
	}
	strict, ok := r.Context().Value(strictConnKey{}).(*strictConn)
	return ok && strict.suspect()
}

// Refusals of requests so malformed that the server does not pass them to a handler.
var (
	problemMalformed = newProblem(400, "request_malformed", "Malformed request",
		"The request line, headers or framing violate HTTP/1.1.")
	problemCoding = newProblem(501, "transfer_encoding", "Unknown transfer encoding",
		"The only supported Transfer-Encoding is chunked; prefer a Content-Length.")
	problemExpectation = newProblem(417, "expectation_failed", "Expectation failed",
		"The only supported expectation is 100-continue.").with("Expect",
		"The only supported expectation is 100-continue.")
	problemVersion = newProblem(505, "http_version", "Unknown HTTP version",
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
func (c *strictConn) refusal(b []byte) *problem {
	const line = "HTTP/1.1 "
	if len(b) < len(line)+3 || len(b) > 512 || string(b[:len(line)]) != line || b[len(line)] < '4' {
		return nil
	}
	status := string(b[len(line) : len(line)+3])
	if status == "417" { // has no body, and no route answers with it
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

type strictConnKey struct{}

// StrictListener wraps a listener with checks that net/http does not make.
//
// It checks the accepted connections for lines that end in a bare line feed. The server treats
// these as line ends but a proxy may not, so the two would disagree about the end of a request.
// Such a connection is closed after the answer. It refuses a request line above 16 KiB as soon
// as it is too long, because the server would wait for its end. And it replaces the server's
// own plain-text refusals by problems of the API.
func StrictListener(l net.Listener) net.Listener {
	return &strictListener{Listener: l, requestIDs: newRequestIDs()}
}

type strictListener struct {
	net.Listener
	requestIDs requestIDs
}

// Accept waits for the next connection.
func (l *strictListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	return &strictConn{TCPConn: tcp, requestIDs: l.requestIDs}, nil
}

// strictConn is a connection that records whether it has received a bare line feed.
type strictConn struct {
	*net.TCPConn // the concrete type, because the server uses its CloseWrite
	requestIDs   requestIDs
	bare         atomic.Bool

	// The most recently read data, for the moment the server refuses it, and its last byte.
	// Only the current reader uses them: the server never reads concurrently.
	recent   []byte
	lastByte byte
	// line is the number of bytes read of a request line; it is afterRequestLine from the end
	// of the line to the next request.
	line int
	// ahead is 1 after the server has read the first byte of the next request before the
	// connection was idle: until a request is answered, the server reads a single byte to
	// detect a disconnected client.
	ahead    int
	longLine bool // the connection is closed because of a request line above the limit
}

const (
	// maxRequestLine bounds the method, path and query of a request, in bytes.
	maxRequestLine   = 16 << 10
	afterRequestLine = -1
)

var errRequestLine = errors.New("handler: request line too long")

// Read reads, and checks the line ends.
func (c *strictConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		c.ahead = 0
		if len(b) == 1 {
			c.ahead = 1
		}
		if c.line != afterRequestLine && c.readLine(b[:n]) > maxRequestLine {
			c.longLine = true
			return 0, errRequestLine // the server answers 400, which Write replaces
		}
		if bareLineFeed(c.lastByte, b[:n]) {
			c.bare.Store(true)
		}
		c.recent, c.lastByte = b[:n], b[n-1]
	}
	return n, err
}

// readLine counts the bytes read of a request line, and returns the length of the line so far.
func (c *strictConn) readLine(got []byte) int {
	end := bytes.IndexByte(got, '\n')
	if end < 0 {
		c.line += len(got)
		return c.line
	}
	length := c.line + end
	c.line = afterRequestLine
	return length
}

// enter follows the server's connection states. The server calls it between its reads, and
// never during one.
func (c *strictConn) enter(state http.ConnState) {
	switch state {
	case http.StateIdle: // the next read begins a request
		c.line, c.ahead = c.ahead, 0
	case http.StateActive: // the headers are complete; a body may follow
		c.line = afterRequestLine
	default:
	}
}

func (c *strictConn) suspect() bool { return c.bare.Load() }

// bareLineFeed reports whether the headers of a request contain a line feed without a carriage
// return. before is the byte before got, which may contain several requests. Bodies are skipped
// by their Content-Length. Data that begins inside a body is treated as headers, which costs
// its client one connection.
func bareLineFeed(before byte, got []byte) bool {
	for len(got) > 0 {
		next := bytes.IndexByte(got, '\n')
		if next < 0 {
			return false
		}
		end, bare := headersEnd(before, got)
		if bare {
			return true
		}
		if end == 0 {
			return false
		}
		body := announcedLength(got[:end])
		if body >= len(got)-end {
			return false
		}
		before, got = '\n', got[end+body:]
	}
	return false
}

// headersEnd returns the end of the headers after their empty line, or 0 if they are
// incomplete; bare means that a line before it ends in a bare line feed.
func headersEnd(before byte, got []byte) (end int, bare bool) {
	for i := 0; ; i++ {
		next := bytes.IndexByte(got[i:], '\n')
		if next < 0 {
			return 0, false
		}
		i += next
		if i > 0 {
			before = got[i-1]
		}
		if before != '\r' {
			return 0, true
		}
		if i >= 3 && got[i-2] == '\n' && got[i-3] == '\r' {
			return i + 1, false
		}
	}
}

var contentLength = []byte("content-length:")

// announcedLength returns the Content-Length of complete headers; 0 if there is no valid one,
// in which case the server refuses or ends the request.
func announcedLength(headers []byte) int {
	for line := range bytes.Lines(headers) {
		if len(line) < len(contentLength) || !bytes.EqualFold(line[:len(contentLength)], contentLength) {
			continue
		}
		n, err := strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):])))
		if err == nil && n > 0 {
			return n
		}
	}
	return 0
}
