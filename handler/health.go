package handler

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"flashsale/order"
)

const (
	// probeTimeout bounds one look at one part.
	probeTimeout = time.Second
	// readyFor is how long an answer is given again without looking: anybody
	// may ask, and must not be able to keep the database busy by asking.
	readyFor = 200 * time.Millisecond
)

// Check is one part that has to work for the service to be ready.
type Check struct {
	// Name is shown to anybody who asks; it names no host.
	Name string
	// Probe returns nil when the part works. Its error is logged, not shown.
	Probe func(ctx context.Context) error
	// Degrades says that the service is ready without the part, and what it lacks then.
	// Default empty: it is not ready without it.
	Degrades string
}

// Workers knows the processes that commit orders.
type Workers interface {
	// WorkerStatus says which are live and what is wrong with them.
	WorkerStatus(ctx context.Context) (order.WorkerStatus, error)
}

// readiness probes the parts, and remembers the last look at them.
type readiness struct {
	parts   []Check
	workers Workers // nil: not shown
	now     func() time.Time
	log     zerolog.Logger

	mu     sync.Mutex
	looked time.Time
	state  readyState
}

// readyState is the outcome of a look.
type readyState struct {
	failing  []string // the names of the parts that fail
	degraded []Check  // the parts that fail and do not make it unready
	workers  string   // what is wrong with the workers, which does not make it unready
}

// append adds what there is to say to a JSON object, each field with a comma behind it.
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

// look probes all parts at once. It is shared by all who ask, so it does not hang on
// the request of one of them, and it ends after probeTimeout whatever the probes do.
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

// workerTrouble is empty where nothing is wrong, and where it cannot be known: a Redis
// that does not answer is a part of its own.
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

// OpsConfig configures the operator's address. Every field works at its zero value.
type OpsConfig struct {
	// Ready lists the parts that /readyz asks. Default none: always ready.
	Ready []Check
	// Workers is what /readyz says about workers. Default nil: nothing.
	Workers Workers
	// Alive returns nil as long as /healthz answers 200; its error is logged, not
	// shown. It must not ask other services: a restart of this process would not help
	// them. Default nil: the process is alive if it answers.
	Alive func() error
	// Log receives parts that are not ready. Default: nothing is logged.
	Log zerolog.Logger
}

// opsReady answers GET /readyz on the operator's address.
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

// opsHealth answers GET /healthz on the operator's address.
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
		return // the client is gone
	}
}
