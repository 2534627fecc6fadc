package request

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"flashsale/handler/problem"
)

func TestAcceptsGzip(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "x-gzip": true, "br": false, "br, gzip;q=0.5": true, "gzip;q=0": false,
		"*": true, "*;q=0": false, "gzip;q=0, *": false, "*, gzip;q=0": false, "identity": false, "*;q=0, gzip": true, "gzip, *;q=0": true,
	} {
		if got := AcceptsGzip([]string{header}); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

func TestIfMatch(t *testing.T) {
	t.Parallel()
	for header, want := range map[string][]int64{
		`*`: nil, ` * `: nil, `"4"`: {4}, `"4", "5"`: {4, 5}, `"4" ,,"5",`: {4, 5}, `W/"4"`: {}, `"four"`: {}, `"04"`: {}, `W/"4","5"`: {5},
	} {
		got, err := IfMatch(http.Header{"If-Match": {header}}, true)
		if err != nil || !slices.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: %v, %v; want %v", header, got, err, want)
		}
	}
	for _, header := range []string{``, `,`, `4`, `"4`, `"4" "5"`, `"4"x`, `*, "4"`, `"a b"`, "\"\x7f\""} {
		if got, err := IfMatch(http.Header{"If-Match": {header}}, true); !errors.Is(err, errMatchInvalid) {
			t.Errorf("%s: %v, %v", header, got, err)
		}
	}
	if got, err := IfMatch(http.Header{}, false); got != nil || err != nil {
		t.Errorf("no header: %v, %v", got, err)
	}
	if _, err := IfMatch(http.Header{}, true); !errors.Is(err, errMatchMissing) {
		t.Errorf("no header where one is required: %v", err)
	}
}

func TestMedia_CheckAccept(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{
		"": true, "application/json": true, "*/*": true, "application/*": true, "text/html, */*;q=0.1": true,
		"application/problem+json": true, "text/html": false, "application/json;q=0": false, "application/json;q=0, */*": false,
	} {
		if err := MediaJSON.CheckAccept(http.Header{"Accept": {header}}); (err == nil) != want {
			t.Errorf("%q: %v, accepted %t", header, err, want)
		}
	}
	var anything *Media
	if err := anything.CheckAccept(http.Header{"Accept": {"text/html"}}); err != nil {
		t.Errorf("a route with any type: %v", err)
	}
}

func TestSingle(t *testing.T) {
	t.Parallel()
	h := http.Header{"X-One": {"1"}, "X-Two": {"1", "2"}}
	if value, present, err := Single(h, "X-One"); value != "1" || !present || err != nil {
		t.Errorf("%q, %t, %v", value, present, err)
	}
	if value, present, err := Single(h, "X-None"); value != "" || present || err != nil {
		t.Errorf("a missing one: %q, %t, %v", value, present, err)
	}
	var p *problem.Problem
	if _, _, err := Single(h, "X-Two"); !errors.As(err, &p) || p.Code != errHeaderDuplicate.Code || p.Param != "X-Two" {
		t.Errorf("two: %v", err)
	}
}

func TestCheckContent(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind, encoding string
		want           error
	}{
		{"application/json", "", nil}, {"Application/JSON; charset=UTF-8", "", nil}, {"application/json", "identity", nil},
		{"application/json; charset=latin1", "", errContentType}, {"text/json", "", errContentType}, {"", "", errContentType},
		{"application/json", "gzip", errContentEncoding},
	} {
		h := http.Header{"Content-Type": {tc.kind}}
		if tc.encoding != "" {
			h.Set("Content-Encoding", tc.encoding)
		}
		if err := CheckContent(h); !errors.Is(err, tc.want) {
			t.Errorf("%q, %q: %v, want %v", tc.kind, tc.encoding, err, tc.want)
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]error{
		"k": nil, strings.Repeat("~", 255): nil, strings.Repeat("k", 256): ErrKeyInvalid, "": ErrKeyInvalid, "a b": ErrKeyInvalid, "ключ": ErrKeyInvalid,
	} {
		got, err := IdempotencyKey(http.Header{"Idempotency-Key": {key}})
		if !errors.Is(err, want) || err == nil && got != key {
			t.Errorf("%q: %q, %v; want %v", key, got, err, want)
		}
	}
	if _, err := IdempotencyKey(http.Header{}); !errors.Is(err, errKeyMissing) {
		t.Errorf("no header: %v", err)
	}
}

func TestHeadersTooLarge(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Host = ""
	r.Header.Set("X-Fill", strings.Repeat("a", maxHeader-len("X-Fill: \r\n")))
	if HeadersTooLarge(r) {
		t.Error("16 KiB are refused")
	}
	r.Host = "a"
	if !HeadersTooLarge(r) {
		t.Error("16 KiB and one byte are accepted")
	}
}

func TestHasTag(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]bool{`W/"a"`: true, `"a"`: true, `"b", W/"a"`: true, `*`: true, `"b"`: false, ``: false, `a`: false} {
		if got := HasTag([]string{`"x"`, header}, `W/"a"`); got != want {
			t.Errorf("%s: %t, want %t", header, got, want)
		}
	}
}
