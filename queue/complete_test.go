package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func wantComplete(t testing.TB, q *queue.Queue, want queue.Status, task queue.Leased, next ...queue.Task) {
	t.Helper()
	status, err := q.Complete(await.Context(t), queue.Completion{Task: task, Next: next})
	wantStatus(t, status, err, want)
}

// wantDue fails unless the task is delayed until then, in whole milliseconds, rounded up.
func wantDue(t testing.TB, q *queue.Queue, id string, due time.Time) {
	t.Helper()
	info := get(t, q, id)
	if !info.At.Equal(due.Add(time.Millisecond-1).Truncate(time.Millisecond)) || info.State != queue.StateDelayed {
		t.Errorf("%+v, want it due at %v", info, due)
	}
}

func TestQueue_Complete(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		due := serverTime(t, rdb).Add(time.Hour)
		// A follow-up task may have the id of the task that it follows.
		wantComplete(t, q, queue.StatusOK, l[0],
			queue.Task{ID: "later", Due: due}, queue.Task{ID: "a", Type: "second", Payload: []byte("2")},
			queue.Task{ID: "last"}, queue.Task{ID: "urgent", Priority: 9})
		wantStats(t, q, queue.Stats{Ready: 3, Delayed: 1, Leased: 1})
		wantDue(t, q, "later", due)
		wantComplete(t, q, queue.StatusOK, l[1])
		wantGone(t, q, "b")
		tasks := take(t, q, "urgent", "a", "last")
		if tasks[1].Attempt != 1 || tasks[1].Type != "second" || string(tasks[1].Payload) != "2" {
			t.Fatalf("successor %+v", tasks[1])
		}
		for i := range tasks {
			wantComplete(t, q, queue.StatusOK, tasks[i])
		}
		status, err := q.RunNow(await.Context(t), time.Time{}, "later")
		wantStatus(t, status, err, queue.StatusOK)
		wantComplete(t, q, queue.StatusOK, take(t, q, "later")[0])
		wantStats(t, q, queue.Stats{})
	})
}

// TestQueue_CompleteRefused: without the lease no follow-up task is added.
func TestQueue_CompleteRefused(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		ack(t, q, l[1])
		expire(t, rdb, q, "a")
		again := take(t, q, "a")[0]
		before := content(t, rdb, q.Prefix())
		next := []queue.Task{{ID: "next"}, {ID: "more", Due: time.Now().Add(time.Hour)}}
		status, err := q.Complete(await.Context(t), queue.Completion{Task: l[0], Next: next}, queue.Completion{Task: l[1], Next: next},
			queue.Completion{Task: queue.Leased{ID: "never", Token: l[0].Token}, Next: next})
		wantStatus(t, status, err, queue.StatusStale, queue.StatusMissing, queue.StatusMissing)
		wantContent(t, rdb, q.Prefix(), before)
		// Each completion of a call is independent.
		status, err = q.Complete(await.Context(t), queue.Completion{Task: l[0], Next: next}, queue.Completion{Task: again, Next: next})
		wantStatus(t, status, err, queue.StatusStale, queue.StatusOK)
		wantStats(t, q, queue.Stats{Ready: 1, Delayed: 1})
	})
}

// TestQueue_CompleteOverfull: after the bound was lowered, a task without follow-up tasks
// needs no room.
func TestQueue_CompleteOverfull(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		enqueue(t, newQueue(t, rdb, queue.Config{Prefix: prefix}), queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"}, queue.Task{ID: "d"})
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLength: 1})
		l := take(t, q, "a", "b", "c", "d")
		wantComplete(t, q, queue.StatusOK, l[0])
		wantComplete(t, q, queue.StatusFull, l[1], queue.Task{ID: "next"}, queue.Task{ID: "next 2"})
	})
}

// TestQueue_CompleteRoom: each completion of a call gets the room that those before it have left.
func TestQueue_CompleteRoom(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		x, y := queue.Task{ID: "x"}, queue.Task{ID: "y"}
		q := newQueue(t, rdb, queue.Config{MaxLength: 2})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		status, err := q.Complete(await.Context(t), queue.Completion{Task: l[0]}, queue.Completion{Task: l[1], Next: []queue.Task{x, y}})
		wantStatus(t, status, err, queue.StatusOK, queue.StatusOK)
		wantStats(t, q, queue.Stats{Ready: 2})

		q, f, _ := pair(t, rdb, queue.Config{}, queue.Config{MaxLength: 1})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l = take(t, q, "a", "b")
		status, err = q.Complete(await.Context(t), queue.Completion{Task: l[0], Next: []queue.Task{x}}, queue.Completion{Task: l[1], Next: []queue.Task{y}})
		wantStatus(t, status, err, queue.StatusOK, queue.StatusFull)
		wantStats(t, q, queue.Stats{Leased: 1})
		wantStats(t, f, queue.Stats{Ready: 1})
	})
}

// TestQueue_CompleteMany: in several script calls each task gets its own follow-up tasks.
func TestQueue_CompleteMany(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, numbered(40)...)
		var all []queue.Completion
		for i, l := range dequeue(t, q, 40).Tasks {
			c := queue.Completion{Task: l}
			for k := range i % 3 {
				c.Next = append(c.Next, queue.Task{ID: fmt.Sprintf("%d.%d", i, k)})
			}
			all = append(all, c)
		}
		for k := range 64 {
			all[39].Next = append(all[39].Next, queue.Task{ID: fmt.Sprintf("39 %d", k)})
		}
		status, err := q.Complete(await.Context(t), all...)
		if err != nil || len(status) != 40 || slices.ContainsFunc(status, func(s queue.Status) bool { return s != queue.StatusOK }) {
			t.Fatalf("%v, %v", status, err)
		}
		var got, want []string
		for _, c := range all {
			for _, n := range c.Next {
				want = append(want, n.ID)
			}
		}
		got = infoNames(list(t, q, queue.StateReady))
		if !slices.Equal(got, want) {
			t.Fatalf("ready %v, want %v", got, want)
		}
		wantStats(t, q, queue.Stats{Ready: len(want)})
		one := queue.Completion{Task: take(t, q, want[0])[0], Next: make([]queue.Task, 65)}
		if status, err := q.Complete(await.Context(t), one); !errors.Is(err, queue.ErrInvalidTask) || status[0] != queue.StatusUnknown {
			t.Fatalf("65 follow: %v, %v", status, err)
		}
	})
}
