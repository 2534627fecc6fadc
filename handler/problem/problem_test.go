package problem

import (
	"encoding/json"
	"net/http"
	"testing"
)

// decode returns the members of a problem's body.
func decode(t *testing.T, p *Problem) map[string]any {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(p.AppendBody(nil, "id-1"), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// New may be called only while packages are initialized.
var (
	outOfRange = New(422, "range_in_tests", "Out of range", "A field is out of its range.")
	noToken    = New(401, "auth_in_tests", "No token", "Send one.")
)

var unavailable = New(503, "unavailable_in_tests", "Unavailable", `Retry with the "key".`).Among(2).
	Unkeyed("Retry.", "Read the state first.")

func TestProblem_Body(t *testing.T) {
	t.Parallel()
	p := outOfRange.With("stock", "stock <= 5.")
	got := decode(t, p)
	for name, want := range map[string]any{
		"type": "/docs#range_in_tests", "title": "Out of range", "status": 422.0, "detail": "stock <= 5.",
		"code": "range_in_tests", "param": "stock", "request_id": "id-1",
	} {
		if got[name] != want {
			t.Errorf("%s = %v, want %v", name, got[name], want)
		}
	}
	if _, has := got["retry_after"]; has {
		t.Error("retry_after without a time")
	}
	if got := decode(t, p.WithMembers([]byte(`"failing":["redis"],`))); got["failing"] == nil || got["code"] != "range_in_tests" {
		t.Errorf("with another member: %v", got)
	}
	if decode(t, p)["failing"] != nil {
		t.Error("a member was added to the problem itself")
	}
}

// Clients get different times to retry, each in the body and in the header.
func TestProblem_Among(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 200 {
		h := make(http.Header)
		p := unavailable.One()
		p.SetHeaders(h)
		retry := h.Get("Retry-After")
		if want := map[string]float64{"2": 2, "3": 3, "4": 4}[retry]; want == 0 || decode(t, p)["retry_after"] != want {
			t.Fatalf("Retry-After %q, retry_after %v", retry, decode(t, p)["retry_after"])
		}
		seen[retry] = true
	}
	if len(seen) < 2 {
		t.Errorf("all clients get %v", seen)
	}
}

func TestProblem_For(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		keyed  bool
		method string
		want   string
	}{
		{true, "POST", `Retry with the "key".`}, {true, "GET", `Retry with the "key".`},
		{false, "GET", "Retry."}, {false, "HEAD", "Retry."}, {false, "POST", "Read the state first."},
	} {
		if got := unavailable.For(tc.keyed, tc.method).One(); got.Detail != tc.want || decode(t, got)["retry_after"] == nil {
			t.Errorf("%s, keyed %t: %q", tc.method, tc.keyed, got.Detail)
		}
	}
}

// A copy with another header leaves the headers of the original as they are.
func TestProblem_WithHeader(t *testing.T) {
	t.Parallel()
	one := noToken.WithHeader("Www-Authenticate", "Bearer")
	two, three := one.WithHeader("X-A", "2"), one.WithHeader("X-A", "3")
	for p, want := range map[*Problem]string{one: "", two: "2", three: "3"} {
		h := make(http.Header)
		p.SetHeaders(h)
		if h.Get("Www-Authenticate") != "Bearer" || h.Get("X-A") != want || h.Get("Content-Type") != "application/problem+json" {
			t.Errorf("headers %v, want X-A %q", h, want)
		}
	}
}

func TestNew_OneStatusPerCode(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("the code got a second status")
		}
	}()
	t.Errorf("made %v", New(400, "unavailable_in_tests", "Other", "Other."))
}
