package handler

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/order"
)

// serve runs the shop on a real server with long limits, and returns its address.
func serve(t *testing.T, s http.Handler, wrap ...func(net.Listener) net.Listener) string {
	t.Helper()
	return serveWithin(t, s, 20*time.Second, wrap...)
}

// serveWithin is like serve, with a limit for reading a request.
func serveWithin(t *testing.T, s http.Handler, limit time.Duration, wrap ...func(net.Listener) net.Listener) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accept := StrictListener(l)
	for _, f := range wrap {
		accept = f(accept)
	}
	srv := NewServer(s)
	srv.ReadTimeout, srv.ReadHeaderTimeout = limit, limit
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

// wire is a raw connection.
type wire struct {
	*net.TCPConn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *wire {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // usually already closed by the server
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("dialled a %T", c)
	}
	return &wire{TCPConn: tcp, in: bufio.NewReader(c)}
}

func (w *wire) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
}

// answer reads one answer with its body.
func (w *wire) answer(t *testing.T) *http.Response {
	t.Helper()
	resp, err := w.tryAnswer()
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	return resp
}

func (w *wire) tryAnswer() (*http.Response, error) {
	resp, err := http.ReadResponse(w.in, nil)
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

// answerWithin sends a request to a server with a short read limit, and returns the answer. On
// a busy machine the headers themselves may be too late, and such a connection is closed
// without an answer: then it retries with a longer limit.
func answerWithin(t *testing.T, request string, shop func(limit time.Duration) http.Handler) (*wire, *http.Response) {
	t.Helper()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		w := dial(t, serveWithin(t, shop(limit), limit))
		// The write may find the connection closed, but the answer decides.
		_, sent := io.WriteString(w, request)
		resp, err := w.tryAnswer()
		if err == nil {
			return w, resp
		}
		if limit > 5*time.Second {
			t.Fatalf("no answer from a server with %v to read the request: %v, sent with %v", limit, err, sent)
		}
	}
}

// wantEnd checks that the server closes the connection without sending more.
func (w *wire) wantEnd(t *testing.T) {
	t.Helper()
	rest, err := io.ReadAll(w.in)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatal("the connection stays open")
	}
	if len(rest) > 0 {
		t.Errorf("more was sent: %q", rest)
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

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

const smuggled = "GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n"

func TestServer_KeepAlive(t *testing.T) {
	t.Parallel()
	s := open(t)
	w := dial(t, serve(t, s))
	for range 2 {
		w.send(t, rawPurchase(t, withLength(wireBody), wireBody))
		if resp := w.answer(t); resp.StatusCode != 201 || resp.Close {
			t.Fatalf("%d, close %t", resp.StatusCode, resp.Close)
		}
		// The connection stays usable after a refusal that has read its body.
		w.send(t, rawPurchase(t, "Content-Length: 3\r\n", "{}x"))
		resp := w.answer(t)
		wantProblem(t, resp, 400, "json_trailing")
		if resp.Close {
			t.Fatal("closed after a bad body")
		}
		long := wireBody + strings.Repeat(" ", 10_000)
		w.send(t, rawPurchase(t, withLength(long), long))
		resp = w.answer(t)
		wantProblem(t, resp, 413, "body_too_large")
		if resp.Close {
			t.Fatal("closed after a long body")
		}
	}
}

// oneAnswer is a request after which the connection ends; an empty code: an order.
type oneAnswer struct {
	request func(t *testing.T) string
	status  int
	code    string
}

func TestServer_OneAnswer_Framing(t *testing.T) {
	t.Parallel()
	wantAnswers(t, map[string]oneAnswer{
		"length and chunks": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunked(wireBody)) + smuggled
		}, 201, ""},
		"chunks and length": {func(t *testing.T) string {
			return rawPurchase(t, "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", chunked(wireBody)) + smuggled
		}, 201, ""},
		"two lengths": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length: 14\r\nContent-Length: 15\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"lengths in one line": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length: 14, 15\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"signed length": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length: +14\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"space before the colon": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length : 14\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"folded header": {func(t *testing.T) string {
			return rawPurchase(t, " folded: 1\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 0, ""},
		"unknown coding": {func(t *testing.T) string {
			return rawPurchase(t, "Transfer-Encoding: xchunked\r\n", chunked(wireBody)) + smuggled
		}, 501, "transfer_encoding"},
		"bare line feeds": {func(t *testing.T) string {
			return strings.ReplaceAll(rawPurchase(t, withLength(wireBody), wireBody), "\r\n", "\n") + smuggled
		}, 201, ""},
		"one bare line feed": {func(t *testing.T) string {
			return rawPurchase(t, "X-A: 1\nX-B: 2\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 201, ""},
		"bad chunk size": {func(t *testing.T) string {
			return rawPurchase(t, "Transfer-Encoding: chunked\r\n", "zz\r\n"+wireBody+"\r\n0\r\n\r\n") + smuggled
		}, 400, "body_incomplete"},
		"long body announced": {func(t *testing.T) string {
			return rawPurchase(t, "Content-Length: 1000000\r\n", wireBody+strings.Repeat(" ", 8<<10))
		}, 413, "body_too_large"},
	})
}

func TestServer_OneAnswer_Headers(t *testing.T) {
	t.Parallel()
	wantAnswers(t, map[string]oneAnswer{
		"control character in a header": {func(t *testing.T) string {
			return rawPurchase(t, "X-A: a\x01b\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 400, "request_malformed"},
		"control character in the key": {func(t *testing.T) string {
			return strings.Replace(rawPurchase(t, withLength(wireBody), wireBody), "Idempotency-Key: k", "idempotency-key: k\x01", 1) + smuggled
		}, 400, "idempotency_key_invalid"},
		"carriage return in the id": {func(t *testing.T) string {
			return rawPurchase(t, "X-Request-Id: a\rX-Evil: 1\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 400, "request_malformed"},
		"unknown expectation": {func(t *testing.T) string {
			return rawPurchase(t, "Expect: a miracle\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 417, "expectation_failed"},
		"version 3": {func(t *testing.T) string {
			return strings.Replace(rawPurchase(t, withLength(wireBody), wireBody), "HTTP/1.1", "HTTP/3.0", 1)
		}, 505, "http_version"},
		"no host": {func(t *testing.T) string {
			return strings.Replace(rawPurchase(t, withLength(wireBody), wireBody), "Host: shop\r\n", "", 1)
		}, 400, "request_malformed"},
		"64 KB of headers": {func(t *testing.T) string {
			return rawPurchase(t, "X-Fill: "+strings.Repeat("a", 64<<10)+"\r\n"+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
		"many small headers": {func(t *testing.T) string {
			return rawPurchase(t, strings.Repeat("X-Fill: aaaaaaaaaaaa\r\n", 3000)+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
		"300 KB of headers": {func(t *testing.T) string {
			return rawPurchase(t, "X-Fill: "+strings.Repeat("a", 300<<10)+"\r\n"+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
	})
}

// wantAnswers sends each request, and wants one answer and the end of the connection.
func wantAnswers(t *testing.T, cases map[string]oneAnswer) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			w := dial(t, serve(t, s))
			w.send(t, tc.request(t))
			resp := w.answer(t)
			switch {
			case tc.status == 0:
				// It may be accepted or refused, but there must be one answer.
			case tc.code != "":
				wantProblem(t, resp, tc.status, tc.code)
			case resp.StatusCode != tc.status:
				t.Errorf("status = %d, want %d", resp.StatusCode, tc.status)
			}
			if tc.status != 0 {
				if !resp.Close {
					t.Error("the answer does not announce the end of the connection")
				}
				w.wantEnd(t)
			}
			want := 0
			if tc.status == 201 {
				want = 1
			}
			if got := len(s.orders.purchases()); tc.status != 0 && got != want {
				t.Errorf("%d purchases, want %d", got, want)
			}
		})
	}
}

// HTTP/1.0 has no chunks, so the server ignores a Transfer-Encoding there, and interprets the
// rest differently from the client. None of it may be answered as a request: there is one
// answer, and the connection ends.
func TestServer_HTTP10BodyIsNotARequest(t *testing.T) {
	t.Parallel()
	const keep, chunks = "Connection: keep-alive\r\n", "Transfer-Encoding: chunked\r\n"
	for name, tc := range map[string]struct {
		method, headers string
		body            string // the announced one; the data after it must not be answered
		status          int
	}{
		"GET":                         {"GET", "", "", 200},
		"GET, keep-alive":             {"GET", keep, "", 200},
		"GET, chunks":                 {"GET", chunks, "", 200},
		"GET, chunks, keep-alive":     {"GET", keep + chunks, "", 200},
		"GET, chunks, Keep-Alive":     {"GET", "connection:Keep-Alive\r\ntransfer-encoding:cHuNkEd\r\n", "", 200},
		"GET, end of chunks":          {"GET", keep + chunks, "0\r\n\r\n", 200},
		"GET, list of encodings":      {"GET", keep + "Transfer-Encoding: identity, chunked\r\n", "", 200},
		"GET, two encodings":          {"GET", keep + "Transfer-Encoding: identity\r\n" + chunks, "", 200},
		"GET, folded encoding":        {"GET", keep + "Transfer-Encoding:\r\n chunked\r\n", "", 200},
		"GET, unknown encoding":       {"GET", keep + "Transfer-Encoding: xchunked\r\n", "", 200},
		"GET, space before the colon": {"GET", keep + "Transfer-Encoding : chunked\r\n", "", 400},
		"GET, length and chunks":      {"GET", keep + "Content-Length: 4\r\n" + chunks, "{}\r\n", 200},
		"HEAD, chunks":                {"HEAD", keep + chunks, "", 200},
		"PUT, chunks":                 {"PUT", keep + chunks, "", 405},
		"POST":                        {"POST", keep, "", 400},
		"POST, chunks":                {"POST", keep + chunks, "", 400},
		"POST, length":                {"POST", keep + withLength(wireBody), wireBody, 201},
		"POST, length and chunks":     {"POST", keep + withLength(wireBody) + chunks, wireBody, 201},
		"POST, chunks and length":     {"POST", chunks + keep + withLength(wireBody), wireBody, 201},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			path := purchasePath
			if tc.method == "GET" || tc.method == "HEAD" {
				path = "/healthz"
			}
			w := dial(t, serve(t, s))
			w.send(t, tc.method+" "+path+" HTTP/1.0\r\nHost: shop\r\nAuthorization: "+bearer(t, "alice", auth.RoleBuyer)+
				"\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"+tc.headers+"\r\n"+
				tc.body+rawPurchase(t, withLength(wireBody), wireBody))
			wantOneAnswer(t, w, tc.status)
			want := 0
			if tc.status == 201 {
				want = 1
			}
			if got := len(s.orders.purchases()); got != want {
				t.Errorf("%d purchases, want %d", got, want)
			}
		})
	}
}

var statusLine = regexp.MustCompile(`HTTP/\d\.\d (\d{3})`)

// wantOneAnswer reads to the end of the connection, and wants one answer.
func wantOneAnswer(t *testing.T, w *wire, status int) {
	t.Helper()
	got, err := io.ReadAll(w.in)
	if err != nil {
		t.Fatalf("%v, after %q", err, got)
	}
	if lines := statusLine.FindAllSubmatch(got, -1); len(lines) != 1 || string(lines[0][1]) != strconv.Itoa(status) {
		t.Errorf("want one answer, %d; got %q", status, got)
	}
	if !bytes.Contains(got, []byte("Connection: close\r\n")) {
		t.Errorf("the answer does not announce the end of the connection: %q", got)
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
	w := dial(t, serve(t, s))
	w.send(t, rawPurchase(t, withLength(wireBody), wireBody))
	if err := w.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp := w.answer(t)
	wantProblem(t, resp, 503, "unavailable")
	if resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// A request line above 16 KiB is refused as soon as it is too long, even without an end, and
// even on a connection that was used before.
func TestServer_LongRequestLineIsRefusedEarly(t *testing.T) {
	t.Parallel()
	long := "GET /v1/items/" + strings.Repeat("a", maxRequestLine)
	const end = " HTTP/1.1\r\nHost: shop\r\n\r\n"
	for name, request := range map[string]string{
		"unfinished":             long,
		"finished":               long + end,
		"in the query":           "GET /v1/items?cursor=" + strings.Repeat("a", maxRequestLine) + end,
		"in the method":          strings.Repeat("G", maxRequestLine+1) + " /" + end,
		"followed by another":    long + end + smuggled,
		"200 KB, unfinished":     "GET /" + strings.Repeat("a", 200<<10),
		"16 KiB and 1, finished": long[:maxRequestLine+1-len(" HTTP/1.1\r")] + end,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, used := range []bool{false, true} {
				// Only the length of the line can end the wait: the server's own limit is
				// longer than the test's.
				w := dial(t, serveWithin(t, open(t), time.Minute))
				if used {
					w.send(t, rawPurchase(t, withLength(wireBody), wireBody))
					if resp := w.answer(t); resp.StatusCode != 201 {
						t.Fatalf("status = %d", resp.StatusCode)
					}
				}
				w.send(t, request)
				resp := w.answer(t)
				wantProblem(t, resp, 431, "header_too_large")
				if !resp.Close {
					t.Error("the answer does not announce the end of the connection")
				}
				// It does not end with a reset, although not everything was read.
				if rest, err := io.ReadAll(w.in); err != nil || len(rest) > 0 {
					t.Errorf("the connection ends with %v, after %q", err, rest)
				}
			}
		})
	}
	t.Run("16 KiB", func(t *testing.T) {
		t.Parallel()
		w := dial(t, serve(t, open(t)))
		for range 2 {
			w.send(t, long[:maxRequestLine-len(" HTTP/1.1\r")]+end)
			wantProblem(t, w.answer(t), 400, "id_invalid")
			// A body of any length does not count as a request line.
			long := wireBody + strings.Repeat(" ", 40<<10)
			w.send(t, rawPurchase(t, withLength(long), long))
			wantProblem(t, w.answer(t), 413, "body_too_large")
		}
	})
}

// The byte of the next request that the server reads before the connection is idle counts
// towards the request line.
func TestStrictConn_ReadAhead(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for length, want := range map[int]error{maxRequestLine: nil, maxRequestLine + 1: errRequestLine} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close() //nolint:gocritic // there are two
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close() //nolint:gocritic // there are two
		c := &strictConn{TCPConn: accepted.(*net.TCPConn)}
		c.enter(http.StateActive)
		if _, err := io.WriteString(client, strings.Repeat("a", length)+"\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		c.enter(http.StateIdle)
		var got error
		for rest, n := length, 0; rest > 0 && got == nil; rest -= n {
			n, got = c.Read(make([]byte, 4<<10))
		}
		if !errors.Is(got, want) {
			t.Errorf("a line of %d bytes: %v, want %v", length, got, want)
		}
	}
}

// Other forms of chunked encoding are either understood as such or refused.
func TestServer_TransferEncoding(t *testing.T) {
	t.Parallel()
	for header, status := range map[string]int{
		"Transfer-Encoding: chunked":                               201,
		"transfer-encoding:CHUNKED":                                201,
		"Transfer-Encoding:\t chunked \t":                          201,
		"Transfer-Encoding:\r\n chunked":                           201,
		"Transfer-Encoding: chunked, chunked":                      501,
		"Transfer-Encoding: identity, chunked":                     501,
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked": 501,
		"Transfer-Encoding: \"chunked\"":                           501,
		"Transfer-Encoding: chunked;q=1":                           501,
		"Transfer-Encoding: chun ked":                              501,
		"Transfer-Encoding:":                                       501,
		"Transfer-Encoding: \x0bchunked":                           400,
		"Transfer-Encoding: chunked\x00":                           400,
		"Transfer-Encoding : chunked":                              400,
		"Transfer-Encoding\t: chunked":                             400,
		"Transfer\rEncoding: chunked":                              400,
	} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			w := dial(t, serve(t, open(t)))
			w.send(t, rawPurchase(t, header+"\r\n", chunked(wireBody))+smuggled)
			wantOneAnswer(t, w, status)
		})
	}
	t.Run("preface of HTTP/2", func(t *testing.T) {
		t.Parallel()
		w := dial(t, serve(t, open(t)))
		w.send(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+smuggled)
		wantOneAnswer(t, w, 404)
	})
}

// A line break in a header's value splits it into two headers, so it is never echoed.
func TestServer_RequestID_injection(t *testing.T) {
	t.Parallel()
	w := dial(t, serve(t, open(t)))
	w.send(t, "GET /healthz HTTP/1.1\r\nHost: shop\r\nX-Request-Id: a%0d%0aX-Evil: 1\r\n\r\n")
	resp := w.answer(t)
	if got := resp.Header.Get("X-Request-Id"); resp.StatusCode != 200 || strings.Contains(got, "%") || resp.Header.Get("X-Evil") != "" {
		t.Errorf("%d, headers %v", resp.StatusCode, resp.Header)
	}
}

func TestBareLineFeed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		before byte
		got    string
		want   bool
	}{
		{0, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false},
		{0, "GET / HTTP/1.1\nHost: a\r\n\r\n", true},
		{0, "GET / HTTP/1.1\r\nHost: a\n\n", true},
		{0, "\n", true},
		{'\r', "\nHost: a\r\n\r\n", false},
		{'a', "\nHost: a\r\n\r\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}", false},
		{0, "POST / HTTP/1.1\r\ncontent-length:9\r\n\r\n{\n}", false}, // incomplete
		// The next request may follow in the same data.
		{0, "GET / HTTP/1.1\r\n\r\n{\n}", true},
		{0, "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\nHost: a\n\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}GET / HTTP/1.1\nHost: a\n\n", true},
		{0, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{\n}GET / HTTP/1.1\r\nHost: a\r\n\r\n", false},
		{0, "X: 1\r\n\n", true},
		{0, "", false},
	} {
		if got := bareLineFeed(tc.before, []byte(tc.got)); got != tc.want {
			t.Errorf("after %q, %q: %t, want %t", tc.before, tc.got, got, tc.want)
		}
	}
}

func TestServerLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	ServerLog(zerolog.New(&out)).Printf("http: %s", "broken\nX: 1") //nolint:forbidigo // this is the function under test
	if got := decodeBody(t, &out); got["level"] != "debug" || got["message"] != "http: broken\nX: 1" {
		t.Errorf("logged %v", got)
	}
}
