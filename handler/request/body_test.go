package request

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"flashsale/handler/problem"
)

// counting counts what is read of a body.
type counting struct {
	io.Reader
	n int
}

func (c *counting) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n += n
	return n, err
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// A body that is too large is read to its end, but not beyond maxDrain.
func TestReadBody_Bound(t *testing.T) {
	t.Parallel()
	body := &counting{Reader: zeros{}}
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(body))
	r.ContentLength = -1
	w := httptest.NewRecorder()
	var got *problem.Problem
	if _, err := ReadBody(w, r, nil, 100); !errors.As(err, &got) || got.Code != errBodyTooLarge.Code || !strings.Contains(got.Detail, "100 bytes") {
		t.Errorf("an endless body: %+v, want the limit of the route", got)
	}
	if body.n > maxDrain || w.Header().Get("Connection") != "close" {
		t.Errorf("%d bytes were read, want at most %d; headers %v", body.n, maxDrain, w.Header())
	}
}

func TestReadBody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body io.Reader
		want *problem.Problem
	}{
		{strings.NewReader("{}"), nil},
		{strings.NewReader(""), nil},
		{strings.NewReader(strings.Repeat(" ", 40)), nil},
		{strings.NewReader(strings.Repeat(" ", 41)), errBodyTooLarge},
		{strings.NewReader(strings.Repeat("[", 100)), errJSONInvalid},
		{iotest.ErrReader(os.ErrDeadlineExceeded), ErrTimeout},
		{iotest.ErrReader(io.ErrUnexpectedEOF), errBodyCut},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", tc.body)
		w := httptest.NewRecorder()
		body, err := ReadBody(w, r, make([]byte, 0, 9), 40)
		var got *problem.Problem
		if errors.As(err, &got); (got == nil) != (tc.want == nil) || got != nil && got.Code != tc.want.Code {
			t.Errorf("got %q, %v; want %v", body, err, tc.want)
		}
		if w.Header().Get("Connection") != "" {
			t.Error("the connection is closed although the body was read")
		}
	}
}

func TestCheckEmpty(t *testing.T) {
	t.Parallel()
	h := http.Header{"Content-Type": {"application/json"}}
	for body, want := range map[string]error{"": nil, "{}": nil, "[]": errJSONInvalid, "{} ": nil, "{}x": errJSONTrailing} {
		if err := CheckEmpty(h, []byte(body)); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", body, err, want)
		}
	}
	if err := CheckEmpty(http.Header{}, []byte("{}")); !errors.Is(err, errContentType) {
		t.Errorf("an object without a type: %v", err)
	}
	if err := CheckEmpty(http.Header{}, nil); err != nil {
		t.Errorf("no body and no type: %v", err)
	}
}
