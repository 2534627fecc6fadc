package queue_test

import (
	"context"
	"errors"
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

// TestRenewer_Refused: extensions may fail for a while. If they fail for longer, the handler's
// context ends before another worker can get the task.
func TestRenewer_Refused(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		cfg := queue.Config{Prefix: prefix, Lease: 3 * time.Second}
		admin := newQueue(t, rdb, cfg)
		load(t, admin)
		extensions := refusal{hash: queue.ExtendHash}
		extended := make(chan struct{}, 1000)
		q := process(t, rdb, cfg, extensions.hook(), script{after: func(hash string) {
			if hash == queue.ExtendHash {
				extended <- struct{}{}
			}
		}})
		enqueue(t, admin, queue.Task{ID: "a"})
		reported := make(chan error, 100)
		h := make(chan context.Context, 1)
		release := make(chan struct{})
		stop := start(t, q, func(ctx context.Context, tasks []queue.Leased) []error {
			if tasks[0].Attempt > 1 {
				return nil
			}
			h <- ctx
			<-release
			return []error{ctx.Err()}
		}, queue.RunConfig{Workers: 1, OnError: sendErrors(reported)})
		ctx := receive(t, "the handler", h)
		extensions.on.Store(true)
		wantErr(t, receive(t, "a refusal", reported), errRefused)
		extensions.on.Store(false)
		receive(t, "an extension", extended)
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
		extensions.on.Store(true)
		receive(t, "the end of the context", ctx.Done())
		if !errors.Is(context.Cause(ctx), queue.ErrLeaseLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
		var last error
		for !errors.Is(last, queue.ErrLeaseLost) {
			last = receive(t, "the loss", reported)
		}
		close(release)
		awaitStats(t, q, queue.Stats{})
		stop()
	})
}
