package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// errGoexit is the failure of tasks whose handler called runtime.Goexit.
var errGoexit = errors.New("queue: handler ended its goroutine")

// batch holds the tasks of one handler call. The pool's mutex guards tasks and givenUp.
type batch struct {
	source *source
	tasks  []Leased        // without those whose lease was lost
	given  []Leased        // passed to the handler, which may reorder them
	lost   int             // tasks whose lease ended before the handler began
	ctx    context.Context // passed to the handler
	cancel context.CancelCauseFunc

	givenUp bool // the task's Timeout passed
}

// give chooses the tasks for the handler. It leaves out those whose lease has ended before
// renew noticed.
func (b *batch) give() {
	now := time.Now()
	b.given = make([]Leased, 0, len(b.tasks))
	for i := range b.tasks {
		if now.Before(*b.tasks[i].end) {
			b.given = append(b.given, b.tasks[i])
		}
	}
	if b.lost = len(b.tasks) - len(b.given); b.lost > 0 {
		b.tasks = slices.Clone(b.given)
	}
}

// begin starts the handler of a batch.
func (r *runner) begin(b *batch) {
	b.ctx, b.cancel = context.WithCancelCause(r.work)
	go r.handle(b)
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
			r.cfg.OnError(fmt.Errorf("handle %s: %w", countTasks(len(b.given)), failure))
			errs = make([]error, len(b.given))
			for i := range errs {
				errs[i] = failure
			}
		}
		r.pool.finished(b, sortOut(b.given, errs, b.ctx.Err() != nil), time.Since(began))
	}()
	if b.lost > 0 {
		r.cfg.OnError(fmt.Errorf("handle tasks: %w: %d of them", ErrLeaseLost, b.lost))
	}
	if len(b.given) > 0 {
		errs = r.call(b)
	}
	failure = nil
	if errs != nil && len(errs) != len(b.given) {
		failure = fmt.Errorf("queue: handler returned %d errors for %s", len(errs), countTasks(len(b.given)))
	}
}

// sortOut groups tasks by the handler's verdicts.
func sortOut(tasks []Leased, errs []error, interrupted bool) (o results) {
	for i := range tasks {
		var err error
		if errs != nil {
			err = errs[i]
		}
		switch {
		case err == nil && len(o.done) == i:
			o.done = tasks[: i+1 : i+1] // without a copy as long as all are done
		case err == nil:
			o.done = append(o.done, tasks[i])
		default:
			if c, ok := followUp(tasks[i], err); ok {
				o.then = append(o.then, c)
			} else {
				o.back = append(o.back, rejection(tasks[i], err, interrupted))
			}
		}
	}
	return o
}

// call runs the source's handler on a batch.
func (r *runner) call(b *batch) []error {
	if b.source.Each == nil {
		return b.source.Handler(b.ctx, b.given)
	}
	ctx, task := b.ctx, b.given[0]
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

// giveUp fails the task of a handler that did not return after the Timeout.
func (r *runner) giveUp(b *batch) {
	if r.pool.giveUp(b) {
		r.cfg.OnError(fmt.Errorf("handle task %q: %w: %w", b.given[0].ID, ErrTimeout, ErrAbandoned))
	}
}
