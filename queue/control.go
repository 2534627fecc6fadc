package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Pause stops all workers in all processes from taking tasks, from their next fetch
// on. Tasks can still be added, and leased tasks are finished. The pause lasts until
// Resume, also across restarts. Errors: those of Redis.
func (q *Queue) Pause(ctx context.Context) error {
	if err := q.eval(ctx, pauseScript, "1").Err(); err != nil {
		return fmt.Errorf("pause queue: %w", err)
	}
	return nil
}

// Resume ends a pause. Errors: those of Redis.
func (q *Queue) Resume(ctx context.Context) error {
	if err := q.eval(ctx, pauseScript, "0").Err(); err != nil {
		return fmt.Errorf("resume queue: %w", err)
	}
	return nil
}

var cancelStates = map[byte]State{'r': StateReady, 'd': StateDelayed, 'l': StateLeased, 'x': StateDead, 'M': ""}

// Cancel removes tasks for good and returns the state in which each was, or "" for an
// unknown id. The context of the handler of a leased task ends with ErrLeaseLost at
// the next extension of the lease; the effects until then remain. Errors: those of
// Redis; the states from the failing step on are then "", and unknown.
func (q *Queue) Cancel(ctx context.Context, ids ...string) ([]State, error) {
	return byID(ctx, q, "cancel", cancelScript, []any{"0"}, ids, cancelStates)
}

// DeleteDead removes dead letters for good, up to 512 in one step. Per id: StatusOK,
// or StatusMissing if it is not a dead letter. Errors: those of Redis, with StatusUnknown
// from the failing step on.
func (q *Queue) DeleteDead(ctx context.Context, ids ...string) ([]Status, error) {
	return byID(ctx, q, "delete", cancelScript, []any{"1"}, ids, map[byte]Status{'x': StatusOK, 'M': StatusMissing})
}

// RunNow makes delayed tasks and dead letters ready, in the given order and up to 512
// in one step. The attempts of a dead letter are reset. If by is not zero, tasks that are
// due or died later, to the millisecond, stay as they are: a letter that has died again
// since it was listed is not retried again. Per task: StatusOK, StatusMissing if it stays
// or is neither delayed nor dead, or StatusFull for a dead letter for which the queue has
// no room.
// Errors: ErrFull with at least one StatusFull, and those of Redis, with StatusUnknown
// from the failing step on.
func (q *Queue) RunNow(ctx context.Context, by time.Time, ids ...string) ([]Status, error) {
	const op = "run now"
	args := []any{q.cfg.MaxLength, millis(by)}
	status, err := byID(ctx, q, op, runNowScript, args, ids, map[byte]Status{'K': StatusOK, 'M': StatusMissing, 'F': StatusFull})
	if err == nil {
		err = refused(op, status)
	}
	return status, err
}

// millis is an argument of a script: a time in milliseconds, or "" for the zero time.
func millis(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixMilli(), 10)
}

// byID runs a script on the tasks with these ids.
func byID[S any](ctx context.Context, q *Queue, op string, s *redis.Script, how []any, ids []string, from map[byte]S) ([]S, error) {
	return each(op, ids, from, func(chunk []string) *redis.Cmd {
		return q.eval(ctx, s, idArgs(how, chunk)...)
	})
}

// idArgs are the arguments of a script that ends with ids.
func idArgs(how []any, ids []string) []any {
	args := append(make([]any, 0, len(how)+len(ids)), how...)
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// Empty removes all ready, delayed or dead tasks, 512 per step, and returns how many
// it removed. Tasks added during the call may remain. Use [Queue.Cancel] for leased
// tasks. Errors: ErrConfig for another state, and those of Redis; removed tasks stay
// removed.
func (q *Queue) Empty(ctx context.Context, state State) (removed int, err error) {
	key := stateKeys[state]
	if key == 0 || state == StateLeased {
		return 0, fmt.Errorf("empty queue: %w: state %q, want ready, delayed or dead", ErrConfig, state)
	}
	for bound := -1; bound != 0; bound-- {
		reply, err := numbers(q.eval(ctx, emptyScript, key, chunkTasks), 2)
		if err != nil {
			return removed, fmt.Errorf("empty queue: %w", err)
		}
		removed += int(reply[0])
		if reply[1] == 0 {
			break
		}
		if bound < 0 { // bounds the loop if tasks are added continuously
			bound = 1 + (int(reply[1])+chunkTasks-1)/chunkTasks
		}
	}
	return removed, nil
}
