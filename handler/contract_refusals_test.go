package handler

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"flashsale/handler/apidocs"
)

// refusal is a change of a request that its route refuses with a code.
type refusal struct {
	code   string
	change func(*http.Request)
}

// The codes that follow from a route's entry in the table are those that it really sends. The
// shop checks each answer against the document.
func TestContract_Refusals(t *testing.T) {
	t.Parallel()
	s := open(t, func(c *Config) {
		c.Tasks, c.Webhooks, c.Timelines, c.System = &fakeTasks{}, &fakeWebhooks{}, &fakeTimelines{}, &fakeSystem{}
		c.Reconciler, c.Streams.Feed, c.Streams.Figures = fakeReconciler(nil), &fakeFeed{}, newFakeFigures()
		c.DevTokens = func(string, string, time.Duration) (string, error) { return "token", nil }
	})
	shown := map[string]bool{}
	for _, r := range apiTable(t) {
		if strings.HasPrefix(r.Path, apidocs.Prefix) {
			continue // not in the document
		}
		for _, x := range r.refusals() {
			req := r.request(t)
			x.change(req)
			if got := decodeBody(t, s.do(req).Body)["code"]; got != x.code {
				t.Errorf("%s %s: %v, want %s", r.Method, r.Path, got, x.code)
			}
			if !r.codes()[x.code] && x.code != "field_missing" {
				t.Errorf("%s %s: %s does not follow from the table", r.Method, r.Path, x.code)
			}
			shown[x.code] = true
		}
	}
	// The others need a token of another kind, a limit, a change meanwhile, or no HTTP at all.
	for _, code := range []string{"header_duplicate", "id_invalid", "body_too_large", "if_match_invalid", "cursor_invalid", "request_timeout"} {
		if !shown[code] {
			t.Errorf("no route was sent a request for %s", code)
		}
	}
}

// request returns a request with everything that the route checks before its body.
func (r *route) request(t *testing.T) *http.Request {
	t.Helper()
	req := httptest.NewRequest(r.Method, r.somePath(), strings.NewReader("{}"))
	req.Host = "localhost"
	if len(r.Roles) > 0 {
		req.Header.Set("Authorization", bearer(t, "alice", r.Roles[0]))
	}
	if r.Body != bodyIgnored {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.Keyed {
		req.Header.Set("Idempotency-Key", "k")
	}
	if r.Match != matchIgnored {
		req.Header.Set("If-Match", "*")
	}
	return req
}

// refusals returns changes of a route's request for the codes that follow from its entry.
func (r *route) refusals() (all []refusal) {
	add := func(when bool, code string, change func(*http.Request)) {
		if when {
			all = append(all, refusal{code, change})
		}
	}
	header := func(name string, values ...string) func(*http.Request) {
		return func(q *http.Request) { q.Header[name] = values }
	}
	query := func(text string) func(*http.Request) { return func(q *http.Request) { q.URL.RawQuery = text } }
	body := func(text string) func(*http.Request) {
		return func(q *http.Request) {
			q.Body, q.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
		}
	}
	broken := func(err error) func(*http.Request) {
		return func(q *http.Request) { q.Body, q.ContentLength = io.NopCloser(iotest.ErrReader(err)), 7 }
	}
	add(true, "header_too_large", header("X-Fill", strings.Repeat("a", 17<<10)))
	add(len(r.Roles) > 0, "auth_missing", func(q *http.Request) { q.Header.Del("Authorization") })
	add(len(r.Roles) > 0, "token_malformed", header("Authorization", "Bearer a.b"))
	add(len(r.Roles) > 0, "header_duplicate", header("Authorization", "Bearer a", "Bearer b"))
	add(r.Loopback, "forbidden", func(q *http.Request) { q.Host = "shop.example" })
	add(len(r.params()) > 0, "id_invalid", func(q *http.Request) {
		for _, p := range r.params() {
			q.URL.Path = strings.Replace(r.Path, ":"+p.name, "No Such", 1)
		}
		q.URL.RawPath = strings.ReplaceAll(q.URL.Path, " ", "%20")
	})
	add(r.Produces != nil, "not_acceptable", header("Accept", "image/png"))
	add(r.Query != nil, "unknown_parameter", query("no_such=1"))
	add(r.Query != nil, "parameter_invalid", query("a=%zz"))
	takes := func(name string) bool { return slices.Contains(r.Query, name) }
	add(takes("limit"), "limit_range", query("limit=0"))
	add(takes("cursor"), "cursor_invalid", query("cursor=a"))
	add(r.Match != matchIgnored, "if_match_invalid", header("If-Match", "4"))
	add(r.Match == matchRequired, "version_required", func(q *http.Request) { q.Header.Del("If-Match") })
	add(r.Keyed, "idempotency_key_missing", func(q *http.Request) { q.Header.Del("Idempotency-Key") })
	add(r.Keyed, "idempotency_key_invalid", header("Idempotency-Key", "a b"))
	add(r.Keyed, "header_duplicate", header("Idempotency-Key", "a", "b"))
	reads := r.Body != bodyIgnored
	add(reads, "content_type", header("Content-Type", "text/plain"))
	add(reads, "content_encoding", header("Content-Encoding", "gzip"))
	add(reads, "header_duplicate", header("Content-Type", "application/json", "application/json"))
	add(reads, "body_too_large", body("{"+strings.Repeat(" ", r.MaxBody)+"}"))
	add(reads, "request_timeout", broken(os.ErrDeadlineExceeded))
	add(reads, "body_incomplete", broken(io.ErrUnexpectedEOF))
	add(reads, "json_invalid", body("[]"))
	add(reads, "json_duplicate_key", body(`{"a":1,"a":1}`))
	add(reads, "json_trailing", body("{}{}"))
	add(reads, "unknown_field", body(`{"no_such":1}`))
	add(r.Body == bodyJSON, "body_missing", body(""))
	add(r.Body == bodyEmpty, "body_missing", body(" "))
	return all
}
