package server

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"

	"flashsale/handler/request"
)

type strictConnKey struct{}

// StrictListener wraps a listener with checks that net/http does not make.
//
// It checks the accepted connections for lines that end in a bare line feed. The server treats
// these as line ends but a proxy may not, so the two would disagree about the end of a request.
// Such a connection is closed after the answer. It refuses a request line above 16 KiB as soon
// as it is too long, because the server would wait for its end. And it replaces the server's
// own plain-text refusals by problems of the API.
func StrictListener(l net.Listener) net.Listener {
	return &strictListener{Listener: l, requestIDs: request.NewIDs("")}
}

type strictListener struct {
	net.Listener
	requestIDs request.IDs
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

// Unwrap returns the connection that a StrictListener has accepted, for data other than HTTP.
func Unwrap(c net.Conn) net.Conn {
	if strict, ok := c.(*strictConn); ok {
		return strict.TCPConn
	}
	return c
}

// strictConn is a connection that records whether it has received a bare line feed.
type strictConn struct {
	*net.TCPConn // the concrete type, because the server uses its CloseWrite
	requestIDs   request.IDs
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
	expired  bool // the last read has reached its deadline
}

const (
	// maxRequestLine bounds the method, path and query of a request, in bytes.
	maxRequestLine   = 16 << 10
	afterRequestLine = -1
)

var errRequestLine = errors.New("server: request line too long")

// Read reads, and checks the line ends.
func (c *strictConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.expired = errors.Is(err, os.ErrDeadlineExceeded)
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
