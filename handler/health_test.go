package handler

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler/ops"
	"flashsale/order/worker"
)

// readyFor is how long package ops reuses the result of the probes.
const readyFor = 200 * time.Millisecond

// fakeWorkers returns the test's status.
type fakeWorkers struct {
	status worker.Status
	err    error
}

func (f *fakeWorkers) WorkerStatus(context.Context) (worker.Status, error) {
	return f.status, f.err
}

// Missing workers are shown, but the API stays ready. An unknown state of the workers is not
// shown.
func TestReady_StaysReadyWithoutWorkers(t *testing.T) {
	t.Parallel()
	const trouble = "none live since 2030-01-02T03:04:05Z"
	workers := &fakeWorkers{status: worker.Status{Live: 1}}
	now := someTime
	var redis, old error
	s := open(t, func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Workers = workers
		c.Ready = []ops.Check{{Name: "redis", Probe: func(context.Context) error { return redis }}, {Name: "database", Probe: func(context.Context) error { return old }, Degrades: "older"}}
	})
	look := func() *httptest.ResponseRecorder {
		now = now.Add(readyFor)
		return s.get(t, "/readyz", "", "")
	}
	if w := look(); w.Code != 200 || w.Body.String() != `{"status":"ok"}` {
		t.Errorf("with a worker: %d %s", w.Code, w.Body)
	}
	workers.status = worker.Status{Trouble: trouble}
	if w := look(); w.Code != 200 || w.Body.String() != `{"degraded":["workers"],"workers":"`+trouble+`","status":"ok"}` {
		t.Errorf("without a worker: %d %s", w.Code, w.Body)
	}
	old = errors.New("a detail for the log")
	if w := look(); w.Code != 200 || w.Body.String() != `{"degraded":["workers","database"],"workers":"`+trouble+`","database":"older","status":"ok"}` {
		t.Errorf("with a part that only degrades: %d %s", w.Code, w.Body)
	}
	old = nil
	redis = errors.New("dial tcp 10.0.0.1: refused")
	body := wantProblem(t, look().Result(), 503, "unavailable")
	if body["workers"] != trouble || body["failing"] == nil {
		t.Errorf("without Redis, and with an old answer about workers: %v", body)
	}
	redis, workers.err = nil, errors.New("dial tcp 10.0.0.1: refused")
	if w := look(); w.Code != 200 || w.Body.String() != `{"status":"ok"}` {
		t.Errorf("with an unknown state: %d %s", w.Code, w.Body)
	}
}

// seriesOf counts the series of the package's own metrics.
func seriesOf(t *testing.T, g prometheus.Gatherer) map[string]int {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}

// The series of a route or a code is created at its first use.
func TestMetrics_SeriesExistFromTheirFirstUse(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	s := open(t, func(c *Config) { c.Registerer = registry })
	const requests, durations, problems = "flashsale_http_requests_total", "flashsale_http_request_duration_seconds", "flashsale_http_problems_total"
	for name, n := range seriesOf(t, registry) {
		if strings.HasPrefix(name, "flashsale_http_") {
			t.Errorf("before the first request: %d series of %s", n, name)
		}
	}
	for range 3 {
		s.do(purchaseRequest(t, `{"quantity":1}`))
		s.do(purchaseRequest(t, `{"quantity":0}`))
	}
	got := seriesOf(t, registry)
	if got[requests] != 2 || got[durations] != 1 || got[problems] != 1 {
		t.Errorf("after two kinds of answers on one route: %v", got)
	}
}
