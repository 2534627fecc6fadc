package queue

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// BatchHandler works on leased tasks and says per task, in the same order, how
// it went. A nil slice says that all are done. Per task:
//
//   - nil: done, acknowledged
//   - an error made by [Discard]: dead letter now
//   - one made by [RetryIn]: again after that time; the attempt counts
//   - one made by [Snooze]: again after that time; the attempt does not count
//   - one made by [Then]: done, and the tasks that follow are added in the same step
//   - any other: again after the queue's backoff, or dead after Config.MaxAttempts
//
// The verdict may be wrapped. A panic fails every task of the batch, with the
// stack in the reason. The queue extends the leases while the handler runs. ctx
// ends with the cause [ErrLeaseLost] when a lease of the batch was lost all the
// same, and with [ErrDraining] when the time to drain is spent; an error returned
// after that does not count as an attempt.
//
// A task may be delivered more than once. The handler must make its effect
// idempotent by the task's id.
type BatchHandler func(ctx context.Context, tasks []Leased) []error

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

// verdict is an error by which a handler tells the queue what to do with a task.
type verdict struct {
	kind  verdictKind
	delay time.Duration
	err   error
	next  []Task
}

type verdictKind uint8

const (
	verdictDiscard verdictKind = iota
	verdictRetry
	verdictSnooze
	verdictThen
)

// Error is the reason that is kept with the task.
func (v *verdict) Error() string {
	if v.err != nil {
		return v.err.Error()
	}
	switch v.kind {
	case verdictDiscard:
		return "discarded by its handler"
	case verdictSnooze:
		return fmt.Sprintf("snoozed for %v", v.delay)
	case verdictThen:
		return fmt.Sprintf("done, and %d tasks follow", len(v.next))
	default:
		return fmt.Sprintf("to be retried in %v", v.delay)
	}
}

// Unwrap returns the cause.
func (v *verdict) Unwrap() error { return v.err }

// Discard makes the task a dead letter now, with err as its reason: another
// attempt would not help.
func Discard(err error) error { return &verdict{kind: verdictDiscard, err: err} }

// RetryIn counts the attempt as failed and runs the task again after d, in place
// of the queue's backoff. d of zero or less means at once, behind what is ready.
func RetryIn(d time.Duration, err error) error {
	return &verdict{kind: verdictRetry, delay: max(d, 0), err: err}
}

// Snooze runs the task again after d (at least a millisecond) and does not count
// the attempt: there was nothing wrong, it was only too early.
func Snooze(d time.Duration) error {
	return &verdict{kind: verdictSnooze, delay: max(d, time.Millisecond)}
}

// Then acknowledges the task and adds those that follow from it (at most 64) in
// the same step, as [Queue.Complete] does. Where the queue has no room for them
// the task is handled again later; where one of them is invalid it fails.
func Then(next ...Task) error { return &verdict{kind: verdictThen, next: next} }

// followUp returns what Then said, if it did, and said it validly.
func followUp(err error) ([]Task, bool) {
	var v *verdict
	if !errors.As(err, &v) || v.kind != verdictThen {
		return nil, false
	}
	return v.next, validateNext(v.next) == nil
}

// rejection turns a handler's error into what the queue does with the task.
// interrupted says that the queue had ended the handler's context: a failure is
// then nobody's fault and does not count.
func rejection(task Leased, err error, interrupted bool) Rejection {
	r := Rejection{Task: task, Delay: -1, Reason: err.Error(), cause: err}
	var v *verdict
	switch {
	case errors.As(err, &v):
		r.Delay = v.delay
		r.Dead = v.kind == verdictDiscard
		r.Uncounted = v.kind == verdictSnooze
		if v.kind == verdictThen { // followUp refused it
			r.Delay, r.Reason = -1, fmt.Sprintf("follow-up: %v", validateNext(v.next))
		}
	case interrupted:
		r.Delay = 0
		r.Uncounted = true
	}
	return r
}
