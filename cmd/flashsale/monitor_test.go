//go:build unix

package main_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"flashsale/internal/testing/process"
	"flashsale/order/worker"
)

// ready is the answer of /readyz when nothing is degraded.
const ready = `{"status":"ok"}`

// metricsOf reads all metrics of a process.
func metricsOf(t *testing.T, p *process.P) string {
	t.Helper()
	a := ops(t, p, "/metrics")
	if a.Status != 200 {
		t.Fatalf("metrics of %s: %d %s", p.Spec().Command, a.Status, a.Body)
	}
	return a.Body
}

// shows waits until the metrics of a process contain all these lines.
func shows(t *testing.T, p *process.P, lines ...string) {
	t.Helper()
	for _, line := range lines {
		eventually(t, p.Spec().Command+" shows "+line, soon, func() (bool, any) {
			text := metricsOf(t, p)
			return strings.Contains(text, "\n"+line+"\n"), grep(text, "flashsale_queue_") + grep(text, "flashsale_worker")
		})
	}
}

// ops reads a page on a process's address for operators. Each call uses a new connection,
// because a kept one would delay the end of the process.
func ops(t *testing.T, p *process.P, path string) (a answer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.OpsURL()+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s of %s: %v", path, p.Spec().Command, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s of %s: %v", path, p.Spec().Command, err)
	}
	a.Status, a.Body = res.StatusCode, string(body)
	return a
}

const (
	alarmText = "accepted orders are not being committed"
	calmText  = "accepted orders are being committed again"
)

// An operator can see in the metrics, in readiness, in the doctor's output and in the log that
// accepted orders are not committed because no worker runs, and when that is over.
func TestWorkers_MissingOnesAreReported(t *testing.T) {
	needProcesses(t)
	needSynced(t)
	s := newRedisShop(t)
	api := s.api()
	c := dial(t, api)
	item := s.newItem(c, 5, 1)
	shows(t, api, "flashsale_queue_metrics_up 1", "flashsale_workers_live 0", `flashsale_queue_tasks{queue="orders-0",state="ready"} 0`)
	wantCode(t, 0, squeezed(s.run("doctor")), "warn workers no worker has ever registered")

	first := c.buy(item, "alice", "k", "Prefer", "respond-async")
	only(t, []purchase{first}, "202")
	const never = `"degraded":["workers"],"workers":"none has ever registered"`
	if r := c.get("/readyz", "u"); r.Status != 200 || !strings.Contains(r.Body, never) {
		t.Errorf("readiness without a worker: %s %s", r.verdict(), r.Body)
	}
	if r := ops(t, api, "/readyz"); r.Status != 200 || !strings.Contains(r.Body, never) {
		t.Errorf("the same on the operators' address: %d %s", r.Status, r.Body)
	}
	wantCode(t, 1, squeezed(s.run("doctor")), "fix workers accepted orders wait (1), and no worker has ever registered", "start flashsale worker")
	shows(t, api, `flashsale_queue_tasks{queue="orders-0",state="ready"} 1`)
	text := metricsOf(t, api)
	if strings.Contains(text, "flashsale_worker_last_fetch_age_seconds") || strings.Contains(text, `flashsale_queue_oldest_age_seconds{queue="orders-0"} 0`+"\n") {
		t.Errorf("the metrics of an order that waits:\n%s", grep(text, "_seconds")+grep(text, "flashsale_worker"))
	}
	eventually(t, "the log says so", 2*soon, func() (bool, any) { return strings.Contains(api.Log(), alarmText), api.Log() })

	w := s.worker()
	eventually(t, "the order is confirmed", soon, func() (bool, any) {
		r := c.get("/v1/orders/"+first.Order.ID, first.user)
		return r.Order.Status == "confirmed", r.Body
	})
	// The worker may commit before its first heartbeat.
	eventually(t, "readiness with a worker", soon, func() (bool, any) {
		r := c.get("/readyz", "u")
		return r.Status == 200 && r.Body == ready+"\n", r.Body
	})
	if r := c.admin("GET", "/v1/admin/queue", nil); !strings.Contains(r.Body, `"workers":{"live":1`) {
		t.Errorf("the queue's page: %s", r.Body)
	}
	wantCode(t, 0, squeezed(s.run("doctor")), "ok workers 1 live")
	for _, p := range []*process.P{api, w} {
		shows(t, p, "flashsale_workers_live 1", `flashsale_queue_tasks{queue="orders-0",state="ready"} 0`)
		eventually(t, "it shows the last fetch", soon, func() (bool, any) {
			return strings.Contains(metricsOf(t, p), "\nflashsale_worker_last_fetch_age_seconds "), nil
		})
	}
	eventually(t, "the log says that it is over", 2*soon, func() (bool, any) { return strings.Contains(api.Log(), calmText), api.Log() })
	if n := strings.Count(api.Log(), alarmText); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, api.Log())
	}

	if code := w.Stop(); code != 0 {
		t.Errorf("the worker ended with %d", code)
	}
	if r := c.get("/readyz", "u"); r.Status != 200 || !strings.Contains(r.Body, `"workers":"none live since 2`) {
		t.Errorf("readiness after a clean stop: %s %s", r.verdict(), r.Body)
	}
	wantCode(t, 0, squeezed(s.run("doctor")), "warn workers no worker has fetched since 2")
	only(t, []purchase{c.buy(item, "bob", "k", "Prefer", "respond-async")}, "202")
	wantCode(t, 1, squeezed(s.run("doctor")), "fix workers accepted orders wait (1), and no worker has fetched since 2")
	if ttl, err := s.rdb.PTTL(t.Context(), worker.WorkersKey).Result(); err != nil || ttl <= 0 {
		t.Errorf("the list of workers has no end: %v, %v", ttl, err)
	}
}

// The worker's address reports whether it can work, and that it is alive even when its
// dependencies fail.
func TestWorker_HealthReportsProgress(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	w := s.worker()
	is := func(status int, body string) {
		t.Helper()
		eventually(t, fmt.Sprintf("readiness is %d %s", status, body), 2*soon, func() (bool, any) {
			r := ops(t, w, "/readyz")
			return r.Status == status && r.Body == body+"\n", fmt.Sprint(r.Status, r.Body)
		})
		if r := ops(t, w, "/healthz"); r.Status != 200 {
			t.Errorf("alive while readiness is %d: %d %s", status, r.Status, r.Body)
		}
	}
	is(200, ready)
	unlock := s.lockDatabase()
	is(503, `{"failing":["database"],"status":"unavailable"}`)
	unlock()
	is(200, ready)
	if err := s.server.Pause(); err != nil {
		t.Fatal(err)
	}
	is(503, `{"failing":["redis","worker"],"status":"unavailable"}`)
	// A scrape does not wait for Redis, and omits unknown values.
	eventually(t, "the figures are left out", 2*soon, func() (bool, any) {
		text := metricsOf(t, w)
		return strings.Contains(text, "\nflashsale_queue_metrics_up 0\n"), grep(text, "flashsale_queue_")
	})
	if text := metricsOf(t, w); strings.Contains(text, "flashsale_queue_tasks{") || strings.Contains(text, "flashsale_workers_live ") {
		t.Errorf("figures of a Redis that cannot be read:\n%s", grep(text, "flashsale_queue_")+grep(text, "flashsale_worker"))
	}
	if err := s.server.Continue(); err != nil {
		t.Fatal(err)
	}
	is(200, ready)

	// An order that cannot be committed delays the worker's stop.
	c := dial(t, s.api())
	item := s.newItem(c, 1, 1)
	unlock = s.lockDatabase()
	only(t, []purchase{c.buy(item, "alice", "k", "Prefer", "respond-async")}, "202")
	eventually(t, "the worker has the order", soon, func() (bool, any) { st := s.stats(); return st.Leased == 1, st })
	stopped := make(chan int, 1)
	go func() { stopped <- w.Stop() }()
	eventually(t, "readiness names draining", soon, func() (bool, any) {
		r := ops(t, w, "/readyz")
		return r.Status == 503 && strings.Contains(r.Body, `"draining"`), r.Body
	})
	unlock()
	if code := <-stopped; code != 0 {
		t.Errorf("the worker ended with %d:\n%s", code, w.Log())
	}
}

// The worker in the all-in-one process registers on the embedded engine too.
func TestServe_WorkerRegisters(t *testing.T) {
	needProcesses(t)
	s := newShop(t)
	p := s.serve()
	c := dial(t, p)
	eventually(t, "ready with a worker", soon, func() (bool, any) {
		r := ops(t, p, "/readyz")
		return r.Status == 200 && r.Body == ready+"\n", r.Body
	})
	eventually(t, "ready for buyers, too", soon, func() (bool, any) {
		r := c.get("/readyz", "u")
		return r.Status == 200 && r.Body == ready+"\n", r.Body
	})
	shows(t, p, "flashsale_workers_live 1", `flashsale_queue_tasks{queue="orders-0",state="dead"} 0`)
	if n := strings.Count(metricsOf(t, p), "\nflashsale_http_"); n > 200 {
		t.Errorf("%d series of HTTP after a few requests", n)
	}
}
