package queue_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

// TestQueue_Known: a task is known in every state until it is acknowledged.
func TestQueue_Known(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		const many = 1100 // more than one call carries
		tasks := numbered(many)
		enqueue(t, q, tasks...)
		ids := make([]string, 0, many+1)
		for i := range tasks {
			ids = append(ids, tasks[i].ID)
		}
		leased := dequeue(t, q, 3).Tasks
		reject(t, q, queue.Rejection{Task: leased[0], Dead: true})
		ack(t, q, leased[1])
		known, err := q.Known(testContext(t), append(ids, "none"))
		if err != nil || len(known) != many+1 {
			t.Fatalf("%d answers, %v", len(known), err)
		}
		gone := slices.Index(ids, leased[1].ID)
		for i, k := range known {
			if want := i != gone && i != many; k != want {
				t.Errorf("%s: %v, want %v", fmt.Sprint(append(ids, "none")[i]), k, want)
			}
		}
		if known, err := q.Known(testContext(t), nil); err != nil || len(known) != 0 {
			t.Errorf("of no ids: %v, %v", known, err)
		}
	})
}
