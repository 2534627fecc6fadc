package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRun_NextDueHandedOn: given two processes, both asleep, and two delayed tasks
// of which one has heard, when that one is busy with the first, then the other,
// which has not looked since before there were any, runs the second at its time.
func TestRun_NextDueHandedOn(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		began, second := make(chan struct{}), make(chan struct{})
		for range 2 {
			other, asleep := sleeper(t, rdb, queue.Config{Prefix: prefix})
			start(t, other, func(ctx context.Context, tasks []queue.Leased) []error {
				if tasks[0].ID == "second" {
					close(second)
					return nil
				}
				close(began)
				select {
				case <-second:
				case <-ctx.Done():
				}
				return nil
			}, queue.RunConfig{Batch: 1, Workers: 1, MaxIdle: 10 * time.Minute})
			receive(t, "a worker goes to sleep", asleep)
		}
		now := serverTime(t, rdb)
		enqueue(t, q, queue.Task{ID: "first", Due: now.Add(300 * time.Millisecond)},
			queue.Task{ID: "second", Due: now.Add(1500 * time.Millisecond)})
		receive(t, "the first", began)
		receive(t, "the second, while the first keeps its worker", second)
	})
}
