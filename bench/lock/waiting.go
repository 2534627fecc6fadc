package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

// waiting is the cost of waiting for a lock that stays held.
type waiting struct {
	sent        map[string]int // commands of the waiters' connections, by name
	elapsed     time.Duration  // how long they were counted
	meter.Usage                // of another window, without MONITOR, which costs CPU itself
	overlaps    int64          // waiters that got the lock although it was held
}

// perWaiterSecond is the number of commands per waiter and second.
func (w waiting) perWaiterSecond() float64 {
	return float64(commands{sent: w.sent}.total()) / waiters / w.elapsed.Seconds()
}

const (
	joinTime      = time.Second      // until all goroutines wait
	cpuWindow     = 2 * time.Second  // CPU is measured
	waitingWindow = 2 * time.Second  // commands are counted
	liveness      = time.Second      // lock.Config.Liveness, by default
	holdBound     = 30 * time.Second // how long the waiters would wait
)

// waiting lets one manager hold the lock while all waiters in others wait. The
// holder's connections, and so its renewals, are not counted.
func (b *bench) waiting(ctx context.Context, c contender) (result waiting, err error) {
	holder, err := b.open(ctx, c, holderProcess, 1)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, holder)) }()
	name := resource("held")
	release, err := holder[0].acquire(ctx, name)
	if err != nil {
		return result, fmt.Errorf("acquire: %w", err)
	}
	defer func() { err = errors.Join(err, release(ctx)) }()
	lockers, err := b.open(ctx, c, waiterProcess, managers)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, lockers)) }()
	if err := warm(ctx, lockers); err != nil {
		return result, err
	}
	wait, cancel := context.WithTimeout(ctx, holdBound)
	var overlaps atomic.Int64
	done := runner.Run(waiters, func(i int) error {
		release, err := lockers[i%len(lockers)].acquire(wait, name)
		switch {
		case err == nil:
			overlaps.Add(1)
			return release(ctx)
		case wait.Err() == nil:
			return fmt.Errorf("acquire: %w", err)
		default: // the wait had to end without the lock
			return nil
		}
	})
	err = b.watchWaiters(ctx, &result)
	cancel()
	err = errors.Join(err, runner.Finish(done))
	result.overlaps = overlaps.Load()
	return result, err
}

func (b *bench) watchWaiters(ctx context.Context, result *waiting) error {
	if err := pause.OrCause(ctx, joinTime); err != nil {
		return err
	}
	before, after, err := b.window(ctx, cpuWindow)
	if err != nil {
		return err
	}
	result.Usage = after.Since(before)
	result.sent, result.elapsed, err = b.monitored(ctx, holderProcess, waitingWindow, func() {})
	return err
}
