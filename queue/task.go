package queue

import (
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
