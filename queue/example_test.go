package queue_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

// One process adds tasks and processes them.
func Example() {
	server, err := miniredis.Run() // stands in for a Redis
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	defer rdb.Close()

	q, err := queue.New(rdb, queue.Config{Prefix: "shop:{mail}:", MaxAttempts: 3})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	status, err := q.Enqueue(ctx,
		queue.Task{ID: "welcome-1", Payload: []byte("alice")},
		queue.Task{ID: "welcome-2", Payload: []byte("nobody")},
		queue.Task{ID: "welcome-1", Payload: []byte("alice again")},
		queue.Task{ID: "reminder-1", Payload: []byte("bob"), Due: time.Now().Add(50 * time.Millisecond)})
	if err != nil {
		panic(err)
	}
	fmt.Println(status)

	send := func(_ context.Context, tasks []queue.Leased) []error {
		errs := make([]error, len(tasks))
		for i, t := range tasks {
			switch string(t.Payload) {
			case "nobody":
				errs[i] = queue.Discard(errors.New("no such user"))
			case "bob":
				stop() // the example ends with its last task
				fallthrough
			default:
				fmt.Printf("mail to %s, attempt %d\n", t.Payload, t.Attempt)
			}
		}
		return errs
	}
	if err := q.Run(ctx, send, queue.RunConfig{}); err != nil {
		panic(err)
	}
	dead, err := q.List(context.Background(), queue.Query{State: queue.StateDead, Limit: 10})
	if err != nil {
		panic(err)
	}
	for _, d := range dead.Tasks {
		fmt.Printf("dead: %s, %s\n", d.ID, d.Reason)
	}
	// Output:
	// [ok ok duplicate ok]
	// mail to alice, attempt 1
	// mail to bob, attempt 1
	// dead: welcome-2, no such user
}
