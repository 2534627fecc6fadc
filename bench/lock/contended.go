package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

// contended is one phase in which all goroutines compete for the same resource. Its figures
// cover a window that begins when all of them wait.
type contended struct {
	meter.Usage
	acquired int // acquisitions
	byItself int // those by the goroutine that had just released

	// Handover: from before the release was called until the next acquire returned, to another
	// holder and to any holder.
	p50, p99, anyP99 time.Duration

	// Waits that began and ended within the window.
	meanWait, p99Wait, longestWait time.Duration

	unserved int // goroutines that never got the lock within the window
	overlaps int64
}

// sample is one acquisition; its times are since the phase began.
type sample struct {
	began, got time.Duration
	handover   time.Duration // since the previous holder began to release; -1 for the first
	byItself   bool
}

// arena is the resource that goroutines compete for, and the record of it.
type arena struct {
	resource string
	hold     time.Duration
	rest     time.Duration // between a release and the same goroutine's next acquire
	start    time.Time

	inside   atomic.Int64 // holders at this moment
	overlaps atomic.Int64
	acquired atomic.Int64
	released atomic.Int64 // when the last holder began to release, since start
	last     atomic.Int64 // the goroutine of that holder, -1 before the first
	samples  [][]sample   // by goroutine
}

// enterArena starts the goroutines. They end with wait, which has a deadline; ctx is the
// context of their releases.
func enterArena(ctx, wait context.Context, lockers []locker, hold, rest time.Duration) (*arena, <-chan error) {
	a := &arena{resource: resource("shared"), hold: hold, rest: rest, start: time.Now(), samples: make([][]sample, waiters)}
	a.last.Store(-1)
	return a, runner.Run(waiters, func(i int) error { return a.compete(ctx, wait, lockers[i%len(lockers)], i) })
}

// compete acquires, holds and releases until wait ends.
func (a *arena) compete(ctx, wait context.Context, l locker, me int) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for wait.Err() == nil {
		began := time.Since(a.start)
		release, err := l.acquire(wait, a.resource)
		got := time.Since(a.start)
		if err != nil && wait.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		a.enter(me, began, got)
		spend(timer, a.hold)
		a.leave(me)
		if err := release(ctx); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		spend(timer, a.rest)
	}
	return nil
}

// spend waits for d, which is a few milliseconds at most.
func spend(timer *time.Timer, d time.Duration) {
	if d > 0 {
		timer.Reset(d)
		<-timer.C
	}
}

// enter and leave run under the lock. Their shared fields are atomic all the same, because
// they measure whether the lock excludes.
func (a *arena) enter(me int, began, got time.Duration) {
	if a.inside.Add(1) != 1 {
		a.overlaps.Add(1)
	}
	a.acquired.Add(1)
	s := sample{began: began, got: got, handover: -1}
	if last := a.last.Load(); last >= 0 {
		s.handover = got - time.Duration(a.released.Load())
		s.byItself = last == int64(me)
	}
	a.samples[me] = append(a.samples[me], s)
}

func (a *arena) leave(me int) {
	a.inside.Add(-1)
	a.last.Store(int64(me))
	a.released.Store(int64(time.Since(a.start)))
}

// contended runs one phase: all waiters on one resource, holding it so long.
func (b *bench) contended(ctx context.Context, c contender, hold time.Duration) (contended, error) {
	var before, after meter.Reading
	a, err := b.compete(ctx, c, hold, func(context.Context, *arena) (err error) {
		before, after, err = b.window(ctx, b.opts.duration)
		return err
	})
	if err != nil {
		return contended{}, err
	}
	result, err := a.summary(before.At.Sub(a.start), after.At.Sub(a.start))
	result.Usage = after.Since(before)
	return result, err
}

// compete runs an arena with all waiters, and calls measure while they compete.
func (b *bench) compete(ctx context.Context, c contender, hold time.Duration,
	measure func(context.Context, *arena) error,
) (a *arena, err error) {
	lockers, err := b.open(ctx, c, waiterProcess, managers)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, lockers)) }()
	if err := warm(ctx, lockers); err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, warmUp+b.opts.duration+runner.Patience)
	defer cancel()
	a, done := enterArena(ctx, wait, lockers, hold, b.opts.rest)
	err = pause.OrCause(ctx, warmUp)
	if err == nil {
		err = measure(ctx, a)
	}
	cancel()
	return a, errors.Join(err, runner.Finish(done))
}

// summary is what happened between two moments since the start. A wait counts
// if it began and ended between them; those cut off at the end do not.
func (a *arena) summary(from, to time.Duration) (contended, error) {
	r := contended{overlaps: a.overlaps.Load()}
	other := hdrhistogram.New(1, int64(time.Minute), 3)
	anyone := hdrhistogram.New(1, int64(time.Minute), 3)
	var waits []time.Duration
	var errs []error
	for _, samples := range a.samples {
		before := r.acquired
		for _, s := range samples {
			if s.got < from || s.got > to {
				continue
			}
			r.acquired++
			if s.byItself {
				r.byItself++
			} else if s.handover >= 0 {
				errs = append(errs, other.RecordValue(int64(s.handover)))
			}
			if s.handover >= 0 {
				errs = append(errs, anyone.RecordValue(int64(s.handover)))
			}
			if s.began >= from {
				waits = append(waits, s.got-s.began)
			}
		}
		if r.acquired == before {
			r.unserved++
		}
	}
	r.p50 = time.Duration(other.ValueAtQuantile(50))
	r.p99 = time.Duration(other.ValueAtQuantile(99))
	r.anyP99 = time.Duration(anyone.ValueAtQuantile(99))
	r.meanWait, r.p99Wait, r.longestWait = waitStats(waits)
	return r, errors.Join(errs...)
}

func waitStats(waits []time.Duration) (mean, p99, longest time.Duration) {
	if len(waits) == 0 {
		return 0, 0, 0
	}
	slices.Sort(waits)
	var sum time.Duration
	for _, w := range waits {
		sum += w
	}
	return sum / time.Duration(len(waits)), waits[(len(waits)*99-1)/100], waits[len(waits)-1]
}
