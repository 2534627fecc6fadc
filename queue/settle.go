package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ackStatus = map[byte]Status{'K': StatusOK, 'S': StatusStale, 'M': StatusMissing, 'F': StatusFull}

// Rejection returns one leased task to the queue.
type Rejection struct {
	Task Leased
	// Delay is the time until the task may run again. Negative: the queue's backoff
	// for this attempt. Zero: at once, behind the ready tasks, or in front of them if
	// Uncounted is set.
	Delay time.Duration
	// Uncounted means that this attempt does not count, because nothing was done.
	Uncounted bool
	// Dead makes the task a dead letter now, regardless of the other fields.
	Dead bool
	// Reason is stored with the task, up to 4 KiB.
	Reason string
	cause  error // passed to OnFailure
}

// Ack removes tasks that are done. Per task: StatusOK, StatusStale or StatusMissing.
// After an unknown outcome a repeat is safe; it returns StatusMissing if the first
// call succeeded. Errors: those of Redis, with StatusUnknown from the failing step on.
func (q *Queue) Ack(ctx context.Context, tasks ...Leased) ([]Status, error) {
	return each("ack", tasks, ackStatus, func(chunk []Leased) *redis.Cmd {
		return q.eval(ctx, ackScript, leaseArgs(make([]any, 0, 2*len(chunk)), chunk)...)
	})
}

// Completion is a finished task with its follow-up tasks.
type Completion struct {
	Task Leased
	// Next are the follow-up tasks, at most 64, which are added to Config.Followers in
	// the same step. One whose id is already in the queue counts as added.
	Next []Task
	// Split are tasks that take the place of this one in its queue, at most 512, for
	// entries that need another attempt. They have no more entries than the task. One
	// whose id is already in the queue counts as added.
	Split []Task
}

const (
	maxNext  = 64
	maxSplit = chunkTasks
)

// Complete acknowledges tasks and adds their follow-up tasks. Each task and its
// follow-up tasks are one atomic step. Per task: StatusOK, StatusStale,
// StatusMissing or StatusFull. After an unknown outcome a repeat is safe; it returns
// StatusMissing if the first call succeeded.
// Errors: ErrInvalidTask, with nothing done; otherwise as Ack.
func (q *Queue) Complete(ctx context.Context, completions ...Completion) ([]Status, error) {
	for _, c := range completions {
		if err := errors.Join(validateNext(c.Next, maxNext), validateNext(c.Split, maxSplit)); err != nil {
			return make([]Status, len(completions)), fmt.Errorf("complete task %q: %w", c.Task.ID, err)
		}
	}
	const few = 16 // with their follow-up tasks they are as much work as a chunk of single tasks
	out := make([]Status, 0, len(completions))
	for from := 0; from < len(completions); {
		chunk := completions[from : from+1]
		for tasks := len(chunk[0].Split); len(chunk) < min(few, len(completions)-from); chunk = completions[from : from+len(chunk)+1] {
			if tasks += len(completions[from+len(chunk)].Split); tasks > maxNext {
				break
			}
		}
		from += len(chunk)
		args := []any{q.followers.cfg.MaxLength}
		for _, c := range chunk {
			args = append(args, c.Task.ID, c.Task.Token, len(c.Split), len(c.Next))
			for _, t := range slices.Concat(c.Split, c.Next) {
				args = t.args(args)
			}
		}
		status, err := letters(completeScript.Run(ctx, q.rdb, q.both, args...), len(chunk), ackStatus)
		if err != nil {
			return append(out, make([]Status, len(completions)-len(out))...), fmt.Errorf("complete %s: %w", countTasks(len(chunk)), err)
		}
		out = append(out, status...)
	}
	return out, nil
}

// validateNext checks the tasks that follow one task.
func validateNext(next []Task, most int) error {
	if len(next) > most {
		return fmt.Errorf("%w: %d tasks follow, want at most %d", ErrInvalidTask, len(next), most)
	}
	for i := range next {
		if err := next[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// Extend makes the leases end a full Config.Lease from now. Per task: StatusOK,
// StatusStale or StatusMissing. Errors: as Ack.
func (q *Queue) Extend(ctx context.Context, tasks ...Leased) ([]Status, error) {
	return each("extend", tasks, ackStatus, func(chunk []Leased) *redis.Cmd {
		args := append(make([]any, 0, 1+2*len(chunk)), q.cfg.Lease.Milliseconds())
		return q.eval(ctx, extendScript, leaseArgs(args, chunk)...)
	})
}

// Reject returns tasks to the queue, to run again after a delay or at once, or as
// dead letters. A counted rejection of the last attempt makes the task a dead
// letter. Per task: StatusOK, StatusStale or StatusMissing. Errors: as Ack.
func (q *Queue) Reject(ctx context.Context, rejections ...Rejection) ([]Status, error) {
	return each("reject", rejections, ackStatus, func(chunk []Rejection) *redis.Cmd {
		args := append(make([]any, 0, 2+5*len(chunk)), q.cfg.MaxAttempts, q.cfg.MaxDead)
		for _, r := range chunk {
			delay := r.Delay
			if delay < 0 {
				delay = fullJitter(q.cfg.BackoffBase, q.cfg.BackoffMax, r.Task.Attempt)
			}
			args = append(args, r.Task.ID, r.Task.Token, r.mode(), ceilMillis(delay), clip(r.Reason))
		}
		return q.eval(ctx, rejectScript, args...)
	})
}

func (r Rejection) mode() string {
	switch {
	case r.Dead:
		return "d"
	case r.Uncounted:
		return "u"
	default:
		return "c"
	}
}

func leaseArgs(args []any, tasks []Leased) []any {
	for i := range tasks {
		args = append(args, tasks[i].ID, tasks[i].Token)
	}
	return args
}

// clip bounds the length of a reason and keeps it valid UTF-8, so that it can be shown.
func clip(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(reason, "?")
}

// fullJitter returns a random time from 1 ms to base * 2^(attempt-1), capped at
// limit. The full range spreads the retries of tasks that failed together.
func fullJitter(base, limit time.Duration, attempt int) time.Duration {
	bound := base
	for i := 1; i < attempt && bound < limit; i++ {
		bound *= 2
	}
	bound = min(bound, limit)
	return max(time.Millisecond, rand.N(bound)+1)
}
