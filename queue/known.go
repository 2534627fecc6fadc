package queue

import (
	"context"
	"fmt"
)

// Known says of each id whether a task of that id exists in any state, dead
// letters and done tasks that are kept included. It reads many ids in one call,
// where [Queue.Get] would be one each. Errors: those of Redis.
func (q *Queue) Known(ctx context.Context, ids []string) ([]bool, error) {
	known := make([]bool, len(ids))
	for from := 0; from < len(ids); from += chunkTasks {
		page := ids[from:min(from+chunkTasks, len(ids))]
		bodies, err := q.rdb.HMGet(ctx, q.keys.body, page...).Result()
		if err != nil {
			return nil, fmt.Errorf("look for %d tasks: %w", len(ids), err)
		}
		for i, b := range bodies {
			known[from+i] = b != nil
		}
	}
	return known, nil
}
