package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/internal/pause"
)

const (
	// countedTasks is how many tasks the commands are counted for. The counts do not depend on
	// speed, which MONITOR lowers.
	countedTasks = 5_000
	// idleTime is how long the commands of an idle worker are counted.
	idleTime = 2 * time.Second
)

// commands are the commands that clients sent, by name, as MONITOR lists them.
type commands struct {
	adding, working map[string]int // for countedTasks
	idle            map[string]int // in idleElapsed, with nothing to do
	idleElapsed     time.Duration
}

func (b *bench) commandCounts(ctx context.Context, all []contender, r *results) error {
	for _, c := range all {
		fmt.Fprintf(b.progress, "commands: %s\n", c.name)
		err := b.with(ctx, c, func(q queueClient) (err error) {
			r.of[c.name].commands, err = b.commands(ctx, q, c.perCall)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) commands(ctx context.Context, q queueClient, perCall int) (result commands, err error) {
	result.adding, err = b.monitored(ctx, func() error { return fill(ctx, q, 0, countedTasks, perCall) })
	if err != nil {
		return result, err
	}
	l := newLedger(countedTasks, noFailures)
	result.working, err = b.monitored(ctx, func() error {
		_, err := b.work(ctx, q, l)
		return err
	})
	if err != nil {
		return result, err
	}
	// The readings of work itself.
	delete(result.working, "info")
	stop, err := q.start(ctx, func(context.Context, []int) []error { return nil })
	if err != nil {
		return result, fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := pause.OrCause(ctx, settleTime); err != nil {
		return result, err
	}
	start := time.Now()
	result.idle, err = b.monitored(ctx, func() error { return pause.OrCause(ctx, idleTime) })
	result.idleElapsed = time.Since(start)
	return result, err
}

// monitored counts the commands that clients send while f runs.
func (b *bench) monitored(ctx context.Context, f func() error) (sent map[string]int, err error) {
	m, err := meter.StartMonitor(ctx, b.addr, stallTime)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Begin(ctx, b.admin); err != nil {
		return nil, err
	}
	if err := f(); err != nil {
		return nil, err
	}
	from, err := m.End(ctx, b.admin)
	return from.Without(nil), err
}

func sum(sent map[string]int) int {
	n := 0
	for _, times := range sent {
		n += times
	}
	return n
}
