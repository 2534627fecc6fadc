package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// pair is a queue, the queue for its follow-up tasks, and their prefixes.
func pair(t *testing.T, rdb redis.UniversalClient, first, second queue.Config) (q, f *queue.Queue, prefixes [2]string) {
	t.Helper()
	prefix := redistest.Prefix(t)
	prefixes = [2]string{prefix + "one:", prefix + "two:"}
	second.Prefix = prefixes[1]
	f = newQueue(t, rdb, second)
	first.Prefix, first.Followers = prefixes[0], f
	return newQueue(t, rdb, first), f, prefixes
}

func TestQueue_Followers(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		// The queue itself has no room for follow-up tasks; the other queue has.
		q, f, prefixes := pair(t, rdb, queue.Config{MaxLength: 2}, queue.Config{MaxLength: 4})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		due := serverTime(t, rdb).Add(time.Hour)
		// The id is taken in one queue, and free in the other.
		wantComplete(t, q, queue.StatusOK, l[0], queue.Task{ID: "a", Payload: []byte("2")}, queue.Task{ID: "later", Due: due, Payload: []byte("first")})
		wantStats(t, q, queue.Stats{Leased: 1})
		wantStats(t, f, queue.Stats{Ready: 1, Delayed: 1})
		wantDue(t, f, "later", due)
		got := take(t, f, "a")
		if string(got[0].Payload) != "2" || got[0].Attempt != 1 {
			t.Errorf("%+v", got[0])
		}
		// Three are one too many for the other queue, in which the task itself makes no room.
		before, there := content(t, rdb, prefixes[0]), content(t, rdb, prefixes[1])
		wantComplete(t, q, queue.StatusFull, l[1], queue.Task{ID: "x"}, queue.Task{ID: "y", Due: due}, queue.Task{ID: "z"})
		wantContent(t, rdb, prefixes[0], before)
		wantContent(t, rdb, prefixes[1], there)
		// A task that is already in the queue counts as added and is not changed. A new id is added once.
		wantAll(t, ack(t, f, got...), queue.StatusOK)
		wantComplete(t, q, queue.StatusOK, l[1], queue.Task{ID: "later", Payload: []byte("second")},
			queue.Task{ID: "new", Payload: []byte("first")}, queue.Task{ID: "new", Payload: []byte("second")})
		wantStats(t, q, queue.Stats{})
		wantStats(t, f, queue.Stats{Ready: 1, Delayed: 1})
		wantDue(t, f, "later", due)
		for _, id := range []string{"later", "new"} {
			if info := get(t, f, id); string(info.Payload) != "first" {
				t.Errorf("%s: %+v, want the first payload", id, info)
			}
		}
		// A repeat adds nothing.
		wantComplete(t, q, queue.StatusMissing, l[1], queue.Task{ID: "more"})
		wantStats(t, f, queue.Stats{Ready: 1, Delayed: 1})
	})
}

// TestQueue_Followers_Wake: a follow-up task wakes a worker of the other queue.
func TestQueue_Followers_Wake(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q, f, _ := pair(t, rdb, queue.Config{}, queue.Config{})
		followed := make(chan string, 10)
		// On their own they would check the queue only after the test.
		idle := queue.RunConfig{Workers: 1, MaxIdle: time.Hour, OnError: func(err error) { t.Log(err) }}
		startEach(t, f, func(_ context.Context, task queue.Leased) error {
			followed <- task.ID
			return nil
		}, idle)
		startEach(t, q, func(_ context.Context, task queue.Leased) error {
			return queue.Then(queue.Task{ID: "after " + task.ID}, queue.Task{ID: "long after " + task.ID, Due: time.Now().Add(50 * time.Millisecond)})
		}, idle)
		for _, id := range []string{"a", "b"} {
			enqueue(t, q, queue.Task{ID: id})
			for _, want := range []string{"after " + id, "long after " + id} {
				if got := receive(t, want, followed); got != want {
					t.Fatalf("%q came, want %q", got, want)
				}
			}
		}
	})
}
