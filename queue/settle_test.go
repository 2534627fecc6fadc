package queue_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRun_SettledInHandler: a handler may acknowledge, complete or reject one task of its batch itself
// and continue with the others.
func TestRun_SettledInHandler(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context, q *queue.Queue, task queue.Leased) error{
		"ack": func(ctx context.Context, q *queue.Queue, task queue.Leased) error {
			_, err := q.Ack(ctx, task)
			return err
		},
		"complete": func(ctx context.Context, q *queue.Queue, task queue.Leased) error {
			_, err := q.Complete(ctx, queue.Completion{Task: task, Next: []queue.Task{{ID: "next", Due: time.Now().Add(time.Hour)}}})
			return err
		},
		"reject": func(ctx context.Context, q *queue.Queue, task queue.Leased) error {
			_, err := q.Reject(ctx, queue.Rejection{Task: task, Delay: time.Hour})
			return err
		},
		"reject and fail": func(ctx context.Context, q *queue.Queue, task queue.Leased) error {
			_, err := q.Reject(ctx, queue.Rejection{Task: task, Delay: time.Hour})
			return errors.Join(err, errors.New("not looked at"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
				const lease = 3 * time.Second
				q := newQueue(t, rdb, queue.Config{Lease: lease})
				enqueue(t, q, queue.Task{ID: "settled"}, queue.Task{ID: "long"})
				ended := make(chan error, 2)
				var lost atomic.Bool
				stop := start(t, q, serially(func(ctx context.Context, task queue.Leased) error {
					if task.ID == "settled" {
						return end(ctx, q, task)
					}
					// Until the leases have been extended, by the server's clock.
					before := get(t, q, "long").At
					waitFor(t, func() bool { return ctx.Err() != nil || get(t, q, "long").At.After(before) })
					// And once more, so that the renewer has read the first reply.
					before = get(t, q, "long").At
					waitFor(t, func() bool { return ctx.Err() != nil || get(t, q, "long").At.After(before) })
					ended <- context.Cause(ctx)
					return ctx.Err()
				}), queue.RunConfig{Workers: 1, OnError: func(err error) {
					t.Log(err)
					if errors.Is(err, queue.ErrLeaseLost) {
						lost.Store(true)
					}
				}})
				if err := receive(t, "the long task", ended); err != nil {
					t.Fatalf("the end of one lease ended the context of another task: %v", err)
				}
				stop() // once all is settled
				if lost.Load() {
					t.Error("a task that the handler settled itself counts as a lost lease")
				}
			})
		})
	}
}
