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
		must(t, rdb.ZAddXX(await.Context(t), q.Prefix()+"dead", redis.Z{Score: float64(at), Member: id}).Err())
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
			letters := queue.Query{State: queue.StateDead, Limit: c.limit, Reverse: !c.up, Fields: queue.BriefFields}
			for {
				page, err := q.List(await.Context(t), letters)
				must(t, err)
				got = append(got, infoNames(page.Tasks)...)
				last := &page.Tasks[len(page.Tasks)-1]
				if page.More != len(want)-len(got) || page.More > 0 && page.Next != last.Place() {
					t.Fatalf("%d letters behind %+v, want %d behind %+v", page.More, page.Next, len(want)-len(got), last.Place())
				}
				if letters.After = page.Next; page.More == 0 {
					break
				}
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
		for _, letters := range []queue.Query{{State: queue.StateDead, Limit: 5}, {IDs: []string{"a"}}, {Limit: 5}} {
			letters.Fields = queue.BriefFields
			found, err := q.List(await.Context(t), letters)
			must(t, err)
			want := []queue.TaskInfo{{ID: "a", State: queue.StateDead, At: time.UnixMilli(1000).UTC(), Attempt: 1,
				Reason: "x" + strings.Repeat("é", 255), Options: queue.Options{Type: "t", Entries: 7}}}
			if !reflect.DeepEqual(found.Tasks, want) {
				t.Errorf("%+v: %+v, want %+v", letters, found, want)
			}
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
		atA := queue.Place{At: time.UnixMilli(1000), ID: "a"}
		for _, c := range []struct {
			place    queue.Place
			by       int64
			up, down string
		}{
			{queue.Place{}, 999, "", ""},
			{queue.Place{}, 1000, "a b", "b a"},
			{queue.Place{}, 1999, "a b", "b a"},
			{queue.Place{}, 2000, "a b c", "c b a"},
			{atA, 1999, "b", ""},
			{atA, 9000, "b c", ""},
			{atA, 500, "", ""},
			{queue.Place{At: time.UnixMilli(2000), ID: "c"}, 9000, "", "b a"},
			{queue.Place{At: time.UnixMilli(2000), ID: "c"}, 999, "", ""},
			{queue.Place{At: time.UnixMilli(2000)}, 9000, "c", "b a"},
			// The letter at the place was retried and has died again.
			{queue.Place{At: time.UnixMilli(1000), ID: "c"}, 9000, "c", "b a"},
		} {
			for _, reverse := range []bool{false, true} {
				p := queue.Query{State: queue.StateDead, After: c.place, DiedBy: time.UnixMilli(c.by), Limit: 5, Reverse: reverse}
				found, err := q.List(await.Context(t), p)
				want := c.up
				if reverse {
					want = c.down
				}
				if got := strings.Join(infoNames(found.Tasks), " "); err != nil || got != want {
					t.Errorf("%+v: %q, %v; want %q", p, got, err, want)
				}
				p.Limit = 0
				none, err := q.List(await.Context(t), p)
				if err != nil || len(none.Tasks) != 0 || none.Next != (queue.Place{}) || none.More != len(strings.Fields(want)) {
					t.Errorf("%+v: %+v, %v; want only a number", p, none, err)
				}
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
		must(t, rdb.ZAddXX(await.Context(t), q.Prefix()+"delayed", redis.Z{Score: 1000.5, Member: "due"}).Err())
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
