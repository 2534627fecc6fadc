package queue

import (
	"errors"
	"fmt"
	"time"
)

// verdict is an error by which a handler tells the queue what to do with a task.
type verdict struct {
	kind  verdictKind
	delay time.Duration
	err   error
}

type verdictKind uint8

const (
	verdictDiscard verdictKind = iota
	verdictRetry
	verdictSnooze
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

// rejection turns a handler's error into what the queue does with the task.
// interrupted says that the queue had ended the handler's context: a failure is
// then nobody's fault and does not count.
func rejection(task Leased, err error, interrupted bool) Rejection {
	r := Rejection{Task: task, Delay: -1, Reason: err.Error()}
	var v *verdict
	switch {
	case errors.As(err, &v):
		r.Delay = v.delay
		r.Dead = v.kind == verdictDiscard
		r.Uncounted = v.kind == verdictSnooze
	case interrupted:
		r.Delay = 0
		r.Uncounted = true
	}
	return r
}
