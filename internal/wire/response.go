package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Response is one answer. It is valid until the next Do of its Conn.
type Response struct {
	Status int
	Body   []byte

	head   []byte // header lines, each ended by CRLF
	length int    // Content-Length, or -1
	chunks bool   // Transfer-Encoding: chunked
	close  bool   // the server closes the connection after this answer
}

// Header returns the value of the first header with that name, ignoring case, or nil if there
// is none.
func (r *Response) Header(name string) []byte {
	for rest := r.head; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, crlf)
		rest = after
		if len(line) > len(name) && line[len(name)] == ':' && equalFold(line[:len(name)], name) {
			return trim(line[len(name)+1:])
		}
	}
	return nil
}

// Headers calls f with the name and the value of each header, in their order.
func (r *Response) Headers(f func(name, value []byte)) {
	for rest := r.head; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, crlf)
		rest = after
		if name, value, ok := bytes.Cut(line, []byte(":")); ok {
			f(name, trim(value))
		}
	}
}

var (
	crlf    = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
)

// readHead reads a status line and headers into c.res.
func (c *Conn) readHead() error {
	start, seen := c.r, c.r
	for {
		if i := bytes.Index(c.buf[seen:c.w], headEnd); i >= 0 {
			head := c.buf[start : seen+i+len(crlf)]
			c.r = seen + i + len(headEnd)
			return c.res.parse(head)
		}
		if c.w-start > maxHead {
			return fmt.Errorf("%w: head above %d bytes", ErrTooLarge, maxHead)
		}
		// The end may span two reads.
		seen = max(start, c.w-len(headEnd)+1)
		if err := c.fill(); err != nil {
			return unexpectedEnd(err, c.w > start)
		}
	}
}

// unexpectedEnd distinguishes a connection closed inside an answer from one closed before it,
// which a server may do to any idle connection.
func unexpectedEnd(err error, inside bool) error {
	if inside && errors.Is(err, io.EOF) {
		return fmt.Errorf("wire: read: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// parse reads the head: "HTTP/1.1 200 OK", then header lines.
func (r *Response) parse(head []byte) error {
	if bareBreak(head) {
		return fmt.Errorf("%w: bare CR or LF in the head", ErrProtocol)
	}
	line, rest, _ := bytes.Cut(head, crlf)
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return fmt.Errorf("%w: status line %.40q", ErrProtocol, line)
	}
	status, ok := number(line[9:12])
	if !ok || status < 100 {
		return fmt.Errorf("%w: status line %.40q", ErrProtocol, line)
	}
	*r = Response{Status: status, head: rest, length: -1, close: line[7] == '0'}
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, crlf)
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 || line[0] == ' ' || line[0] == '\t' || line[colon-1] == ' ' {
			return fmt.Errorf("%w: header line %.40q", ErrProtocol, line)
		}
		if err := r.note(line[:colon], trim(line[colon+1:])); err != nil {
			return err
		}
	}
	if r.chunks && r.length >= 0 {
		return fmt.Errorf("%w: Content-Length beside Transfer-Encoding", ErrProtocol)
	}
	return nil
}

// bareBreak finds a CR or LF outside a CRLF. Clients differ in whether it ends a line, so the
// meaning of such an answer is ambiguous.
func bareBreak(head []byte) bool {
	for len(head) > 0 {
		i := bytes.IndexByte(head, '\n')
		if i < 1 || head[i-1] != '\r' || bytes.IndexByte(head[:i-1], '\r') >= 0 {
			return true
		}
		head = head[i+1:]
	}
	return false
}

// note records the headers that define the framing.
func (r *Response) note(name, value []byte) error {
	switch {
	case equalFold(name, "content-length"):
		n, ok := number(value)
		if !ok || r.length >= 0 && r.length != n {
			return fmt.Errorf("%w: Content-Length %.40q", ErrProtocol, value)
		}
		if n > maxBody {
			return fmt.Errorf("%w: body above %d bytes", ErrTooLarge, maxBody)
		}
		r.length = n
	case equalFold(name, "transfer-encoding"):
		if r.chunks || !equalFold(value, "chunked") {
			return fmt.Errorf("%w: Transfer-Encoding %.40q", ErrProtocol, value)
		}
		r.chunks = true
	case equalFold(name, "connection"):
		for _, option := range bytes.Split(value, []byte(",")) {
			switch option = trim(option); {
			case equalFold(option, "close"):
				r.close = true
			case equalFold(option, "keep-alive"):
				r.close = false
			}
		}
	}
	return nil
}

// readBody reads the body as framed by the headers.
func (c *Conn) readBody(headRequest bool) error {
	r := &c.res
	switch {
	case headRequest || r.Status == 204 || r.Status == 304:
		return nil
	case r.chunks:
		return c.withHead(c.readChunks)
	case r.length >= 0:
		return c.withHead(func() error {
			start := c.r
			if err := c.need(r.length); err != nil {
				return err
			}
			r.Body = c.buf[start : start+r.length]
			c.r += r.length
			return nil
		})
	default:
		return c.withHead(c.readToEnd)
	}
}

// withHead runs a read that may move the buffer, and then updates the head's slice.
func (c *Conn) withHead(read func() error) error {
	end := c.r - len(crlf) // the blank line is not part of the head
	start := end - len(c.res.head)
	err := read()
	c.res.head = c.buf[start:end]
	return err
}

// need makes n unread bytes available.
func (c *Conn) need(n int) error {
	if short := c.r + n - len(c.buf); short > 0 {
		c.buf = append(c.buf, make([]byte, short)...)
	}
	for c.w-c.r < n {
		if err := c.fill(); err != nil {
			return unexpectedEnd(err, true)
		}
	}
	return nil
}

// readToEnd reads a body that ends with the connection.
func (c *Conn) readToEnd() error {
	c.res.close = true
	for {
		if c.w-c.r > maxBody {
			return fmt.Errorf("%w: body above %d bytes", ErrTooLarge, maxBody)
		}
		if err := c.fill(); err != nil {
			if !errors.Is(err, io.EOF) {
				return err
			}
			c.res.Body = c.buf[c.r:c.w]
			c.r = c.w
			return nil
		}
	}
}

// readChunks reads a chunked body and its trailer.
func (c *Conn) readChunks() error {
	c.body = c.body[:0]
	for {
		line, err := c.readLine()
		if err != nil {
			return err
		}
		size, ok := hexNumber(line)
		if !ok {
			return fmt.Errorf("%w: chunk size %.40q", ErrProtocol, line)
		}
		if size == 0 {
			break
		}
		if len(c.body)+size > maxBody {
			return fmt.Errorf("%w: body above %d bytes", ErrTooLarge, maxBody)
		}
		if err := c.need(size + len(crlf)); err != nil {
			return err
		}
		chunk := c.buf[c.r : c.r+size+len(crlf)]
		if string(chunk[size:]) != "\r\n" {
			return fmt.Errorf("%w: chunk without its end", ErrProtocol)
		}
		c.body = append(c.body, chunk[:size]...)
		c.r += len(chunk)
	}
	for trailer := 0; trailer <= maxHead; {
		line, err := c.readLine()
		if err != nil {
			return err
		}
		if len(line) == 0 {
			c.res.Body = c.body
			return nil
		}
		trailer += len(line)
	}
	return fmt.Errorf("%w: trailer above %d bytes", ErrTooLarge, maxHead)
}

// readLine reads up to CRLF and returns the line without it.
func (c *Conn) readLine() ([]byte, error) {
	start := c.r
	for {
		if i := bytes.Index(c.buf[start:c.w], crlf); i >= 0 {
			c.r = start + i + len(crlf)
			return c.buf[start : start+i], nil
		}
		if c.w-start > maxHead {
			return nil, fmt.Errorf("%w: line above %d bytes", ErrTooLarge, maxHead)
		}
		if err := c.fill(); err != nil {
			return nil, unexpectedEnd(err, true)
		}
	}
}

// number reads decimal digits. A Content-Length may contain nothing else.
func number(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 12 {
		return 0, false
	}
	n := 0
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + int(d-'0')
	}
	return n, true
}

// hexNumber reads a chunk size and ignores extensions after ';'.
func hexNumber(b []byte) (int, bool) {
	if i := bytes.IndexByte(b, ';'); i >= 0 {
		b = trim(b[:i])
	}
	if len(b) == 0 || len(b) > 8 {
		return 0, false
	}
	n := 0
	for _, d := range b {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, false
		}
		n = n<<4 | int(d)
	}
	return n, true
}

func trim(b []byte) []byte { return bytes.Trim(b, " \t") }

// equalFold compares ASCII, ignoring case, without allocating.
func equalFold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i := range b {
		if lower(b[i]) != lower(s[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}
