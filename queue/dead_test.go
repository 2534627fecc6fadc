package queue_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

func bury(t testing.TB, q *queue.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		enqueue(t, q, queue.Task{ID: id, Payload: []byte("body of " + id)})
		reject(t, q, queue.Rejection{Task: take(t, q, id)[0], Dead: true, Reason: "reason of " + id})
	}
}

func TestQueue_Dead(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		ctx := testContext(t)
		bury(t, q, "a", "b", "c")
		seen := make(map[string]bool)
		for offset := range 3 {
			page, err := q.Dead(ctx, offset, 1)
			if err != nil || len(page) != 1 {
				t.Fatalf("%v, %v", page, err)
			}
			d := page[0]
			if d.Reason != "reason of "+d.ID || string(d.Payload) != "body of "+d.ID || d.Attempt != 1 {
				t.Fatalf("dead letter %+v", d)
			}
			seen[d.ID] = true
		}
		if len(seen) != 3 {
			t.Fatalf("pages show %v", seen)
		}
		if page, err := q.Dead(ctx, 3, 10); err != nil || len(page) != 0 {
			t.Fatalf("past the end: %v, %v", page, err)
		}
		if page, err := q.Dead(ctx, -1, 10); !errors.Is(err, queue.ErrConfig) {
			t.Fatalf("negative offset: %v, %v", page, err)
		}

		if err := q.Retry(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if l := take(t, q, "b")[0]; l.Attempt != 1 || string(l.Payload) != "body of b" {
			t.Fatalf("retried: %+v", l)
		} else {
			ack(t, q, l)
		}
		for _, id := range []string{"a", "c"} {
			if err := q.Discard(ctx, id); err != nil {
				t.Fatal(err)
			}
			wantGone(t, q, id)
		}
		wantKeys(t, rdb, prefix, "clock", "wake")
	})
}

func TestQueue_DeadNotFound(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxLength: 1})
		ctx := testContext(t)
		bury(t, q, "dead")
		enqueue(t, q, queue.Task{ID: "alive"})
		for _, id := range []string{"alive", "never"} {
			if err := q.Retry(ctx, id); !errors.Is(err, queue.ErrTaskNotFound) {
				t.Fatalf("retry %s: %v", id, err)
			}
			if err := q.Discard(ctx, id); !errors.Is(err, queue.ErrTaskNotFound) {
				t.Fatalf("discard %s: %v", id, err)
			}
		}
		if err := q.Retry(ctx, "dead"); !errors.Is(err, queue.ErrFull) {
			t.Fatalf("retry into a full queue: %v", err)
		}
		wantStats(t, q, queue.Stats{Ready: 1, Dead: 1})
	})
}

func TestQueue_DeadTrimmed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxDead: 3})
		// Spread over more than one chunk, and by both ways to die.
		enqueue(t, q, numbered(250)...)
		var back []queue.Rejection
		for _, l := range dequeue(t, q, 250).Tasks {
			back = append(back, queue.Rejection{Task: l, Dead: true})
		}
		if _, err := q.Reject(testContext(t), back...); err != nil {
			t.Fatal(err)
		}
		wantStats(t, q, queue.Stats{Dead: 3})
		for _, hash := range []string{"body", "meta"} {
			if n, err := rdb.HLen(testContext(t), prefix+hash).Result(); err != nil || n != 3 {
				t.Fatalf("%s holds %d, %v; want 3", hash, n, err)
			}
		}
	})
}

func TestQueue_BodyMissing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b", Priority: 3}, queue.Task{ID: "c"})
		if err := rdb.HDel(testContext(t), prefix+"body", "a", "b").Err(); err != nil {
			t.Fatal(err)
		}
		take(t, q, "c")
		for _, id := range []string{"a", "b"} {
			info := get(t, q, id)
			if info.State != queue.StateDead || info.Reason != "body missing" || info.Payload != nil {
				t.Fatalf("task without a body: %+v", info)
			}
		}
		dead, err := q.Dead(testContext(t), 0, 10)
		if err != nil || len(dead) != 2 || dead[0].Payload != nil {
			t.Fatalf("%+v, %v", dead, err)
		}
	})
}

func TestQueue_PayloadEmpty(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		binary := string([]byte{0, 1, 255, '\r', '\n', 0})
		enqueue(t, q, queue.Task{ID: "nil"}, queue.Task{ID: binary, Payload: []byte(binary)})
		l := take(t, q, "nil", binary)
		if l[0].Payload == nil || len(l[0].Payload) != 0 || string(l[1].Payload) != binary {
			t.Fatalf("payloads %q and %q", l[0].Payload, l[1].Payload)
		}
	})
}

func TestQueue_Stats(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		wantStats(t, q, queue.Stats{})
		enqueue(t, q, queue.Task{ID: "a", Priority: 9}, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
		if err := rdb.ZIncrBy(testContext(t), q.EnqueueKeys()[0], -float64(time.Hour.Microseconds()), "a").Err(); err != nil {
			t.Fatal(err)
		}
		s, err := q.Stats(testContext(t))
		if err != nil || s.OldestReady < time.Hour || s.OldestReady > time.Hour+time.Minute {
			t.Fatalf("%+v, %v; want an age of an hour", s, err)
		}
		f := dequeue(t, q, 1)
		if f.Next <= 0 || f.Next > 11*time.Second {
			t.Fatalf("next in %v, want the end of the lease", f.Next)
		}
		wantStats(t, q, queue.Stats{Delayed: 1, Leased: 1})
		ack(t, q, f.Tasks...)
		if f = dequeue(t, q, 1); f.Next < 59*time.Minute || f.Next > time.Hour+time.Second || f.More {
			t.Fatalf("next in %v, want an hour", f.Next)
		}
	})
}

func TestQueue_Scan(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		tasks := numbered(2000)
		enqueue(t, q, tasks...)
		seen := make(map[string]string)
		if err := q.Scan(testContext(t), func(id string, payload []byte) error {
			seen[id] = string(payload)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if seen[task.ID] != string(task.Payload) {
				t.Fatalf("%s has payload %q, want %q", task.ID, seen[task.ID], task.Payload)
			}
		}
		stop := fmt.Errorf("stop")
		if err := q.Scan(testContext(t), func(string, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Fatalf("scan goes on after %v", err)
		}
	})
}
