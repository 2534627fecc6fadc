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

// BenchmarkDepth_BareCommands reports what the smallest queue costs that has order and unique ids: a member of
// a sorted set and a field of a hash for each task, by bare commands with 64 tasks each. The tasks are worked off
// in their order while as many are added. The figures are microseconds of each command per task, by INFO
// commandstats; with many pending, the entries of a task are no longer in the processor's caches.
func BenchmarkDepth_BareCommands(b *testing.B) {
	for _, pending := range []int{1_000, 1_000_000} {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			const perCall = 64
			rdb := redistest.Volatile(b)
			ctx := b.Context()
			var ids []string // pending, oldest first
			added := 0
			add := func(n int) []redis.Cmder {
				known, set, hash := []any{"hmget", "hash"}, []any{"zadd", "set"}, []any{"hset", "hash"}
				for range n {
					t := task(b)
					added++
					ids = append(ids, t.ID)
					known, set, hash = append(known, t.ID), append(set, added, t.ID), append(hash, t.ID, t.Payload)
				}
				return commands(known, set, hash)
			}
			for added < pending {
				if err := pipelined(ctx, rdb, add(500)); err != nil {
					b.Fatal(err)
				}
			}
			before := commandTimes(b, rdb)
			for b.Loop() {
				all := add(perCall)
				read, remove := []any{"hmget", "hash"}, []any{"hdel", "hash"}
				for _, id := range ids[:perCall] {
					read, remove = append(read, id), append(remove, id)
				}
				ids = ids[perCall:]
				all = append(all, commands([]any{"zrange", "set", 0, perCall - 1},
					[]any{"zremrangebyrank", "set", 0, perCall - 1}, read, remove)...)
				if err := pipelined(ctx, rdb, all); err != nil {
					b.Fatal(err)
				}
			}
			after, sum := commandTimes(b, rdb), 0.0
			for _, name := range []string{"hmget", "zadd", "hset", "zrange", "zremrangebyrank", "hdel"} {
				us := (after[name] - before[name]) / float64(b.N) / perCall
				b.ReportMetric(us, name+"-us/task")
				sum += us
			}
			b.ReportMetric(sum, "us/task")
		})
	}
}

func commands(all ...[]any) []redis.Cmder {
	out := make([]redis.Cmder, len(all))
	for i, args := range all {
		out[i] = redis.NewCmd(context.Background(), args...)
	}
	return out
}

func pipelined(ctx context.Context, rdb *redis.Client, all []redis.Cmder) error {
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, c := range all {
			if err := p.Process(ctx, c); err != nil {
				return err
			}
		}
		return nil
	})
	return err
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
	usec, ok := commandTimes(b, rdb)["evalsha"]
	if !ok {
		b.Fatal("no script was run")
	}
	return usec
}

// commandTimes is the total time of each command on the server, in microseconds.
func commandTimes(b *testing.B, rdb *redis.Client) map[string]float64 {
	b.Helper()
	info, err := rdb.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	out := make(map[string]float64)
	for name, stats := range info["Commandstats"] {
		var n, usec float64
		if _, err := fmt.Sscanf(stats, "calls=%f,usec=%f", &n, &usec); err != nil {
			b.Fatal(err)
		}
		out[strings.TrimPrefix(name, "cmdstat_")] = usec
	}
	return out
}
