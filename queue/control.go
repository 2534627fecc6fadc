package queue

import (
	"context"
	"fmt"
)

// Pause stops the taking of tasks, by all workers on all processes, from their
// next fetch on. Tasks can still be added, and those that are leased are worked
// on. It lasts until Resume, over restarts too. Errors: those of Redis.
func (q *Queue) Pause(ctx context.Context) error {
	if err := q.run(ctx, pauseScript, "1").Err(); err != nil {
		return fmt.Errorf("pause queue: %w", err)
	}
	return nil
}

// Resume ends a pause. Errors: those of Redis.
func (q *Queue) Resume(ctx context.Context) error {
	if err := q.run(ctx, pauseScript, "0").Err(); err != nil {
		return fmt.Errorf("resume queue: %w", err)
	}
	return nil
}

var cancelStates = map[byte]State{'r': StateReady, 'd': StateDelayed, 'l': StateLeased, 'x': StateDead, 'M': ""}

// Cancel removes tasks for good, and says per task in which state it was; empty
// for none. The handler of one that was leased finds out at the next extension
// of its lease, when its context ends with ErrLeaseLost; what it does until then
// is done. Errors: those of Redis; the states from the failing step on are then
// not known and missing.
func (q *Queue) Cancel(ctx context.Context, ids ...string) ([]State, error) {
	out := make([]State, 0, len(ids))
	for from := 0; from < len(ids); from += chunkTasks {
		chunk := ids[from:min(from+chunkTasks, len(ids))]
		args := make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		states, err := letters(q.run(ctx, cancelScript, args...), len(chunk), cancelStates)
		if err != nil {
			return out, fmt.Errorf("cancel %d tasks: %w", len(chunk), err)
		}
		out = append(out, states...)
	}
	return out, nil
}
