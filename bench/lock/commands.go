package main

import (
	"context"
	"errors"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/bench/internal/stats"
	"flashsale/internal/pause"
)

// commands are the commands that clients sent, as MONITOR lists them.
type commands struct {
	sent     map[string]int // by name
	acquired int64          // acquisitions meanwhile
}

func (c commands) total() int {
	n := 0
	for _, sent := range c.sent {
		n += sent
	}
	return n
}

// perAcquisition is how many commands one acquisition and its release took.
func (c commands) perAcquisition() float64 {
	return stats.Ratio(float64(c.total()), float64(c.acquired))
}

// monitorWindow is how long commands per acquisition are counted. The count
// does not depend on speed, which MONITOR lowers.
const monitorWindow = time.Second

// aloneGoroutines is how many goroutines commandsAlone runs.
const aloneGoroutines = 8

// commandsAlone counts the commands of uncontended acquisitions.
func (b *bench) commandsAlone(ctx context.Context, c contender) (result commands, stalled int64, err error) {
	lockers, err := b.open(ctx, c, "alone", 1)
	if err != nil {
		return result, 0, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, lockers)) }()
	work := startLoad(ctx, lockers[0], aloneGoroutines)
	defer func() { err = errors.Join(err, work.end(&stalled)) }()
	if err := pause.OrCause(ctx, warmUp); err != nil {
		return result, 0, err
	}
	result, err = b.count(ctx, work.ops)
	return result, stalled, err
}

// commandsContended counts the commands while all waiters compete for one resource.
func (b *bench) commandsContended(ctx context.Context, c contender) (result commands, overlaps int64, err error) {
	a, err := b.compete(ctx, c, time.Millisecond, func(ctx context.Context, a *arena) (err error) {
		result, err = b.count(ctx, a.acquired.Load)
		return err
	})
	if err != nil {
		return result, 0, err
	}
	return result, a.overlaps.Load(), nil
}

// count counts commands and acquisitions.
func (b *bench) count(ctx context.Context, acquired func() int64) (result commands, err error) {
	var before int64
	sent, _, err := b.monitored(ctx, "", monitorWindow, func() { before = acquired() })
	return commands{sent: sent, acquired: acquired() - before}, err
}

// monitored counts commands for d, without those of the process named except.
// begun is called as the window begins; elapsed is its true length.
func (b *bench) monitored(ctx context.Context, except string, d time.Duration, begun func(),
) (sent map[string]int, elapsed time.Duration, err error) {
	m, err := meter.StartMonitor(ctx, b.addr, d+runner.Patience)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Begin(ctx, b.admin); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	begun()
	if err := pause.OrCause(ctx, d); err != nil {
		return nil, 0, err
	}
	from, err := m.End(ctx, b.admin)
	elapsed = time.Since(start)
	if err != nil {
		return nil, 0, err
	}
	left, err := meter.Connections(ctx, b.admin, except)
	return from.Without(left), elapsed, err
}
