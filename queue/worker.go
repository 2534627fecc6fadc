package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// errGoexit is the failure of tasks whose handler called runtime.Goexit.
var errGoexit = errors.New("queue: handler ended its goroutine")

// worker handles batches until the pool is closed or a new worker replaces it.
func (r *runner) worker() {
	var b *batch
	defer func() {
		if b != nil && !b.replaced {
			go r.worker() // only a handler that calls runtime.Goexit leads here
		}
	}()
	for {
		if b = r.pool.take(r.work); b == nil {
			return
		}
		r.handle(b)
		if b.replaced {
			return
		}
	}
}

// handle runs the handler on one batch and passes the outcome on.
func (r *runner) handle(b *batch) {
	began := time.Now()
	failure := errGoexit // unless the handler returns or panics
	var errs []error
	defer func() {
		if v := recover(); v != nil {
			failure = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
		if failure != nil {
			r.cfg.OnError(fmt.Errorf("handle %d tasks: %w", len(b.tasks), failure))
			errs = make([]error, len(b.tasks))
			for i := range errs {
				errs[i] = failure
			}
		}
		r.finish(b, errs, time.Since(began))
	}()
	if b.lost > 0 {
		r.cfg.OnError(fmt.Errorf("handle tasks: %w: %d of them", ErrLeaseLost, b.lost))
	}
	if len(b.tasks) > 0 {
		errs = r.call(b)
	}
	failure = nil
	if errs != nil && len(errs) != len(b.tasks) {
		failure = fmt.Errorf("queue: handler returned %d errors for %d tasks", len(errs), len(b.tasks))
	}
}

// finish hands a handled batch to the acker, unless its tasks were settled earlier
// because the handler had been abandoned.
func (r *runner) finish(b *batch, errs []error, took time.Duration) {
	// Before end, which marks all leases as ended.
	o := sortOut(b.tasks, errs, b.ctx.Err() != nil)
	until, first := b.end()
	if first {
		b.source.acker.add(until, o)
	}
	b.replaced = r.pool.finished(b, took)
}

// sortOut groups tasks by the handler's verdicts. It leaves out the tasks that the
// handler has settled itself.
func sortOut(tasks []Leased, errs []error, interrupted bool) (o results) {
	left := 0 // number of tasks that the handler has settled
	for i := range tasks {
		var err error
		if errs != nil {
			err = errs[i]
		}
		if tasks[i].settled() {
			left++
		} else if c, ok := followUp(tasks[i], err); ok {
			o.then = append(o.then, c)
		} else if err != nil {
			o.back = append(o.back, rejection(tasks[i], err, interrupted))
		}
	}
	done := len(tasks) - len(o.then) - len(o.back) - left
	if done == len(tasks) {
		o.done = tasks
		return o
	}
	// A new slice, because the handler may have kept the one it got.
	o.done = make([]Leased, 0, done)
	for i := range tasks {
		if (errs == nil || errs[i] == nil) && !tasks[i].settled() {
			o.done = append(o.done, tasks[i])
		}
	}
	return o
}

// call runs the source's handler on a batch.
func (r *runner) call(b *batch) []error {
	if b.source.Each == nil {
		return b.source.Handler(b.ctx, b.tasks)
	}
	ctx, task := b.ctx, b.tasks[0]
	if task.Timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, task.Timeout, ErrTimeout)
		defer cancel()
		end := max(task.Timeout, task.Timeout+cancelGrace) // the sum may be too large
		late := time.AfterFunc(end, func() { r.giveUp(b) })
		defer late.Stop()
		ctx = limited
	}
	err := b.source.Each(ctx, task)
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), ErrTimeout) {
		err = errors.Join(ErrTimeout, err)
	}
	return []error{err}
}

// giveUp fails the task of a handler that did not return after the Timeout, and starts
// a worker to replace the blocked one.
func (r *runner) giveUp(b *batch) {
	given, replace := r.pool.giveUp(b)
	if given {
		r.cfg.OnError(fmt.Errorf("handle task %q: %w: %w", b.tasks[0].ID, ErrTimeout, ErrAbandoned))
	}
	if replace {
		go r.worker()
	}
}
