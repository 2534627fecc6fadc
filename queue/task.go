package queue

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Task is what a producer adds.
type Task struct {
	// ID names the task. A second task of the same id is refused as long as the
	// first is in the queue in any state, dead letters included. 1 to 255 bytes,
	// any of them. Required.
	ID string
	// Payload is kept as it is and not looked into. Nil is stored as empty.
	Payload []byte
	// Due is when the task may start at the earliest, by the Redis server's
	// clock and rounded up to the millisecond. Zero means now.
	Due time.Time
	// Priority is 0 (default) to 9. A level is worth a minute of waiting, so a
	// task of priority 0 is taken before fresh ones of priority 9 once it is nine
	// minutes older.
	Priority int
	// Type names what kind of task this is, for handlers and for who looks; up to 64 bytes.
	Type string
	// MaxAttempts is how many times the task is delivered before it is dead, in
	// place of Config.MaxAttempts; 0 for that.
	MaxAttempts int
	// Timeout is how long one attempt may take in a handler of single tasks (see
	// [Handler]), in whole milliseconds; 0 for no limit.
	Timeout time.Duration
}

const maxType = 64 // bytes of Task.Type

func (t Task) validate() error {
	if t.ID == "" || len(t.ID) > maxID {
		return fmt.Errorf("%w: id %.64q has %d bytes, want 1 to %d", ErrInvalidTask, t.ID, len(t.ID), maxID)
	}
	if t.Priority < 0 || t.Priority > maxPriority {
		return fmt.Errorf("%w: task %q has priority %d, want 0 to %d", ErrInvalidTask, t.ID, t.Priority, maxPriority)
	}
	return t.validateOptions()
}

func (t *Task) validateOptions() error {
	switch {
	case len(t.Type) > maxType:
		return fmt.Errorf("%w: task %q has a type of %d bytes, want at most %d", ErrInvalidTask, t.ID, len(t.Type), maxType)
	case t.MaxAttempts < 0 || t.MaxAttempts > maxAttemptCap:
		return fmt.Errorf("%w: task %q has MaxAttempts %d, want 0 to %d", ErrInvalidTask, t.ID, t.MaxAttempts, maxAttemptCap)
	case t.Timeout < 0:
		return fmt.Errorf("%w: task %q has a negative Timeout %v", ErrInvalidTask, t.ID, t.Timeout)
	}
	return nil
}

// args appends what the scripts take of a task.
func (t *Task) args(args []any) []any {
	return append(args, t.ID, t.Payload, dueMillis(t.Due), t.Priority, t.options())
}

// options is the part of a task's meta that says how it is to be treated; see
// lua/fragment_common.lua. It is "" or begins with a comma.
func (t *Task) options() string {
	if t.Type == "" && t.MaxAttempts == 0 && t.Timeout == 0 {
		return ""
	}
	var b strings.Builder
	if t.Type != "" {
		b.WriteString(",y" + url.QueryEscape(t.Type))
	}
	if t.MaxAttempts > 0 {
		b.WriteString(",m" + strconv.Itoa(t.MaxAttempts))
	}
	if t.Timeout > 0 {
		b.WriteString(",t" + strconv.FormatInt(ceilMillis(t.Timeout), 10))
	}
	return b.String()
}

// dueMillis rounds up, so that no task starts before its due time.
func dueMillis(due time.Time) int64 {
	if due.IsZero() {
		return 0
	}
	return due.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// ceilMillis is a duration in milliseconds, rounded up for the same reason.
func ceilMillis(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// Options are how a task is to be treated, as its producer said.
type Options struct {
	Type        string        // Task.Type
	MaxAttempts int           // Task.MaxAttempts; 0 for the queue's
	Timeout     time.Duration // Task.Timeout; 0 for none
}

// parseOptions reads what options wrote. What the scripts add for themselves, and
// options of a later version, are passed over.
func parseOptions(text string) (o Options, err error) {
	if text == "" {
		return o, nil
	}
	for part := range strings.SplitSeq(text[1:], ",") {
		if part == "" {
			continue
		}
		value := part[1:]
		switch part[0] {
		case 'y':
			o.Type, err = url.QueryUnescape(value)
		case 'm':
			o.MaxAttempts, err = strconv.Atoi(value)
		case 't':
			var ms int64
			ms, err = strconv.ParseInt(value, 10, 64)
			o.Timeout = time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
		}
		if err != nil {
			return o, fmt.Errorf("%w: option %q: %w", ErrReply, part, err)
		}
	}
	return o, nil
}

// Leased is a task taken by Dequeue, with the lease on it.
type Leased struct {
	// ID and Payload are the task's.
	ID      string
	Payload []byte
	// Attempt counts the deliveries of this task, this one included, from 1.
	Attempt int
	// Token names the lease. It is opaque.
	Token string
	// Priority is the task's.
	Priority int
	// Options are how its producer wants it treated.
	Options
	// LeaseUntil is when the lease ends at the earliest, on this process's
	// monotonic clock: it counts from before the request was sent.
	LeaseUntil time.Time
	// hold is what this process knows of the lease. Copies share it.
	hold *hold
}

// hold is what became of a lease.
type hold struct {
	// over is set once the lease has ended or was given up, so that whoever extends
	// it does not take that for a loss.
	over atomic.Bool
	// settled is set once Ack, Complete or Reject of this process has ended it: Run
	// has nothing to say of the task any more.
	settled atomic.Bool
}

// settled says that this process has ended the lease.
func (l *Leased) settled() bool { return l.hold != nil && l.hold.settled.Load() }

// ended notes that this process has ended the lease, where it has.
func (l *Leased) ended(s Status) {
	if l.hold != nil && (s == StatusOK || s == StatusMissing) {
		l.hold.settled.Store(true)
		l.hold.over.Store(true)
	}
}

// Status says what became of one task given to a call.
type Status uint8

// The outcomes. Only StatusOK changed anything.
const (
	// StatusUnknown is left where the call failed: it may have taken effect. Repeat it.
	StatusUnknown Status = iota
	// StatusOK: it was done.
	StatusOK
	// StatusDuplicate: a task of that id is in the queue already. Enqueue only.
	StatusDuplicate
	// StatusFull: the queue has no room for the task, or for the tasks that were to follow it.
	StatusFull
	// StatusStale: the lease ended, and the task waits or belongs to another worker.
	StatusStale
	// StatusMissing: no such task, or not in the state the call works on: it is done, or never was.
	StatusMissing
)

// String names the status in one word.
func (s Status) String() string {
	return [...]string{"unknown", "ok", "duplicate", "full", "stale", "missing"}[min(s, StatusMissing)]
}

// State is where a task is.
type State string

// The states of a task.
const (
	StateReady   State = "ready"
	StateDelayed State = "delayed"
	StateLeased  State = "leased"
	StateDead    State = "dead"
)

// TaskInfo is one task as it stands.
type TaskInfo struct {
	ID       string
	State    State
	Payload  []byte // nil where the body is missing
	Priority int
	Options
	// Attempt counts the deliveries so far.
	Attempt int
	// At is when a delayed task falls due, a lease ends or a dead task died (to the
	// millisecond), and when a ready task arrived.
	At time.Time
	// Reason is why the last attempt failed, or why the task is dead. It is empty while the task is leased.
	Reason string
}
