package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Dead lists dead letters, the latest first: up to limit (1 to 512) of them after
// skipping offset. Letters that die meanwhile shift the offsets.
// Errors: ErrConfig for values out of bounds, and those of Redis.
func (q *Queue) Dead(ctx context.Context, offset, limit int) ([]DeadTask, error) {
	if offset < 0 || limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("list dead tasks: %w: offset %d, limit %d, want at least 0 and 1 to %d",
			ErrConfig, offset, limit, chunkTasks)
	}
	reply, err := q.run(ctx, deadScript, offset, limit).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list dead tasks: %w", err)
	}
	const fields = 6
	if len(reply)%fields != 0 {
		return nil, fmt.Errorf("list dead tasks: %w: %d fields", ErrReply, len(reply))
	}
	out := make([]DeadTask, 0, len(reply)/fields)
	for ; len(reply) > 0; reply = reply[fields:] {
		died, err := strconv.ParseInt(reply[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("list dead tasks: %w: %w", ErrReply, err)
		}
		attempt, err := strconv.Atoi(reply[2])
		if err != nil {
			return nil, fmt.Errorf("list dead tasks: %w: %w", ErrReply, err)
		}
		out = append(out, DeadTask{
			ID: reply[0], DiedAt: time.UnixMilli(died).UTC(), Attempt: attempt,
			Reason: reply[3], Payload: body(reply[4], reply[5]),
		})
	}
	return out, nil
}

// Retry makes a dead task ready again with its attempts forgotten.
// Errors: ErrTaskNotFound when no dead task has that id, ErrFull, those of Redis.
func (q *Queue) Retry(ctx context.Context, id string) error {
	letter, err := q.run(ctx, retryScript, id, q.cfg.MaxLength).Text()
	return outcome("retry", id, letter, err)
}

// Discard removes a dead task for good.
// Errors: ErrTaskNotFound when no dead task has that id, those of Redis.
func (q *Queue) Discard(ctx context.Context, id string) error {
	letter, err := q.run(ctx, discardScript, id).Text()
	return outcome("discard", id, letter, err)
}

// outcome turns the one-letter answer about one task into an error.
func outcome(op, id, letter string, err error) error {
	if err == nil {
		switch letter {
		case "K":
			return nil
		case "M":
			err = ErrTaskNotFound
		case "F":
			err = ErrFull
		default:
			err = fmt.Errorf("%w: status %q", ErrReply, letter)
		}
	}
	return fmt.Errorf("%s task %s: %w", op, id, err)
}
