package queue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

// configuredQueue is an empty queue on a Redis of its own.
func configuredQueue(cfg queue.Config) (q *queue.Queue, closeAll func()) {
	server, err := miniredis.Run() // stands in for a Redis
	must(err)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	cfg.Prefix = "shop:{mail}:"
	q, err = queue.New(rdb, cfg)
	must(err)
	return q, func() {
		must(rdb.Close())
		server.Close()
	}
}

// The mail provider takes two connections at once, and no more than ten mails a minute.
func ExampleConfig_limits() {
	q, closeAll := configuredQueue(queue.Config{MaxLeased: 2, Rate: 10.0 / 60, Burst: 3})
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"}, queue.Task{ID: "2"}, queue.Task{ID: "3"}, queue.Task{ID: "4"})
	must(err)
	f, err := q.Dequeue(ctx, 10)
	must(err)
	fmt.Println(len(f.Tasks), "leased, more:", f.More)
	_, err = q.Ack(ctx, f.Tasks...)
	must(err)
	f, err = q.Dequeue(ctx, 10)
	must(err)
	fmt.Println(len(f.Tasks), "leased, more:", f.More)
	// Output:
	// 2 leased, more: false
	// 1 leased, more: false
}

// What is done can be looked at for a day, and its id is refused as long.
func ExampleConfig_keepDone() {
	q, closeAll := configuredQueue(queue.Config{KeepDone: 24 * time.Hour})
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1", Type: "invoice"})
	must(err)
	f, err := q.Dequeue(ctx, 1)
	must(err)
	_, err = q.Ack(ctx, f.Tasks...)
	must(err)
	done, err := q.List(ctx, queue.StateDone, 0, 10)
	must(err)
	for _, t := range done {
		fmt.Println(t.ID, t.Type, t.State, "after attempt", t.Attempt)
	}
	status, err := q.Enqueue(ctx, queue.Task{ID: "1"})
	must(err)
	fmt.Println(status)
	// Output:
	// 1 invoice done after attempt 1
	// [duplicate]
}

// Counts are kept over all processes, since the queue exists.
func ExampleQueue_Stats() {
	q, closeAll := configuredQueue(queue.Config{})
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"}, queue.Task{ID: "2"}, queue.Task{ID: "3"})
	must(err)
	f, err := q.Dequeue(ctx, 2)
	must(err)
	_, err = q.Ack(ctx, f.Tasks[0])
	must(err)
	_, err = q.Reject(ctx, queue.Rejection{Task: f.Tasks[1], Dead: true, Reason: "no such user"})
	must(err)
	s, err := q.Stats(ctx)
	must(err)
	fmt.Println("waiting:", s.Ready, "processed:", s.Processed, "failed:", s.Failed, "died:", s.Died)
	fmt.Println("taken:", s.Waits.Total(), "within ten minutes:", s.Waits.Quantile(0.99) < 10*time.Minute)
	// Output:
	// waiting: 1 processed: 1 failed: 1 died: 1
	// taken: 2 within ten minutes: true
}
