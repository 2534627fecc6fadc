package handler

import (
	"context"
	"sync"
	"time"
)

const (
	// probeTimeout bounds one look at one part.
	probeTimeout = time.Second
	// readyFor is how long an answer is given again without looking: anybody
	// may ask, and must not be able to keep the database busy by asking.
	readyFor = 200 * time.Millisecond
)

// readiness remembers the last look at the parts.
type readiness struct {
	mu      sync.Mutex
	looked  time.Time
	failing []string
}

// health answers GET /healthz: the process runs and answers.
func (e *edge) health(q *call) error {
	q.out = append(q.out[:0], `{"status":"ok"}`...)
	return q.json(200)
}

// ready answers GET /readyz: 200, or 503 with the failing parts.
func (e *edge) ready(q *call) error {
	failing := e.failingParts(context.WithoutCancel(q.ctx()))
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	if len(failing) == 0 {
		q.out = append(q.out[:0], `{"status":"ok"}`...)
		return q.json(200)
	}
	own := *problemNotReady.one()
	rest := own.head[1:]
	own.head = append([]byte(nil), `{"failing":[`...)
	for i, name := range failing {
		if i > 0 {
			own.head = append(own.head, ',')
		}
		own.head = appendString(own.head, name)
	}
	own.head = append(append(own.head, `],`...), rest...)
	return &own
}

// failingParts probes all parts at once and returns the names of those that
// fail. The look is shared by all who ask, so it does not hang on the request
// of the one who happened to come first.
func (e *edge) failingParts(ctx context.Context) []string {
	e.readiness.mu.Lock()
	defer e.readiness.mu.Unlock()
	if since := e.Now().Sub(e.readiness.looked); since >= 0 && since < readyFor {
		return e.readiness.failing
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	outcome := make([]chan error, len(e.Ready))
	for i, part := range e.Ready {
		outcome[i] = make(chan error, 1)
		go func() { outcome[i] <- part.Probe(ctx) }()
	}
	var failing []string
	for i, part := range e.Ready {
		var err error
		select {
		case err = <-outcome[i]:
		case <-ctx.Done():
			err = ctx.Err() // a probe that ignores its context
		}
		if err != nil {
			e.Log.Warn().Str("part", part.Name).Err(err).Msg("not ready")
			failing = append(failing, part.Name)
		}
	}
	e.readiness.looked, e.readiness.failing = e.Now(), failing
	return failing
}
