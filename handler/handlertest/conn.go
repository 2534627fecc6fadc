// Package handlertest has what the tests of handler and of handler/server share: a real server, a
// client that sends raw bytes, and the checks of a problem.
package handlertest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"flashsale/handler/server"
)

// Serve runs a handler on a real server until the test ends, and returns its address. change may
// modify the server's limits; wrap adds listeners around the server's own.
func Serve(t *testing.T, h http.Handler, change func(*http.Server), wrap ...func(net.Listener) net.Listener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accept := server.StrictListener(l)
	for _, f := range wrap {
		accept = f(accept)
	}
	srv := server.New(h)
	change(srv)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(accept) }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// ReadWithin limits the time to read a request.
func ReadWithin(limit time.Duration) func(*http.Server) {
	return func(srv *http.Server) { srv.ReadTimeout, srv.ReadHeaderTimeout = limit, limit }
}

// Conn is a raw connection of a client.
type Conn struct {
	*net.TCPConn
	In *bufio.Reader
}

// Dial connects to a server. Every wait for it ends after five minutes.
func Dial(t *testing.T, addr string) *Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // usually already closed by the server
	if err := c.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("dialled a %T", c)
	}
	return &Conn{TCPConn: tcp, In: bufio.NewReader(c)}
}

// Send writes the text as it is.
func (w *Conn) Send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}

// Answer reads one answer with its body.
func (w *Conn) Answer(t *testing.T) *http.Response {
	t.Helper()
	resp, err := w.TryAnswer()
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return resp
}

// TryAnswer is like Answer for a connection that may end without one.
func (w *Conn) TryAnswer() (*http.Response, error) {
	resp, err := http.ReadResponse(w.In, nil)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// WantEnd checks that the server closes the connection without sending more.
func (w *Conn) WantEnd(t *testing.T) {
	t.Helper()
	rest, err := io.ReadAll(w.In)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the connection stays open")
	}
	if len(rest) > 0 {
		t.Errorf("more was sent: %q", rest)
	}
}
