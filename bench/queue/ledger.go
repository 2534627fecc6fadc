package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ledger records which tasks ran. Tasks share only the count of outstanding ones.
type ledger struct {
	runs    []atomic.Uint32 // by index
	fails   func(index int) bool
	due     []time.Time // by index, nil when no task has a due time
	missing atomic.Int64
	done    chan struct{} // closed when every task succeeded once
	closing sync.Once

	duplicates atomic.Int64 // runs of a task that had succeeded already
	early      atomic.Int64 // runs before the due time
	unknown    atomic.Int64 // runs of tasks that were not added
}

// newLedger is for n tasks; those that fails selects fail at their first run.
func newLedger(n int, fails func(index int) bool) *ledger {
	l := &ledger{runs: make([]atomic.Uint32, n), fails: fails, done: make(chan struct{})}
	l.missing.Store(int64(n))
	return l
}

// noFailures is for newLedger.
func noFailures(int) bool { return false }

// handle is the handler of the phases in which tasks do nothing.
func (l *ledger) handle(batch []int) (errs []error) {
	succeeded := int64(0)
	for i, index := range batch {
		ok, first := l.record(index)
		if !ok {
			if errs == nil {
				errs = make([]error, len(batch))
			}
			errs[i] = errTask
		}
		if first {
			succeeded++
		}
	}
	if succeeded > 0 && l.missing.Add(-succeeded) == 0 {
		l.closing.Do(func() { close(l.done) })
	}
	return errs
}

// record counts one run, and returns whether it succeeds and whether it is the task's first
// success.
func (l *ledger) record(index int) (ok, first bool) {
	if index < 0 || index >= len(l.runs) {
		l.unknown.Add(1)
		return true, false
	}
	if l.due != nil && time.Now().Before(l.due[index]) {
		l.early.Add(1)
	}
	run := l.runs[index].Add(1)
	if l.fails(index) {
		if run == 1 {
			return false, false
		}
		run--
	}
	if run > 1 {
		l.duplicates.Add(1)
	}
	return true, run == 1
}

// outcome is a ledger's result on a library's correctness.
type outcome struct {
	missing, duplicates, early, unknown int64
	left                                int // still in the queue after all had run
}

func (l *ledger) outcome(left int) outcome {
	return outcome{
		missing: l.missing.Load(), duplicates: l.duplicates.Load(),
		early: l.early.Load(), unknown: l.unknown.Load(), left: left,
	}
}

func (o outcome) plus(p outcome) outcome {
	return outcome{
		missing: o.missing + p.missing, duplicates: o.duplicates + p.duplicates,
		early: o.early + p.early, unknown: o.unknown + p.unknown, left: o.left + p.left,
	}
}

// err is nil when every task ran exactly once, not early, and the queue is empty.
func (o outcome) err() error {
	if o == (outcome{}) {
		return nil
	}
	return fmt.Errorf("%d tasks never ran, %d ran again, %d early, %d unknown, %d left in the queue",
		o.missing, o.duplicates, o.early, o.unknown, o.left)
}
