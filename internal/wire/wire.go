// Package wire is a lean HTTP/1.1 client for load generation. It shares the
// machine with the service it measures, so it spends as little as it can: one
// connection is owned by one goroutine, requests are bytes the caller has built
// (see Request), and answers are read into buffers that are used again.
//
// It never sends a request twice, follows no redirects and keeps no cookies: a
// load generator must know exactly what went over the wire. What it reads it
// reads strictly; an answer that another client might understand differently is
// an error.
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

// Errors of this package. Those of the network are wrapped and can be told
// apart as usual, for example by errors.Is(err, os.ErrDeadlineExceeded).
var (
	// ErrProtocol says that the server's bytes are not one well-formed HTTP/1.1 answer.
	ErrProtocol = errors.New("wire: malformed answer")
	// ErrTooLarge says that the answer's head or body is above the bound.
	ErrTooLarge = errors.New("wire: answer too large")
	// ErrBroken says that the connection cannot carry another request, because
	// an earlier one failed or the server asked to close.
	ErrBroken = errors.New("wire: connection not usable")
	// ErrTarget says that a target URL cannot be used.
	ErrTarget = errors.New("wire: bad target")
)

const (
	maxHead    = 64 << 10 // bytes of status line and headers
	maxBody    = 16 << 20 // bytes of one answer's body
	maxInterim = 8        // 1xx answers before the final one
	startBuf   = 4 << 10
)

// Target is where requests go, parsed once.
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

// Conn is one keep-alive connection. Do is for one goroutine at a time; Close
// may be called from any, and ends a Do that is under way.
type Conn struct {
	// Timeout bounds each Do, from writing to the last byte of the answer.
	// Zero: no bound.
	Timeout time.Duration
	// OnSent is called by Do once the request has been written, before its answer
	// is read. Nil: nothing is called.
	OnSent func()

	nc     net.Conn
	buf    []byte // bytes from the server; buf[r:w] is unread
	r, w   int
	body   []byte // a chunked body, put together
	res    Response
	broken bool
}

// Dial connects to the target. The context bounds the dialling only.
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

// NewConn makes a Conn of an open connection, which it then owns.
func NewConn(nc net.Conn) *Conn {
	return &Conn{nc: nc, buf: make([]byte, startBuf)}
}

// Usable reports whether another request can be sent on this connection.
func (c *Conn) Usable() bool { return !c.broken }

// Close closes the connection.
func (c *Conn) Close() error { return c.nc.Close() }

// Do sends one complete request and reads its answer. The Response and all it
// refers to belong to the Conn and are valid until the next Do. After an error
// the connection is not usable and the request's outcome is unknown, unless the
// error is ErrBroken: then nothing was sent.
func (c *Conn) Do(req []byte) (*Response, error) {
	if c.broken {
		return nil, ErrBroken
	}
	// What the server sent between two requests answers neither of them.
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
		// 101 would hand the connection over to another protocol.
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

// fill reads at least one byte more, growing the buffer when it is full. The
// bytes already read keep their offsets.
func (c *Conn) fill() error {
	if c.w == len(c.buf) {
		c.buf = append(c.buf, make([]byte, len(c.buf))...)
	}
	n, err := c.nc.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil // the error, if any, comes again with the next read
	}
	if err == nil {
		return fmt.Errorf("wire: read: %w", io.ErrNoProgress)
	}
	return fmt.Errorf("wire: read: %w", err)
}
