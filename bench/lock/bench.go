package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/meter"
	"flashsale/bench/internal/runner"
	"flashsale/internal/pause"
)

const (
	// waiters is how many goroutines want a contended lock.
	waiters = 64
	// managers is how many processes they are spread over.
	managers = 4
	// Names of the processes' connections.
	waiterProcess = "waiter"
	holderProcess = "holder"
	// warmUp is how long each phase runs before it counts: connections are dialled, scripts
	// loaded, subscriptions confirmed, and all goroutines wait in the queue.
	warmUp = 300 * time.Millisecond
)

// parallelism is how many goroutines the uncontended phases run.
var parallelism = []int{1, 8, 64}

// holds is how long a contended lock is held.
var holds = []time.Duration{0, time.Millisecond}

// bench is one run of the program.
type bench struct {
	opts     options
	addr     string
	admin    *redis.Client // for INFO and marks; no contender uses it
	progress io.Writer
}

// run measures everything: phases that measure times are interleaved over the rounds, those
// that count commands run once.
func (b *bench) run(ctx context.Context, all []contender) (*results, error) {
	r := newResults(all, b.opts.runs)
	for round := range b.opts.rounds {
		if err := b.round(ctx, runner.Turn(all, round), round, r); err != nil {
			return nil, err
		}
	}
	if !b.opts.runs(phaseCommands) {
		return r, nil
	}
	for _, c := range all {
		fmt.Fprintf(b.progress, "commands: %s\n", c.name())
		if err := b.once(ctx, c, r.of[c.name()]); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name(), err)
		}
	}
	return r, nil
}

func (b *bench) round(ctx context.Context, order []contender, round int, r *results) error {
	fmt.Fprintf(b.progress, "round %d of %d\n", round+1, b.opts.rounds)
	for _, n := range parallelism {
		for _, c := range order {
			if c.waitsOnly() || !b.opts.runs(phaseUncontended) {
				continue
			}
			u, err := b.uncontended(ctx, c, n, b.profileOf(c, n, round))
			if err != nil {
				return fmt.Errorf("%s uncontended, %d goroutines: %w", c.name(), n, err)
			}
			got := r.of[c.name()]
			got.uncontended[n] = append(got.uncontended[n], u)
			got.stalled += u.stalled
		}
	}
	if !b.opts.runs(phaseContended) {
		return nil
	}
	for _, hold := range holds {
		for _, c := range order {
			t, err := b.contended(ctx, c, hold)
			if err != nil {
				return fmt.Errorf("%s contended, hold %s: %w", c.name(), hold, err)
			}
			got := r.of[c.name()]
			got.contended[hold] = append(got.contended[hold], t)
			got.overlaps += t.overlaps
		}
	}
	return nil
}

// once runs the phases that need no median, because they count commands.
func (b *bench) once(ctx context.Context, c contender, r *result) (err error) {
	var stalled, overlaps int64
	if !c.waitsOnly() {
		if r.commandsAlone, stalled, err = b.commandsAlone(ctx, c); err != nil {
			return fmt.Errorf("commands uncontended: %w", err)
		}
		r.stalled += stalled
	}
	if r.commandsContended, overlaps, err = b.commandsContended(ctx, c); err != nil {
		return fmt.Errorf("commands contended: %w", err)
	}
	r.overlaps += overlaps
	if r.waiting, err = b.waiting(ctx, c); err != nil {
		return fmt.Errorf("waiting: %w", err)
	}
	r.overlaps += r.waiting.overlaps
	return nil
}

// profileOf is the file for a CPU profile, "" for none.
func (b *bench) profileOf(c contender, n, round int) string {
	if b.opts.profile == "" || c.name() != oursName {
		return ""
	}
	return filepath.Join(b.opts.profile, fmt.Sprintf("uncontended-%d-round-%d.pprof", n, round+1))
}

// resource is a new name, so that leftovers of one phase, such as a key of an interrupted
// attempt, do not affect another.
func resource(phase string) string { return "bench:" + phase + ":" + rand.Text() }

// open makes n managers of a contender, whose connections bear the name process.
func (b *bench) open(ctx context.Context, c contender, process string, n int) ([]locker, error) {
	lockers := make([]locker, 0, n)
	for range n {
		l, err := c.manager(b.addr, process)
		if err != nil {
			return nil, errors.Join(err, closeAll(ctx, lockers))
		}
		lockers = append(lockers, l)
	}
	return lockers, nil
}

func closeAll(ctx context.Context, lockers []locker) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runner.Patience)
	defer cancel()
	var errs []error
	for _, l := range lockers {
		errs = append(errs, l.close(ctx))
	}
	return errors.Join(errs...)
}

// warm opens the connections of every waiter's goroutine and loads the scripts. A call that
// stalls is abandoned without an error, because it is not measured.
func warm(ctx context.Context, lockers []locker) error {
	return runner.Finish(runner.Run(waiters, func(i int) error {
		name := resource("warm")
		wait, cancel := context.WithTimeout(ctx, stallTime)
		defer cancel()
		for range 5 {
			release, err := lockers[i%len(lockers)].acquire(wait, name)
			if err != nil && wait.Err() != nil {
				return context.Cause(ctx)
			}
			if err != nil {
				return fmt.Errorf("acquire: %w", err)
			}
			if err := release(ctx); err != nil {
				return fmt.Errorf("release: %w", err)
			}
		}
		return nil
	}))
}

// window takes readings d apart, and returns when they were taken.
func (b *bench) window(ctx context.Context, d time.Duration) (before, after meter.Reading, err error) {
	if before, err = meter.Read(ctx, b.admin); err != nil {
		return before, after, err
	}
	if err := pause.OrCause(ctx, d); err != nil {
		return before, after, err
	}
	after, err = meter.Read(ctx, b.admin)
	return before, after, err
}
