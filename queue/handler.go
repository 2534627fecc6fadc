package queue

import (
	"cmp"
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
//   - one made by [Return]: handed back at once; the attempt does not count
//   - one made by [Then]: done, and its follow-up tasks are added in the same step
//   - one made by [Split]: the same, and other tasks take its place
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
// error made by [Discard], [RetryIn], [Snooze], [Return], [Then] or [Split], or any other error.
//
// Each task has its own context, which ends like that of a batch, and with the cause
// [ErrTimeout] after the task's Timeout.
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
	error
	back  Rejection // for all except Then and Split
	done  bool      // Then and Split
	next  []Task
	split []Task
}

// Unwrap returns the cause.
func (v *verdict) Unwrap() error { return v.error }

// Discard makes the task a dead letter now, with err as its reason. Use it if another
// attempt would not help.
func Discard(err error) error {
	return &verdict{error: cmp.Or(err, errors.New("discarded by its handler")), back: Rejection{Dead: true}}
}

// RetryIn fails the attempt and runs the task again after d instead of the queue's
// backoff. If d is zero or negative, the task runs at once, behind the ready tasks.
func RetryIn(d time.Duration, err error) error {
	d = max(d, 0)
	return &verdict{error: cmp.Or(err, fmt.Errorf("to be retried in %v", d)), back: Rejection{Delay: d}}
}

// Snooze runs the task again after d (at least a millisecond) without counting the
// attempt. Use it if the task came too early.
func Snooze(d time.Duration) error {
	d = max(d, time.Millisecond)
	return &verdict{error: fmt.Errorf("snoozed for %v", d), back: Rejection{Delay: d, Uncounted: true}}
}

// Return hands the task back at once, in front of the ready tasks, without counting the attempt. Use it
// if this process cannot do the task and another one may. See RunConfig.Hold. err is the reason.
func Return(err error) error {
	return &verdict{error: cmp.Or(err, errors.New("handed back by its handler")), back: Rejection{Uncounted: true}}
}

// Returned reports whether an error was made by [Return].
func Returned(err error) bool {
	var v *verdict
	return errors.As(err, &v) && v.back.Uncounted && v.back.Delay == 0
}

// Snoozed returns the delay of an error made by [Snooze]; false for any other error.
func Snoozed(err error) (d time.Duration, ok bool) {
	var v *verdict
	if !errors.As(err, &v) || !v.back.Uncounted || v.back.Delay == 0 {
		return 0, false
	}
	return v.back.Delay, true
}

// Then acknowledges the task and adds its follow-up tasks (at most 64) in the same
// step, as [Queue.Complete] does. If the queue has no room for them, the task is
// retried later; if one of them is invalid, it becomes a dead letter now.
func Then(next ...Task) error { return Split(nil, next...) }

// Split acknowledges the task in the same step in which the tasks of split take its place
// in the queue and its follow-up tasks are added; see [Completion]. It is for a task with
// several entries of which some need another attempt.
func Split(split []Task, next ...Task) error {
	return &verdict{error: fmt.Errorf("done, and %d tasks follow", len(next)+len(split)), done: true, next: next, split: split}
}

// followUp returns the completion that a Then or Split asks for; false for another verdict
// or if one of the tasks is invalid.
func followUp(task Leased, err error) (Completion, bool) {
	var v *verdict
	if !errors.As(err, &v) || !v.done {
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
	r := Rejection{Delay: -1, Reason: err.Error()}
	var v *verdict
	switch {
	case errors.As(err, &v) && v.done: // followUp refused it, and would again
		r.Dead, r.Reason = true, fmt.Sprintf("follow-up: %v", v.invalid())
	case v != nil:
		r = v.back
		r.Reason = err.Error()
	case interrupted:
		r = Rejection{Uncounted: true, Reason: err.Error()}
	}
	r.Task, r.cause = task, err
	return r
}
