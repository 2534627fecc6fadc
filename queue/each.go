package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Handler works on one task and says how it went, as [BatchHandler] does for
// many: nil, an error made by [Discard], [RetryIn] or [Snooze], or any other.
type Handler func(ctx context.Context, task Leased) error

// Middleware wraps a handler, to measure, log or limit what it does.
type Middleware func(next Handler) Handler

// ErrTimeout is the cause with which a task's context ends when its own Timeout is over.
var ErrTimeout = errors.New("queue: task timed out")

// errGoexit fails the task whose handler ended its goroutine.
var errGoexit = errors.New("queue: handler ended its goroutine")

// Each makes a BatchHandler that runs h on the tasks of a batch one by one, up
// to parallel (at least 1) of them at once. A task's context ends with ErrTimeout
// after its Timeout; what it returns then counts as a failed attempt. A panic
// fails its own task only, with the stack in the reason. The first middleware
// is the outermost.
func Each(parallel int, h Handler, middleware ...Middleware) BatchHandler {
	for i := len(middleware) - 1; i >= 0; i-- {
		h = middleware[i](h)
	}
	return func(ctx context.Context, tasks []Leased) []error {
		errs := make([]error, len(tasks))
		if parallel <= 1 || len(tasks) == 1 {
			for i := range tasks {
				errs[i] = one(ctx, tasks[i], h)
			}
			return errs
		}
		var work sync.WaitGroup
		room := make(chan struct{}, parallel)
		for i := range tasks {
			room <- struct{}{}
			work.Go(func() {
				defer func() { <-room }()
				errs[i] = errGoexit // stays where the handler ends its goroutine
				errs[i] = one(ctx, tasks[i], h)
			})
		}
		work.Wait()
		return errs
	}
}

// one runs h on one task. What the queue interrupted before it began is handed back.
func one(ctx context.Context, task Leased, h Handler) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	if task.Timeout <= 0 {
		return h(ctx, task)
	}
	limited, cancel := context.WithTimeoutCause(ctx, task.Timeout, ErrTimeout)
	defer cancel()
	err = h(limited, task)
	if err != nil && errors.Is(context.Cause(limited), ErrTimeout) {
		err = errors.Join(ErrTimeout, err)
	}
	return err
}
