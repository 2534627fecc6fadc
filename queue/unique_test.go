package queue_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

// wantRefused fails unless the task is refused as a duplicate and leaves nothing.
func wantRefused(t testing.TB, q *queue.Queue, task queue.Task) {
	t.Helper()
	status, err := q.Enqueue(testContext(t), task)
	if err != nil || !slices.Equal(status, []queue.EnqueueStatus{queue.StatusDuplicate}) {
		t.Fatalf("%+v: %v, %v; want a duplicate", task, status, err)
	}
}

// wantMarks fails unless exactly so many unique keys are taken.
func wantMarks(t testing.TB, rdb redis.UniversalClient, prefix string, want int64) {
	t.Helper()
	if n, err := rdb.HLen(testContext(t), prefix+"unique").Result(); err != nil || n != want {
		t.Fatalf("%d unique keys are taken, %v; want %d", n, err, want)
	}
}

// serverTime is the server's clock, which on a cluster is one of several on this machine.
func serverTime(t testing.TB, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(testContext(t)).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

func TestQueue_Unique(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		second := queue.Task{ID: "b", Unique: "k"}

		enqueue(t, q, queue.Task{ID: "a", Unique: "k"}, queue.Task{ID: "other", Unique: "K"})
		wantRefused(t, q, second)
		wantRefused(t, q, queue.Task{ID: "c", Unique: "k", UniqueFor: time.Hour, Due: time.Now().Add(time.Hour)})
		l := take(t, q, "a")[0]
		wantRefused(t, q, second)
		reject(t, q, queue.Rejection{Task: l, Delay: time.Hour})
		wantRefused(t, q, second)
		if err := rdb.ZAdd(testContext(t), q.EnqueueKeys()[1], redis.Z{Score: 1, Member: "a"}).Err(); err != nil {
			t.Fatal(err)
		}
		ack(t, q, take(t, q, "a", "other")[1:]...)
		enqueue(t, q, queue.Task{ID: "d", Unique: "K"}) // free after the acknowledgement
		expire(t, rdb, q, "a")
		l = take(t, q, "a")[0]
		wantRefused(t, q, second)
		if s := ack(t, q, l); s[0] != queue.Done {
			t.Fatalf("ack: %v", s)
		}
		wantGone(t, q, "b")
		enqueue(t, q, second)
		ack(t, q, take(t, q, "d", "b")...)
		wantMarks(t, rdb, prefix, 0)
		wantStats(t, q, queue.Stats{})
	})
}

// TestQueue_UniqueInOneCall: tasks of one call count against each other.
func TestQueue_UniqueInOneCall(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		status, err := q.Enqueue(testContext(t), queue.Task{ID: "a", Unique: "k"}, queue.Task{ID: "b", Unique: "k"},
			queue.Task{ID: "c", Unique: "l", Due: time.Now().Add(time.Hour)}, queue.Task{ID: "d", Unique: "l"}, queue.Task{ID: "e"})
		want := []queue.EnqueueStatus{queue.StatusOK, queue.StatusDuplicate, queue.StatusOK, queue.StatusDuplicate, queue.StatusOK}
		if err != nil || !slices.Equal(status, want) {
			t.Fatalf("%v, %v; want %v", status, err, want)
		}
		wantStats(t, q, queue.Stats{Ready: 2, Delayed: 1})
	})
}

func TestQueue_UniqueDead(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := testContext(t)
		die := func(t *testing.T, q *queue.Queue, task queue.Task) {
			t.Helper()
			enqueue(t, q, task)
			reject(t, q, queue.Rejection{Task: take(t, q, task.ID)[0], Dead: true})
		}
		for name, free := range map[string]func(q *queue.Queue){
			"discard": func(q *queue.Queue) {
				if err := q.Discard(ctx, "a"); err != nil {
					t.Fatal(err)
				}
			},
			"retry and ack": func(q *queue.Queue) {
				if err := q.Retry(ctx, "a"); err != nil {
					t.Fatal(err)
				}
				wantRefused(t, q, queue.Task{ID: "b", Unique: "k"})
				ack(t, q, take(t, q, "a")...)
			},
			"trim": func(q *queue.Queue) {
				die(t, q, queue.Task{ID: "late 1"})
				wantRefused(t, q, queue.Task{ID: "b", Unique: "k"})
				// Of letters of one millisecond the order is that of their ids.
				die(t, q, queue.Task{ID: "late 2"})
			},
		} {
			q := newQueue(t, rdb, queue.Config{MaxDead: 2})
			die(t, q, queue.Task{ID: "a", Unique: "k"})
			wantRefused(t, q, queue.Task{ID: "b", Unique: "k"})
			free(q)
			wantGone(t, q, "a")
			status, err := q.Enqueue(ctx, queue.Task{ID: "b", Unique: "k"})
			if err != nil || status[0] != queue.StatusOK {
				t.Fatalf("after %s: %v, %v", name, status, err)
			}
		}
	})
}

// TestQueue_UniqueFreeOnDeath: each way to die frees the key, and a retry wants it back.
func TestQueue_UniqueFreeOnDeath(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for how, die := range map[string]func(q *queue.Queue, l queue.Leased){
			"discarded": func(q *queue.Queue, l queue.Leased) { reject(t, q, queue.Rejection{Task: l, Dead: true}) },
			"failed":    func(q *queue.Queue, l queue.Leased) { reject(t, q, queue.Rejection{Task: l}) },
			"expired": func(q *queue.Queue, _ queue.Leased) {
				expire(t, rdb, q, "a")
				dequeue(t, q, 1)
			},
			"body missing": func(q *queue.Queue, l queue.Leased) {
				reject(t, q, queue.Rejection{Task: l, Uncounted: true})
				if err := rdb.HDel(testContext(t), q.EnqueueKeys()[3], "a").Err(); err != nil {
					t.Fatal(err)
				}
				dequeue(t, q, 1)
			},
		} {
			prefix := redistest.Prefix(t)
			q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxAttempts: 1})
			enqueue(t, q, queue.Task{ID: "a", Unique: "k", UniqueFreeOnDeath: true})
			l := take(t, q, "a")[0]
			wantRefused(t, q, queue.Task{ID: "b", Unique: "k"})
			die(q, l)
			if info := get(t, q, "a"); info.State != queue.StateDead {
				t.Fatalf("%s: %+v, want dead", how, info)
			}
			wantMarks(t, rdb, prefix, 0)
			enqueue(t, q, queue.Task{ID: "b", Unique: "k"})

			before := get(t, q, "a")
			if err := q.Retry(testContext(t), "a"); !errors.Is(err, queue.ErrDuplicate) {
				t.Fatalf("%s: retry: %v, want ErrDuplicate", how, err)
			}
			if after := get(t, q, "a"); after.State != before.State || after.Attempt != before.Attempt ||
				after.Reason != before.Reason || !after.At.Equal(before.At) {
				t.Fatalf("%s: a refused retry changed %+v to %+v", how, before, after)
			}
			wantStats(t, q, queue.Stats{Ready: 1, Dead: 1})
			// What the dead letter does not hold it does not free.
			if err := q.Discard(testContext(t), "a"); err != nil {
				t.Fatal(err)
			}
			wantRefused(t, q, queue.Task{ID: "c", Unique: "k"})
			ack(t, q, take(t, q, "b")...)
			wantMarks(t, rdb, prefix, 0)
		}
	})
}

// TestQueue_UniqueRetryTakes: a retried task has the key again.
func TestQueue_UniqueRetryTakes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a", Unique: "k", UniqueFreeOnDeath: true})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true})
		if err := q.Retry(testContext(t), "a"); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, q, queue.Task{ID: "b", Unique: "k"})
		ack(t, q, take(t, q, "a")...)
		enqueue(t, q, queue.Task{ID: "b", Unique: "k"})
	})
}

// TestQueue_UniqueFor: the window outlasts the task in every way, and a window ends by itself.
func TestQueue_UniqueFor(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		second := queue.Task{ID: "b", Unique: "long"}
		enqueue(t, q, queue.Task{ID: "a", Unique: "long", UniqueFor: time.Hour, UniqueFreeOnDeath: true})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true})
		wantRefused(t, q, second)
		if err := q.Retry(testContext(t), "a"); err != nil {
			t.Fatal(err)
		}
		ack(t, q, take(t, q, "a")...)
		wantRefused(t, q, second)
		enqueue(t, q, queue.Task{ID: "a", Unique: "other"}) // the id is free, its key is not
		ack(t, q, take(t, q, "a")...)
		wantRefused(t, q, second)

		const window = 40 * time.Millisecond
		began := serverTime(t, rdb)
		enqueue(t, q, queue.Task{ID: "c", Unique: "short", UniqueFor: window})
		ack(t, q, take(t, q, "c")...)
		waitFor(t, func() bool {
			status, err := q.Enqueue(testContext(t), queue.Task{ID: "d", Unique: "short"})
			if err != nil {
				t.Fatal(err)
			}
			return status[0] == queue.StatusOK
		})
		if after := serverTime(t, rdb).Sub(began); after < window {
			t.Fatalf("the key was free after %v, want %v", after, window)
		}
		wantRefused(t, q, queue.Task{ID: "e", Unique: "short"})
		ack(t, q, take(t, q, "d")...)
		wantMarks(t, rdb, prefix, 1) // the long window's
	})
}

// TestQueue_UniqueForLeftOver: a key whose window is over and not yet swept
// belongs to its next owner until that one is done.
func TestQueue_UniqueForLeftOver(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		var tasks []queue.Task
		for i := range 65 { // one more than a call sweeps
			tasks = append(tasks, queue.Task{ID: fmt.Sprintf("%02d", i), Unique: fmt.Sprintf("k%02d", i), UniqueFor: time.Millisecond})
		}
		enqueue(t, q, tasks...)
		over := serverTime(t, rdb).Add(5 * time.Millisecond)
		waitFor(t, func() bool { return serverTime(t, rdb).After(over) })
		// Of keys whose window ends in one millisecond, the sweep begins with the lowest.
		enqueue(t, q, queue.Task{ID: "owner", Unique: "k64"})
		enqueue(t, q, queue.Task{ID: "sweeps", Unique: "another"})
		wantRefused(t, q, queue.Task{ID: "thief", Unique: "k64"})
	})
}

// TestQueue_UniqueForRetry: a window that is over keeps nobody from a retry.
func TestQueue_UniqueForRetry(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a", Unique: "k", UniqueFreeOnDeath: true})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true})
		enqueue(t, q, queue.Task{ID: "b", Unique: "k", UniqueFor: time.Millisecond})
		ack(t, q, take(t, q, "b")...)
		over := serverTime(t, rdb).Add(5 * time.Millisecond)
		waitFor(t, func() bool { return serverTime(t, rdb).After(over) })
		if err := q.Retry(testContext(t), "a"); err != nil {
			t.Fatalf("retry after the window of another: %v", err)
		}
		enqueue(t, q, queue.Task{ID: "sweeps", Unique: "another"})
		wantRefused(t, q, queue.Task{ID: "c", Unique: "k"})
	})
}

// TestQueue_UniqueForEver: the longest duration is a long window, and no mark without an end.
func TestQueue_UniqueForEver(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		enqueue(t, q, queue.Task{ID: "a", Unique: "k", UniqueFor: math.MaxInt64, Timeout: math.MaxInt64})
		l := take(t, q, "a")[0]
		if l.Timeout <= 0 {
			t.Fatalf("timeout %v", l.Timeout)
		}
		ack(t, q, l)
		until, err := rdb.ZScore(testContext(t), prefix+"unique_until", "k").Result()
		if err != nil || until < float64(time.Now().AddDate(100, 0, 0).UnixMilli()) {
			t.Fatalf("the window ends at %v, %v; want in centuries", until, err)
		}
	})
}

// TestQueue_UniqueRefusedLeavesNoMark: an id that is known, and a full queue, take no key.
func TestQueue_UniqueRefusedLeavesNoMark(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLength: 1})
		enqueue(t, q, queue.Task{ID: "a"})
		status, err := q.Enqueue(testContext(t), queue.Task{ID: "a", Unique: "k"}, queue.Task{ID: "a", Unique: "l", UniqueFor: time.Hour},
			queue.Task{ID: "b", Unique: "k"}, queue.Task{ID: "c", Unique: "m", UniqueFor: time.Hour})
		want := []queue.EnqueueStatus{queue.StatusDuplicate, queue.StatusDuplicate, queue.StatusFull, queue.StatusFull}
		if err != nil || !slices.Equal(status, want) {
			t.Fatalf("%v, %v; want %v", status, err, want)
		}
		wantMarks(t, rdb, prefix, 0)
		if n, err := rdb.ZCard(testContext(t), prefix+"unique_until").Result(); err != nil || n != 0 {
			t.Fatalf("%d windows, %v", n, err)
		}
		ack(t, q, take(t, q, "a")...)
		enqueue(t, q, queue.Task{ID: "b", Unique: "k"})
	})
}
