// Package wire is a lean HTTP/1.1 client for load generation. It shares the machine with the
// service that it measures, so it uses as few resources as possible: one goroutine owns each
// connection, the caller builds the bytes of the requests (see Request), and answers are read
// into reused buffers.
//
// It never sends a request twice, follows no redirects and keeps no cookies: a load generator
// must know exactly what was sent. It parses strictly: an answer that another client might
// interpret differently is an error.
package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"
)

// Errors of this package. Network errors are wrapped, and callers can test them as usual, for
// example with errors.Is(err, os.ErrDeadlineExceeded).
var (
	// ErrProtocol means that the server's bytes are not one well-formed HTTP/1.1 answer.
	ErrProtocol = errors.New("wire: malformed answer")
	// ErrTooLarge means that the head or body of an answer exceeds its bound.
	ErrTooLarge = errors.New("wire: answer too large")
	// ErrBroken means that the connection cannot carry another request, because an earlier one
	// failed or the server asked to close it.
	ErrBroken = errors.New("wire: connection not usable")
	// ErrTarget means that a target URL cannot be used.
	ErrTarget = errors.New("wire: bad target")
)

const (
	maxHead    = 64 << 10 // bytes of status line and headers
	maxBody    = 16 << 20 // bytes of one answer's body
	maxInterim = 8        // 1xx answers before the final one
	startBuf   = 4 << 10
)

// Target is the parsed URL to which requests are sent.
type Target struct {
	Addr   string // host:port to dial
	Host   string // the Host header
	Prefix string // path before every route, without a trailing slash
	TLS    bool
}

// ParseTarget reads an http or https URL without query or fragment.
func ParseTarget(raw string) (Target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Target{}, fmt.Errorf("%w: %w", ErrTarget, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return Target{}, fmt.Errorf("%w: scheme %q is neither http nor https", ErrTarget, u.Scheme)
	}
	if u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Target{}, fmt.Errorf("%w: need scheme://host[:port][/path] and nothing else", ErrTarget)
	}
	t := Target{Host: u.Host, Prefix: u.EscapedPath(), TLS: u.Scheme == "https"}
	for len(t.Prefix) > 0 && t.Prefix[len(t.Prefix)-1] == '/' {
		t.Prefix = t.Prefix[:len(t.Prefix)-1]
	}
	port := u.Port()
	if port == "" {
		port = "80"
		if t.TLS {
			port = "443"
		}
	}
	t.Addr = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// Conn is one keep-alive connection. Only one goroutine at a time may call Do. Close may be
// called concurrently and ends a Do in progress.
type Conn struct {
	// Timeout bounds each Do, from writing the request to reading the last byte of the answer.
	// Zero: no bound.
	Timeout time.Duration
	// OnSent is called by Do after the request is written and before its answer is read. It may
	// be nil.
	OnSent func()

	nc     net.Conn
	buf    []byte // bytes from the server; buf[r:w] is unread
	r, w   int
	body   []byte // the assembled chunked body
	res    Response
	broken bool
}

// Dial connects to the target. The context only bounds the dialling.
func Dial(ctx context.Context, t Target) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", t.Addr)
	if err != nil {
		return nil, fmt.Errorf("wire: dial: %w", err)
	}
	if t.TLS {
		host, _, err := net.SplitHostPort(t.Addr)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrTarget, err), nc.Close())
		}
		tc := tls.Client(nc, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
		if err := tc.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("wire: TLS handshake: %w", err), nc.Close())
		}
		nc = tc
	}
	return NewConn(nc), nil
}

// NewConn makes a Conn from an open connection, which it then owns.
func NewConn(nc net.Conn) *Conn {
	return &Conn{nc: nc, buf: make([]byte, startBuf)}
}

// Usable reports whether another request can be sent on this connection.
func (c *Conn) Usable() bool { return !c.broken }

// Close closes the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// Do sends one complete request and reads its answer. The Response and everything it refers to
// belong to the Conn and are valid until the next Do. After an error the connection is not
// usable and the outcome of the request is unknown, unless the error is ErrBroken: then nothing
// was sent.
func (c *Conn) Do(req []byte) (*Response, error) {
	if c.broken {
		return nil, ErrBroken
	}
	// Bytes that arrived between two requests answer neither of them.
	if c.r != c.w {
		c.broken = true
		return nil, fmt.Errorf("%w: bytes after the answer before (%w)", ErrProtocol, ErrBroken)
	}
	c.r, c.w = 0, 0
	res, err := c.roundTrip(req)
	if err != nil {
		c.broken = true
		return nil, err
	}
	if res.close {
		c.broken = true
	}
	return res, nil
}

func (c *Conn) roundTrip(req []byte) (*Response, error) {
	if c.Timeout > 0 {
		if err := c.nc.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
			return nil, fmt.Errorf("wire: set deadline: %w", err)
		}
	}
	if _, err := c.nc.Write(req); err != nil {
		return nil, fmt.Errorf("wire: write: %w", err)
	}
	if c.OnSent != nil {
		c.OnSent()
	}
	for range maxInterim {
		if err := c.readHead(); err != nil {
			return nil, err
		}
		// 101 would switch the connection to another protocol.
		if c.res.Status == 101 {
			return nil, fmt.Errorf("%w: unasked protocol switch", ErrProtocol)
		}
		if c.res.Status < 200 {
			continue
		}
		if err := c.readBody(isHead(req)); err != nil {
			return nil, err
		}
		return &c.res, nil
	}
	return nil, fmt.Errorf("%w: more than %d interim answers", ErrProtocol, maxInterim)
}

func isHead(req []byte) bool { return len(req) > 5 && string(req[:5]) == "HEAD " }

// fill reads at least one more byte and grows the buffer when it is full. Bytes already read
// keep their offsets.
func (c *Conn) fill() error {
	if c.w == len(c.buf) {
		c.buf = append(c.buf, make([]byte, len(c.buf))...)
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil // the next read returns the error again, if there is one
	}
	if err == nil {
		return fmt.Errorf("wire: read: %w", io.ErrNoProgress)
	}
	return fmt.Errorf("wire: read: %w", err)
}
