package handler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"flashsale/order/feed"
	"flashsale/order/worker"
)

const (
	// probeTimeout bounds one probe.
	probeTimeout = time.Second
	// readyFor is how long a result is reused: anyone may call the route, and must not be able
	// to keep the database busy.
	readyFor = 200 * time.Millisecond
)

// Check is one part that must work for the service to be ready.
type Check struct {
	// Name is public and must not contain a host name.
	Name string
	// Probe returns nil if the part works. Its error is logged, but not shown.
	Probe func(ctx context.Context) error
	// Degrades describes what the service lacks without the part, which is then not required.
	// Default empty: the service is not ready without it.
	Degrades string
}

// workerStatus reports on the processes that commit orders.
type workerStatus interface {
	// WorkerStatus returns the live workers and their problems.
	WorkerStatus(ctx context.Context) (worker.Status, error)
}

// readiness probes the parts, and caches the result for a moment.
type readiness struct {
	parts   []Check
	workers workerStatus // nil: not shown
	now     func() time.Time
	log     zerolog.Logger

	mu     sync.Mutex
	looked time.Time
	state  readyState
}

// readyState is the result of probing all parts.
type readyState struct {
	failing  []string // the names of the parts that fail
	degraded []Check  // failing parts that are not required
	workers  string   // the workers' problem, which does not affect readiness
}

// append adds its members to a JSON object, each followed by a comma.
func (s *readyState) append(b []byte) []byte {
	if len(s.failing) > 0 {
		b = append(b, `"failing":[`...)
		for i, name := range s.failing {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, name)
		}
		b = append(b, `],`...)
	}
	degraded := s.degraded
	if s.workers != "" {
		degraded = append([]Check{{Name: "workers", Degrades: s.workers}}, degraded...)
	}
	for i := range degraded {
		if i == 0 {
			b = append(b, `"degraded":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendString(b, degraded[i].Name)
	}
	if len(degraded) > 0 {
		b = append(b, `],`...)
	}
	for i := range degraded {
		b = append(appendString(b, degraded[i].Name), ':')
		b = append(appendString(b, degraded[i].Degrades), ',')
	}
	return b
}

// health answers GET /healthz: the process runs and answers.
func health(q *call) error {
	q.out = append(q.out[:0], `{"status":"ok"}`...)
	return q.json(200)
}

// ready answers GET /readyz: 200, or 503 with the failing parts.
func (r *readiness) ready(q *call) error {
	state := r.look(context.WithoutCancel(q.ctx()))
	if len(state.failing) == 0 {
		q.out = append(state.append(append(q.out[:0], '{')), `"status":"ok"}`...)
		return q.json(200)
	}
	own := *problemNotReady.one()
	own.head = append(state.append([]byte{'{'}), own.head[1:]...)
	return &own
}

// look probes all parts concurrently. All requests share the result, so it does not depend on
// one of them, and it ends after probeTimeout whatever the probes do.
func (r *readiness) look(ctx context.Context) readyState {
	r.mu.Lock()
	defer r.mu.Unlock()
	if since := r.now().Sub(r.looked); since >= 0 && since < readyFor {
		return r.state
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	outcome := make([]chan error, len(r.parts))
	for i, part := range r.parts {
		outcome[i] = make(chan error, 1)
		go func() { outcome[i] <- part.Probe(ctx) }()
	}
	workers := make(chan string, 1)
	go func() { workers <- r.workerTrouble(ctx) }()
	var state readyState
	for i, part := range r.parts {
		var err error
		select {
		case err = <-outcome[i]:
		case <-ctx.Done():
			err = ctx.Err() // a probe that ignores its context
		}
		switch {
		case err == nil:
		case part.Degrades != "":
			state.degraded = append(state.degraded, part)
		default:
			r.log.Warn().Str("part", part.Name).Err(err).Msg("not ready")
			state.failing = append(state.failing, part.Name)
		}
	}
	select {
	case state.workers = <-workers:
	case <-ctx.Done():
	}
	r.looked, r.state = r.now(), state
	return state
}

// workerTrouble returns the workers' problem, or "". It is also "" if it is unknown, because an
// unavailable Redis is reported as a part of its own.
func (r *readiness) workerTrouble(ctx context.Context) string {
	if r.workers == nil {
		return ""
	}
	s, err := r.workers.WorkerStatus(ctx)
	if err != nil {
		return ""
	}
	return s.Trouble
}

// OpsConfig configures the operators' address. The zero value is valid.
type OpsConfig struct {
	// Ready are the checks of /readyz. Default none: always ready.
	Ready []Check
	// Workers is shown by /readyz. Default nil: workers are not shown.
	Workers workerStatus
	// Alive returns nil while /healthz answers 200; its error is logged, but not shown. It must
	// not depend on other services, because a restart of this process would not help them.
	// Default nil: the process is alive if it answers.
	Alive func() error
	// Log receives the parts that are not ready. Default: nothing is logged.
	Log zerolog.Logger
}

// opsReady answers GET /readyz on the operators' address.
func opsReady(r *readiness) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		state := r.look(context.WithoutCancel(req.Context()))
		status, text := http.StatusOK, `"status":"ok"}`
		if len(state.failing) > 0 {
			status, text = http.StatusServiceUnavailable, `"status":"unavailable"}`
		}
		opsJSON(w, status, append(state.append([]byte{'{'}), text...))
	}
}

// opsHealth answers GET /healthz on the operators' address.
func opsHealth(c *OpsConfig) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if c.Alive != nil {
			if err := c.Alive(); err != nil {
				c.Log.Error().Err(err).Msg("not alive")
				opsJSON(w, http.StatusServiceUnavailable, []byte(`{"status":"unavailable"}`))
				return
			}
		}
		opsJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	}
}

func opsJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"], h["Cache-Control"] = contentJSON, headerNoStore
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return // the client has disconnected
	}
}

// NewOps returns the routes of the operators' address: /metrics, /debug/pprof, /healthz and
// /readyz. They have no authentication, so only operators may be able to reach the address.
func NewOps(g prometheus.Gatherer, c OpsConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /healthz", opsHealth(&c))
	mux.HandleFunc("GET /readyz", opsReady(&readiness{parts: c.Ready, workers: c.Workers, now: time.Now, log: c.Log}))
	return mux
}

// metrics counts the answers. The labels are the route, the class of the status and the code of
// a refusal. Each has a fixed set of values, never a buyer or an item.
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

// streamRefusals are the reasons for refusing a stream.
var streamRefusals = []struct {
	err    error
	reason string
}{
	{feed.ErrTooManyStreams, "process_limit"},
	{feed.ErrTooManyOwnStreams, "buyer_limit"},
	{feed.ErrClosed, "stopping"},
}

func (m *metrics) streamRefused(err error) {
	for _, r := range streamRefusals {
		if errors.Is(err, r.err) {
			m.refused.WithLabelValues(r.reason).Inc()
		}
	}
}

// routeMetrics are the metrics of one route, created at its first request.
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
