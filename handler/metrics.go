package handler

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/order"
)

// metrics counts what the edge answers. Its labels are the route, the class of
// the status and the code of a refusal: all of them lists that the program
// ends, never a buyer or an item.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	problems *prometheus.CounterVec
	streams  prometheus.Gauge
	refused  *prometheus.CounterVec // streams, by reason
	events   prometheus.Counter
	// byCode has an entry for each code, and is not changed after newMetrics.
	byCode map[string]*lazyCounter
}

// lazyCounter is a counter whose series exists from its first use on: most routes and
// codes never occur, and every series costs the operator's Prometheus memory.
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

// statusClasses are the labels of statuses, by their first digit.
var statusClasses = [...]string{"other", "1xx", "2xx", "3xx", "4xx", "5xx"}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
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
		byCode: make(map[string]*lazyCounter, len(problemStatus)),
	}
	for _, r := range streamRefusals {
		m.refused.WithLabelValues(r.reason)
	}
	for code := range problemStatus {
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

func (m *metrics) problem(code string) {
	if c, known := m.byCode[code]; known {
		c.inc()
		return
	}
	m.problems.WithLabelValues(code).Inc()
}

// streamRefusals are the reasons why no stream begins.
var streamRefusals = []struct {
	err    error
	reason string
}{
	{order.ErrTooManyStreams, "process_limit"},
	{order.ErrTooManyOwnStreams, "buyer_limit"},
	{order.ErrFeedClosed, "stopping"},
}

func (m *metrics) streamRefused(err error) {
	for _, r := range streamRefusals {
		if errors.Is(err, r.err) {
			m.refused.WithLabelValues(r.reason).Inc()
		}
	}
}

// routeMetrics are the metrics of one route, looked up at its first request.
type routeMetrics struct {
	byClass  [len(statusClasses)]lazyCounter
	duration atomic.Pointer[prometheus.Observer]
	make     func() prometheus.Observer // returns the same one each time
}

func (m *metrics) route(name string) *routeMetrics {
	r := &routeMetrics{make: func() prometheus.Observer { return m.duration.WithLabelValues(name) }}
	for i, class := range statusClasses {
		r.byClass[i].make = func() prometheus.Counter { return m.requests.WithLabelValues(name, class) }
	}
	return r
}

func (r *routeMetrics) observe(status int, took time.Duration) {
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
