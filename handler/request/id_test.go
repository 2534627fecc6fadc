package request

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A client's own id is kept if it needs no escaping; all others are new and differ.
func TestIDs_Of(t *testing.T) {
	t.Parallel()
	ids := NewIDs("")
	seen := map[string]bool{}
	for own, kept := range map[string]bool{
		"abc-1._Z": true, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false, "": false, "a b": false, "a\"b": false, "ä": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header["X-Request-Id"] = []string{own}
		got := ids.Of(r)
		if len(got) != 1 || (got[0] == own) != kept || !validID(got[0]) || seen[got[0]] {
			t.Errorf("%q became %q", own, got)
		}
		seen[got[0]] = true
	}
	other := NewIDs("")
	if a, b := ids.New(), other.New(); a == b || seen[a] {
		t.Errorf("two processes gave %s and %s", a, b)
	}
}
