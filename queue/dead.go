package queue

import (
	"context"
	"fmt"
)

// Dead lists dead letters, the latest first: up to limit (1 to 512) of them after
// skipping offset. Letters that die meanwhile shift the offsets.
// Errors: ErrConfig for values out of bounds, and those of Redis.
func (q *Queue) Dead(ctx context.Context, offset, limit int) ([]DeadTask, error) {
	found, err := q.List(ctx, StateDead, offset, limit)
	if err != nil {
		return nil, err
	}
	out := make([]DeadTask, len(found))
	for i, t := range found {
		out[i] = DeadTask{
			ID: t.ID, Payload: t.Payload, Options: t.Options, Attempt: t.Attempt, DiedAt: t.At, Reason: t.Reason,
		}
	}
	return out, nil
}

// Retry makes a dead task ready again with its attempts forgotten.
// Errors: ErrTaskNotFound when no dead task has that id, ErrFull, ErrDuplicate when
// its unique key is another task's now, those of Redis.
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
		case "U":
			err = ErrDuplicate
		default:
			err = fmt.Errorf("%w: status %q", ErrReply, letter)
		}
	}
	return fmt.Errorf("%s task %s: %w", op, id, err)
}
