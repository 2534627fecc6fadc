package queue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/queue"
)

// clockedQueue is an empty queue on a Redis whose clock the example sets.
func clockedQueue(cfg queue.Config) (q *queue.Queue, setClock func(time.Time), closeAll func()) {
	server, err := miniredis.Run() // stands in for a Redis
	check(err)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
	cfg.Prefix = "shop:{mail}:"
	q, err = queue.New(rdb, cfg)
	check(err)
	return q, server.SetTime, func() {
		check(rdb.Close())
		server.Close()
	}
}

// noon is when the examples begin, by the clock of Redis.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// A delayed task waits in a sorted set of its own, scored by its due time in
// milliseconds. The clock of Redis decides when it is due, to the millisecond.
func ExampleTask_due() {
	q, setClock, closeAll := clockedQueue(queue.Config{})
	defer closeAll()
	ctx := context.Background()

	setClock(noon)
	_, err := q.Enqueue(ctx, queue.Task{ID: "expire-order-1", Due: noon.Add(15 * time.Minute)})
	check(err)
	for _, wait := range []time.Duration{0, 15*time.Minute - time.Millisecond, 15 * time.Minute} {
		setClock(noon.Add(wait))
		f, err := q.Dequeue(ctx, 1)
		check(err)
		fmt.Println("after", wait, "tasks:", len(f.Tasks))
	}
	// Output:
	// after 0s tasks: 0
	// after 14m59.999s tasks: 0
	// after 15m0s tasks: 1
}

// ZPOPMIN loses the task when its worker crashes. Here a task is leased: when the
// lease ends, the next worker gets the task, and the first can no longer
// acknowledge it.
func ExampleQueue_Dequeue() {
	q, setClock, closeAll := clockedQueue(queue.Config{Lease: 10 * time.Second})
	defer closeAll()
	ctx := context.Background()

	setClock(noon)
	_, err := q.Enqueue(ctx, queue.Task{ID: "mail-1"})
	check(err)
	crashed, err := q.Dequeue(ctx, 1)
	check(err)

	setClock(noon.Add(10 * time.Second)) // the worker is gone, and its lease ends
	next, err := q.Dequeue(ctx, 1)
	check(err)
	fmt.Println(next.Tasks[0].ID, "attempt", next.Tasks[0].Attempt)

	late, err := q.Ack(ctx, crashed.Tasks...)
	check(err)
	current, err := q.Ack(ctx, next.Tasks...)
	check(err)
	fmt.Println("first worker:", late, "second worker:", current)
	// Output:
	// mail-1 attempt 2
	// first worker: [stale] second worker: [ok]
}

// A task that fails every time is retried with a growing delay, and becomes a
// dead letter after its last attempt. It does not stop the tasks behind it.
func ExampleQueue_List_dead() {
	q, setClock, closeAll := clockedQueue(queue.Config{MaxAttempts: 2})
	defer closeAll()
	ctx := context.Background()

	setClock(noon)
	_, err := q.Enqueue(ctx, queue.Task{ID: "poison"}, queue.Task{ID: "mail-1"})
	check(err)
	for attempt := range 2 {
		setClock(noon.Add(time.Duration(attempt) * time.Minute))
		f, err := q.Dequeue(ctx, 2)
		check(err)
		for _, t := range f.Tasks {
			if t.ID != "poison" {
				_, err = q.Ack(ctx, t)
				fmt.Println(t.ID, "is done")
			} else {
				_, err = q.Reject(ctx, queue.Rejection{Task: t, Delay: -1, Reason: "cannot be parsed"}) // -1: the queue's backoff
			}
			check(err)
		}
	}
	dead, err := q.List(ctx, queue.Query{State: queue.StateDead, Limit: 10})
	check(err)
	for _, d := range dead.Tasks {
		fmt.Println("dead:", d.ID, "after attempt", d.Attempt, "-", d.Reason)
	}
	// Output:
	// mail-1 is done
	// dead: poison after attempt 2 - cannot be parsed
}
