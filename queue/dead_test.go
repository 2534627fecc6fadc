package queue_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
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
		enqueue(t, q, numbered(1024)...)
		ids := buryAll(t, q)
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
		wantClean(t, q)
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
		enqueue(t, q, numbered(250)...) // more than one step of the script drops
		buryAll(t, q)
		wantStats(t, q, queue.Stats{Dead: 3})
		for _, hash := range []string{"body", "meta"} {
			if n, err := rdb.HLen(await.Context(t), q.Prefix()+hash).Result(); err != nil || n != 3 {
				t.Fatalf("%s holds %d, %v; want 3", hash, n, err)
			}
		}
	})
}

// TestQueue_DeadTrimmed_Lowered: after MaxDead was lowered, one script drops only a part of the excess.
func TestQueue_DeadTrimmed_Lowered(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, numbered(600)...)
		buryAll(t, q)
		lowered := newQueue(t, rdb, queue.Config{Prefix: q.Prefix(), MaxDead: 2})
		for i, left := range []int{601 - 513, 2} {
			id := fmt.Sprint("another ", i)
			enqueue(t, lowered, queue.Task{ID: id})
			reject(t, lowered, queue.Rejection{Task: take(t, lowered, id)[0], Dead: true})
			wantStats(t, lowered, queue.Stats{Dead: left})
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
