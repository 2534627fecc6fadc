package queue

import (
	"context"
	"fmt"
)

// Known says of each id whether a task of that id exists in any state, dead
// letters included. It reads many ids in one call,
// where [Queue.Get] would be one each. Errors: those of Redis.
func (q *Queue) Known(ctx context.Context, ids []string) ([]bool, error) {
	payloads, err := q.Payloads(ctx, ids)
	if err != nil {
		return nil, err
	}
	known := make([]bool, len(ids))
	for i := range payloads {
		known[i] = payloads[i] != nil
	}
	return known, nil
}

// Payloads reads the payloads of many tasks, in the order of their ids; nil for one
// that [Queue.Known] would not know. Errors: those of Redis.
func (q *Queue) Payloads(ctx context.Context, ids []string) ([][]byte, error) {
	payloads := make([][]byte, len(ids))
	for from := 0; from < len(ids); from += chunkTasks {
		page := ids[from:min(from+chunkTasks, len(ids))]
		bodies, err := q.rdb.HMGet(ctx, q.keys.body, page...).Result()
		if err != nil {
			return nil, fmt.Errorf("look for %d tasks: %w", len(ids), err)
		}
		for i, b := range bodies {
			if text, there := b.(string); there {
				payloads[from+i] = []byte(text) // never nil
			}
		}
	}
	return payloads, nil
}
