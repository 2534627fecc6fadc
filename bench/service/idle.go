package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/internal/pause"
)

const (
	// idleShare is how much of a core each process may use with nothing to do.
	idleShare = 0.01
	// idleSettle is how long the processes rest after the load before they are measured: they
	// collect garbage and remove what the load has left.
	idleSettle = 5 * time.Second
)

// measureIdle sells under full load, waits until all orders are committed, and measures the
// processor time that each process uses afterwards, as a share of one core.
func measureIdle(ctx context.Context, s *sizes) (err error) {
	r, err := s.newRig(ctx, history{live: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.warm(ctx, liveIDs(1), 1); err != nil {
		return err
	}
	p := load.Purchases{Addr: r.world.api.Addr, Items: liveIDs(1), Connections: s.o.connections}
	for _, p.Async = range []bool{true, false} {
		b, err := s.crowd.Buy(ctx, p, s.o.phase)
		if err != nil {
			return err
		}
		p.First = b.Next
		if _, err := r.waitDrained(ctx); err != nil {
			return err
		}
	}
	if err := pause.OrCause(ctx, min(idleSettle, s.o.size.idle)); err != nil {
		return err
	}
	shares, err := idleShares(ctx, []*process.Process{r.world.api, r.world.worker, r.world.redis}, s.o.size.idle)
	if err != nil {
		return err
	}
	s.say("processor time in %v after %d orders, of one core:", s.o.size.idle, p.First)
	names := []string{"api", "worker", "redis"}
	for i, name := range names {
		s.say("  %-7s %6.2f %%", name, 100*shares[i])
	}
	for i, name := range names {
		s.atMost("idle_cpu_"+name, shares[i], idleShare)
	}
	return nil
}

// idleShares returns the share of a core that each process uses during d.
func idleShares(ctx context.Context, parts []*process.Process, d time.Duration) ([]float64, error) {
	shares := make([]float64, len(parts))
	began := time.Now()
	for i, p := range parts {
		shares[i] = -p.CPU().Seconds()
	}
	if shares[0] == 0 {
		return nil, errors.New("the system does not report the processor time of processes")
	}
	if err := pause.OrCause(ctx, d); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	for i, p := range parts {
		if p.Gone() {
			return nil, fmt.Errorf("%s ended", p.Name)
		}
		shares[i] = (shares[i] + p.CPU().Seconds()) / took
	}
	return shares, nil
}
