package server_test

import (
	"bytes"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"flashsale/handler/handlertest"
)

// oneAnswer is a request after which the connection ends; an empty code: an order.
type oneAnswer struct {
	request func() string
	status  int
	code    string
}

func TestServer_OneAnswer_Framing(t *testing.T) {
	t.Parallel()
	wantAnswers(t, map[string]oneAnswer{
		"length and chunks": {func() string {
			return rawPurchase("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunked(wireBody)) + smuggled
		}, 201, ""},
		"chunks and length": {func() string {
			return rawPurchase("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", chunked(wireBody)) + smuggled
		}, 201, ""},
		"two lengths": {func() string {
			return rawPurchase("Content-Length: 14\r\nContent-Length: 15\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"lengths in one line": {func() string {
			return rawPurchase("Content-Length: 14, 15\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"signed length": {func() string {
			return rawPurchase("Content-Length: +14\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"space before the colon": {func() string {
			return rawPurchase("Content-Length : 14\r\n", wireBody) + smuggled
		}, 400, "request_malformed"},
		"folded header": {func() string {
			return rawPurchase(" folded: 1\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 0, ""},
		"unknown coding": {func() string {
			return rawPurchase("Transfer-Encoding: xchunked\r\n", chunked(wireBody)) + smuggled
		}, 501, "transfer_encoding"},
		"bare line feeds": {func() string {
			return strings.ReplaceAll(rawPurchase(withLength(wireBody), wireBody), "\r\n", "\n") + smuggled
		}, 201, ""},
		"one bare line feed": {func() string {
			return rawPurchase("X-A: 1\nX-B: 2\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 201, ""},
		"bad chunk size": {func() string {
			return rawPurchase("Transfer-Encoding: chunked\r\n", "zz\r\n"+wireBody+"\r\n0\r\n\r\n") + smuggled
		}, 400, "body_incomplete"},
		"long body announced": {func() string {
			return rawPurchase("Content-Length: 1000000\r\n", wireBody+strings.Repeat(" ", 8<<10))
		}, 413, "body_too_large"},
	})
}

func TestServer_OneAnswer_Headers(t *testing.T) {
	t.Parallel()
	wantAnswers(t, map[string]oneAnswer{
		"control character in a header": {func() string {
			return rawPurchase("X-A: a\x01b\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 400, "request_malformed"},
		"control character in the key": {func() string {
			return strings.Replace(rawPurchase(withLength(wireBody), wireBody), "Idempotency-Key: k", "idempotency-key: k\x01", 1) + smuggled
		}, 400, "idempotency_key_invalid"},
		"carriage return in the id": {func() string {
			return rawPurchase("X-Request-Id: a\rX-Evil: 1\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 400, "request_malformed"},
		"unknown expectation": {func() string {
			return rawPurchase("Expect: a miracle\r\n"+withLength(wireBody), wireBody) + smuggled
		}, 417, "expectation_failed"},
		"version 3": {func() string {
			return strings.Replace(rawPurchase(withLength(wireBody), wireBody), "HTTP/1.1", "HTTP/3.0", 1)
		}, 505, "http_version"},
		"no host": {func() string {
			return strings.Replace(rawPurchase(withLength(wireBody), wireBody), "Host: shop\r\n", "", 1)
		}, 400, "request_malformed"},
		"64 KB of headers": {func() string {
			return rawPurchase("X-Fill: "+strings.Repeat("a", 64<<10)+"\r\n"+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
		"many small headers": {func() string {
			return rawPurchase(strings.Repeat("X-Fill: aaaaaaaaaaaa\r\n", 3000)+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
		"300 KB of headers": {func() string {
			return rawPurchase("X-Fill: "+strings.Repeat("a", 300<<10)+"\r\n"+withLength(wireBody), wireBody)
		}, 431, "header_too_large"},
	})
}

// wantAnswers sends each request, and wants one answer and the end of the connection.
func wantAnswers(t *testing.T, cases map[string]oneAnswer) {
	t.Helper()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := open(t)
			w.Send(t, tc.request())
			resp := w.Answer(t)
			switch {
			case tc.status == 0:
				// It may be accepted or refused, but there must be one answer.
			case tc.code != "":
				handlertest.WantProblem(t, resp, tc.status, tc.code)
			case resp.StatusCode != tc.status:
				t.Errorf("status = %d, want %d", resp.StatusCode, tc.status)
			}
			if tc.status != 0 {
				if !resp.Close {
					t.Error("the answer does not announce the end of the connection")
				}
				w.WantEnd(t)
			}
			want := 0
			if tc.status == 201 {
				want = 1
			}
			if got := int(s.bought.Load()); tc.status != 0 && got != want {
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
			path := "/buy"
			if tc.method == "GET" || tc.method == "HEAD" {
				path = "/page"
			}
			w, s := open(t)
			w.Send(t, tc.method+" "+path+" HTTP/1.0\r\nHost: shop\r\n"+
				"Content-Type: application/json\r\nIdempotency-Key: k\r\n"+tc.headers+"\r\n"+
				tc.body+rawPurchase(withLength(wireBody), wireBody))
			wantOneAnswer(t, w, tc.status)
			want := 0
			if tc.status == 201 {
				want = 1
			}
			if got := int(s.bought.Load()); got != want {
				t.Errorf("%d purchases, want %d", got, want)
			}
		})
	}
}

var statusLine = regexp.MustCompile(`HTTP/\d\.\d (\d{3})`)

// wantOneAnswer reads to the end of the connection, and wants one answer.
func wantOneAnswer(t *testing.T, w *handlertest.Conn, status int) {
	t.Helper()
	got, err := io.ReadAll(w.In)
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
			w, _ := open(t)
			w.Send(t, rawPurchase(header+"\r\n", chunked(wireBody))+smuggled)
			wantOneAnswer(t, w, status)
		})
	}
	t.Run("preface of HTTP/2", func(t *testing.T) {
		t.Parallel()
		w, _ := open(t)
		w.Send(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+smuggled)
		wantOneAnswer(t, w, 404)
	})
}
