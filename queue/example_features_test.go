package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

// exampleQueue is an empty queue on a Redis of its own.
func exampleQueue() (q *queue.Queue, rdb *redis.Client, closeAll func()) {
	server, err := miniredis.Run() // stands in for a Redis
	check(err)
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	q, err = queue.New(rdb, queue.Config{Prefix: "shop:{mail}:"})
	check(err)
	return q, rdb, func() {
		check(rdb.Close())
		server.Close()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A task has a type, a maximum number of attempts, and a timeout per attempt.
func ExampleTask_options() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1", Type: "invoice", MaxAttempts: 3, Timeout: 30 * time.Second})
	check(err)
	f, err := q.Dequeue(ctx, 1)
	check(err)
	for _, t := range f.Tasks {
		fmt.Println(t.Type, t.MaxAttempts, t.Timeout)
	}
	// Output: invoice 3 30s
}

// No task is taken from a paused queue.
func ExampleQueue_Pause() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	check(q.Pause(ctx))
	_, err := q.Enqueue(ctx, queue.Task{ID: "1"})
	check(err)
	f, err := q.Dequeue(ctx, 1)
	check(err)
	fmt.Println("paused:", len(f.Tasks))
	check(q.Resume(ctx))
	f, err = q.Dequeue(ctx, 1)
	check(err)
	fmt.Println("resumed:", len(f.Tasks))
	// Output:
	// paused: 0
	// resumed: 1
}

// A task can be cancelled in any state.
func ExampleQueue_Cancel() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"}, queue.Task{ID: "2", Due: time.Now().Add(time.Hour)})
	check(err)
	states, err := q.Cancel(ctx, "1", "2", "3")
	check(err)
	fmt.Printf("%q\n", states)
	// Output: ["ready" "delayed" ""]
}

// Tasks of a state are listed page by page.
func ExampleQueue_List() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1", Type: "mail"}, queue.Task{ID: "2", Type: "mail"}, queue.Task{ID: "3", Type: "invoice"})
	check(err)
	ready := queue.Query{State: queue.StateReady, Limit: 2}
	for {
		page, err := q.List(ctx, ready)
		check(err)
		for _, t := range page.Tasks {
			fmt.Println(t.ID, t.Type)
		}
		if ready.After = page.Next; ready.After == (queue.Place{}) {
			return
		}
	}
	// Output:
	// 1 mail
	// 2 mail
	// 3 invoice
}

// After a key was deleted by hand, Verify finds the tasks and makes them ready again.
func ExampleQueue_Verify() {
	q, rdb, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"})
	check(err)
	check(rdb.Del(ctx, "shop:{mail}:ready").Err())
	report, err := q.Verify(ctx, true)
	check(err)
	fmt.Println("lost:", report.Lost)
	report, err = q.Verify(ctx, false)
	check(err)
	fmt.Println("clean:", report.Clean())
	// Output:
	// lost: [1]
	// clean: true
}

// Completing a task and adding its follow-up task is one step.
func ExampleQueue_Complete() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "pay-1"})
	check(err)
	f, err := q.Dequeue(ctx, 1)
	check(err)
	status, err := q.Complete(ctx, queue.Completion{Task: f.Tasks[0], Next: []queue.Task{{ID: "ship-1"}}})
	check(err)
	fmt.Println(status)
	f, err = q.Dequeue(ctx, 1)
	check(err)
	fmt.Println(f.Tasks[0].ID)
	// Output:
	// [ok]
	// ship-1
}

// Three concurrent tasks, each with its own context and acknowledgement.
func ExampleQueue_RunEach() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx, stop := context.WithCancel(context.Background())

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"}, queue.Task{ID: "2", MaxAttempts: 1}, queue.Task{ID: "3"})
	check(err)
	var began atomic.Int32
	check(q.RunEach(ctx, func(_ context.Context, t queue.Leased) error {
		if began.Add(1) == 3 {
			stop() // those that run may finish
		}
		if t.ID == "2" {
			return errors.New("no such user")
		}
		return nil
	}, queue.RunConfig{Workers: 3}))
	s, err := q.Stats(context.Background())
	check(err)
	found, err := q.List(context.Background(), queue.Query{IDs: []string{"2"}})
	check(err)
	fmt.Println(s.Ready, s.Leased, s.Dead, found.Tasks[0].Reason)
	// Output:
	// 0 0 1 no such user
}

// The counters cover all processes since the queue was created.
func ExampleQueue_Stats() {
	q, _, closeAll := exampleQueue()
	defer closeAll()
	ctx := context.Background()

	_, err := q.Enqueue(ctx, queue.Task{ID: "1"}, queue.Task{ID: "2"}, queue.Task{ID: "3"})
	check(err)
	f, err := q.Dequeue(ctx, 2)
	check(err)
	_, err = q.Ack(ctx, f.Tasks[0])
	check(err)
	_, err = q.Reject(ctx, queue.Rejection{Task: f.Tasks[1], Dead: true, Reason: "no such user"})
	check(err)
	s, err := q.Stats(ctx)
	check(err)
	fmt.Println("waiting:", s.Ready, "processed:", s.Processed, "failed:", s.Failed, "died:", s.Died)
	fmt.Println("taken:", s.Waits.Total(), "within ten minutes:", s.Waits.Quantile(0.99) < 10*time.Minute)
	// Output:
	// waiting: 1 processed: 1 failed: 1 died: 1
	// taken: 2 within ten minutes: true
}
