package handler

import (
	"bytes"
	"net"
	"sync/atomic"
)

type strictConnKey struct{}

// StrictListener wraps a listener for what the HTTP server of the standard
// library leaves open at the level of bytes.
//
// It watches the connections it accepts for lines that end in a bare line
// feed. The server takes those for line ends, a proxy in front may not, and
// the two would then disagree where a request ends. Such a connection is
// closed after the answer. And it turns the server's own refusals, which are
// plain text, into the contract's form.
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
}

// Read reads, and looks at the line ends.
func (c *strictConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		if bareLineFeed(c.lastByte, b[:n]) {
			c.bare.Store(true)
		}
		c.recent, c.lastByte = b[:n], b[n-1]
	}
	return n, err
}

func (c *strictConn) suspect() bool { return c.bare.Load() }

// bareLineFeed reports whether a line feed without a carriage return stands
// before the end of the headers; before is the byte that came before got. A
// piece of the stream that holds no such end may be body; taking it for
// headers costs its client one connection.
func bareLineFeed(before byte, got []byte) bool {
	for i := 0; ; i++ {
		next := bytes.IndexByte(got[i:], '\n')
		if next < 0 {
			return false
		}
		i += next
		if i > 0 {
			before = got[i-1]
		}
		if before != '\r' {
			return true
		}
		if i >= 3 && got[i-2] == '\n' && got[i-3] == '\r' {
			return false // an empty line: the headers end here
		}
	}
}
