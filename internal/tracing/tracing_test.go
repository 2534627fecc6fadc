package tracing

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

var began = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
)

// recorded returns a Tracer and the spans that it has made.
func recorded(t *testing.T, ratio float64) (*Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	tr, err := New(t.Context(), sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)), ratio)
	if err != nil {
		t.Fatal(err)
	}
	return tr, spans
}

func request(t *testing.T, parents ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/items/thing/orders", http.NoBody)
	for _, p := range parents {
		r.Header.Add("Traceparent", p)
	}
	return r
}

// Only the draw decides whether a request is sampled. A parent gives the trace, and its flag can
// only prevent that the request is sampled.
func TestTracer_Request_Parent(t *testing.T) {
	t.Parallel()
	tr, spans := recorded(t, 0.25)
	const parent = "00-" + traceID + "-" + spanID
	for name, c := range map[string]struct {
		draw    uint64
		parents []string
		sampled bool
		joins   bool
	}{
		"no parent, drawn":          {1<<62 - 1, nil, true, false}, // a quarter of all draws are below
		"no parent, not drawn":      {1 << 62, nil, false, false},
		"sampled, drawn":            {0, []string{parent + "-01"}, true, true},
		"sampled, not drawn":        {math.MaxUint64, []string{parent + "-01"}, false, false},
		"not sampled, drawn":        {0, []string{parent + "-00"}, false, false},
		"malformed, drawn":          {0, []string{"00-" + traceID + "-01"}, true, false},
		"two, drawn":                {0, []string{parent + "-01", parent + "-01"}, true, false},
		"all zero, drawn":           {0, []string{"00-00000000000000000000000000000000-" + spanID + "-01"}, true, false},
		"of a later version, drawn": {0, []string{"01-" + traceID + "-" + spanID + "-01-more"}, true, true},
	} {
		spans.Reset()
		tr.draw = func() uint64 { return c.draw }
		q := tr.Request(request(t, c.parents...), "/v1/items/{item}/orders", "id-1", began)
		if (q != nil) != c.sampled {
			t.Errorf("%s: sampled %v", name, q != nil)
		}
		if q == nil {
			if q.Parent() != nil {
				t.Errorf("%s: a request that is not sampled has a parent for spans", name)
			}
			continue
		}
		q.End(201, began.Add(time.Second))
		got := spans.GetSpans()
		if len(got) != 1 || got[0].Name != "POST /v1/items/{item}/orders" || got[0].EndTime.Sub(got[0].StartTime) != time.Second {
			t.Fatalf("%s: spans %+v", name, got)
		}
		if joined := got[0].SpanContext.TraceID().String() == traceID; joined != c.joins || joined != (got[0].Parent.SpanID().String() == spanID) {
			t.Errorf("%s: trace %s, parent %s", name, got[0].SpanContext.TraceID(), got[0].Parent.SpanID())
		}
	}
}

func TestNew_Ratio(t *testing.T) {
	t.Parallel()
	for _, ratio := range []float64{-0.1, 1.1, math.NaN()} {
		if _, err := New(t.Context(), sdktrace.NewTracerProvider(), ratio); !errors.Is(err, ErrRatio) {
			t.Errorf("%g: %v", ratio, err)
		}
	}
	for ratio, sampled := range map[float64]bool{0: false, 1: true} {
		tr, _ := recorded(t, ratio)
		for _, draw := range []uint64{0, math.MaxUint64} {
			tr.draw = func() uint64 { return draw }
			if q := tr.Request(request(t), "/", "id", began); (q != nil) != sampled {
				t.Errorf("ratio %g, draw %d: sampled %v", ratio, draw, q != nil)
			}
		}
	}
}

// A request that is not sampled costs no allocation.
func TestTracer_Request_NotSampledAllocatesNothing(t *testing.T) {
	tr, _ := recorded(t, 0)
	r := request(t, "00-"+traceID+"-"+spanID+"-01")
	if n := testing.AllocsPerRun(100, func() { tr.Request(r, "/", "id", began) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// What is stored with an order is read again by any process, and nothing else is accepted.
func TestTracer_Parse(t *testing.T) {
	t.Parallel()
	tr, _ := recorded(t, 1)
	p := tr.Parse(traceID + spanID)
	if p == nil || p.String() != traceID+spanID || !p.of.IsSampled() || !p.of.IsRemote() {
		t.Errorf("parsed %+v", p)
	}
	for _, text := range []string{
		"", traceID, traceID + spanID + "0", "g" + traceID[1:] + spanID, traceID + "0000000000000000", "00000000000000000000000000000000" + spanID,
	} {
		if p := tr.Parse(text); p != nil {
			t.Errorf("%q became %v", text, p)
		}
	}
}

// The spans of a batch are one for the whole in a trace of its own, and one in the trace of each
// sampled purchase; whole and parts are linked in both directions.
func TestShare(t *testing.T) {
	t.Parallel()
	tr, spans := recorded(t, 1)
	one := tr.Request(request(t), "/", "id-1", began)
	two := tr.Request(request(t), "/", "id-2", began)
	s := Share("whole", "part", "thing", 200, began, []Part{{one.Parent(), began, "o1"}, {two.Parent(), began.Add(-time.Second), "o2"}})
	s.Step("script", began, began.Add(time.Millisecond), errors.New("no answer"))
	s.Fail(1, "sold_out")
	s.End(began.Add(time.Second))
	byName := map[string][]tracetest.SpanStub{}
	for _, span := range spans.GetSpans() {
		byName[span.Name] = append(byName[span.Name], span)
	}
	if len(byName["whole"]) != 1 || len(byName["part"]) != 2 || len(byName["script"]) != 3 {
		t.Fatalf("spans %v", byName)
	}
	whole := byName["whole"][0]
	if whole.Parent.IsValid() || len(whole.Links) != 2 || !has(whole, keyOrders.Int(200)) || !has(whole, keySampled.Int(2)) {
		t.Errorf("the whole: %+v", whole)
	}
	for i, part := range byName["part"] {
		of := []*Request{one, two}[i]
		if part.Parent.SpanID() != of.parent.of.SpanID() || part.SpanContext.TraceID() != of.parent.of.TraceID() {
			t.Errorf("part %d is in %s below %s", i, part.SpanContext.TraceID(), part.Parent.SpanID())
		}
		if len(part.Links) != 1 || part.Links[0].SpanContext.SpanID() != whole.SpanContext.SpanID() || whole.Links[i].SpanContext.SpanID() != part.SpanContext.SpanID() {
			t.Errorf("links of part %d: %+v, of the whole: %+v", i, part.Links, whole.Links)
		}
	}
	if failed := byName["part"][1]; failed.Status.Code != codes.Error || !has(failed, keyProblem.String("sold_out")) {
		t.Errorf("the failed part: %+v", failed)
	}
	for _, step := range byName["script"] {
		if step.Status != (sdktrace.Status{Code: codes.Error, Description: "no answer"}) {
			t.Errorf("the failed step: %+v", step.Status)
		}
	}
}

func has(s tracetest.SpanStub, want attribute.KeyValue) bool {
	for _, a := range s.Attributes {
		if a == want {
			return true
		}
	}
	return false
}

// nowhere drops all spans.
type nowhere struct{ sdktrace.SpanExporter }

func (nowhere) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (nowhere) Shutdown(context.Context) error                             { return nil }

// BenchmarkPurchase makes all spans of a sampled purchase, and draws for one that is not sampled.
func BenchmarkPurchase(b *testing.B) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(nowhere{}))
	b.Cleanup(func() { _ = provider.Shutdown(context.Background()) }) //nolint:errcheck // it has nothing to send
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/", http.NoBody)
	for name, ratio := range map[string]float64{"sampled": 1, "not sampled": 0} {
		tr, err := New(b.Context(), provider, ratio)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := tr.Request(r, "/v1/items/{item}/orders", "id", began)
				if q == nil {
					continue
				}
				q.Purchase("thing", 1)
				q.Parent().Record("purchase.wait", began, began)
				batch := Share("batch.purchase", "purchase.batch", "thing", 100, began, []Part{{q.Parent(), began, "order"}})
				batch.Step("redis.script", began, began, nil)
				batch.End(began)
				parent := tr.Parse(q.Parent().String())
				parent.Record("order.queue", began, began)
				Share("batch.commit", "order.commit", "", 100, began, []Part{{parent, began, "order"}}).End(began)
				q.Placed("order")
				q.Parent().Record("order.notice", began, began)
				q.End(201, began)
			}
		})
	}
}

// A start by a clock that is ahead does not make a span end before it begins.
func TestParent_Record_ClockAhead(t *testing.T) {
	t.Parallel()
	tr, spans := recorded(t, 1)
	tr.Request(request(t), "/", "r1", began).Parent().Record("step", began.Add(time.Second), began)
	if got := spans.GetSpans(); len(got) != 1 || !got[0].StartTime.Equal(began) || !got[0].EndTime.Equal(began) {
		t.Errorf("recorded %+v", got)
	}
}
