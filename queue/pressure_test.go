package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func TestQueue_Load(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		withinMinute(t, rdb, func(minute int64) error {
			q := newQueue(t, rdb, queue.Config{Lease: time.Hour})
			look := func() queue.Load {
				l, err := q.Load(await.Context(t))
				must(t, err)
				return l
			}
			if l := look(); l.Length != 0 || l.OldestReady != 0 || l.Done != 0 || l.Minute != minute {
				return fmt.Errorf("an empty queue: %+v, in minute %d", l, minute)
			}
			enqueue(t, q, queue.Task{ID: "a", Priority: 3}, queue.Task{ID: "b"}, queue.Task{ID: "c", Due: time.Now().Add(time.Hour)})
			waitFor(t, func() bool { return look().OldestReady >= time.Millisecond })
			if l := look(); l.Length != 3 || l.OldestReady > time.Hour {
				return fmt.Errorf("three tasks: %+v", l)
			}
			got := dequeue(t, q, 2).Tasks
			if l := look(); l.Length != 3 || l.OldestReady != 0 {
				return fmt.Errorf("two of them leased: %+v", l)
			}
			ack(t, q, got...)
			if l := look(); l.Length != 1 || l.Done != 2 {
				return fmt.Errorf("two of them done: %+v", l)
			}
			// A damaged counter does not hide the rest.
			must(t, rdb.HSet(await.Context(t), q.Prefix()+"counts", fmt.Sprint("m", minute), "x").Err())
			if l := look(); l.Length != 1 || l.Done != 0 || l.Minute != minute {
				return fmt.Errorf("with a damaged counter: %+v", l)
			}
			return nil
		})
	})
}
