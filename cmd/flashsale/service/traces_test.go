//go:build unix

package service

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/internal/pause"
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
	h := &tracedHost{skewedHost: &skewedHost{t: t}, spans: tracetest.NewInMemoryExporter(), dir: t.TempDir()}
	s, err := settingsOf(append([]string{
		"--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret=" + skewSecret,
		"--redis=" + redisURL, "--data-dir=" + h.dir, "--trace-sample=1",
	}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles {
		h.start(&env{settings: s, role: role, spans: kept{h.spans}})
	}
	return h
}

// start runs a process until the test ends.
func (h *tracedHost) start(e *env) {
	h.t.Helper()
	var out bytes.Buffer
	e.log, e.out, e.now = zerolog.New(&h.log), &out, time.Now
	processors := runtime.GOMAXPROCS(0)
	var registry *prometheus.Registry
	life := built(h.t, &registry, e)
	runtime.GOMAXPROCS(processors) // a worker in a process of its own limits it
	if h.registry == nil {         // of the first process
		h.registry = registry
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

// request returns the spans of the request with this answer.
func (h *tracedHost) request(answered http.Header) (found tracetest.SpanStubs) {
	for _, s := range h.named(serverSpan) {
		if attributeOf(s, "flashsale.request_id") == answered.Get("X-Request-Id") {
			found = append(found, s)
		}
	}
	return found
}

// linked returns the span of a name to which a span of a trace has its only link.
func (h *tracedHost) linked(trace, from, to string) (part, whole tracetest.SpanStub, ok bool) {
	for _, part = range h.named(from) {
		if part.SpanContext.TraceID().String() != trace || len(part.Links) != 1 {
			continue
		}
		for _, whole = range h.named(to) {
			if part.Links[0].SpanContext.SpanID() == whole.SpanContext.SpanID() {
				return part, whole, true
			}
		}
	}
	return part, whole, false
}

// buyAtOnce buys until a purchase is committed at its first attempt, without a failure that the service has retried:
// on a busy machine it exceeds its own time limits. Every purchase has a key of its own that begins with key.
func (h *tracedHost) buyAtOnce(id, key string) (head http.Header, order map[string]any) {
	h.t.Helper()
	attempts := 0
	await.Every(h.t, retryPause, "a purchase that is committed at once", func() bool {
		attempts++
		var status int
		status, head, order = h.buyOnce(id, fmt.Sprint(key, attempts))
		if status != http.StatusCreated && status != http.StatusAccepted && status != http.StatusServiceUnavailable {
			h.t.Fatalf("bought with %d: %v", status, order)
		}
		return status == http.StatusCreated && !h.failed(head.Get("X-Request-Id"))
	})
	return head, order
}

// failed reports whether a failure of a purchase was logged.
func (h *tracedHost) failed(requestID string) bool {
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, `"level":"warn"`) && strings.Contains(line, requestID) {
			return true
		}
	}
	return false
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
	var head http.Header
	var order map[string]any
	var server tracetest.SpanStub
	var got []string
	rounds := 0
	// On a busy machine a script exceeds its time limit, or finds a sale whose load has, and is sent again.
	await.True(t, "a purchase by one script", func() bool {
		rounds++
		head, order = h.buyAtOnce("thing", fmt.Sprint("secret-key-", rounds, "-"))
		await.True(t, "the trace", func() bool {
			of := h.request(head)
			if len(of) != 1 {
				return false
			}
			server = of[0]
			id := server.SpanContext.TraceID().String()
			_, _, purchased := h.linked(id, "purchase.batch", "batch.purchase")
			_, _, committed := h.linked(id, "order.commit", "batch.commit")
			return purchased && committed && slices.ContainsFunc(h.named("order.notice"), func(s tracetest.SpanStub) bool { return s.SpanContext.TraceID().String() == id })
		})
		got = tree(h.spans.GetSpans(), server.SpanContext.TraceID().String())
		return strings.Count(strings.Join(got, "\n"), "redis.script") == 1
	})
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
		p, w, _ := h.linked(server.SpanContext.TraceID().String(), part, whole)
		if len(w.Links) != 1 || w.Links[0].SpanContext.SpanID() != p.SpanContext.SpanID() {
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
	status, head, _ := h.ask("POST", "/v1/items/thing/orders", auth.RoleBuyer, map[string]any{"quantity": perUser + 1}, "Idempotency-Key", "k")
	if status != http.StatusUnprocessableEntity {
		t.Fatalf("refused with %d", status)
	}
	await.True(t, "the trace", func() bool {
		of := h.request(head)
		if len(of) != 1 {
			return false
		}
		_, _, purchased := h.linked(of[0].SpanContext.TraceID().String(), "purchase.batch", "batch.purchase")
		return purchased
	})
	s := h.request(head)[0]
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
		status, first, got := h.ask("POST", "/v1/items/thing/orders", auth.RoleBuyer, order, "Idempotency-Key", "k", "Traceparent", parent+flag)
		if status != http.StatusCreated {
			t.Fatalf("%d: %v", status, got)
		}
		// A second purchase is traced in any case: then the spans of the first are there.
		_, second, _ := h.buy("thing", "k2")
		await.True(t, "the second trace", func() bool { return len(h.request(second)) > 0 })
		if n := len(h.request(first)); n != want || len(h.request(second)) != 1 {
			t.Errorf("flag %s: %d requests are traced, want %d", flag, n, want)
		}
		for _, s := range h.named(serverSpan) { // also those of attempts that were repeated
			joined := s.SpanContext.TraceID().String() == "4bf92f3577b34da6a3ce929d0e0e4736" && s.Parent.SpanID().String() == "00f067aa0ba902b7"
			id := attributeOf(s, "flashsale.request_id")
			if joined && want == 0 || !joined && id == first.Get("X-Request-Id") || joined && id == second.Get("X-Request-Id") {
				t.Errorf("flag %s: a span of request %s joined the client's trace: %v", flag, id, joined)
			}
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
	h := &tracedHost{skewedHost: &skewedHost{t: t}}
	h.start(&env{settings: s, role: Serve})
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
	var want []string
	for _, line := range wantTree {
		want = append(want, strings.TrimLeft(line, " "))
	}
	slices.Sort(want)
	await.True(t, "a process that sends all spans in time", func() bool {
		got := collected{spans: map[string]collectedSpan{}}
		collector := httptest.NewServer(&got)
		t.Cleanup(collector.Close)
		s, err := settingsOf("--addr=127.0.0.1:0", "--ops-addr=", "--demo=false", "--jwt-secret="+skewSecret,
			"--data-dir="+t.TempDir(), "--trace-sample=1", "--trace-endpoint="+collector.URL)
		if err != nil {
			t.Fatal(err)
		}
		h := &tracedHost{skewedHost: &skewedHost{t: t}}
		h.start(&env{settings: s, role: Serve})
		h.create("thing", time.Time{}, time.Time{})
		head, _ := h.buyAtOnce("thing", "k")
		failed := 0.0
		await.True(t, "the spans of the purchase, and the count of all", func() bool {
			// The attempts before this purchase have spans, too.
			names, spans := got.traceOf(head.Get("X-Request-Id"))
			failed = h.counted("flashsale_trace_spans_total", "failed")
			return failed > 0 || slices.Equal(names, want) && h.counted("flashsale_trace_spans_total", "sent") == float64(spans)
		})
		if what := got.wrong.Load(); what != nil {
			t.Fatalf("the collector got %s", *what)
		}
		return failed == 0
	})
}

// collected is a collector that keeps the spans by their ids.
type collected struct {
	wrong atomic.Pointer[string] // a request that is not in the format of collectors
	mu    sync.Mutex
	spans map[string]collectedSpan
}

type collectedSpan struct{ trace, name, text string }

func (c *collected) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if what := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type"); err != nil || what != "POST /v1/traces application/x-protobuf" {
		c.wrong.Store(&what)
	}
	for _, resource := range fieldsOf(body, 1) {
		for _, scope := range fieldsOf(resource, 2) {
			for _, span := range fieldsOf(scope, 2) {
				text := func(field uint64) string { return string(bytes.Join(fieldsOf(span, field), nil)) }
				c.spans[text(2)] = collectedSpan{trace: text(1), name: text(5), text: string(span)}
			}
		}
	}
}

// traceOf returns the names of the spans in the trace of a request, sorted and each once, and the number of all spans.
func (c *collected) traceOf(requestID string) (names []string, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, server := range c.spans {
		if server.name != serverSpan || !strings.Contains(server.text, requestID) {
			continue
		}
		for _, s := range c.spans {
			if s.trace == server.trace {
				names = append(names, s.name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), len(c.spans)
}

// fieldsOf returns the values of a field of a protobuf message whose type has a length: text, bytes or a message. It
// ends at the first byte that is not in this format.
func fieldsOf(message []byte, number uint64) (values [][]byte) {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return values
		}
		message = message[n:]
		size := uint64(0)
		switch tag & 7 {
		case 0: // a number of any length
			_, n = binary.Uvarint(message)
			size = uint64(max(n, 0))
		case 1:
			size = 8
		case 2:
			size, n = binary.Uvarint(message)
			message = message[max(n, 0):]
		case 5:
			size = 4
		}
		if n <= 0 || size > uint64(len(message)) {
			return values
		}
		if tag>>3 == number && tag&7 == 2 {
			values = append(values, message[:size])
		}
		message = message[size:]
	}
	return values
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
	head, order := h.buyAtOnce("thing", "good")
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

// send sends a purchase with a request id until ctx ends or the answer is not 503.
func (h *tracedHost) send(ctx context.Context, method, path, requestID string) {
	token, err := auth.SignToken([]byte(skewSecret), "user-2", auth.RoleBuyer, time.Hour, time.Now())
	for err == nil && pause.For(ctx, retryPause) {
		var r *http.Request
		r, err = http.NewRequestWithContext(ctx, method, h.url+path, strings.NewReader(`{"quantity":1}`))
		if err != nil {
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", requestID)
		r.Header.Set("X-Request-Id", requestID)
		var res *http.Response
		if res, err = http.DefaultClient.Do(r); err == nil {
			res.Body.Close()
			if res.StatusCode != http.StatusServiceUnavailable {
				return
			}
		}
	}
}
