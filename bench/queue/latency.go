package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/internal/pause"
)

const (
	// singles is how many single tasks all rounds measure together.
	singles = 200
	// The gap between two of them is random within these bounds.
	gapMin, gapMax = 20 * time.Millisecond, 60 * time.Millisecond
	// warmSingles come before those that count, so that connections are dialled and scripts
	// loaded.
	warmSingles = 5
	// settleTime lets every worker find the queue empty.
	settleTime = 500 * time.Millisecond
)

// latency is that of single tasks on an empty queue: from before the call of enqueue until the
// handler began.
type latency struct {
	meter.Usage
	times []time.Duration
}

func (b *bench) latencies(ctx context.Context, all []contender, round int, r *results) error {
	n := share(singles, b.opts.rounds, round)
	for _, c := range emptyQueueSettings(all) {
		err := b.with(ctx, c, func(q queueClient) error {
			got, err := b.latency(ctx, q, n)
			r.of[c.name].latency = append(r.of[c.name].latency, got)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// emptyQueueSettings leaves out settings that only differ when many tasks wait: one of our
// settings is enough.
func emptyQueueSettings(all []contender) []contender {
	var list []contender
	one, found := pick(all, true)
	for _, c := range all {
		if !c.ours || found && c.name == one.name {
			list = append(list, c)
		}
	}
	return list
}

// share divides n over the rounds, all of it.
func share(n, rounds, round int) int { return n*(round+1)/rounds - n*round/rounds }

func (b *bench) latency(ctx context.Context, q queueClient, n int) (result latency, err error) {
	all := warmSingles + n
	sent := make([]time.Time, all)
	began := make(chan started, all)
	l := newLedger(all, noFailures)
	stop, err := q.start(ctx, func(_ context.Context, batch []int) []error {
		now := time.Now()
		for _, index := range batch {
			select {
			case began <- started{index: index, at: now}:
			default: // a duplicate, which the ledger counts
			}
		}
		return l.handle(batch)
	})
	if err != nil {
		return result, fmt.Errorf("start: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	add := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := pause.OrCause(ctx, gapMin+rand.N(gapMax-gapMin)); err != nil {
				return err
			}
			sent[i] = time.Now()
			if err := q.enqueue(ctx, newJobs(i, 1)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(0, warmSingles); err != nil {
		return result, err
	}
	if err := pause.OrCause(ctx, settleTime); err != nil {
		return result, err
	}
	if result.Usage, err = b.use(ctx, func() error { return add(warmSingles, all) }); err != nil {
		return result, err
	}
	if err := await(ctx, l); err != nil {
		return result, err
	}
	if n := l.duplicates.Load(); n > 0 {
		return result, fmt.Errorf("%d single tasks ran twice", n)
	}
	for range all {
		s := <-began
		if s.index >= warmSingles {
			result.times = append(result.times, s.at.Sub(sent[s.index]))
		}
	}
	return result, nil
}

// started is the start of a handler.
type started struct {
	index int
	at    time.Time
}

// pooled merges the times of all rounds, in order.
func pooled(rounds []latency) []time.Duration {
	var all []time.Duration
	for _, l := range rounds {
		all = append(all, l.times...)
	}
	slices.Sort(all)
	return all
}

// quantile returns the smallest of the ordered times that is at least as large as so many
// percent of them; 0 when there are none.
func quantile(ordered []time.Duration, percent int) time.Duration {
	if len(ordered) == 0 {
		return 0
	}
	return ordered[(len(ordered)*percent-1)/100]
}
