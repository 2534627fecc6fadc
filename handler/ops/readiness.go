package ops

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"flashsale/handler/encode"
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

// Readiness probes the parts, and caches the result for a moment.
type Readiness struct {
	parts   []Check
	workers workerStatus // nil: not shown
	now     func() time.Time
	log     zerolog.Logger

	mu     sync.Mutex
	looked time.Time
	state  State
}

// NewReadiness returns a Readiness of the parts. workers may be nil: then they are not shown.
// now is the clock of the cache. The parts that fail are logged.
func NewReadiness(parts []Check, workers workerStatus, now func() time.Time, log zerolog.Logger) *Readiness {
	return &Readiness{parts: parts, workers: workers, now: now, log: log}
}

// State is the result of probing all parts.
type State struct {
	failing  []string // the names of the parts that fail
	degraded []Check  // failing parts that are not required
	workers  string   // the workers' problem, which does not affect readiness
}

// Ready reports whether all required parts work.
func (s *State) Ready() bool { return len(s.failing) == 0 }

// AppendMembers adds its members to a JSON object, each followed by a comma.
func (s *State) AppendMembers(b []byte) []byte {
	if len(s.failing) > 0 {
		b = append(b, `"failing":[`...)
		for i, name := range s.failing {
			if i > 0 {
				b = append(b, ',')
			}
			b = encode.String(b, name)
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
		b = encode.String(b, degraded[i].Name)
	}
	if len(degraded) > 0 {
		b = append(b, `],`...)
	}
	for i := range degraded {
		b = append(encode.String(b, degraded[i].Name), ':')
		b = append(encode.String(b, degraded[i].Degrades), ',')
	}
	return b
}

// State probes all parts concurrently. All requests share the result, so it does not depend on
// one of them, and it ends after probeTimeout regardless of the probes.
func (r *Readiness) State(ctx context.Context) State {
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
	var state State
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
func (r *Readiness) workerTrouble(ctx context.Context) string {
	if r.workers == nil {
		return ""
	}
	s, err := r.workers.WorkerStatus(ctx)
	if err != nil {
		return ""
	}
	return s.Trouble
}
