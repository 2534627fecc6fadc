package queue_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

// TestQueue_MemoryFullConfigured: a Redis that refuses what needs memory can be
// worked off with limits and retention too.
func TestQueue_MemoryFullConfigured(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := redis.NewClient(redistest.Options(srv.Addr()))
	defer closeClient(t, rdb)
	ctx := testContext(t)
	prefix := redistest.Prefix(t)
	q := newQueue(t, rdb, queue.Config{
		Prefix: prefix, MaxLeased: 5, Rate: 1000, Burst: 4, KeepDone: time.Hour, MaxDone: 6,
	})
	tasks := numbered(30)
	enqueue(t, q, tasks...)
	if err := rdb.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if status, err := q.Enqueue(ctx, queue.Task{ID: "no room"}); err == nil {
		t.Fatalf("enqueue without memory: %v", status)
	}
	for done := 0; done < len(tasks); {
		f, err := q.Dequeue(ctx, 3)
		if err != nil {
			t.Fatalf("after %d: %v", done, err)
		}
		for i, l := range f.Tasks {
			if (done+i)%2 == 0 {
				status, err := q.Ack(ctx, l)
				wantStatus(t, status, err, queue.Done)
			} else {
				wantComplete(t, q, queue.Done, l)
			}
		}
		done += len(f.Tasks)
		if len(f.Tasks) == 0 && f.Next > 0 {
			if err := q.Wait(ctx, f.Next); err != nil {
				t.Fatal(err)
			}
		}
	}
	wantStats(t, q, queue.Stats{Done: 6})
	wantClean(t, q)
}
