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
	"flashsale/order/feed"
)

// Metrics counts the answers of all routes, and the streams of events.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	problems *prometheus.CounterVec
	streams  prometheus.Gauge
	refused  *prometheus.CounterVec // streams, by reason
	events   prometheus.Counter
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

// New registers the metrics; nil: they are not registered.
func New(r prometheus.Registerer) (*Metrics, error) {
	codes := problem.Statuses()
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_http_requests_total",
			Help: "Requests answered, by route and class of status.",
		}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "flashsale_http_request_duration_seconds",
			Help: "Time from the request's headers to the end of the answer, by route.",
			Buckets: []float64{0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.03, 0.06,
				0.125, 0.25, 0.5, 1, 2, 5, 10},
		}, []string{"route"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_http_problems_total",
			Help: "Refusals, by the code in their body.",
		}, []string{"code"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "flashsale_event_streams", Help: "Open event streams of orders.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "flashsale_event_streams_refused_total",
			Help: "Event streams refused: limit of the process, limit of one buyer, or the process is stopping.",
		}, []string{"reason"}),
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "flashsale_events_sent_total", Help: "Events sent on event streams.",
		}),
		byCode: make(map[string]*lazyCounter, len(codes)),
	}
	for _, r := range streamRefusals {
		m.refused.WithLabelValues(r.reason)
	}
	for code := range codes {
		m.byCode[code] = &lazyCounter{make: func() prometheus.Counter { return m.problems.WithLabelValues(code) }}
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.problems, m.streams, m.refused, m.events} {
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
	duration atomic.Pointer[prometheus.Observer]
	make     func() prometheus.Observer // returns the same one each time
}

// Route returns the metrics of a route. Call it once for each.
func (m *Metrics) Route(name string) *Route {
	r := &Route{make: func() prometheus.Observer { return m.duration.WithLabelValues(name) }}
	for i, class := range statusClasses {
		r.byClass[i].make = func() prometheus.Counter { return m.requests.WithLabelValues(name, class) }
	}
	return r
}

// Observe counts an answer and its duration.
func (r *Route) Observe(status int, took time.Duration) {
	class := status / 100
	if class < 1 || class >= len(r.byClass) {
		class = 0
	}
	r.byClass[class].inc()
	d := r.duration.Load()
	if d == nil {
		one := r.make()
		d = &one
		r.duration.Store(d)
	}
	(*d).Observe(took.Seconds())
}
