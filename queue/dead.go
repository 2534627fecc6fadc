package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
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

// DeadPlace is the place of a dead letter among those of its queue, by its time of death.
// The zero value is before all of them.
type DeadPlace struct {
	At time.Time
	ID string
}

// DeadAfter lists up to limit (1 to 512) dead letters behind a place, the earliest first,
// of those that died by a time. The next page begins behind the At and ID of the last one
// listed. Letters that are removed meanwhile shift nothing; where the letter that is the place
// was removed, others of its millisecond may be listed again. It costs no more than the
// page, however many letters there are.
// Errors: ErrConfig for values out of bounds, and those of Redis.
func (q *Queue) DeadAfter(ctx context.Context, place DeadPlace, by time.Time, limit int) ([]TaskInfo, error) {
	if limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("list dead tasks: %w: limit %d, want 1 to %d", ErrConfig, limit, chunkTasks)
	}
	at := int64(-1)
	if place != (DeadPlace{}) {
		at = place.At.UnixMilli()
	}
	reply, err := q.run(ctx, deadScript, at, place.ID, by.UnixMilli(), limit).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("list dead tasks: %w", err)
	}
	return parseInfos(StateDead, reply)
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

// DeadFilter chooses dead letters. The zero value chooses all.
type DeadFilter struct {
	Type     string // of this type only
	Contains string // whose reason contains this text
}

func (f DeadFilter) matches(t *TaskInfo) bool {
	return (f.Type == "" || t.Type == f.Type) && strings.Contains(t.Reason, f.Contains)
}

// SearchDead lists up to limit (1 to 512) dead letters that the filter chooses,
// the latest first. It looks through all of them, a page at a time; letters that
// die meanwhile may be missed. Errors: ErrConfig for values out of bounds, and
// those of Redis.
func (q *Queue) SearchDead(ctx context.Context, filter DeadFilter, limit int) ([]TaskInfo, error) {
	if limit < 1 || limit > chunkTasks {
		return nil, fmt.Errorf("search dead tasks: %w: limit %d, want 1 to %d", ErrConfig, limit, chunkTasks)
	}
	var found []TaskInfo
	for offset := 0; len(found) < limit; offset += chunkTasks {
		page, err := q.List(ctx, StateDead, offset, chunkTasks)
		if err != nil {
			return found, fmt.Errorf("search dead tasks: %w", err)
		}
		for i := range page {
			if filter.matches(&page[i]) && len(found) < limit {
				found = append(found, page[i])
			}
		}
		if len(page) < chunkTasks {
			break
		}
	}
	return found, nil
}

// RetryDead makes the dead letters that the filter chooses ready again, as Retry
// does for one, and returns how many. Those that die meanwhile are left alone.
// Errors: ErrFull when the queue has no room for more, those of Redis; what was
// done before stays done.
func (q *Queue) RetryDead(ctx context.Context, filter DeadFilter) (int, error) {
	return q.eachDead(ctx, filter, q.Retry)
}

// DiscardDead removes the dead letters that the filter chooses for good, and
// returns how many. Those that die meanwhile are left alone.
// Errors: those of Redis; what was done before stays done.
func (q *Queue) DiscardDead(ctx context.Context, filter DeadFilter) (int, error) {
	return q.eachDead(ctx, filter, q.Discard)
}

// eachDead collects the ids first, because what do removes shifts the pages.
func (q *Queue) eachDead(ctx context.Context, filter DeadFilter, do func(context.Context, string) error) (int, error) {
	var ids []string
	for offset := 0; ; offset += chunkTasks {
		page, err := q.List(ctx, StateDead, offset, chunkTasks)
		if err != nil {
			return 0, err
		}
		for i := range page {
			if filter.matches(&page[i]) {
				ids = append(ids, page[i].ID)
			}
		}
		if len(page) < chunkTasks {
			break
		}
	}
	done := 0
	for _, id := range ids {
		switch err := do(ctx, id); {
		case err == nil:
			done++
		case errors.Is(err, ErrTaskNotFound): // another was quicker
		default:
			return done, err
		}
	}
	return done, nil
}
