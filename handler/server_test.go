package handler

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/handler/handlertest"
	"flashsale/order"
)

// serve runs the shop on a real server with long limits, and returns its address.
func serve(t *testing.T, s http.Handler, wrap ...func(net.Listener) net.Listener) string {
	t.Helper()
	return handlertest.Serve(t, s, handlertest.ReadWithin(20*time.Second), wrap...)
}

// answerWithin sends a request to a server with a short read limit, and returns the answer. On
// a busy machine the headers themselves may be too late, and such a connection is closed
// without an answer: then it retries with a longer limit.
func answerWithin(t *testing.T, request string, shop func(limit time.Duration) http.Handler) (*handlertest.Conn, *http.Response) {
	t.Helper()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		w := handlertest.Dial(t, handlertest.Serve(t, shop(limit), handlertest.ReadWithin(limit)))
		// The write may find the connection closed, but the answer decides.
		_, sent := io.WriteString(w, request)
		resp, err := w.TryAnswer()
		if err == nil {
			return w, resp
		}
		if limit > 5*time.Second {
			t.Fatalf("no answer from a server with %v to read the request: %v, sent with %v", limit, err, sent)
		}
	}
}

const wireBody = `{"quantity":1}`

// rawPurchase is a purchase as text; extra are header lines with their line ends.
func rawPurchase(t *testing.T, extra, body string) string {
	t.Helper()
	return "POST " + purchasePath + " HTTP/1.1\r\nHost: shop\r\nAuthorization: " + bearer(t, "alice", auth.RoleBuyer) +
		"\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n" + extra + "\r\n" + body
}

func withLength(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }

func TestServer_KeepAlive(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := handlertest.Dial(t, serve(t, s))
	for range 2 {
		w.Send(t, rawPurchase(t, withLength(wireBody), wireBody))
		if resp := w.Answer(t); resp.StatusCode != 201 || resp.Close {
			t.Fatalf("%d, close %t", resp.StatusCode, resp.Close)
		}
		// The connection stays usable after a refusal that has read its body.
		w.Send(t, rawPurchase(t, "Content-Length: 3\r\n", "{}x"))
		resp := w.Answer(t)
		wantProblem(t, resp, 400, "json_trailing")
		if resp.Close {
			t.Fatal("closed after a bad body")
		}
		long := wireBody + strings.Repeat(" ", 10_000)
		w.Send(t, rawPurchase(t, withLength(long), long))
		resp = w.Answer(t)
		wantProblem(t, resp, 413, "body_too_large")
		if resp.Close {
			t.Fatal("closed after a long body")
		}
	}
}

// A client that closes its sending side after a purchase still reads, and gets an answer of the
// API.
func TestServer_HalfClosedClientGetsAnAnswer(t *testing.T) {
	t.Parallel()
	s := open(t)
	s.orders.place = func(ctx context.Context, _ order.Purchase) (order.Placed, error) {
		<-ctx.Done()
		return order.Placed{}, ctx.Err()
	}
	w := handlertest.Dial(t, serve(t, s))
	w.Send(t, rawPurchase(t, withLength(wireBody), wireBody))
	if err := w.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp := w.Answer(t)
	wantProblem(t, resp, 503, "unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// A line break in a header's value splits it into two headers, so it is never echoed.
func TestServer_RequestID_injection(t *testing.T) {
	t.Parallel()
	w := handlertest.Dial(t, serve(t, open(t)))
	w.Send(t, "GET /healthz HTTP/1.1\r\nHost: shop\r\nX-Request-Id: a%0d%0aX-Evil: 1\r\n\r\n")
	resp := w.Answer(t)
	if got := resp.Header.Get("X-Request-Id"); resp.StatusCode != 200 || strings.Contains(got, "%") || resp.Header.Get("X-Evil") != "" {
		t.Errorf("%d, headers %v", resp.StatusCode, resp.Header)
	}
}

// The routes on the real server: what follows a request whose end is in doubt is not answered.
func TestServer_OneAnswer(t *testing.T) {
	t.Parallel()
	const smuggled = "GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(wireBody), wireBody)
	for name, tc := range map[string]struct {
		headers, body string
		status        int
		code          string // empty: an order
	}{
		"length and chunks":   {"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunked, 201, ""},
		"bare line feed":      {"X-A: 1\nX-B: 2\r\n" + withLength(wireBody), wireBody, 201, ""},
		"two lengths":         {"Content-Length: 14\r\nContent-Length: 15\r\n", wireBody, 400, "request_malformed"},
		"bad chunk size":      {"Transfer-Encoding: chunked\r\n", "zz\r\n" + wireBody, 400, "body_incomplete"},
		"long body announced": {"Content-Length: 1000000\r\n", wireBody + strings.Repeat(" ", 8<<10), 413, "body_too_large"},
		"many headers":        {strings.Repeat("X-Fill: aaaaaaaaaaaa\r\n", 3000) + withLength(wireBody), wireBody, 431, "header_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			w := handlertest.Dial(t, serve(t, s))
			w.Send(t, rawPurchase(t, tc.headers, tc.body)+smuggled)
			resp := w.Answer(t)
			bought := len(s.orders.purchases())
			if tc.code != "" {
				wantProblem(t, resp, tc.status, tc.code)
			} else if resp.StatusCode != tc.status || bought != 1 {
				t.Errorf("status = %d, %d purchases", resp.StatusCode, bought)
			}
			if !resp.Close || tc.code != "" && bought != 0 {
				t.Errorf("close %t, %d purchases", resp.Close, bought)
			}
			w.WantEnd(t)
		})
	}
}
