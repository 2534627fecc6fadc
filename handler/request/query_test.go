package request

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"flashsale/handler/problem"
)

func readQuery(t *testing.T, query string) (Query, error) {
	t.Helper()
	return ReadQuery(httptest.NewRequest(http.MethodGet, "/?"+query, http.NoBody), []string{"limit", "deep", "kind", "id"})
}

func TestReadQuery(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]*problem.Problem{
		"": nil, "limit=1&kind=a": nil, "limit=1&limit=1": ErrParameter, "limit=%zz": ErrParameter, "other=1": errUnknownParameter,
	} {
		_, err := readQuery(t, query)
		var got *problem.Problem
		if errors.As(err, &got); (got == nil) != (want == nil) || got != nil && got.Code != want.Code {
			t.Errorf("%q: %v, want %v", query, err, want)
		}
	}
}

// The refusal of a query that cannot be parsed names the parameter at fault.
func TestReadQuery_MalformedParameter(t *testing.T) {
	t.Parallel()
	for query, param := range map[string]string{"limit=1&kind=%zz": "kind", "a;b=1": "a;b", "%zz=1&limit=1": "%zz", "limit=%": "limit"} {
		_, err := readQuery(t, query)
		var got *problem.Problem
		if !errors.As(err, &got) || got.Code != ErrParameter.Code || got.Param != param {
			t.Errorf("%q: %+v, want the param %q", query, got, param)
		}
	}
}

func TestQuery_Limit(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int{"": DefaultPage, "limit=1": 1, "limit=100": MaxPage, "limit=0": 0, "limit=101": 0, "limit=": 0, "limit=x": 0, "limit=01": 0, "limit=%2B1": 0} {
		q, err := readQuery(t, query)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := q.Limit(); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v; want %d", query, got, err, want)
		}
	}
}

func TestQuery_Values(t *testing.T) {
	t.Parallel()
	q, err := readQuery(t, "deep=true&kind=b&id=x")
	if err != nil {
		t.Fatal(err)
	}
	if deep, err := q.Switch("deep", false); !deep || err != nil {
		t.Errorf("deep = %t, %v", deep, err)
	}
	if deep, err := q.Switch("limit", true); !deep || err != nil {
		t.Errorf("a missing switch: %t, %v", deep, err)
	}
	if _, err := q.Switch("kind", false); err == nil {
		t.Error("b is taken for a switch")
	}
	if kind, err := Choice(q, "kind", []string{"a", "b"}); kind != "b" || err != nil {
		t.Errorf("kind = %q, %v", kind, err)
	}
	if _, err := Choice(q, "kind", []string{"a"}); err == nil {
		t.Error("b is none of the choices")
	}
	if id, err := q.ID("id", func(id string) bool { return id == "x" }, ErrCursor); id != "x" || err != nil {
		t.Errorf("id = %q, %v", id, err)
	}
	if _, err := q.ID("id", func(string) bool { return false }, ErrCursor); err == nil {
		t.Error("an invalid id is taken")
	}
}
