package inventory

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/internal/tracing"
)

// A batch of several purchases has one span that is linked to the spans of the sampled ones, and
// each of those to it. A batch without a sampled purchase has none.
func TestSeller_Trace(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		spans := tracetest.NewInMemoryExporter()
		tracer, err := tracing.New(t.Context(), sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), 1)
		if err != nil {
			t.Fatal(err)
		}
		s := newShop(t, rdb, open(10, 1), 0)
		v := s.inventory(t, Config{})
		if err := v.Open(await.Context(t), s.item); err != nil {
			t.Fatal(err)
		}
		sel := newSeller(v, s.item) // without its goroutine: the test takes its place
		defer sel.lock.release()
		var batch []*Request
		answered := 0
		for _, buyer := range []string{"a", "b", "c", "d", "e"} {
			r := s.request(buyer, "k", 1)
			r.Done, r.since = func(Outcome) { answered++ }, time.Now()
			if buyer != "b" && buyer != "d" {
				r.Trace = tracer.Request(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), "/", buyer, r.since).Parent()
			}
			batch = append(batch, r)
		}
		sel.sell(batch)
		byName := map[string]tracetest.SpanStubs{}
		for _, span := range spans.GetSpans() {
			byName[span.Name] = append(byName[span.Name], span)
		}
		for name, n := range map[string]int{"purchase.wait": 3, "purchase.batch": 3, "batch.purchase": 1, "lock.wait": 4, "redis.script": 4} {
			if len(byName[name]) != n {
				t.Errorf("%d spans %s, want %d", len(byName[name]), name, n)
			}
		}
		if answered != 5 || sel.trace != nil || t.Failed() {
			t.Fatalf("%d of 5 purchases were answered; the trace is %v", answered, sel.trace)
		}
		whole := byName["batch.purchase"][0]
		for i, part := range byName["purchase.batch"] {
			if len(part.Links) != 1 || part.Links[0].SpanContext.SpanID() != whole.SpanContext.SpanID() || len(whole.Links) != 3 || whole.Links[i].SpanContext.SpanID() != part.SpanContext.SpanID() {
				t.Errorf("part %d is linked to %v, the batch to %v", i, part.Links, whole.Links)
			}
		}
		spans.Reset()
		plain := s.request("f", "k", 1)
		plain.Done, plain.since = func(Outcome) { answered++ }, time.Now()
		sel.sell([]*Request{plain})
		if n := len(spans.GetSpans()); n != 0 || answered != 6 {
			t.Errorf("%d spans of a batch without a sampled purchase, %d answers", n, answered)
		}
	})
}
