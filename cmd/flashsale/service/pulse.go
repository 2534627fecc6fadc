package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"flashsale/order"
	"flashsale/queue"
)

const (
	// stuckAfter is how long a worker may show no sign of life before it counts as
	// stuck. It is far above what a commit on a slow disk takes.
	stuckAfter = 2 * time.Minute
	// commitTrust is for how long a commit shows that the database takes writes.
	commitTrust = 2 * time.Second
)

// pulse is what the worker of this process shows of itself. Its times are this
// host's, and are only compared with each other.
type pulse struct {
	entry     *queue.Registration // in the list of all workers
	now       func() time.Time
	moved     atomic.Pointer[time.Time] // it fetched, committed, or failed to; nil: not yet
	committed atomic.Pointer[time.Time] // nil: not yet
}

// newPulse registers this process as a worker until all that it does has ended.
func newPulse(e *env, workers *queue.Registry, ps *parts) *pulse {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := &pulse{entry: workers.Register(fmt.Sprintf("%s:%d", host, os.Getpid()), e.build.Version), now: e.now}
	log := e.log.With().Str("component", "worker").Logger()
	ps.add(part{name: "heartbeat", run: func(ctx context.Context) error {
		p.move()
		p.entry.Run(ctx, func(err error) { log.Warn().Err(err).Msg("heartbeat failed, retrying") })
		return nil
	}})
	return p
}

// move notes a sign of life.
func (p *pulse) move() {
	now := p.now()
	p.moved.Store(&now)
}

// fetched notes an attempt to fetch.
func (p *pulse) fetched(err error) {
	p.move()
	if err == nil {
		p.entry.Fetched()
	}
}

// commit notes a commit.
func (p *pulse) commit() {
	now := p.now()
	p.moved.Store(&now)
	p.committed.Store(&now)
}

// failing returns a function that notes an error as a sign of life, for something
// that is tried again and again.
func (p *pulse) failing(report func(error)) func(error) {
	return func(err error) {
		p.move()
		report(err)
	}
}

// ready fails if the worker has not fetched recently. An idle one fetches at
// intervals, between which it is blocked waiting for work.
func (p *pulse) ready() error {
	switch d, ever := p.entry.SinceFetch(); {
	case !ever:
		return errors.New("worker has not fetched orders yet")
	case d > order.FetchStale:
		return fmt.Errorf("worker has not fetched orders for %v", d.Round(time.Second))
	}
	return nil
}

// alive fails if nothing the worker does goes on, not even failing and trying again.
func (p *pulse) alive() error {
	if at := p.moved.Load(); at != nil {
		if d := p.now().Sub(*at); d > stuckAfter {
			return fmt.Errorf("worker has shown no sign of life for %v", d.Round(time.Second))
		}
	}
	return nil
}
