package queue

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// BatchHandler processes leased tasks and returns one verdict per task, in the same
// order. A nil slice means that all are done. Per task:
//
//   - nil: done, acknowledged
//   - an error made by [Discard]: dead letter now
//   - one made by [RetryIn]: retried after that time; the attempt counts
//   - one made by [Snooze]: retried after that time; the attempt does not count
//   - one made by [Then]: done, and its follow-up tasks are added in the same step
//   - any other: retried after the queue's backoff, or dead after Config.MaxAttempts
//
// The verdict may be wrapped. A panic fails every task of the batch, with the stack
// in the reason. Run extends the leases while the handler works. ctx ends with the
// cause [ErrLeaseLost] if a lease of the batch is lost anyway, and with [ErrDraining]
// at the end of RunConfig.Drain; an error returned after that does not count as an
// attempt.
//
// A task may be delivered more than once. The handler must be idempotent by the
// task's id.
type BatchHandler func(ctx context.Context, tasks []Leased) []error

// Handler processes one task and returns its verdict as a [BatchHandler] does: nil, an
// error made by [Discard], [RetryIn], [Snooze] or [Then], or any other error.
//
// Each task has its own context. It ends with the cause [ErrLeaseLost] if the lease is
// lost or the task cancelled, with [ErrTimeout] after the task's Timeout, and with
// [ErrDraining] at the end of RunConfig.Drain. A panic fails the task, with the stack
// in the reason.
//
// A verdict returned after the Timeout still counts: nil means done, and an error is a
// failed attempt with ErrTimeout in its reason. A handler that has not returned 250 ms
// after the Timeout is abandoned: the attempt fails, OnError gets ErrTimeout and
// ErrAbandoned, the verdict is ignored, and a new worker replaces the blocked one. Go
// cannot end a goroutine from outside, so at most RunConfig.Workers workers are
// replaced; after that a worker becomes free only when an abandoned handler returns.
type Handler func(ctx context.Context, task Leased) error

// verdict is an error by which a handler decides what happens to its task.
type verdict struct {
	kind  verdictKind
	delay time.Duration
	err   error
	next  []Task
	split []Task
}

type verdictKind uint8

const (
	verdictDiscard verdictKind = iota
	verdictRetry
	verdictSnooze
	verdictThen
)

// Error is the reason stored with the task.
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
		return fmt.Sprintf("done, and %d tasks follow", len(v.next)+len(v.split))
	default:
		return fmt.Sprintf("to be retried in %v", v.delay)
	}
}

// Unwrap returns the cause.
func (v *verdict) Unwrap() error { return v.err }

// Discard makes the task a dead letter now, with err as its reason. Use it if another
// attempt would not help.
func Discard(err error) error { return &verdict{kind: verdictDiscard, err: err} }

// RetryIn fails the attempt and runs the task again after d instead of the queue's
// backoff. If d is zero or negative, the task runs at once, behind the ready tasks.
func RetryIn(d time.Duration, err error) error {
	return &verdict{kind: verdictRetry, delay: max(d, 0), err: err}
}

// Snooze runs the task again after d (at least a millisecond) without counting the
// attempt. Use it if the task came too early.
func Snooze(d time.Duration) error {
	return &verdict{kind: verdictSnooze, delay: max(d, time.Millisecond)}
}

// Snoozed returns the delay of an error made by [Snooze]; false for any other error.
func Snoozed(err error) (d time.Duration, ok bool) {
	var v *verdict
	if !errors.As(err, &v) || v.kind != verdictSnooze {
		return 0, false
	}
	return v.delay, true
}

// Then acknowledges the task and adds its follow-up tasks (at most 64) in the same
// step, as [Queue.Complete] does. If the queue has no room for them, the task is
// retried later; if one of them is invalid, the attempt fails.
func Then(next ...Task) error { return &verdict{kind: verdictThen, next: next} }

// Split acknowledges the task in the same step in which the tasks of split take its place
// in the queue and its follow-up tasks are added; see [Completion]. It is for a task with
// several entries of which some need another attempt.
func Split(split []Task, next ...Task) error {
	return &verdict{kind: verdictThen, next: next, split: split}
}

// followUp returns the completion that a Then or Split asks for; false for another verdict
// or if one of the tasks is invalid.
func followUp(task Leased, err error) (Completion, bool) {
	var v *verdict
	if !errors.As(err, &v) || v.kind != verdictThen {
		return Completion{}, false
	}
	return Completion{Task: task, Next: v.next, Split: v.split}, v.invalid() == nil
}

// invalid returns what is wrong with the tasks that follow.
func (v *verdict) invalid() error {
	return errors.Join(validateNext(v.next, maxNext), validateNext(v.split, maxSplit))
}

// rejection turns a handler's error into a Rejection. interrupted means that Run had
// ended the handler's context, so a failed attempt does not count.
func rejection(task Leased, err error, interrupted bool) Rejection {
	r := Rejection{Task: task, Delay: -1, Reason: err.Error(), cause: err}
	var v *verdict
	switch {
	case errors.As(err, &v):
		r.Delay = v.delay
		r.Dead = v.kind == verdictDiscard
		r.Uncounted = v.kind == verdictSnooze
		if v.kind == verdictThen { // followUp refused it
			r.Delay, r.Reason = -1, fmt.Sprintf("follow-up: %v", v.invalid())
		}
	case interrupted:
		r.Delay = 0
		r.Uncounted = true
	}
	return r
}
