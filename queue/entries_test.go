package queue_test

import (
	"context"
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

// parcels are tasks of so many entries each.
func parcels(prefix string, entries ...int) []queue.Task {
	tasks := make([]queue.Task, len(entries))
	for i, n := range entries {
		tasks[i] = queue.Task{ID: fmt.Sprint(prefix, i), Payload: []byte("p"), Entries: n}
	}
	return tasks
}

func wantEntries(t testing.TB, what string, q *queue.Queue, want int) {
	t.Helper()
	if got := counted(t, q).Entries; got != want {
		t.Errorf("%s: %d entries, want %d", what, got, want)
	}
}

// TestQueue_Entries_MaxLength: the bound counts entries, in every way of adding tasks.
func TestQueue_Entries_MaxLength(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		later := newQueue(t, rdb, queue.Config{Prefix: prefix + "later:", MaxLength: 5})
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLength: 10, Followers: later})
		enqueue(t, q, parcels("a", 6)...)
		if status, err := q.Enqueue(await.Context(t), parcels("b", 5, 4)...); !errors.Is(err, queue.ErrFull) || status[0] != queue.StatusFull || status[1] != queue.StatusOK {
			t.Errorf("with room for 4: %v, %v", status, err)
		}
		wantEntries(t, "full", q, 10)
		got := dequeue(t, q, 6).Tasks
		if len(got) != 1 || got[0].Entries != 6 {
			t.Fatalf("took %+v", got)
		}
		wantComplete(t, q, queue.StatusFull, got[0], parcels("x", 6)...)
		wantComplete(t, q, queue.StatusOK, got[0], parcels("x", 5)...)
		wantEntries(t, "completed", q, 4)
		wantEntries(t, "followers", later, 5)
		if load, err := q.Load(await.Context(t)); err != nil || load.Length != 4 || load.Active != 1 {
			t.Errorf("load %+v, %v", load, err)
		}
		enqueue(t, q, parcels("c", 6)...)
		// Follow-up tasks in the same queue take the place of the task.
		own := newQueue(t, rdb, queue.Config{MaxLength: 10})
		enqueue(t, own, parcels("d", 6, 4)...)
		task := dequeue(t, own, 6).Tasks[0]
		wantComplete(t, own, queue.StatusFull, task, parcels("y", 7)...)
		wantComplete(t, own, queue.StatusOK, task, parcels("y", 6)...)
	})
}

// TestQueue_Entries_Fetch: a fetch takes tasks up to its number of entries, but at least one.
func TestQueue_Entries_Fetch(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, parcels("a", 3, 3, 3, 50, 1, 0)...)
		for _, want := range []int{2, 1, 1, 2, 0} {
			f := dequeue(t, q, 8)
			if len(f.Tasks) != want {
				t.Fatalf("took %+v, want %d tasks", f.Tasks, want)
			}
		}
		many := make([]int, 300)
		enqueue(t, q, parcels("m", many...)...)
		if f := dequeue(t, q, 250); len(f.Tasks) != 250 || f.Tasks[249].ID != "m249" || !f.More {
			t.Errorf("took %d of 300 ordinary tasks, the last of them %+v", len(f.Tasks), f.Tasks[len(f.Tasks)-1])
		}
	})
}

// TestQueue_Entries_Removed: a task's entries are no longer counted once it has left the queue
// in any way.
func TestQueue_Entries_Removed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		q := newQueue(t, rdb, queue.Config{MaxDead: 1})
		enqueue(t, q, parcels("acked", 7, 20)...)
		task := dequeue(t, q, 7).Tasks[0]
		wantStatus(t, ack(t, q, task, task), nil, queue.StatusOK, queue.StatusOK) // counts once
		wantEntries(t, "with one left", q, 20)
		if n := counted(t, q).Processed; n != 7 {
			t.Errorf("%d processed, want 7", n)
		}
		ack(t, q, dequeue(t, q, 20).Tasks...)
		wantEntries(t, "acknowledged", q, 0)
		enqueue(t, q, parcels("cancelled", 7)...)
		if _, err := q.Cancel(ctx, "cancelled0"); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "cancelled", q, 0)
		enqueue(t, q, parcels("emptied", 7, 8)...)
		if _, err := q.Empty(ctx, queue.StateReady); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "emptied", q, 0)
		enqueue(t, q, queue.Task{ID: "later", Entries: 7, Due: time.Now().Add(time.Hour)})
		wantEntries(t, "delayed", q, 7)
		if _, err := q.Empty(ctx, queue.StateDelayed); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "emptied of delayed ones", q, 0)
		enqueue(t, q, parcels("dead", 7, 8)...)
		for _, l := range dequeue(t, q, 20).Tasks {
			reject(t, q, queue.Rejection{Task: l, Dead: true})
		}
		wantEntries(t, "with the last of two dead letters", q, 1)
		if _, err := q.RunNow(ctx, time.Time{}, "dead1"); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "retried", q, 8)
		reject(t, q, queue.Rejection{Task: dequeue(t, q, 20).Tasks[0], Dead: true})
		if _, err := q.DeleteDead(ctx, "dead1"); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, "discarded", q, 0)
	})
}

// TestQueue_Entries_Damaged: a wrong count is corrected once the queue has been empty, and
// tasks can be taken and acknowledged until then.
func TestQueue_Entries_Damaged(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		q := newQueue(t, rdb, queue.Config{MaxLength: 100})
		counts := q.EnqueueKeys()[7]
		enqueue(t, q, parcels("a", 7)...)
		must(t, rdb.HSet(ctx, counts, "extra", 1000).Err())
		if _, err := q.Enqueue(ctx, parcels("b", 1)...); !errors.Is(err, queue.ErrFull) {
			t.Errorf("enqueue by the wrong count: %v", err)
		}
		ack(t, q, dequeue(t, q, 10).Tasks...)
		dequeue(t, q, 10)
		wantEntries(t, "empty", q, 0)
		enqueue(t, q, parcels("c", 7)...)
		must(t, rdb.HDel(ctx, counts, "extra").Err())
		ack(t, q, dequeue(t, q, 10).Tasks...)
		wantEntries(t, "after a count that was too low", q, 0)
		if _, err := q.Enqueue(ctx, parcels("d", 100, 1)...); !errors.Is(err, queue.ErrFull) {
			t.Errorf("enqueue by a count below zero: %v", err)
		}
	})
}

// TestRun_Entries: a handler gets tasks of up to RunConfig.Batch entries; a larger task is a
// batch of its own.
func TestRun_Entries(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, parcels("a", 4, 4, 4, 4, 4, 50, 4, 4, 9, 2)...)
		batches := make(chan []queue.Leased, 20)
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			batches <- tasks
			return nil
		}, queue.RunConfig{Batch: 10, Workers: 1})
		for left := 10; left > 0; {
			tasks := receive(t, "a batch", batches)
			left -= len(tasks)
			entries := 0
			for _, l := range tasks {
				entries += l.Entries
			}
			if entries > 10 && len(tasks) > 1 {
				t.Errorf("%d entries in %d tasks", entries, len(tasks))
			}
		}
		stop()
		wantEntries(t, "done", q, 0)
	})
}

// TestQueue_Split: the tasks of a split take the place of theirs in a full queue, and what was
// done counts as processed.
func TestQueue_Split(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		later := newQueue(t, rdb, queue.Config{Prefix: prefix + "later:"})
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLength: 10, Followers: later})
		enqueue(t, q, parcels("a", 8, 2)...)
		handled := make(chan string, 10)
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i := range tasks {
				handled <- tasks[i].ID
				if tasks[i].ID == "a0" {
					errs[i] = queue.Split([]queue.Task{{ID: "s0"}, {ID: "s1"}, {ID: "s2"}}, queue.Task{ID: "next"})
				}
			}
			return errs
		}, queue.RunConfig{})
		got := map[string]bool{}
		for range 5 {
			got[receive(t, "a task", handled)] = true
		}
		stop()
		if len(got) != 5 || !got["s0"] || !got["s2"] {
			t.Errorf("handled %v", got)
		}
		if st := counted(t, q); st.Processed != 10 || st.Split != 3 || st.Entries != 0 {
			t.Errorf("%d processed, %d split off, %d entries left; want 10, 3 and 0", st.Processed, st.Split, st.Entries)
		}
		wantEntries(t, "followers", later, 1)
		enqueue(t, q, parcels("c", 5, 2)...)
		all := dequeue(t, q, 7).Tasks
		status, err := q.Complete(await.Context(t), queue.Completion{Task: all[0], Split: parcels("d", 3)}, queue.Completion{Task: all[1], Split: parcels("e", 1, 1)})
		wantStatus(t, status, err, queue.StatusOK, queue.StatusOK)
		if st := counted(t, q); st.Processed != 12 || st.Entries != 5 {
			t.Errorf("%d processed, %d entries left; want 12 and 5: of a split, what was not split off", st.Processed, st.Entries)
		}
		ack(t, q, dequeue(t, q, 10).Tasks...)
		many := make([]queue.Task, 513)
		enqueue(t, q, parcels("b", 9)...)
		if _, err := q.Complete(await.Context(t), queue.Completion{Task: dequeue(t, q, 10).Tasks[0], Split: many}); !errors.Is(err, queue.ErrInvalidTask) {
			t.Errorf("513 tasks: %v", err)
		}
	})
}

// TestRun_Linger_NothingReady: a fetch that could not fill its batch exactly, because the next
// task was too large, is followed by another one at once.
func TestRun_Linger_NothingReady(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, parcels("p", 6, 6, 6)...)
		lingered := make(chan string, 10)
		stop := start(t, q, succeed,
			queue.RunConfig{Batch: 8, Workers: 1, Ahead: -1, Linger: func(fetched []queue.Leased) time.Duration {
				lingered <- fetched[0].ID
				return 0
			}, OnError: failOn(t)})
		awaitStats(t, q, queue.Stats{})
		stop()
		after := collect(lingered)
		if !slices.Equal(after, []string{"p2"}) {
			t.Errorf("lingered after %v, want only after the last task", after)
		}
	})
}
