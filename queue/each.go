package queue

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Handler works on one task and returns how it went, as [BatchHandler] does for
// many: nil, an error made by [Discard], [RetryIn], [Snooze] or [Then], or any other.
//
// Each task has a context of its own. It ends with the cause [ErrLeaseLost] when
// the task's lease is lost or the task is cancelled, with [ErrTimeout] after the
// task's Timeout, and with [ErrDraining] when the time to drain is spent. A panic
// fails the task, with the stack in the reason.
//
// What a handler returns after its Timeout counts: nil is done, an error is a
// failed attempt with ErrTimeout in its reason. A handler that has still not
// returned 250 ms later is abandoned: its attempt fails, OnError gets ErrTimeout
// and ErrAbandoned, what it returns is ignored, and another task takes its place.
// Its goroutine cannot be ended. So at most RunConfig.Workers abandoned handlers are
// replaced; beyond that a place is free again only when one of them returns.
type Handler func(ctx context.Context, task Leased) error

// ErrTimeout is the cause with which a task's context ends when its own Timeout is over.
var ErrTimeout = errors.New("queue: task timed out")

// RunEach is [Queue.Run] for a handler of single tasks: RunConfig.Workers of them run
// concurrently, and each is acknowledged as soon as it is finished. Several tasks
// that finish about the same time share one acknowledgement, and several free
// workers one fetch.
func (q *Queue) RunEach(ctx context.Context, h Handler, cfg RunConfig) error {
	return RunAll(ctx, []Source{{Queue: q, Each: h}}, cfg)
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

// giveUp fails the task of a handler that did not return when its time was over,
// and lets another worker take the handler's place.
func (r *runner) giveUp(b *batch) {
	given, replace := r.pool.giveUp(b)
	if given {
		r.cfg.OnError(fmt.Errorf("handle task %q: %w: %w", b.tasks[0].ID, ErrTimeout, ErrAbandoned))
	}
	if replace {
		go r.worker()
	}
}
