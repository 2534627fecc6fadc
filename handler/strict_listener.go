package handler

import (
	"bytes"
	"net"
	"sync/atomic"
)

type strictConnKey struct{}

// StrictListener watches the bytes of the connections it accepts for lines
// that end in a bare line feed. The standard library takes those for line
// ends, a proxy in front may not, and the two would then disagree where a
// request ends. Such a connection is closed after the answer.
func StrictListener(l net.Listener) net.Listener { return strictListener{l} }

type strictListener struct{ net.Listener }

func (l strictListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c, nil
	}
	return &strictConn{TCPConn: tcp}, nil
}

// strictConn is a connection that remembers having seen a bare line feed.
type strictConn struct {
	*net.TCPConn
	bare atomic.Bool
}

func (c *strictConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	// Counting is some ten times faster than looking at each line, and tells
	// whether a look is needed. Line feeds in a body make it look, too.
	if got := b[:n]; bytes.Count(got, lineFeed) != bytes.Count(got, carriageReturn) && bareLineFeed(got) {
		c.bare.Store(true)
	}
	return n, err
}

func (c *strictConn) suspect() bool { return c.bare.Load() }

var (
	lineFeed       = []byte("\n")
	carriageReturn = []byte("\r")
	endOfHeaders   = []byte("\r\n\r\n")
)

// bareLineFeed reports whether a line feed without a carriage return stands
// before the end of the headers. A piece of the stream that holds no such end
// may be body; taking it for headers costs its client one connection.
func bareLineFeed(got []byte) bool {
	if end := bytes.Index(got, endOfHeaders); end >= 0 {
		got = got[:end]
	}
	for i := 0; ; i++ {
		next := bytes.IndexByte(got[i:], '\n')
		if next < 0 {
			return false
		}
		i += next
		if i == 0 || got[i-1] != '\r' {
			return true
		}
	}
}
