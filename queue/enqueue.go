package queue

import (
	"context"
	"fmt"
	"time"
)

var enqueueStatus = map[byte]Status{'K': StatusOK, 'D': StatusDuplicate, 'F': StatusFull}

// Enqueue adds tasks in the order given and says per task what became of it. A
// task is written whole or not at all. Calls of up to 512 tasks are one atomic
// step; longer ones are several, in order.
//
// Errors: ErrInvalidTask, with nothing written; ErrFull when the queue had no room
// for at least one task, which has StatusFull; otherwise those of Redis, where
// the statuses from the failing step on are StatusUnknown. Repeating the call is
// safe: what was added is then a duplicate, unless it was done meanwhile; then it
// is added and handled again, which an idempotent handler tolerates.
func (q *Queue) Enqueue(ctx context.Context, tasks ...Task) ([]Status, error) {
	for i := range tasks {
		if err := tasks[i].validate(); err != nil {
			return make([]Status, len(tasks)), fmt.Errorf("enqueue: %w", err)
		}
	}
	out := make([]Status, 0, len(tasks))
	for from := 0; from < len(tasks); from += chunkTasks {
		chunk := tasks[from:min(from+chunkTasks, len(tasks))]
		args := make([]any, 0, 1+5*len(chunk))
		args = append(args, q.cfg.MaxLength)
		for _, t := range chunk {
			args = t.args(args)
		}
		status, err := letters(q.run(ctx, enqueueScript, args...), len(chunk), enqueueStatus)
		if err != nil {
			unknown := make([]Status, len(tasks)-len(out))
			return append(out, unknown...), fmt.Errorf("enqueue %d tasks: %w", len(chunk), err)
		}
		out = append(out, status...)
	}
	return out, refused("enqueue", out)
}

// refused is the error of a call whose tasks the queue had no room for; nil where it had.
func refused(op string, status []Status) error {
	n := 0
	for _, s := range status {
		if s == StatusFull {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: no capacity for %d of %d tasks", op, ErrFull, n, len(status))
}

// args appends what the scripts take of a task.
func (t *Task) args(args []any) []any {
	return append(args, t.ID, t.Payload, dueMillis(t.Due), t.Priority, t.options())
}

func (t Task) validate() error {
	if t.ID == "" || len(t.ID) > maxID {
		return fmt.Errorf("%w: id %.64q has %d bytes, want 1 to %d", ErrInvalidTask, t.ID, len(t.ID), maxID)
	}
	if t.Priority < 0 || t.Priority > maxPriority {
		return fmt.Errorf("%w: task %q has priority %d, want 0 to %d", ErrInvalidTask, t.ID, t.Priority, maxPriority)
	}
	return t.validateOptions()
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
