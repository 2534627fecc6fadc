package handler

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
)

type strictConnKey struct{}

// StrictListener wraps a listener for what the HTTP server of the standard
// library leaves open at the level of bytes.
//
// It watches the connections it accepts for lines that end in a bare line
// feed. The server takes those for line ends, a proxy in front may not, and
// the two would then disagree where a request ends. Such a connection is
// closed after the answer. It refuses a request line above 16 KiB while it is
// being sent: the server would wait for its end. And it turns the server's own
// refusals, which are plain text, into the contract's form.
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

// strictConn is a connection that remembers having seen a bare line feed.
type strictConn struct {
	*net.TCPConn // by its own type: the server uses its CloseWrite
	requestIDs   requestIDs
	bare         atomic.Bool

	// What was read last, for the moment the server refuses it, and its last
	// byte. Both belong to whoever may read: the server sees to it that there
	// is one reader at a time.
	recent   []byte
	lastByte byte
	// line is how much of a request line was read, in bytes; it is afterRequestLine
	// from the line's end to the next request.
	line int
	// ahead is 1 after the server has read the first byte of the next request before
	// the connection was idle: until a request is answered, the server waits for a
	// single byte, to notice a client that leaves.
	ahead    int
	longLine bool // the connection ends for a request line above the limit
}

const (
	// maxRequestLine bounds the method, path and query of a request, in bytes.
	maxRequestLine   = 16 << 10
	afterRequestLine = -1
)

var errRequestLine = errors.New("handler: request line too long")

// Read reads, and looks at the line ends.
func (c *strictConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		c.ahead = 0
		if len(b) == 1 {
			c.ahead = 1
		}
		if c.line != afterRequestLine && c.readLine(b[:n]) > maxRequestLine {
			c.longLine = true
			return 0, errRequestLine // the server answers 400, which refusal replaces
		}
		if bareLineFeed(c.lastByte, b[:n]) {
			c.bare.Store(true)
		}
		c.recent, c.lastByte = b[:n], b[n-1]
	}
	return n, err
}

// readLine counts what was read of a request line, and returns the length of the
// line so far.
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

// enter follows the server from request to request. The server calls it between
// its reads, and never during one.
func (c *strictConn) enter(state http.ConnState) {
	switch state {
	case http.StateIdle: // what is read next begins a request
		c.line, c.ahead = c.ahead, 0
	case http.StateActive: // the headers are complete; a body may follow
		c.line = afterRequestLine
	default:
	}
}

func (c *strictConn) suspect() bool { return c.bare.Load() }

// bareLineFeed reports whether a line feed without a carriage return stands in
// the headers of a request; before is the byte that came before got, which may
// hold several requests. A body is passed over by its announced length. A piece
// of the stream that begins inside a body is taken for headers, which costs its
// client one connection.
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

// headersEnd returns where the headers end, behind their empty line, or 0 where
// they do not; bare says that a line before that ends in a line feed alone.
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

// announcedLength reads the Content-Length of whole headers; 0 where there is
// none that can be read, and the server refuses or ends such a request.
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
