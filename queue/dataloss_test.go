package queue_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRun_DataWentBack: when Redis returns to the state of some fetches ago, a running Run
// reports it once. It reports nothing before, although another process fetches too.
func TestRun_DataWentBack(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		reported, handled := make(chan error, 100), make(chan string, 100)
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			for i := range tasks {
				handled <- tasks[i].ID
			}
			return nil
		}, queue.RunConfig{OnError: func(err error) { reported <- err }})
		for _, id := range []string{"a", "b", "c"} {
			enqueue(t, q, queue.Task{ID: id})
			receive(t, id, handled)
		}
		dequeue(t, process(t, rdb, queue.Config{Prefix: prefix}), 1)
		if n, err := rdb.HGet(await.Context(t), prefix+"counts", "takes").Int(); err != nil || n != 3 {
			t.Fatalf("%d calls took tasks, %v; want 3", n, err)
		}
		if len(reported) > 0 {
			t.Fatalf("reported %v", <-reported)
		}
		if err := rdb.HSet(await.Context(t), prefix+"counts", "takes", 1).Err(); err != nil {
			t.Fatal(err)
		}
		enqueue(t, q, queue.Task{ID: "d"})
		receive(t, "d", handled)
		if err := receive(t, "the loss", reported); !errors.Is(err, queue.ErrDataLost) {
			t.Fatalf("reported %v, want ErrDataLost", err)
		}
		enqueue(t, q, queue.Task{ID: "e"})
		receive(t, "e", handled)
		stop()
		if len(reported) > 0 {
			t.Fatalf("reported again: %v", <-reported)
		}
	})
}
