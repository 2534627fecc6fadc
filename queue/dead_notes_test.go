package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// diedAt sets when letters died.
func diedAt(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, at int64, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := rdb.ZAddXX(await.Context(t), q.Prefix()+"dead", redis.Z{Score: float64(at), Member: id}).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func noteNames(notes []queue.DeadNote) []string {
	ids := make([]string, len(notes))
	for i := range notes {
		ids[i] = notes[i].ID
	}
	return ids
}

// TestQueue_Notes pages through letters of two milliseconds in both directions, while the letter at each place is
// retried: every other letter is listed once.
func TestQueue_Notes(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, up := range []bool{true, false} {
			q := newQueue(t, rdb, queue.Config{})
			var want []string
			for i := range 9 {
				want = append(want, fmt.Sprintf("B-%d", i), fmt.Sprintf("a%d", i), fmt.Sprintf("a%d-", i))
			}
			slices.Sort(want)
			bury(t, q, want...)
			diedAt(t, rdb, q, 1000, want[:20]...)
			diedAt(t, rdb, q, 1001, want[20:]...)
			if !up {
				slices.Reverse(want)
			}
			var got []string
			var place queue.DeadPlace
			for {
				notes, err := q.NotesBefore(await.Context(t), place, 0, 2)
				if up {
					notes, err = q.NotesAfter(await.Context(t), place, 2)
				}
				if err != nil {
					t.Fatal(err)
				}
				if len(notes) == 0 {
					break
				}
				got = append(got, noteNames(notes)...)
				last := &notes[len(notes)-1]
				place = last.Place()
				runNow(t, q, last.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("up %v: %v, want %v", up, got, want)
			}
		}
	})
}

// TestQueue_Notes_Fields: a note has everything except the payload, and the start of a long reason.
func TestQueue_Notes_Fields(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a", Type: "t", Entries: 7, Payload: []byte("p")})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true, Reason: "x" + strings.Repeat("é", 3000)})
		bury(t, q, "b")
		diedAt(t, rdb, q, 1000, "a")
		diedAt(t, rdb, q, 2000, "b")
		notes, err := q.NotesBefore(await.Context(t), queue.DeadPlace{}, 1, 5)
		if err != nil {
			t.Fatal(err)
		}
		want := []queue.DeadNote{{ID: "a", At: time.UnixMilli(1000).UTC(), Attempt: 1, Reason: "x" + strings.Repeat("é", 255),
			Options: queue.Options{Type: "t", Entries: 7}}}
		if !slices.Equal(notes, want) {
			t.Errorf("%+v, want %+v", notes, want)
		}
		for _, bad := range [][2]int{{-1, 1}, {0, 0}, {0, 513}} {
			if _, err := q.NotesBefore(await.Context(t), queue.DeadPlace{}, bad[0], bad[1]); !errors.Is(err, queue.ErrConfig) {
				t.Errorf("%v: %v", bad, err)
			}
		}
		for _, c := range []struct {
			place queue.DeadPlace
			by    int64
			after int
		}{
			{queue.DeadPlace{}, 999, 0}, {queue.DeadPlace{}, 1000, 1}, {queue.DeadPlace{}, 9000, 2},
			{notes[0].Place(), 9000, 1}, {notes[0].Place(), 1500, 0}, {notes[0].Place(), 500, 0},
		} {
			n, err := q.CountDead(await.Context(t), c.place, time.UnixMilli(c.by))
			if err != nil || n.After != c.after || n.Total != 2 || n.Now.IsZero() {
				t.Errorf("%+v: %+v, %v", c, n, err)
			}
		}
	})
}

// TestQueue_RetryDead leaves delayed tasks and letters that died later as they are.
func TestQueue_RetryDead(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{MaxLength: 3})
		bury(t, q, "early", "late", "full")
		diedAt(t, rdb, q, 1000, "early", "full")
		diedAt(t, rdb, q, 1001, "late")
		enqueue(t, q, queue.Task{ID: "delayed", Due: time.Now().Add(time.Hour)}, queue.Task{ID: "ready"})
		status, err := q.RetryDead(await.Context(t), time.UnixMilli(1000), "late", "delayed", "early", "ready", "full")
		want := []queue.Status{queue.StatusMissing, queue.StatusMissing, queue.StatusOK, queue.StatusMissing, queue.StatusFull}
		if !errors.Is(err, queue.ErrFull) || !slices.Equal(status, want) {
			t.Fatalf("%v, %v; want %v and ErrFull", status, err, want)
		}
		wantStats(t, q, queue.Stats{Ready: 2, Delayed: 1, Dead: 2})
		wantClean(t, q)
	})
}
