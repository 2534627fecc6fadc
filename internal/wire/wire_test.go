package wire_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"flashsale/internal/wire"
)

// served returns a Conn whose server reads one request, writes the given answer in pieces of
// the given size, and closes the connection.
func served(t testing.TB, answer string, piece int) *wire.Conn {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		if _, err := server.Read(buf); err != nil {
			return // the client closed the connection first, as some cases do
		}
		for rest := answer; rest != ""; {
			n := min(piece, len(rest))
			if _, err := server.Write([]byte(rest[:n])); err != nil {
				return
			}
			rest = rest[n:]
		}
		if err := server.Close(); err != nil {
			t.Errorf("close server side: %v", err)
		}
	}()
	c := wire.NewConn(client)
	c.Timeout = 10 * time.Second
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		<-done
	})
	return c
}

var get = []byte("GET / HTTP/1.1\r\nHost: h\r\n\r\n")

func TestConn_Do(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70_000)
	tests := []struct {
		name   string
		answer string
		status int
		body   string
		usable bool
	}{
		{"length", "HTTP/1.1 201 Created\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello", 201, "hello", true},
		{"no reason phrase", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, "", true},
		{"large body", fmt.Sprintf("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: %d\r\n\r\n%s", len(long), long), 200, long, true},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwiki\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n", 200, "wiki0123456789", true},
		{"large chunk", fmt.Sprintf("HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(long), long), 200, long, true},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", 204, "", true},
		{"not modified has no body", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", 304, "", true},
		{"interim", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true},
		{"asked to close", "HTTP/1.1 503 Unavailable\r\nContent-Length: 2\r\nConnection: foo, Close\r\n\r\nno", 503, "no", false},
		{"until the end", "HTTP/1.1 200 OK\r\n\r\nthe rest", 200, "the rest", false},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok", false},
		{"HTTP/1.0 kept alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true},
	}
	for _, tt := range tests {
		for _, piece := range []int{1, 7, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, piece), func(t *testing.T) {
				t.Parallel()
				c := served(t, tt.answer, piece)
				res, err := c.Do(get)
				if err != nil {
					t.Fatal(err)
				}
				if res.Status != tt.status || string(res.Body) != tt.body {
					t.Errorf("got %d, body of %d bytes %.30q; want %d, %d bytes", res.Status, len(res.Body), res.Body, tt.status, len(tt.body))
				}
				if c.Usable() != tt.usable {
					t.Errorf("usable: got %v, want %v", c.Usable(), tt.usable)
				}
				if strings.Contains(tt.answer, "X-A") && string(res.Header("x-a")) != "b" {
					t.Errorf("X-A: got %q", res.Header("x-a"))
				}
				res.Headers(func(name, value []byte) {
					if got := res.Header(string(name)); string(got) != string(value) {
						t.Errorf("header %s: %q, and alone %q", name, value, got)
					}
				})
				if res.Header("X-Missing") != nil {
					t.Error("a missing header has a value")
				}
			})
		}
	}
}

func TestConn_Do_HeadHasNoBody(t *testing.T) {
	t.Parallel()
	c := served(t, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n", 1<<20)
	res, err := c.Do([]byte("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Body) != 0 || !c.Usable() {
		t.Errorf("body %q, usable %v", res.Body, c.Usable())
	}
}

func TestConn_Do_Errors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		answer string
		want   error
	}{
		{"nothing", "", io.EOF},
		{"cut in the head", "HTTP/1.1 200 OK\r\nContent-", io.ErrUnexpectedEOF},
		{"cut in the body", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", io.ErrUnexpectedEOF},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", io.ErrUnexpectedEOF},
		{"cut before the last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", io.ErrUnexpectedEOF},
		{"not HTTP", "SSH-2.0-OpenSSH_9.6\r\n\r\n", wire.ErrProtocol},
		{"bad status", "HTTP/1.1 2x0 OK\r\n\r\n", wire.ErrProtocol},
		{"long status", "HTTP/1.1 2000 OK\r\n\r\n", wire.ErrProtocol},
		{"header without a colon", "HTTP/1.1 200 OK\r\nfoo\r\n\r\n", wire.ErrProtocol},
		{"space before the colon", "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx", wire.ErrProtocol},
		{"folded header", "HTTP/1.1 200 OK\r\nA: b\r\n c: d\r\n\r\n", wire.ErrProtocol},
		{"bare LF", "HTTP/1.1 200 OK\nA: b\r\n\r\n", wire.ErrProtocol},
		{"bare CR", "HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", wire.ErrProtocol},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", wire.ErrProtocol},
		{"signed length", "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx", wire.ErrProtocol},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", wire.ErrProtocol},
		{"length and chunks", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", wire.ErrProtocol},
		{"other coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", wire.ErrProtocol},
		{"chunk size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", wire.ErrProtocol},
		{"chunk end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd0\r\n\r\n", wire.ErrProtocol},
		{"protocol switch", "HTTP/1.1 101 Switching\r\n\r\n", wire.ErrProtocol},
		{"endless interim", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 20), wire.ErrProtocol},
		{"huge length", "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", wire.ErrTooLarge},
		{"huge head", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 200_000) + "\r\n\r\n", wire.ErrTooLarge},
		{"huge chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", wire.ErrTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := served(t, tt.answer, 1<<20)
			if _, err := c.Do(get); !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if c.Usable() {
				t.Error("usable after an error")
			}
			if _, err := c.Do(get); !errors.Is(err, wire.ErrBroken) {
				t.Errorf("second Do: got %v, want ErrBroken", err)
			}
		})
	}
}

func TestConn_Do_BytesAfterTheAnswer(t *testing.T) {
	t.Parallel()
	c := served(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n", 1<<20)
	if _, err := c.Do(get); err != nil {
		t.Fatal(err)
	}
	// The second request must not get an answer that belongs to no request.
	if _, err := c.Do(get); !errors.Is(err, wire.ErrProtocol) || !errors.Is(err, wire.ErrBroken) {
		t.Errorf("got %v, want ErrProtocol and ErrBroken", err)
	}
}

func TestConn_Do_Deadline(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	})
	c := wire.NewConn(client)
	c.Timeout = time.Millisecond
	if _, err := c.Do(get); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want os.ErrDeadlineExceeded", err)
	}
}

func TestConn_Do_AgainstNetHTTP(t *testing.T) {
	t.Parallel()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Saw", r.Method+" "+r.URL.Path+" "+r.Header.Get("X-In"))
		if r.URL.Path == "/p/chunked" {
			w.WriteHeader(http.StatusOK)
			http.NewResponseController(w).Flush() //nolint:errcheck // a failed flush shows in the answer
		}
		if _, err := w.Write(body); err != nil {
			t.Error(err)
		}
	})
	for _, secure := range []bool{false, true} {
		srv := httptest.NewUnstartedServer(h)
		if secure {
			srv.StartTLS()
		} else {
			srv.Start()
		}
		t.Cleanup(srv.Close)
		target, err := wire.ParseTarget(srv.URL + "/p/")
		if err != nil {
			t.Fatal(err)
		}
		c, err := wire.Dial(t.Context(), target)
		if secure {
			// A certificate of an unknown authority must be refused.
			var unknown x509.UnknownAuthorityError
			if !errors.As(err, &unknown) {
				t.Fatalf("got %v, want an unknown authority", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		c.Timeout = 10 * time.Second
		var q wire.Request
		for _, route := range []string{"/plain", "/chunked", "/plain"} {
			body := strings.Repeat("0123456789", 2000)
			req, err := q.Start("POST", target, route).Header("X-In", "v").Body([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if res.Status != 200 || string(res.Body) != body || string(res.Header("X-Saw")) != "POST /p"+route+" v" {
				t.Errorf("%s: got %d, %d bytes, X-Saw %q", route, res.Status, len(res.Body), res.Header("X-Saw"))
			}
		}
	}
}

func TestDial_Refused(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := wire.Dial(ctx, wire.Target{Addr: "127.0.0.1:1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	good := map[string]wire.Target{
		"http://127.0.0.1:8080":    {Addr: "127.0.0.1:8080", Host: "127.0.0.1:8080"},
		"http://shop.example/":     {Addr: "shop.example:80", Host: "shop.example"},
		"https://shop.example/a/b": {Addr: "shop.example:443", Host: "shop.example", Prefix: "/a/b", TLS: true},
		"http://[::1]:81":          {Addr: "[::1]:81", Host: "[::1]:81"},
	}
	for raw, want := range good {
		got, err := wire.ParseTarget(raw)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v; want %+v", raw, got, err, want)
		}
	}
	for _, raw := range []string{"", "127.0.0.1:8080", "ftp://h", "http://", "http://u:p@h", "http://h?q", "http://h#f", "http://h:x", "http://%"} {
		if _, err := wire.ParseTarget(raw); !errors.Is(err, wire.ErrTarget) {
			t.Errorf("%q: got %v, want ErrTarget", raw, err)
		}
	}
}

func TestRequest_RefusesInjection(t *testing.T) {
	t.Parallel()
	target := wire.Target{Host: "h"}
	var q wire.Request
	for name, build := range map[string]func() ([]byte, error){
		"header value": func() ([]byte, error) { return q.Start("GET", target, "/").Header("A", "b\r\nC: d").NoBody() },
		"header name":  func() ([]byte, error) { return q.Start("GET", target, "/").Header("A: b", "c").NoBody() },
		"route":        func() ([]byte, error) { return q.Start("GET", target, "/ HTTP/1.1\r\nA: b").NoBody() },
		"no slash":     func() ([]byte, error) { return q.Start("GET", target, "x").NoBody() },
		"method":       func() ([]byte, error) { return q.Start("", target, "/").NoBody() },
		"host":         func() ([]byte, error) { return q.Start("GET", wire.Target{Host: "h\n"}, "/").NoBody() },
	} {
		if _, err := build(); !errors.Is(err, wire.ErrRequest) {
			t.Errorf("%s: got %v, want ErrRequest", name, err)
		}
	}
	// A refused request must not affect the next one.
	b, err := q.Start("GET", target, "/ok").Header("A", "b").NoBody()
	if want := "GET /ok HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n"; err != nil || string(b) != want {
		t.Errorf("got %q, %v; want %q", b, err, want)
	}
}

// Requests must not load the garbage collector of a machine that the service shares.
func TestConn_Do_DoesNotAllocate(t *testing.T) {
	answer := []byte("HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"id\":\"abc-1\"}\n")
	client, server := net.Pipe()
	go func() {
		buf := make([]byte, 4096)
		for {
			if _, err := server.Read(buf); err != nil {
				return
			}
			if _, err := server.Write(answer); err != nil {
				return
			}
		}
	}()
	c := wire.NewConn(client)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	allocs := testing.AllocsPerRun(200, func() {
		res, err := c.Do(get)
		if err != nil || res.Status != 201 || res.Header("Content-Type") == nil {
			t.Fatalf("got %v, %v", res, err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations for one exchange, want none", allocs)
	}
}

// Reading any server's bytes ends, and net/http gives an accepted answer the same meaning.
func FuzzConn_Do(f *testing.F) {
	f.Add([]byte("HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;a=b\r\nwiki\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 200 OK\r\n\r\nthe rest"))
	f.Add([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		res, err := served(t, string(answer), 1<<20).Do(get)
		if err != nil || bytes.Contains(answer, []byte("HTTP/1.1 1")) || bytes.Contains(answer, []byte("HTTP/1.0 1")) {
			return // refused, or interim answers, which ReadResponse leaves to its caller
		}
		want, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		if err != nil {
			return // net/http is stricter about names and values that this client does not read
		}
		body, err := io.ReadAll(want.Body)
		if err = errors.Join(err, want.Body.Close()); err != nil {
			return
		}
		if res.Status != want.StatusCode || !bytes.Equal(res.Body, body) {
			t.Errorf("got %d %q, net/http has %d %q", res.Status, res.Body, want.StatusCode, body)
		}
	})
}
