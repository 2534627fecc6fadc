package ops

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order/worker"
)

// noWorkers reports that no worker is live.
type noWorkers struct{}

func (noWorkers) WorkerStatus(context.Context) (worker.Status, error) {
	return worker.Status{Trouble: "none live"}, nil
}

// The operators' address reports whether the process is ready and alive.
func TestNew_Health(t *testing.T) {
	t.Parallel()
	var part, alive error
	ask := func(path string) *httptest.ResponseRecorder {
		routes := New(prometheus.NewRegistry(), Config{ // a new one, without a cached result
			Ready:   []Check{{Name: "worker", Probe: func(context.Context) error { return part }}},
			Workers: noWorkers{},
			Alive:   func() error { return alive },
		})
		w := httptest.NewRecorder()
		routes.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if got := w.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("%s: Content-Type %q", path, got)
		}
		return w
	}
	want := func(path string, status int, body string) {
		t.Helper()
		if w := ask(path); w.Code != status || w.Body.String() != body+"\n" {
			t.Errorf("%s: %d %s, want %d %s", path, w.Code, w.Body, status, body)
		}
	}
	want("/readyz", 200, `{"degraded":["workers"],"workers":"none live","status":"ok"}`)
	want("/healthz", 200, `{"status":"ok"}`)
	part, alive = errors.New("no fetch for 10.0.0.1"), errors.New("stuck at 10.0.0.1")
	want("/readyz", 503, `{"failing":["worker"],"degraded":["workers"],"workers":"none live","status":"unavailable"}`)
	want("/healthz", 503, `{"status":"unavailable"}`)
}
