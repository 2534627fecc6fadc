package admin

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// notReady is a server that answers n times that a part fails, and is ready afterwards.
func notReady(t *testing.T, n int64, status int, body string) (*remote, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) > n || r.URL.Path != "/readyz" {
			return
		}
		w.WriteHeader(status)
		if _, err := io.WriteString(w, body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return &remote{asked: asked{server: s.URL + "/"}}, &calls
}

func TestRemote_waitReady(t *testing.T) {
	t.Parallel()
	const parts = `{"failing":["redis","catalog"],"code":"unavailable"}`
	const forever = 1 << 30
	const long, short = time.Minute, 100 * time.Millisecond
	for name, tc := range map[string]struct {
		refusals int64
		status   int
		body     string
		wait     time.Duration
		asked    int64 // 0: any number of times
		words    []string
	}{
		"ready":             {0, 0, "", long, 1, nil},
		"ready soon":        {2, 503, parts, long, 3, nil},
		"a proxy in front":  {1, 502, "<html>", long, 2, nil},
		"not asked to wait": {forever, 503, parts, 0, 0, nil},
		"never ready":       {forever, 503, parts, short, 0, []string{"not ready after 100ms", "redis, catalog"}},
		"never there":       {forever, 502, "<html>", short, 0, []string{"not ready after 100ms", "502 Bad Gateway"}},
		"another service":   {forever, 404, "", long, 1, []string{"/readyz answered 404", "--server"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, asked := notReady(t, tc.refusals, tc.status, tc.body)
			err := r.waitReady(t.Context(), tc.wait)
			if (err == nil) != (tc.words == nil) {
				t.Fatalf("got %v", err)
			}
			for _, word := range tc.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error lacks %q: %v", word, err)
				}
			}
			if n := asked.Load(); tc.asked != 0 && n != tc.asked {
				t.Errorf("asked %d times, want %d", n, tc.asked)
			}
		})
	}
}

func TestRemote_waitReady_refused(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close() // no server listens there now
	r := &remote{asked: asked{server: s.URL}}
	err := r.waitReady(t.Context(), 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Count(err.Error(), s.URL) != 1 {
		t.Errorf("nothing listens: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.waitReady(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestRemote_call_ErrUnreachable(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(nil)
	s.Close()
	err := (&remote{asked: asked{server: s.URL}}).call(t.Context(), http.MethodGet, "/v1/items", nil, nil)
	if err == nil || !strings.HasPrefix(err.Error(), s.URL+" does not answer: ") || !strings.HasSuffix(err.Error(), "; start the service, or correct --server") ||
		strings.Contains(err.Error(), "/v1/items") {
		t.Errorf("got %v", err)
	}
}
