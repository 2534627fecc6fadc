// Package metrics counts the answers of the API for Prometheus. The labels are the route, the
// class of the status and the code of a refusal. Each has a fixed set of values, never a buyer or
// an item.
package metrics

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/handler/problem"
	"flashsale/internal/histogram"
	"flashsale/order/feed"
)

// Metrics counts the answers of all routes, and the streams of events.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *histogram.Vec
	problems *prometheus.CounterVec
	streams  prometheus.Gauge
	figures  prometheus.Gauge
	refused  *prometheus.CounterVec // streams, by reason
	events   prometheus.Counter
	// The steps of a purchase that the handler measures, and whole purchases.
	admission, notice *histogram.Histogram
	committed, queued *histogram.Histogram
	// byCode has an entry for each code, and is not changed after New.
	byCode map[string]*lazyCounter
}

// lazyCounter is a counter whose series is created at its first use: most routes and codes
// never occur, and every series uses memory of the operator's Prometheus.
type lazyCounter struct {
	made atomic.Pointer[prometheus.Counter]
	make func() prometheus.Counter // returns the same counter each time
}

func (l *lazyCounter) inc() {
	c := l.made.Load()
	if c == nil {
		one := l.make()
		c = &one
		l.made.Store(c)
	}
	(*c).Inc()
}

// statusClasses are the labels of status codes, by their first digit.
var statusClasses = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}

// requestBounds are the buckets of whole requests.
var requestBounds = []time.Duration{
	500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond, 125 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// New registers the metrics; nil: they are not registered.
func New(r prometheus.Registerer) (*Metrics, error) {
	codes := problem.Statuses()
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_http_requests_total",
			Help: "Requests answered, by route and status class.",
		}, []string{"route", "status"}),
		duration: histogram.NewVec(histogram.Opts{
			Name:   "flashsale_http_request_duration_seconds",
			Help:   "Time from the request's headers to the end of the answer, by route.",
			Bounds: requestBounds,
		}, "route"),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_http_problems_total",
			Help: "Refusals, by the code in their body.",
		}, []string{"code"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_event_streams", Help: "Open event streams of orders.",
		}),
		figures: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_figures_streams", Help: "Open streams of live figures (GET /v1/admin/events).",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_event_streams_refused_total",
			Help: "Event streams refused: limit of the process, limit of one buyer, or the process is stopping.",
		}, []string{"reason"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flashsale_events_sent_total", Help: "Events sent on event streams.",
		}),
		admission: histogram.PurchaseStep(histogram.StepAdmission),
		notice:    histogram.PurchaseStep(histogram.StepNotice),
		byCode:    make(map[string]*lazyCounter, len(codes)),
	}
	purchases := histogram.NewVec(histogram.Opts{
		Name:   "flashsale_purchase_duration_seconds",
		Help:   "Time from the request's headers to the end of the answer of accepted purchases: committed (201) or queued (202).",
		Bounds: requestBounds,
	}, "outcome")
	m.committed, m.queued = purchases.With("committed"), purchases.With("queued")
	for _, r := range streamRefusals {
		m.refused.WithLabelValues(r.reason)
	}
	for code := range codes {
		m.byCode[code] = &lazyCounter{make: func() prometheus.Counter { return m.problems.WithLabelValues(code) }}
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.requests, m.duration, m.problems, m.streams, m.figures, m.refused, m.events, m.admission, m.notice, purchases,
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("handler: register metrics: %w", err)
		}
	}
	return m, nil
}

// Problem counts a refusal.
func (m *Metrics) Problem(code string) {
	if c, known := m.byCode[code]; known {
		c.inc()
		return
	}
	m.problems.WithLabelValues(code).Inc()
}

// Admitted observes the admission of a purchase, from its headers until it is submitted. shard
// is as in Histogram.Observe.
func (m *Metrics) Admitted(shard int, took time.Duration) { m.admission.Observe(shard, took) }

// Purchased observes a purchase that was answered with 201 or 202. notice is the time since its
// commit; negative: unknown.
func (m *Metrics) Purchased(shard int, committed bool, took, notice time.Duration) {
	if committed {
		m.committed.Observe(shard, took)
	} else {
		m.queued.Observe(shard, took)
	}
	if notice >= 0 {
		m.notice.Observe(shard, notice)
	}
}

// streamRefusals are the reasons for refusing a stream.
var streamRefusals = []struct {
	err    error
	reason string
}{
	{feed.ErrTooManyStreams, "process_limit"},
	{feed.ErrTooManyOwnStreams, "buyer_limit"},
	{feed.ErrClosed, "stopping"},
}

// StreamOpened counts an open stream, until StreamClosed.
func (m *Metrics) StreamOpened() { m.streams.Inc() }

// StreamClosed ends what StreamOpened began.
func (m *Metrics) StreamClosed() { m.streams.Dec() }

// FiguresOpened counts an open stream of figures, until FiguresClosed.
func (m *Metrics) FiguresOpened() { m.figures.Inc() }

// FiguresClosed ends what FiguresOpened began.
func (m *Metrics) FiguresClosed() { m.figures.Dec() }

// EventSent counts an event on a stream.
func (m *Metrics) EventSent() { m.events.Inc() }

// StreamRefused counts a refused stream by its reason.
func (m *Metrics) StreamRefused(err error) {
	for _, r := range streamRefusals {
		if errors.Is(err, r.err) {
			m.refused.WithLabelValues(r.reason).Inc()
		}
	}
}

// Route has the metrics of one route, created at its first request.
type Route struct {
	byClass  [len(statusClasses)]lazyCounter
	duration atomic.Pointer[histogram.Histogram]
	make     func() *histogram.Histogram // returns the same one each time
}

// Route returns the metrics of a route. Call it once for each.
func (m *Metrics) Route(name string) *Route {
	r := &Route{make: func() *histogram.Histogram { return m.duration.With(name) }}
	for i, class := range statusClasses {
		r.byClass[i].make = func() prometheus.Counter { return m.requests.WithLabelValues(name, class) }
	}
	return r
}

// Observe counts an answer and its duration. shard is as in Histogram.Observe.
func (r *Route) Observe(shard, status int, took time.Duration) {
	class := status / 100
	if class < 1 || class >= len(r.byClass) {
		class = 0
	}
	r.byClass[class].inc()
	d := r.duration.Load()
	if d == nil {
		d = r.make()
		r.duration.Store(d)
	}
	d.Observe(shard, took)
}
