package handlertest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// DecodeBody reads an answer's JSON.
func DecodeBody(tb testing.TB, body io.Reader) map[string]any {
	tb.Helper()
	raw, err := io.ReadAll(body)
	if err != nil {
		tb.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		tb.Fatalf("the answer is not JSON: %v\n%s", err, raw)
	}
	return got
}

// WantProblem checks that an answer is a problem in the API's form.
func WantProblem(tb testing.TB, resp *http.Response, status int, code string) map[string]any {
	tb.Helper()
	if resp.StatusCode != status {
		tb.Errorf("status = %d, want %d", resp.StatusCode, status)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
		tb.Errorf("Content-Type = %q, want application/problem+json", got)
	}
	body := DecodeBody(tb, resp.Body)
	if body["code"] != code {
		tb.Errorf("code = %v, want %s", body["code"], code)
	}
	if body["status"] != float64(status) {
		tb.Errorf("status in the body = %v, want %d", body["status"], status)
	}
	for _, name := range []string{"type", "title", "detail", "request_id"} {
		if text, ok := body[name].(string); !ok || text == "" {
			tb.Errorf("%s = %v, want a text", name, body[name])
		}
	}
	if id := resp.Header.Get("X-Request-Id"); id == "" || id != body["request_id"] {
		tb.Errorf("X-Request-Id = %q, request_id = %v; want the same", id, body["request_id"])
	}
	if status == http.StatusUnauthorized && !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), `Bearer realm="flashsale"`) {
		tb.Errorf("WWW-Authenticate = %q", resp.Header.Get("WWW-Authenticate"))
	}
	_, hasRetry := body["retry_after"]
	if hasRetry != (resp.Header.Get("Retry-After") != "") {
		tb.Errorf("retry_after = %v, Retry-After = %q; want both or none", body["retry_after"], resp.Header.Get("Retry-After"))
	}
	if (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && !hasRetry {
		tb.Errorf("%d without Retry-After", status)
	}
	return body
}
