package queue_test

import (
	"errors"
	"fmt"
	"reflect"
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

// TestQueue_ListDead_Places pages through letters of two milliseconds in both directions, while the letter at each place is
// retried: every other letter is listed once.
func TestQueue_ListDead_Places(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, c := range []struct {
			up    bool
			limit int
		}{{true, 2}, {true, 3}, {false, 2}, {false, 3}} {
			q := newQueue(t, rdb, queue.Config{})
			var want []string
			for i := range 9 {
				want = append(want, fmt.Sprintf("B-%d", i), fmt.Sprintf("a%d", i), fmt.Sprintf("a%d-", i))
			}
			slices.Sort(want)
			bury(t, q, want...)
			diedAt(t, rdb, q, 1000, want[:20]...)
			diedAt(t, rdb, q, 1001, want[20:]...)
			if !c.up {
				slices.Reverse(want)
			}
			var got []string
			var place queue.DeadPlace
			for {
				page, err := q.List(await.Context(t), queue.StateDead, queue.Page{After: place, Limit: c.limit, Reverse: !c.up, Brief: true})
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				got = append(got, infoNames(page)...)
				last := &page[len(page)-1]
				place = last.Place()
				runNow(t, q, last.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %v, want %v", c, got, want)
			}
		}
	})
}

// TestQueue_ListDead_Brief: a brief page has everything except the payload, and the start of a long reason.
func TestQueue_ListDead_Brief(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a", Type: "t", Entries: 7, Payload: []byte("p")})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true, Reason: "x" + strings.Repeat("é", 3000)})
		diedAt(t, rdb, q, 1000, "a")
		found, err := q.List(await.Context(t), queue.StateDead, queue.Page{Limit: 5, Brief: true})
		if err != nil {
			t.Fatal(err)
		}
		want := []queue.TaskInfo{{ID: "a", State: queue.StateDead, At: time.UnixMilli(1000).UTC(), Attempt: 1,
			Reason: "x" + strings.Repeat("é", 255), Options: queue.Options{Type: "t", Entries: 7}}}
		if !reflect.DeepEqual(found, want) {
			t.Errorf("%+v, want %+v", found, want)
		}
	})
}

// TestQueue_ListDead_DiedBy: a list and a count can leave out letters that died later, in both directions.
func TestQueue_ListDead_DiedBy(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		bury(t, q, "a", "b", "c")
		diedAt(t, rdb, q, 1000, "a", "b")
		diedAt(t, rdb, q, 2000, "c")
		atA := queue.DeadPlace{At: time.UnixMilli(1000), ID: "a"}
		for _, c := range []struct {
			place    queue.DeadPlace
			by       int64
			skip     int
			up, down string
		}{
			{queue.DeadPlace{}, 999, 0, "", ""},
			{queue.DeadPlace{}, 1000, 0, "a b", "b a"},
			{queue.DeadPlace{}, 1999, 1, "b", "a"},
			{queue.DeadPlace{}, 2000, 0, "a b c", "c b a"},
			{queue.DeadPlace{}, 2000, 3, "", ""},
			{atA, 1999, 0, "b", ""},
			{atA, 9000, 1, "c", ""},
			{atA, 500, 0, "", ""},
			{queue.DeadPlace{At: time.UnixMilli(2000), ID: "c"}, 9000, 0, "", "b a"},
			{queue.DeadPlace{At: time.UnixMilli(2000), ID: "c"}, 999, 0, "", ""},
			{queue.DeadPlace{At: time.UnixMilli(2000)}, 9000, 0, "c", "b a"},
			// The letter at the place was retried and has died again.
			{queue.DeadPlace{At: time.UnixMilli(1000), ID: "c"}, 9000, 0, "c", "b a"},
		} {
			for _, reverse := range []bool{false, true} {
				p := queue.Page{After: c.place, DiedBy: time.UnixMilli(c.by), Skip: c.skip, Limit: 5, Reverse: reverse}
				found, err := q.List(await.Context(t), queue.StateDead, p)
				want := c.up
				if reverse {
					want = c.down
				}
				if got := strings.Join(infoNames(found), " "); err != nil || got != want {
					t.Errorf("%+v: %q, %v; want %q", p, got, err, want)
				}
			}
			n, err := q.CountDead(await.Context(t), c.place, time.UnixMilli(c.by))
			if err != nil || n.After != c.skip+len(strings.Fields(c.up)) || n.Total != 3 || n.Now.IsZero() {
				t.Errorf("%+v: %+v, %v", c, n, err)
			}
		}
	})
}

// TestQueue_RunNowBy leaves tasks that are due later, and letters that died later, as they are.
func TestQueue_RunNowBy(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{MaxLength: 4})
		bury(t, q, "early", "late", "full")
		diedAt(t, rdb, q, 1000, "early", "full")
		diedAt(t, rdb, q, 1001, "late")
		enqueue(t, q, queue.Task{ID: "due", Due: time.Now().Add(time.Hour)})
		must(rdb.ZAddXX(await.Context(t), q.Prefix()+"delayed", redis.Z{Score: 1000.5, Member: "due"}).Err())
		enqueue(t, q, queue.Task{ID: "delayed", Due: time.Now().Add(time.Hour)}, queue.Task{ID: "ready"})
		status, err := q.RunNow(await.Context(t), time.UnixMilli(1000), "late", "delayed", "early", "ready", "full", "due")
		want := []queue.Status{queue.StatusMissing, queue.StatusMissing, queue.StatusOK, queue.StatusMissing, queue.StatusFull, queue.StatusOK}
		if !errors.Is(err, queue.ErrFull) || !slices.Equal(status, want) {
			t.Fatalf("%v, %v; want %v and ErrFull", status, err, want)
		}
		wantStats(t, q, queue.Stats{Ready: 3, Delayed: 1, Dead: 2})
		wantClean(t, q)
	})
}
