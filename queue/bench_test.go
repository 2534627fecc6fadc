package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// BenchmarkQueue_RedisCPU reports what one task costs in the server's own
// script time, by INFO commandstats: for enqueue, and for dequeue with
// acknowledge. One operation is one batch through all three.
func BenchmarkQueue_RedisCPU(b *testing.B) {
	for _, batch := range []int{1, 16, 128, 256, 512} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			rdb := redistest.Redis(b)
			q := newQueue(b, rdb, queue.Config{Lease: time.Hour})
			backlog := make([]queue.Task, 10_000)
			for i := range backlog {
				backlog[i] = task(b)
			}
			enqueue(b, q, backlog...)
			// Under load other workers always hold leases; a sorted set that
			// empties between two batches would be another data structure.
			if f := dequeue(b, q, 512); len(f.Tasks) != 512 {
				b.Fatalf("leased %d tasks", len(f.Tasks))
			}
			var add, rest float64
			ctx := context.Background()
			for b.Loop() {
				tasks := make([]queue.Task, batch)
				for i := range tasks {
					tasks[i] = task(b)
				}
				t0 := scriptTime(b, rdb)
				if _, err := q.Enqueue(ctx, tasks...); err != nil {
					b.Fatal(err)
				}
				t1 := scriptTime(b, rdb)
				f, err := q.Dequeue(ctx, batch)
				if err != nil {
					b.Fatal(err)
				}
				if _, err = q.Ack(ctx, f.Tasks...); err != nil {
					b.Fatal(err)
				}
				add += t1 - t0
				rest += scriptTime(b, rdb) - t1
			}
			tasks := float64(b.N) * float64(batch)
			b.ReportMetric(add/tasks, "enqueue-us/task")
			b.ReportMetric(rest/tasks, "dequeue+ack-us/task")
		})
	}
}

// BenchmarkHotPath_DequeueAck leases two tasks with the orders of 100 purchases each, and
// acknowledges them.
func BenchmarkHotPath_DequeueAck(b *testing.B) {
	const tasks, entries = 2, 100
	q := newQueue(b, redistest.Volatile(b), queue.Config{Lease: time.Hour})
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for range tasks {
			t := task(b)
			t.Payload, t.Entries = bytes.Repeat([]byte("x"), 150*entries), entries
			enqueue(b, q, t)
		}
		b.StartTimer()
		f, err := q.Dequeue(ctx, tasks*entries)
		if err != nil || len(f.Tasks) != tasks {
			b.Fatal(len(f.Tasks), err)
		}
		if _, err := q.Ack(ctx, f.Tasks...); err != nil {
			b.Fatal(err)
		}
	}
}

// task is about as large as an order.
func task(b *testing.B) queue.Task {
	b.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		b.Fatal(err)
	}
	return queue.Task{ID: id.String(), Payload: []byte(strings.Repeat("x", 200))}
}

// scriptTime is the total time of EVALSHA on the server, in microseconds.
func scriptTime(b *testing.B, rdb *redis.Client) float64 {
	b.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	_, line, ok := strings.Cut(info, "cmdstat_evalsha:")
	if !ok {
		b.Fatal("no script was run")
	}
	var n, usec float64
	if _, err := fmt.Sscanf(line, "calls=%f,usec=%f", &n, &usec); err != nil {
		b.Fatal(err)
	}
	return usec
}
