package handler

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/handler/handlertest"
	"flashsale/order"
)

// Slow clients get 408 or are disconnected, and place no order.
func TestServer_SlowClientsAreCutOff(t *testing.T) {
	t.Parallel()
	t.Run("headers", func(t *testing.T) {
		t.Parallel()
		w := handlertest.Dial(t, handlertest.Serve(t, open(t), handlertest.ReadWithin(200*time.Millisecond)))
		w.Send(t, "POST "+purchasePath+" HTTP/1.1\r\nHost: sh")
		w.WantEnd(t)
	})
	// The server takes these for whole lines, which are malformed.
	for name, part := range map[string]string{"request line": "POST /v1/ite", "header name": "GET /healthz HTTP/1.1\r\nHost: shop\r\nAcce"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, resp := answerWithin(t, part, func(time.Duration) http.Handler { return open(t) })
			wantProblem(t, resp, 408, "request_timeout")
			w.WantEnd(t)
		})
	}
	for name, request := range map[string]string{
		"short body":       rawPurchase(t, "Content-Length: 100\r\n", wireBody),
		"no body":          rawPurchase(t, "Content-Length: 14\r\n", ""),
		"unfinished chunk": rawPurchase(t, "Transfer-Encoding: chunked\r\n", "e\r\n"+wireBody),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			w, resp := answerWithin(t, request, func(time.Duration) http.Handler { return s })
			wantProblem(t, resp, 408, "request_timeout")
			w.WantEnd(t)
			if len(s.orders.purchases()) != 0 {
				t.Error("something was bought")
			}
		})
	}
}

// countListener counts what the server reads from the network.
type countListener struct {
	net.Listener
	read *atomic.Int64
}

type countConn struct {
	net.Conn
	read *atomic.Int64
}

func (l countListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countConn{c, l.read}, err
}

func (c countConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.read.Add(int64(n))
	return n, err
}

// Endless chunks are read up to 64 KiB. Then the answer is sent although the client keeps
// sending.
func TestServer_EndlessChunksAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t)
	var read atomic.Int64
	w := handlertest.Dial(t, serve(t, s, func(l net.Listener) net.Listener { return countListener{l, &read} }))
	w.Send(t, rawPurchase(t, "Transfer-Encoding: chunked\r\n", ""))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			// Any write may find the connection closed.
			if _, err := io.WriteString(w, "400\r\n"+strings.Repeat(" ", 1024)+"\r\n"); err != nil {
				return
			}
		}
	}()
	wantProblem(t, w.Answer(t), 413, "body_too_large")
	<-ended
	// Plus the headers, the chunks' framing and one read-ahead buffer.
	if got := read.Load(); got > 64<<10+8<<10 {
		t.Errorf("%d bytes were read", got)
	}
	if len(s.orders.purchases()) != 0 {
		t.Error("something was bought")
	}
}

// The read timeout does not cut off a longer wait.
func TestServer_WaitMayExceedTheReadLimit(t *testing.T) {
	t.Parallel()
	_, resp := answerWithin(t, rawPurchase(t, withLength(wireBody), wireBody), func(limit time.Duration) http.Handler {
		s := open(t)
		s.orders.place = func(ctx context.Context, p order.Purchase) (order.Placed, error) {
			select {
			case <-ctx.Done():
				return order.Placed{}, ctx.Err()
			case <-time.After(5 * limit / 2):
				return order.Placed{Order: someOrder(p), Committed: true}, nil
			}
		}
		return s
	})
	if resp.StatusCode != 201 {
		t.Errorf("status = %d", resp.StatusCode)
	}
}
