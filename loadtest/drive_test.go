package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flashsale/internal/wire"
)

// crowdAt drives a small plan against a handler.
func crowdAt(t *testing.T, h http.HandlerFunc, connections int, args ...string) *result {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	target, err := wire.ParseTarget(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := options4test(t, args...)
	p := newPlan(o, "r")
	d := &driver{plan: p, targets: []wire.Target{target}, tokens: make([]string, len(p.buyers)), timeout: o.Timeout, live: new(counters)}
	r, err := d.drive(t.Context(), connections)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// While one request blocks the only connection, the later ones are due, and their latency
// includes that wait although each is answered immediately.
func TestDrive_LatencyCountsFromDue(t *testing.T) {
	t.Parallel()
	const held = 50 * time.Millisecond
	var first atomic.Bool
	r := crowdAt(t, func(w http.ResponseWriter, r *http.Request) {
		if first.CompareAndSwap(false, true) {
			select { // the slow request
			case <-time.After(held):
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(http.StatusConflict)
	}, 1, "--buyers", "3")
	for i, out := range r.outcomes {
		if out.latency < held {
			t.Errorf("request %d was due at the start and held up for %s, but its latency is %s", i, held, out.latency)
		}
		if i > 0 && out.latency < r.outcomes[i-1].latency {
			t.Errorf("request %d was answered before the one before it", i)
		}
		if i > 0 && out.service >= out.latency {
			t.Errorf("request %d: service time %s includes the wait, latency %s", i, out.service, out.latency)
		}
	}
}

func TestDrive_GivesUp(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	r := crowdAt(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusServiceUnavailable)
	}, 2, "--buyers", "4", "--timeout", "30s")
	// The wait that the service states is longer than the user allows.
	if requests.Load() != 4 || r.retriedBusy != 0 {
		t.Errorf("%d requests, %d retries; want 4 and 0", requests.Load(), r.retriedBusy)
	}
	for _, out := range r.outcomes {
		if out.answer.kind != kindBusy || out.attempts != 1 {
			t.Errorf("outcome %+v", out)
		}
	}
}

func TestDrive_ReconnectsWhenAskedToClose(t *testing.T) {
	t.Parallel()
	r := crowdAt(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusConflict)
	}, 2, "--buyers", "20")
	if r.retriedUnknown != 0 || r.answers[answerKey{409, ""}] != 20 {
		t.Errorf("%d retries, answers %v; want 0 and 20", r.retriedUnknown, r.answers)
	}
}

func TestCounters_Line(t *testing.T) {
	t.Parallel()
	c := new(counters)
	c.total.Store(4)
	c.enter("buying")
	for _, k := range []kind{kindAccepted, kindRefused, kindBusy} {
		c.settle(k)
	}
	c.retried.Add(7)
	if got, want := c.line(), "buying: 3 of 4 answered, 1 accepted, 1 refused, 7 retried, 1 failed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	c.persisted.Store(2)
	if got, want := c.figures(), "3 of 4 answered, 1 accepted, 1 refused, 7 retried, 1 failed, 2 rows"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	view := screen{c: c, rec: newRecorder(new(plan)), width: 40}.View().Content
	if !strings.Contains(view, "75 %") || !strings.Contains(view, "buying") || !strings.Contains(view, "3 of 4 answered") {
		t.Errorf("view %q", view)
	}
}

// A server may close an idle connection while a request is on its way, which would count as an
// unknown outcome of the service.
func TestWorker_ReplacesAnIdleConnection(t *testing.T) {
	t.Parallel()
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	target, err := wire.ParseTarget(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlan(options4test(t, "--buyers", "1"), "r")
	w := &worker{d: &driver{plan: p, targets: []wire.Target{target}, tokens: []string{"Bearer x"}, timeout: time.Minute}, route: "/"}
	t.Cleanup(w.hangUp)
	for i, step := range []struct {
		idle time.Duration
		want int64
	}{{0, 1}, {0, 1}, {2 * staleAfter, 2}, {0, 2}} {
		w.used = w.used.Add(-step.idle)
		if a := w.send(t.Context(), ticket{}); a.status != http.StatusConflict {
			t.Fatalf("step %d: %+v", i, a)
		}
		if opened.Load() != step.want {
			t.Errorf("step %d, idle for %s: %d connections, want %d", i, step.idle, opened.Load(), step.want)
		}
	}
}
