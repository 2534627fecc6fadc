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
	if _, err := ReadBody(w, r, nil, 100); !errors.Is(err, errBodyTooLarge) {
		t.Errorf("an endless body: %v", err)
	}
	if body.n > maxDrain || w.Header().Get("Connection") != "close" {
		t.Errorf("%d bytes were read, want at most %d; headers %v", body.n, maxDrain, w.Header())
	}
}

func TestReadBody(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body io.Reader
		want error
	}{
		{strings.NewReader("{}"), nil},
		{strings.NewReader(""), nil},
		{strings.NewReader(strings.Repeat(" ", 40)), nil},
		{strings.NewReader(strings.Repeat(" ", 41)), errBodyTooLarge},
		{strings.NewReader(strings.Repeat("[", 100)), errJSONInvalid},
		{iotest.ErrReader(os.ErrDeadlineExceeded), errTimeout},
		{iotest.ErrReader(io.ErrUnexpectedEOF), errBodyCut},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", tc.body)
		w := httptest.NewRecorder()
		got, err := ReadBody(w, r, make([]byte, 0, 9), 40)
		if !errors.Is(err, tc.want) {
			t.Errorf("got %q, %v; want %v", got, err, tc.want)
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
