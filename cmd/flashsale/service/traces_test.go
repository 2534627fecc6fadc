//go:build unix

package service

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// tracedHost is processes of one shop, all in this process, whose spans are kept.
type tracedHost struct {
	*skewedHost
	spans *tracetest.InMemoryExporter
	dir   string
}

// startTraced runs a process of each role until the test ends.
func startTraced(t *testing.T, redisURL string, roles []Role, args ...string) *tracedHost {
	t.Helper()
	h := &tracedHost{skewedHost: &skewedHost{t: t, registry: prometheus.NewRegistry()}, spans: tracetest.NewInMemoryExporter(), dir: t.TempDir()}
	s, err := settingsOf(append([]string{
		"--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret=" + skewSecret,
		"--redis=" + redisURL, "--data-dir=" + h.dir, "--trace-sample=1",
	}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	for i, role := range roles {
		registry := h.registry
		if i > 0 {
			registry = prometheus.NewRegistry()
		}
		h.start(&env{settings: s, role: role, registry: registry, spans: kept{h.spans}})
	}
	return h
}

// start runs a process until the test ends.
func (h *tracedHost) start(e *env) {
	h.t.Helper()
	var out bytes.Buffer
	e.log, e.out, e.now = zerolog.New(&h.log), &out, time.Now
	processors := runtime.GOMAXPROCS(0)
	life, err := build(h.t.Context(), e)
	runtime.GOMAXPROCS(processors) // a worker in a process of its own limits it
	if err != nil {
		h.t.Fatal(err)
	}
	if address := apiIn(out.String()); address != "" { // a worker has none
		h.url = address
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- life.run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("stop: %v", err)
		}
	})
}

// kept keeps the spans after the end of the process that has made them.
type kept struct{ *tracetest.InMemoryExporter }

func (kept) Shutdown(context.Context) error { return nil }

// tree returns the spans of a trace as lines, each indented below its parent, with what failed.
func tree(spans tracetest.SpanStubs, id string) (lines []string) {
	var below func(parent, indent string)
	below = func(parent, indent string) {
		var children tracetest.SpanStubs
		for _, s := range spans {
			if s.SpanContext.TraceID().String() == id && s.Parent.SpanID().String() == parent {
				children = append(children, s)
			}
		}
		slices.SortStableFunc(children, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
		for _, s := range children {
			line := indent + s.Name
			if s.Status.Code == codes.Error {
				line += " failed: " + s.Status.Description
			}
			lines = append(lines, line)
			below(s.SpanContext.SpanID().String(), indent+"  ")
		}
	}
	below("0000000000000000", "")
	return lines
}

// named returns the spans of a name.
func (h *tracedHost) named(name string) (found tracetest.SpanStubs) {
	for _, s := range h.spans.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// attribute returns a span's attribute as text; empty if it has none.
func attributeOf(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

const serverSpan = "POST /v1/items/{item}/orders"

// wantTree is the trace of a committed purchase. The item's lock is free, so the batch waits for it
// once.
var wantTree = []string{
	serverSpan,
	"  purchase.wait",
	"  purchase.batch",
	"    lock.wait",
	"    redis.script",
	"  order.queue",
	"  order.commit",
	"  order.notice",
}

// checkTraced buys once, and checks the trace and the links of its batch and of its commit.
func checkTraced(t *testing.T, h *tracedHost) {
	t.Helper()
	h.create("thing", time.Time{}, time.Time{})
	status, head, order := h.buy("thing", "secret-key")
	if status != http.StatusCreated {
		t.Fatalf("bought with %d: %v", status, order)
	}
	await.True(t, "the trace", func() bool {
		return len(h.named(serverSpan)) == 1 && len(h.named("batch.purchase")) == 1 && len(h.named("batch.commit")) == 1 && len(h.named("order.notice")) == 1
	})
	server := h.named(serverSpan)[0]
	got := tree(h.spans.GetSpans(), server.SpanContext.TraceID().String())
	if !slices.Equal(got, wantTree) {
		t.Errorf("the trace is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wantTree, "\n"))
	}
	for key, want := range map[string]string{
		"flashsale.request_id": head.Get("X-Request-Id"), "flashsale.order_id": fmt.Sprint(order["id"]), "flashsale.item_id": "thing",
		"http.response.status_code": "201", "http.request.method": "POST", "http.route": "/v1/items/{item}/orders",
	} {
		if got := attributeOf(server, key); got != want || want == "" {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for whole, part := range map[string]string{"batch.purchase": "purchase.batch", "batch.commit": "order.commit"} {
		w, p := h.named(whole)[0], h.named(part)[0]
		if len(w.Links) != 1 || w.Links[0].SpanContext.SpanID() != p.SpanContext.SpanID() || len(p.Links) != 1 || p.Links[0].SpanContext.SpanID() != w.SpanContext.SpanID() {
			t.Errorf("%s has the links %v, and %s %v", whole, w.Links, part, p.Links)
		}
		if w.SpanContext.TraceID() == server.SpanContext.TraceID() || w.Parent.IsValid() {
			t.Errorf("%s is not in a trace of its own", whole)
		}
	}
	for _, s := range h.spans.GetSpans() {
		if s.EndTime.Before(s.StartTime) {
			t.Errorf("%s ends before it begins", s.Name)
		}
		for _, a := range s.Attributes {
			if v := a.Value.String(); strings.Contains(v, "user-1") || strings.Contains(v, "secret-key") {
				t.Errorf("%s has personal data: %s is %s", s.Name, a.Key, v)
			}
		}
	}
	if testing.Verbose() {
		t.Logf("one purchase:\n%s", printed(h.spans.GetSpans(), &server))
	}
}

// printed is a trace with the times of its spans, for docs/observability.md.
func printed(spans tracetest.SpanStubs, server *tracetest.SpanStub) string {
	var b strings.Builder
	began := server.StartTime
	byName := map[string]tracetest.SpanStub{}
	for _, s := range spans {
		if s.SpanContext.TraceID() == server.SpanContext.TraceID() {
			byName[s.Name] = s
		}
	}
	fmt.Fprintf(&b, "trace %s\n", server.SpanContext.TraceID())
	for _, line := range tree(spans, server.SpanContext.TraceID().String()) {
		s := byName[strings.TrimLeft(line, " ")]
		fmt.Fprintf(&b, "%-36s %8.3f ms at %8.3f ms", line, s.EndTime.Sub(s.StartTime).Seconds()*1000, s.StartTime.Sub(began).Seconds()*1000)
		for _, l := range s.Links {
			fmt.Fprintf(&b, "  linked to trace %s", l.SpanContext.TraceID())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// One purchase is one trace, from the request to the response: in one process, and with API and
// worker in processes of their own.
func TestTraces_OnePurchase(t *testing.T) {
	t.Parallel()
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		checkTraced(t, startTraced(t, config.EmbeddedRedis, []Role{Serve}))
	})
	t.Run("two processes", func(t *testing.T) {
		if testing.Short() {
			t.Skip("skipped: it starts a redis-server, and -short asks for the quick tests")
		}
		t.Parallel()
		server := redistest.Real(t, "--appendfsync", "everysec")
		dir := "--db=sqlite:" + filepath.Join(t.TempDir(), "shop.db")
		migrated(t, dir)
		checkTraced(t, startTraced(t, "redis://"+server.Addr()+"/0", []Role{API, Worker}, dir))
	})
}

// migrated creates the tables of a database.
func migrated(t *testing.T, db string) {
	t.Helper()
	s, err := settingsOf(db, "--data-dir="+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var ps parts
	eng := &engine{partitions: 1}
	err = eng.openDatabase(t.Context(), &env{settings: s, role: Serve, log: zerolog.Nop(), out: io.Discard, registry: prometheus.NewRegistry(), now: time.Now}, &ps)
	if cerr := (&lifecycle{parts: ps}).close(t.Context()); err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
}

// A refused purchase has its problem in the trace, and no span of an order.
func TestTraces_Refusal(t *testing.T) {
	t.Parallel()
	h := startTraced(t, config.EmbeddedRedis, []Role{Serve})
	h.create("thing", time.Time{}, time.Time{})
	if status, _, _ := h.ask("POST", "/v1/items/thing/orders", auth.RoleBuyer, map[string]any{"quantity": 6}, "Idempotency-Key", "k"); status != http.StatusUnprocessableEntity {
		t.Fatalf("refused with %d", status)
	}
	await.True(t, "the trace", func() bool { return len(h.named(serverSpan)) == 1 && len(h.named("batch.purchase")) == 1 })
	s := h.named(serverSpan)[0]
	if s.Status.Code != codes.Error || s.Status.Description != "quantity_range" || attributeOf(s, "flashsale.problem") != "quantity_range" {
		t.Errorf("the refusal: %+v, %v", s.Status, s.Attributes)
	}
	if n := len(h.named("order.queue")) + len(h.named("order.commit")); n != 0 {
		t.Errorf("%d spans of an order that was refused", n)
	}
}

// A client's trace is joined, and a purchase outside the sample makes no span.
func TestTraces_Sampling(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
	for flag, want := range map[string]int{"1": 1, "0": 0} {
		h := startTraced(t, config.EmbeddedRedis, []Role{Serve})
		h.create("thing", time.Time{}, time.Time{})
		order := map[string]any{"quantity": 1}
		if status, _, got := h.ask("POST", "/v1/items/thing/orders", auth.RoleBuyer, order, "Idempotency-Key", "k", "Traceparent", parent+flag); status != http.StatusCreated {
			t.Fatalf("%d: %v", status, got)
		}
		// A second purchase is traced in any case: then the spans of the first are there.
		h.buy("thing", "k2")
		await.True(t, "the second trace", func() bool { return len(h.named(serverSpan)) >= 1+want })
		if n := len(h.named(serverSpan)); n != 1+want {
			t.Errorf("flag %s: %d requests are traced, want %d", flag, n, 1+want)
		}
		joined := 0
		for _, s := range h.named(serverSpan) {
			if s.SpanContext.TraceID().String() == "4bf92f3577b34da6a3ce929d0e0e4736" && s.Parent.SpanID().String() == "00f067aa0ba902b7" {
				joined++
			}
		}
		if joined != want {
			t.Errorf("flag %s: %d spans joined the client's trace, want %d", flag, joined, want)
		}
	}
	h := startTraced(t, config.EmbeddedRedis, []Role{Serve}, "--trace-sample=0")
	h.create("thing", time.Time{}, time.Time{})
	if status, _, got := h.ask("POST", "/v1/items/thing/orders", auth.RoleBuyer, map[string]any{"quantity": 1}, "Idempotency-Key", "k", "Traceparent", parent+"1"); status != http.StatusCreated {
		t.Fatalf("%d: %v", status, got)
	}
	if spans := h.spans.GetSpans(); len(spans) != 0 {
		t.Errorf("without a sample, the spans %v", spans)
	}
}

// A collector that never answers delays neither a purchase nor the stop.
func TestTraces_CollectorDoesNotAnswer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	release := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			asked.Add(1)
		}
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	t.Cleanup(collector.Close)
	t.Cleanup(func() { close(release) })
	s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
		"--data-dir="+t.TempDir(), "--trace-sample=1", "--trace-endpoint="+collector.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := &tracedHost{skewedHost: &skewedHost{t: t, registry: prometheus.NewRegistry()}}
	h.start(&env{settings: s, role: Serve, registry: h.registry})
	h.create("thing", time.Time{}, time.Time{})
	if status, _, got := h.buy("thing", "k"); status != http.StatusCreated {
		t.Fatalf("%d: %v", status, got)
	}
	await.True(t, "spans", func() bool { return asked.Load() > 0 })
	if status, _, got := h.buy("thing", "k2"); status != http.StatusCreated {
		t.Errorf("while the collector is silent: %d: %v", status, got)
	}
}

// The spans of a purchase are sent to the collector, in its format, and counted.
func TestTraces_Collector(t *testing.T) {
	t.Parallel()
	var wrong atomic.Pointer[string]
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if what := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type"); what != "POST /v1/traces application/x-protobuf" {
			wrong.Store(&what)
		}
	}))
	t.Cleanup(collector.Close)
	s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
		"--data-dir="+t.TempDir(), "--trace-sample=1", "--trace-endpoint="+collector.URL)
	if err != nil {
		t.Fatal(err)
	}
	h := &tracedHost{skewedHost: &skewedHost{t: t, registry: prometheus.NewRegistry()}}
	h.start(&env{settings: s, role: Serve, registry: h.registry})
	h.create("thing", time.Time{}, time.Time{})
	if status, _, got := h.buy("thing", "k"); status != http.StatusCreated {
		t.Fatalf("%d: %v", status, got)
	}
	// Those of the trace; the batch with its lock and its script; the commit.
	await.True(t, "spans", func() bool { return h.counted("flashsale_trace_spans_total", "sent") == float64(len(wantTree)+4) })
	if n := h.counted("flashsale_trace_spans_total", "failed"); n != 0 || wrong.Load() != nil {
		t.Errorf("%g spans were lost; the collector got %v", n, wrong.Load())
	}
}

// counted is the value of a counter with one label.
func (h *tracedHost) counted(name, label string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == label {
				return m.GetCounter().GetValue()
			}
		}
	}
	return -1
}

// The worker's log has the request id of an order that cannot be committed, and of one that is. The
// failure is in the order's trace.
func TestLog_RequestIDInTheWorker(t *testing.T) {
	t.Parallel()
	h := startTraced(t, config.EmbeddedRedis, []Role{Serve})
	h.create("thing", time.Time{}, time.Time{})
	_, head, order := h.buy("thing", "good")
	h.wantLine("order committed", head.Get("X-Request-Id"), fmt.Sprint(order["id"]))

	db, err := sql.Open("sqlite3", filepath.Join(h.dir, "flashsale.db")+"?_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) //nolint:errcheck // only read and changed here
	if _, err := db.ExecContext(t.Context(), `CREATE TRIGGER no_more BEFORE INSERT ON orders BEGIN SELECT RAISE(ABORT, 'the test refuses it'); END`); err != nil {
		t.Fatal(err)
	}
	// The answer comes only after the whole wait for a commit, and the test ends before.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go h.send(ctx, "POST", "/v1/items/thing/orders", "client.request-7")
	line := h.wantLine("order not committed, retrying", "client.request-7", "")
	if line["order_id"] == "" || line["attempt"] != 1.0 || !strings.Contains(fmt.Sprint(line["error"]), "the test refuses it") {
		t.Errorf("the failure is logged as %v", line)
	}
	await.True(t, "the failure in the trace", func() bool {
		return slices.ContainsFunc(h.named("order.commit"), func(s tracetest.SpanStub) bool {
			return s.Status.Code == codes.Error && strings.Contains(s.Status.Description, "the test refuses it") &&
				attributeOf(s, "flashsale.order_id") == fmt.Sprint(line["order_id"])
		})
	})
}

// wantLine waits for a log line with these fields, and returns it. An empty order is any.
func (h *tracedHost) wantLine(message, requestID, orderID string) (found map[string]any) {
	h.t.Helper()
	await.True(h.t, message+" of "+requestID, func() bool {
		for text := range strings.Lines(h.log.String()) {
			line := map[string]any{}
			if json.Unmarshal([]byte(text), &line) != nil {
				continue // half a line
			}
			if line["message"] == message && line["request_id"] == requestID && (orderID == "" || line["order_id"] == orderID) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// send sends a purchase with a request id and ignores the answer.
func (h *tracedHost) send(ctx context.Context, method, path, requestID string) {
	r, err := http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(`{"quantity":1}`))
	if err != nil {
		return
	}
	token, err := auth.SignToken([]byte(skewSecret), "user-2", auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", requestID)
	r.Header.Set("X-Request-Id", requestID)
	if res, err := http.DefaultClient.Do(r); err == nil {
		res.Body.Close()
	}
}
