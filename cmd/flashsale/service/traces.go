package service

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/tracing"
)

const (
	// traceExport bounds one request to the collector with its retries.
	traceExport = 10 * time.Second
	// traceFlush bounds how long a stop waits for the last spans to be sent.
	traceFlush = 2 * time.Second
	// traceQueue is the number of spans that wait to be sent; further ones are dropped.
	traceQueue = 2048
	// traceLinks is the number of links of one span: a batch has at most as many orders.
	traceLinks = 512
)

// newTracer returns the tracer of purchases; nil: traces are off. Spans are sent in the
// background, and a collector that does not answer only loses them.
func newTracer(ctx context.Context, e *env, ps *parts) (*tracing.Tracer, error) {
	s := e.settings
	exporter := e.spans
	if exporter == nil {
		if s.TraceEndpoint == "" {
			return nil, nil //nolint:nilnil // off
		}
		var err error
		exporter, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(tracesURL(s.TraceEndpoint)),
			otlptracehttp.WithTimeout(traceExport/2), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
				Enabled: true, InitialInterval: time.Second, MaxInterval: traceExport / 2, MaxElapsedTime: traceExport,
			}))
		if err != nil {
			return nil, config.FailedSetting("trace-endpoint", s.TraceEndpoint, err.Error(),
				"correct it, and the variables OTEL_EXPORTER_OTLP_... of this process")
		}
	}
	log := e.log.Sample(&zerolog.BurstSampler{Burst: 1, Period: time.Minute})
	// Errors of the export reach only this handler, which belongs to the whole program.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn().Str("component", "traces").Err(err).Msg("spans could not be sent")
	}))
	limits := sdktrace.NewSpanLimits()
	limits.LinkCountLimit = traceLinks
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(countSpans(e.registry, exporter), sdktrace.WithMaxQueueSize(traceQueue),
			sdktrace.WithBatchTimeout(time.Second), sdktrace.WithExportTimeout(traceExport)),
		// The purchases are sampled before their spans begin.
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "flashsale"), attribute.String("service.version", e.build.Version),
			attribute.String("service.instance.id", processName()), attribute.String("flashsale.role", e.role.command))),
	)
	ps.add(part{name: "traces", stop: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, traceFlush)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			e.log.Warn().Str("component", "traces").Err(err).Msg("the last spans were not sent")
		}
		return nil
	}})
	return tracing.New(ctx, provider, s.TraceSample)
}

// tracesURL returns the URL to which spans are sent: that of the setting, with the standard path
// if it has none.
func tracesURL(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil || strings.Trim(u.Path, "/") != "" {
		return endpoint
	}
	return u.JoinPath("v1", "traces").String()
}

// countedSpans counts the spans that were sent to the collector, and those that could not be
// sent. It does not see the spans that a full queue dropped.
type countedSpans struct {
	sdktrace.SpanExporter
	sent, failed prometheus.Counter
}

func countSpans(registry prometheus.Registerer, exporter sdktrace.SpanExporter) sdktrace.SpanExporter {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "flashsale_trace_spans_total", Help: "Spans of sampled purchases: sent to the collector, or failed. Without those that a full queue dropped.",
	}, []string{"outcome"})
	registry.MustRegister(spans)
	return countedSpans{exporter, spans.WithLabelValues("sent"), spans.WithLabelValues("failed")}
}

// ExportSpans sends spans.
func (c countedSpans) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		c.failed.Add(float64(len(spans)))
		return err
	}
	c.sent.Add(float64(len(spans)))
	return nil
}
