package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"flashsale/bench/internal/meter"
)

// endToEnd is one run of tasks that were all in the queue before work on them began.
type endToEnd struct {
	tasks  int
	adding meter.Usage // of the producers
	memory int64       // bytes that the tasks took up while they waited
	outcome
	meter.Usage // of the work
}

func (e endToEnd) perSecond() float64 { return float64(e.tasks) / e.Elapsed.Seconds() }

// bytesPerTask is the memory of Redis for one pending task.
func (e endToEnd) bytesPerTask() float64 { return float64(e.memory) / float64(e.tasks) }

func (b *bench) endToEnds(ctx context.Context, all []contender, round int, r *results) error {
	for _, c := range all {
		err := b.with(ctx, c, func(q queueClient) error {
			got, err := b.endToEnd(ctx, q, c.perCall, b.profileOf(c, round))
			r.of[c.name].endToEnd = append(r.of[c.name].endToEnd, got)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// endToEnd adds the tasks, then measures from the start of the work until the
// last task has run, as asynq's own benchmark does.
func (b *bench) endToEnd(ctx context.Context, q queueClient, perCall int, profile string) (result endToEnd, err error) {
	result.tasks = b.opts.tasks
	free, err := meter.UsedMemory(ctx, b.admin)
	if err != nil {
		return result, err
	}
	result.adding, err = b.use(ctx, func() error { return fill(ctx, q, 0, result.tasks, perCall) })
	if err != nil {
		return result, err
	}
	filled, err := meter.UsedMemory(ctx, b.admin)
	if err != nil {
		return result, err
	}
	result.memory = filled - free
	if profile != "" {
		stop, err := startProfile(profile)
		if err != nil {
			return result, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	l := newLedger(result.tasks, noFailures)
	result.Usage, err = b.work(ctx, q, l)
	if err != nil {
		return result, err
	}
	result.outcome, err = settled(ctx, q, l)
	return result, err
}

// use measures f.
func (b *bench) use(ctx context.Context, f func() error) (meter.Usage, error) {
	before, err := meter.Read(ctx, b.admin)
	if err != nil {
		return meter.Usage{}, err
	}
	if err := f(); err != nil {
		return meter.Usage{}, err
	}
	after, err := meter.Read(ctx, b.admin)
	return after.Since(before), err
}

// work measures from the start of the work until the ledger is complete. It
// returns when the workers have ended, and so have acknowledged everything.
func (b *bench) work(ctx context.Context, q queueClient, l *ledger) (used meter.Usage, err error) {
	stop := func() error { return nil }
	used, err = b.use(ctx, func() (err error) {
		stop, err = q.start(ctx, func(_ context.Context, batch []int) []error { return l.handle(batch) })
		if err != nil {
			stop = func() error { return nil }
			return fmt.Errorf("start: %w", err)
		}
		return await(ctx, l)
	})
	return used, errors.Join(err, stop())
}

// settled is the outcome after the workers have ended.
func settled(ctx context.Context, q queueClient, l *ledger) (outcome, error) {
	left, err := q.left(ctx)
	return l.outcome(left), err
}

// mixed is one run in which some tasks fail and some are not yet due.
type mixed struct {
	outcome
	meter.Usage
	tasks int
}

const (
	// mixedShare is the part of the tasks that the mixed phase takes.
	mixedShare = 5
	// one of so many tasks fails, and another one is delayed
	oddOnes = 100
	// delayedBy is how long before its due time a delayed task is added.
	delayedBy = 50 * time.Millisecond
)

func failsAtFirst(index int) bool { return index%oddOnes == oddOnes/2 }
func isDelayed(index int) bool    { return index%oddOnes == 0 }

func (b *bench) mixedOnes(ctx context.Context, all []contender, _ int, r *results) error {
	for _, c := range all {
		err := b.with(ctx, c, func(q queueClient) error {
			got, err := b.mixed(ctx, q, c.perCall)
			r.of[c.name].mixed = append(r.of[c.name].mixed, got)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mixed adds the delayed tasks last, so that they fall due while work is under way.
func (b *bench) mixed(ctx context.Context, q queueClient, perCall int) (result mixed, err error) {
	result.tasks = b.opts.tasks / mixedShare
	l := newLedger(result.tasks, failsAtFirst)
	l.due = make([]time.Time, result.tasks)
	var now, later []job
	for index := range result.tasks {
		if isDelayed(index) {
			later = append(later, newJob(index))
		} else {
			now = append(now, newJob(index))
		}
	}
	if err := fillWith(ctx, q, now, perCall); err != nil {
		return result, err
	}
	due := time.Now().Add(delayedBy)
	for i := range later {
		later[i].due = due
		l.due[i*oddOnes] = due
	}
	if err := fillWith(ctx, q, later, perCall); err != nil {
		return result, err
	}
	if result.Usage, err = b.work(ctx, q, l); err != nil {
		return result, err
	}
	result.outcome, err = settled(ctx, q, l)
	return result, err
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
