package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRenewer_Many: leases are extended whatever their number.
func TestRenewer_Many(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const lease = 3 * time.Second
		q := newQueue(t, rdb, queue.Config{Lease: lease})
		enqueue(t, q, numbered(1200)...)
		running, release := make(chan struct{}, 3), make(chan struct{})
		stop := start(t, q, func(ctx context.Context, tasks []queue.Leased) []error {
			running <- struct{}{}
			<-release
			if ctx.Err() != nil {
				t.Error(context.Cause(ctx))
			}
			return nil
		}, queue.RunConfig{Batch: 400, Workers: 3, OnError: failOn(t)})
		for range 3 {
			receive(t, "a handler", running)
		}
		began := serverTime(t, rdb)
		waitFor(t, func() bool { return serverTime(t, rdb).Sub(began) > lease*3/2 })
		// Tasks that no handler has yet may be delivered, but none a second time.
		f := dequeue(t, q, 512)
		for _, task := range f.Tasks {
			if task.Attempt > 1 {
				t.Errorf("%s was redelivered", task.ID)
			}
		}
		ack(t, q, f.Tasks...)
		close(release)
		awaitStats(t, q, queue.Stats{})
		stop()
	})
}
