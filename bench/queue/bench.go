package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/runner"
)

const (
	// patience bounds one command of Redis, such as the deletion of a million tasks.
	patience = 30 * time.Second
	// stallTime is how long a phase may take until all its tasks have run.
	stallTime = 3 * time.Minute
	// warmUp is how long a phase of fixed length runs before it counts.
	warmUp = 200 * time.Millisecond
)

// bench is one run of the program.
type bench struct {
	opts     options
	addr     string
	admin    *redis.Client // for INFO, FLUSHALL and marks; no contender uses it
	progress io.Writer
}

// run measures everything: most phases are interleaved over the rounds; those that count
// commands, or take a minute, run once.
func (b *bench) run(ctx context.Context, all []contender) (*results, error) {
	r := newResults(all)
	for round := range b.opts.rounds {
		fmt.Fprintf(b.progress, "round %d of %d\n", round+1, b.opts.rounds)
		if err := b.round(ctx, all, round, r); err != nil {
			return nil, err
		}
	}
	for _, phase := range []struct {
		name string
		run  func(context.Context, []contender, *results) error
	}{{phaseDepth, b.depths}, {phaseCommands, b.commandCounts}} {
		if !b.opts.wants(phase.name) {
			continue
		}
		if err := phase.run(ctx, all, r); err != nil {
			return nil, fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	if c, ok := pick(all, false); ok && b.opts.recoveryAsynq {
		if err := b.recoveryOf(ctx, c, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (b *bench) round(ctx context.Context, all []contender, round int, r *results) error {
	for _, phase := range []struct {
		name string
		run  func(context.Context, []contender, int, *results) error
	}{
		{phaseEnqueue, b.enqueues},
		{phaseEndToEnd, b.endToEnds},
		{phaseMixed, b.mixedOnes},
		{phaseLatency, b.latencies},
		{phaseRecovery, b.recoveries},
	} {
		if !b.opts.wants(phase.name) {
			continue
		}
		start := time.Now()
		if err := phase.run(ctx, runner.Turn(all, round), round, r); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
		fmt.Fprintf(b.progress, "  %s: %.1f s\n", phase.name, time.Since(start).Seconds())
	}
	return nil
}

// with opens a client of a contender on an empty Redis, for f.
func (b *bench) with(ctx context.Context, c contender, f func(queueClient) error) (err error) {
	if err := b.flush(ctx); err != nil {
		return err
	}
	q, err := c.open(b.addr, queueName())
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	defer func() { err = errors.Join(err, q.close()) }()
	if err := f(q); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// flush empties the benchmark's own Redis, so that each phase begins in the same state.
func (b *bench) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := b.admin.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("flushall: %w", err)
	}
	return nil
}

func queueName() string { return "bench-" + strings.ToLower(rand.Text()) }

// profileOf is the file for a CPU profile, "" for none.
func (b *bench) profileOf(c contender, round int) string {
	if b.opts.profile == "" || !c.ours {
		return ""
	}
	return filepath.Join(b.opts.profile, fmt.Sprintf("%s-round-%d.pprof", c.name, round+1))
}

// await waits until a ledger is complete, with a limit: a lost task must not block the run.
func await(ctx context.Context, l *ledger) error {
	timer := time.NewTimer(stallTime)
	defer timer.Stop()
	select {
	case <-l.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("%d of %d tasks have not run within %s", l.missing.Load(), len(l.runs), stallTime)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
