package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func bury(t testing.TB, q *queue.Queue, ids ...string) {
	t.Helper()
	for _, id := range ids {
		enqueue(t, q, queue.Task{ID: id, Payload: []byte("body of " + id)})
		reject(t, q, queue.Rejection{Task: take(t, q, id)[0], Dead: true, Reason: "reason of " + id})
	}
}

// TestQueue_DeadFates: dead letters can be listed, retried and deleted, many in one call.
func TestQueue_DeadFates(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		ctx := await.Context(t)
		bury(t, q, "a", "b", "c", "d")
		for _, d := range list(t, q, queue.StateDead) {
			if d.Reason != "reason of "+d.ID || string(d.Payload) != "body of "+d.ID || d.Attempt != 1 {
				t.Fatalf("dead letter %+v", d)
			}
		}
		enqueue(t, q, queue.Task{ID: "alive"})
		status, err := q.RunNow(ctx, time.Time{}, "d", "alive", "b", "never", "b")
		wantStatus(t, status, err, queue.StatusOK, queue.StatusMissing, queue.StatusOK, queue.StatusMissing, queue.StatusMissing)
		for i, l := range take(t, q, "alive", "d", "b") {
			if l.Attempt != 1 || i > 0 && string(l.Payload) != "body of "+l.ID {
				t.Fatalf("run again: %+v", l)
			}
			ack(t, q, l)
		}
		enqueue(t, q, queue.Task{ID: "alive"})
		status, err = q.DeleteDead(ctx, "a", "alive", "c", "never")
		wantStatus(t, status, err, queue.StatusOK, queue.StatusMissing, queue.StatusOK, queue.StatusMissing)
		wantGone(t, q, "a")
		wantStats(t, q, queue.Stats{Ready: 1})
		wantClean(t, q)
	})
}

// TestQueue_DeadMany: retrying or deleting 512 dead letters is one script call.
func TestQueue_DeadMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		all := numbered(1024)
		enqueue(t, q, all...)
		ids := make([]string, len(all))
		for from := 0; from < len(all); from += 512 {
			back := make([]queue.Rejection, 512)
			for i, l := range dequeue(t, q, 512).Tasks {
				ids[from+i], back[i] = l.ID, queue.Rejection{Task: l, Dead: true}
			}
			if _, err := q.Reject(await.Context(t), back...); err != nil {
				t.Fatal(err)
			}
		}
		var calls atomic.Int64
		other := redistest.Second(t, rdb)
		other.AddHook(tap{seen: func(name string) {
			if name == "evalsha" {
				calls.Add(1)
			}
		}})
		counting := newQueue(t, other, queue.Config{Prefix: q.Prefix()})
		runNow(t, counting, ids[:512]...)
		deleteDead(t, counting, ids[512:]...)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d scripts for two pages", n)
		}
		wantStats(t, q, queue.Stats{Ready: 512})
		wantClean(t, q)
		if first := dequeue(t, q, 3); !slices.Equal(names(first.Tasks), ids[:3]) {
			t.Errorf("took %v, want the order given", names(first.Tasks))
		}
	})
}

// TestQueue_RunNowDelayed: a delayed task runs now, keeps its attempts, and wakes a worker.
func TestQueue_RunNowDelayed(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "retried"}, queue.Task{ID: "low", Due: time.Now().Add(time.Hour), Type: "t"},
			queue.Task{ID: "high", Due: time.Now().Add(2 * time.Hour), Priority: 9})
		reject(t, q, queue.Rejection{Task: take(t, q, "retried")[0], Delay: time.Hour})
		must(t, rdb.Del(await.Context(t), q.EnqueueKeys()[6]).Err())
		runNow(t, q, "low", "retried", "high")
		if n, err := rdb.LLen(await.Context(t), q.EnqueueKeys()[6]).Result(); err != nil || n != 1 {
			t.Errorf("%d wake-ups, %v", n, err)
		}
		l := take(t, q, "high", "low", "retried")
		if l[0].Priority != 9 || l[1].Type != "t" || l[1].Attempt != 1 || l[2].Attempt != 2 {
			t.Errorf("%+v", l)
		}
		wantClean(t, q)
	})
}

// TestQueue_Empty: Empty removes all tasks of one state, in several steps, and no others.
func TestQueue_Empty(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		bury(t, q, "x1", "x2")
		enqueue(t, q, queue.Task{ID: "leased"})
		take(t, q, "leased")
		enqueue(t, q, numbered(1100)...)
		enqueue(t, q, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
		left := queue.Stats{Ready: 1100, Delayed: 1, Leased: 1, Dead: 2}
		for _, step := range []struct {
			state queue.State
			want  int
			clear *int
		}{{queue.StateReady, 1100, &left.Ready}, {queue.StateDead, 2, &left.Dead}, {queue.StateDelayed, 1, &left.Delayed}, {queue.StateReady, 0, &left.Ready}} {
			n, err := q.Empty(await.Context(t), step.state)
			if err != nil || n != step.want {
				t.Fatalf("%s: %d, %v; want %d", step.state, n, err, step.want)
			}
			*step.clear = 0
			wantStats(t, q, left)
			wantClean(t, q)
		}
		for _, state := range []queue.State{queue.StateLeased, "", "done"} {
			if n, err := q.Empty(await.Context(t), state); !errors.Is(err, queue.ErrConfig) || n != 0 {
				t.Errorf("%q: %d, %v; want ErrConfig", state, n, err)
			}
		}
	})
}

func TestQueue_DeadTrimmed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxDead: 3})
		// In more than one chunk, and by rejection as well as by expiry.
		enqueue(t, q, numbered(250)...)
		var back []queue.Rejection
		for _, l := range dequeue(t, q, 250).Tasks {
			back = append(back, queue.Rejection{Task: l, Dead: true})
		}
		if _, err := q.Reject(await.Context(t), back...); err != nil {
			t.Fatal(err)
		}
		wantStats(t, q, queue.Stats{Dead: 3})
		for _, hash := range []string{"body", "meta"} {
			if n, err := rdb.HLen(await.Context(t), q.Prefix()+hash).Result(); err != nil || n != 3 {
				t.Fatalf("%s holds %d, %v; want 3", hash, n, err)
			}
		}
	})
}

// TestQueue_EmptyBounded: Empty ends although tasks are added all the time, and returns how many it removed even if a
// later step fails.
func TestQueue_EmptyBounded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		admin := newQueue(t, rdb, queue.Config{})
		steps := 0
		q := process(t, rdb, queue.Config{Prefix: admin.Prefix()}, tap{lose: func(name string) bool {
			if (name == "evalsha" || name == "eval") && steps < 10 {
				steps++
				more := numbered(600) // more than a step removes
				for i := range more {
					more[i].ID += fmt.Sprint("-", steps)
				}
				enqueue(t, admin, more...)
			}
			return false
		}})
		enqueue(t, admin, numbered(600)...)
		n, err := q.Empty(await.Context(t), queue.StateReady)
		if left := stats(t, admin).Ready; err != nil || n+left != 600*(1+steps) || steps >= 10 {
			t.Errorf("removed %d in %d steps, %v; %d are left", n, steps, err, left)
		}

		calls := 0
		q = process(t, rdb, queue.Config{Prefix: admin.Prefix()}, script{before: func(string) error {
			if calls++; calls > 1 {
				return errRefused
			}
			return nil
		}})
		if n, err := q.Empty(await.Context(t), queue.StateReady); !errors.Is(err, errRefused) || n != 512 {
			t.Errorf("removed %d, %v; want the 512 of the first step and the failure", n, err)
		}
	})
}
