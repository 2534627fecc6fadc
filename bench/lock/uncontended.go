package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

// uncontended is one phase of goroutines without competition.
type uncontended struct {
	meter.Usage
	ops     int64 // acquisitions with their release
	stalled int64 // goroutines whose last call did not return until it was cancelled
}

func (u uncontended) perSecond() float64 { return float64(u.ops) / u.Elapsed.Seconds() }

// uncontended runs n goroutines of one manager, each on a resource of its own.
func (b *bench) uncontended(ctx context.Context, c contender, n int, profile string) (result uncontended, err error) {
	lockers, err := b.open(ctx, c, "alone", 1)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, lockers)) }()
	work := startLoad(ctx, lockers[0], n)
	defer func() { err = errors.Join(err, work.end(&result.stalled)) }()
	if err := pause.OrCause(ctx, warmUp); err != nil {
		return result, err
	}
	if profile != "" {
		stop, err := startProfile(profile)
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	opsBefore := work.ops()
	before, after, err := b.window(ctx, b.opts.duration)
	result.ops = work.ops() - opsBefore
	result.Usage = after.Since(before)
	return result, err
}

// load is goroutines that acquire and release without pause.
type load struct {
	cancel  context.CancelFunc
	stop    atomic.Bool
	counts  []counter
	stalled atomic.Int64
	done    <-chan error
}

// counter fills its cache lines, so that counting does not couple goroutines.
type counter struct {
	atomic.Int64
	_ [120]byte
}

func startLoad(ctx context.Context, l locker, n int) *load {
	wait, cancel := context.WithCancel(ctx)
	w := &load{cancel: cancel, counts: make([]counter, n)}
	w.done = runner.Run(n, func(i int) error {
		name := resource("own")
		for !w.stop.Load() {
			release, err := l.acquire(wait, name)
			if err != nil {
				return w.ended(wait, err)
			}
			if err := release(ctx); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			w.counts[i].Add(1)
		}
		return nil
	})
	return w
}

// ended is the error of a goroutine whose acquire failed; nil if end had to cancel it.
func (w *load) ended(wait context.Context, err error) error {
	if wait.Err() == nil || !w.stop.Load() {
		return fmt.Errorf("acquire: %w", err)
	}
	w.stalled.Add(1)
	return nil
}

// ops is how often a lock was acquired and released so far.
func (w *load) ops() int64 {
	var n int64
	for i := range w.counts {
		n += w.counts[i].Load()
	}
	return n
}

// stallTime is how long a call without competition may take before its goroutine counts as
// stalled.
const stallTime = 2 * time.Second

// end stops the goroutines and counts those that had to be cancelled.
func (w *load) end(stalled *int64) error {
	w.stop.Store(true)
	timer := time.AfterFunc(stallTime, w.cancel)
	err := runner.Finish(w.done)
	timer.Stop()
	w.cancel()
	*stalled += w.stalled.Load()
	return err
}

// startProfile writes a CPU profile until stop is called.
func startProfile(path string) (stop func() error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
