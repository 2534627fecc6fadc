package queue

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Task is a task as a producer adds it.
type Task struct {
	// ID names the task. A second task with the same id is a duplicate while the
	// first is in the queue in any state, dead letters included. 1 to 255 bytes of
	// any value. Required.
	ID string
	// Payload is stored unchanged. Nil is stored as empty.
	Payload []byte
	// Due is the earliest start, by the Redis server's clock and rounded up to the
	// millisecond; before the year 10000. Zero means now.
	Due time.Time
	// Priority is 0 (default) to 9. Each level counts as one minute of waiting, so a
	// task of priority 0 runs before new tasks of priority 9 once it is nine minutes
	// older.
	Priority int
	// Type is the kind of task, for handlers and operators; up to 64 bytes.
	Type string
	// MaxAttempts overrides Config.MaxAttempts for this task; up to 1,000,000, and 0 keeps
	// the queue's.
	MaxAttempts int
	// Timeout bounds one attempt of a [Handler], rounded up to the millisecond; 0 for no
	// limit. A BatchHandler has no timeout.
	Timeout time.Duration
	// Entries is how many pieces of work the payload has, if the producer put several
	// into one task; up to 65,536, and 0 counts as 1. Config.MaxLength, batches and
	// throughput count entries.
	Entries int
}

const (
	maxType    = 64 // bytes of Task.Type
	maxEntries = 1 << 16
)

// maxDue bounds Task.Due: milliseconds of a time.Time of a much later year overflow, and the task would be due now.
var maxDue = time.Date(10_000, time.January, 1, 0, 0, 0, 0, time.UTC)

func (t Task) validate() error {
	switch {
	case t.ID == "" || len(t.ID) > maxID:
		return fmt.Errorf("%w: id %.64q has %d bytes, want 1 to %d", ErrInvalidTask, t.ID, len(t.ID), maxID)
	case t.Priority < 0 || t.Priority > maxPriority:
		return fmt.Errorf("%w: task %q has priority %d, want 0 to %d", ErrInvalidTask, t.ID, t.Priority, maxPriority)
	case len(t.Type) > maxType:
		return fmt.Errorf("%w: task %q has a type of %d bytes, want at most %d", ErrInvalidTask, t.ID, len(t.Type), maxType)
	case t.MaxAttempts < 0 || t.MaxAttempts > maxAttemptCap:
		return fmt.Errorf("%w: task %q has MaxAttempts %d, want 0 to %d", ErrInvalidTask, t.ID, t.MaxAttempts, maxAttemptCap)
	case t.Entries < 0 || t.Entries > maxEntries:
		return fmt.Errorf("%w: task %q has Entries %d, want 0 to %d", ErrInvalidTask, t.ID, t.Entries, maxEntries)
	case !t.Due.Before(maxDue):
		return fmt.Errorf("%w: task %q has Due %v, want a time before %v", ErrInvalidTask, t.ID, t.Due, maxDue)
	case t.Timeout < 0:
		return fmt.Errorf("%w: task %q has a negative Timeout %v", ErrInvalidTask, t.ID, t.Timeout)
	}
	return nil
}

// args appends the fields of a task in the order in which the scripts read them.
func (t *Task) args(args []any) []any {
	return append(args, t.ID, t.Payload, dueMillis(t.Due), t.Priority, t.options())
}

// options encodes the task's options for its meta value; see
// lua/fragment_common.lua. The result is "" or begins with a comma.
func (t *Task) options() string {
	if t.Type == "" && t.MaxAttempts == 0 && t.Timeout == 0 && t.Entries <= 1 {
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
	if t.Entries > 1 {
		b.WriteString(",n" + strconv.Itoa(t.Entries))
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

// ceilMillis converts a duration to milliseconds, rounding up for the same reason.
func ceilMillis(d time.Duration) int64 {
	ms := int64(d / time.Millisecond)
	if d%time.Millisecond > 0 {
		ms++
	}
	return ms
}

// Options are the optional settings of a task.
type Options struct {
	Type        string        // Task.Type
	MaxAttempts int           // Task.MaxAttempts; 0 for the queue's
	Timeout     time.Duration // Task.Timeout; 0 for none
	Entries     int           // Task.Entries; 0 for one
}

// parseOptions reads the output of Task.options. It skips the options that the
// scripts add for their own use and those of later versions.
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
		case 'n':
			o.Entries, err = strconv.Atoi(value)
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

// Leased is a dequeued task with its lease.
type Leased struct {
	// ID and Payload are the task's.
	ID      string
	Payload []byte
	// Attempt counts the deliveries of this task, including this one.
	Attempt int
	// Token identifies the lease. It is opaque.
	Token string
	// Priority is the task's.
	Priority int
	// Options are those that the producer set.
	Options
	// FetchedAt is when the reply with the task arrived, by this process's clock.
	FetchedAt time.Time
	// Waited is how long the task had been ready then, by the Redis server's clock. Of a
	// fetch with more than 16 tasks, 16 are measured, and each other one gets the time of a
	// task near it.
	Waited time.Duration
	// end is the earliest end of the lease, on this process's monotonic clock and counted
	// from before the request was sent. Copies of the task share it. In a Run, renew moves
	// it under the pool's mutex.
	end *time.Time
}

// Status is the outcome of a call for one task.
type Status uint8

// The outcomes. Only StatusOK means that the task was changed.
const (
	// StatusUnknown: the call failed and may have taken effect. Repeat it.
	StatusUnknown Status = iota
	// StatusOK: the task was changed as requested.
	StatusOK
	// StatusDuplicate: a task with that id is already in the queue. Only from Enqueue.
	StatusDuplicate
	// StatusFull: the queue has no room for the task or its follow-up tasks.
	StatusFull
	// StatusStale: the lease has ended; the task is waiting or another worker has it.
	StatusStale
	// StatusMissing: there is no such task in the state that the call works on. It is
	// done, or never existed.
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

// TaskInfo describes one task in the queue.
type TaskInfo struct {
	ID       string
	State    State
	Payload  []byte // nil if the payload is missing, or was not read; see Fields
	Priority int
	Options
	// Attempt counts the deliveries so far.
	Attempt int
	// At is the due time of a delayed task, the end of a lease or the time of death,
	// to the millisecond; for a ready task it is the time of arrival.
	At time.Time
	// Reason is why the last attempt failed, or why the task is a dead letter. It is
	// empty while the task is leased.
	Reason string
}
