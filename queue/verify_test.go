package queue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func verify(t testing.TB, q *queue.Queue, repair bool) queue.Report {
	t.Helper()
	r, err := q.Verify(await.Context(t), repair)
	must(t, err)
	for _, found := range [][]string{r.Lost, r.Doubled, r.Bodiless} {
		slices.Sort(found)
	}
	return r
}

// wantClean fails unless Verify checks every task of every state, while no worker runs, and finds no problem.
func wantClean(t testing.TB, q *queue.Queue) {
	t.Helper()
	s := stats(t, q)
	if r := verify(t, q, false); !r.Clean() || r.Tasks != s.Ready+s.Delayed+s.Leased+s.Dead {
		t.Fatalf("not clean: %+v, with the tasks %+v", r, s)
	}
}

// content is all that a queue's keys hold.
func content(t testing.TB, rdb redis.UniversalClient, prefix string) map[string]string {
	t.Helper()
	ctx := await.Context(t)
	all := make(map[string]string)
	note := func(name string, value any, err error) {
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		all[name] = fmt.Sprintf("%q", value) // maps are printed in order
	}
	for _, name := range []string{"ready", "delayed", "leased", "dead"} {
		set, err := rdb.ZRangeWithScores(ctx, prefix+name, 0, -1).Result()
		note(name, fmt.Sprint(set), err)
	}
	for _, name := range []string{"body", "meta"} {
		hash, err := rdb.HGetAll(ctx, prefix+name).Result()
		note(name, hash, err)
	}
	for _, name := range []string{"clock", "paused"} {
		value, err := rdb.Get(ctx, prefix+name).Result()
		note(name, value, err)
	}
	tokens, err := rdb.LRange(ctx, prefix+"wake", 0, -1).Result()
	note("wake", tokens, err)
	return all
}

// wantContent fails unless a queue's keys hold this.
func wantContent(t testing.TB, rdb redis.UniversalClient, prefix string, want map[string]string) {
	t.Helper()
	if now := content(t, rdb, prefix); !maps.Equal(now, want) {
		t.Fatalf("%v became %v", want, now)
	}
}

// TestQueue_VerifyBusy: while workers and producers are active, Verify finds and repairs nothing.
func TestQueue_VerifyBusy(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{BackoffBase: time.Millisecond, BackoffMax: 2 * time.Millisecond, MaxDead: 5, MaxAttempts: 3})
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			errs := make([]error, len(tasks))
			for i, task := range tasks {
				n, err := strconv.Atoi(task.ID[1:])
				switch {
				case err != nil:
					errs[i] = queue.Discard(err)
				case n%7 == 0:
					errs[i] = errors.New("bad at all times")
				case n%3 == 0 && task.Attempt == 1:
					errs[i] = queue.RetryIn(time.Millisecond, nil)
				}
			}
			return errs
		}, queue.RunConfig{Batch: 16, Workers: 3})
		var adding atomic.Bool
		adding.Store(true)
		go func() {
			defer adding.Store(false)
			for chunk := range slices.Chunk(numbered(400), 20) {
				if _, err := q.Enqueue(await.Context(t), chunk...); err != nil {
					t.Error(err)
				}
			}
		}()
		looked := 0
		for s := stats(t, q); adding.Load() || s.Ready+s.Delayed+s.Leased > 0; s = stats(t, q) {
			r := verify(t, q, looked%2 == 0)
			if looked += r.Tasks; !r.Clean() {
				t.Fatalf("found on a queue that works: %+v", r)
			}
		}
		stop()
		if looked == 0 {
			t.Fatal("nothing was checked")
		}
		wantClean(t, q)
	})
}

// TestQueue_VerifyFinds makes each kind of damage by hand. Verify without repair changes nothing,
// and after a repair it finds nothing.
func TestQueue_VerifyFinds(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		ctx := await.Context(t)
		ready, delayed, leased, body, meta := q.Prefix()+"ready", q.Prefix()+"delayed", q.Prefix()+"leased", q.Prefix()+"body", q.Prefix()+"meta"
		enqueue(t, q, queue.Task{ID: "leased bodiless"}, queue.Task{ID: "leased and ready"}, queue.Task{ID: "dead bodiless"}, queue.Task{ID: "lost lease"})
		l := take(t, q, "leased bodiless", "leased and ready", "dead bodiless", "lost lease")
		reject(t, q, queue.Rejection{Task: l[2], Dead: true, Reason: "bad"})
		enqueue(t, q, queue.Task{ID: "lost", Payload: []byte("body"), Type: "mail", Priority: 2},
			queue.Task{ID: "ready bodiless"}, queue.Task{ID: "ready and delayed"}, queue.Task{ID: "well"},
			queue.Task{ID: "delayed bodiless", Due: time.Now().Add(time.Hour)},
			queue.Task{ID: "delayed and dead", Due: time.Now().Add(time.Hour)})
		for _, err := range []error{
			rdb.ZRem(ctx, ready, "lost").Err(),
			rdb.ZRem(ctx, leased, "lost lease").Err(),
			rdb.HSet(ctx, meta, "record alone", "3,0;Rold").Err(),
			rdb.HSet(ctx, body, "body alone", "orphan").Err(),
			rdb.HDel(ctx, body, "ready bodiless", "leased bodiless", "delayed bodiless", "dead bodiless").Err(),
			rdb.ZAdd(ctx, ready, redis.Z{Score: 1, Member: "leased and ready"}).Err(),
			rdb.ZAdd(ctx, delayed, redis.Z{Score: 1e15, Member: "ready and delayed"}).Err(),
			rdb.ZAdd(ctx, q.Prefix()+"dead", redis.Z{Score: 1, Member: "delayed and dead"}).Err(),
		} {
			must(t, err)
		}
		before := content(t, rdb, q.Prefix())
		check := func(r queue.Report) {
			t.Helper()
			if !slices.Equal(r.Lost, []string{"body alone", "lost", "lost lease", "record alone"}) ||
				!slices.Equal(r.Doubled, []string{"delayed and dead", "leased and ready", "ready and delayed"}) ||
				!slices.Equal(r.Bodiless, []string{"delayed bodiless", "leased bodiless", "ready bodiless"}) || r.Clean() {
				t.Fatalf("found %+v", r)
			}
		}
		check(verify(t, q, false))
		wantContent(t, rdb, q.Prefix(), before)
		check(verify(t, q, true))
		wantClean(t, q)
		for id, want := range map[string]queue.TaskInfo{
			"lost":              {State: queue.StateReady, Reason: "was in no state", Payload: []byte("body"), Priority: 2},
			"lost lease":        {State: queue.StateReady, Reason: "was in no state", Attempt: 1},
			"body alone":        {State: queue.StateReady, Reason: "was in no state", Payload: []byte("orphan")},
			"leased bodiless":   {State: queue.StateDead, Reason: "body missing", Attempt: 1},
			"ready bodiless":    {State: queue.StateDead, Reason: "body missing"},
			"delayed bodiless":  {State: queue.StateDead, Reason: "body missing"},
			"dead bodiless":     {State: queue.StateDead, Reason: "bad", Attempt: 1},
			"leased and ready":  {State: queue.StateLeased, Attempt: 1},
			"ready and delayed": {State: queue.StateReady},
			"delayed and dead":  {State: queue.StateDelayed},
		} {
			got := get(t, q, id)
			if got.State != want.State || got.Reason != want.Reason || string(got.Payload) != string(want.Payload) ||
				got.Attempt != want.Attempt || got.Priority != want.Priority {
				t.Errorf("%s: %+v, want %+v", id, got, want)
			}
		}
		wantGone(t, q, "record alone")
		if info := get(t, q, "lost"); info.Type != "mail" {
			t.Errorf("repair lost the options: %+v", info)
		} else if now := serverTime(t, rdb); info.At.After(now) || info.At.Before(now.Add(-time.Minute)) {
			t.Errorf("repaired at %v: %+v, want the moment of the repair as its arrival", now, info)
		}
		if n, err := rdb.ZCard(ctx, leased).Result(); err != nil || n != 1 {
			t.Errorf("%d leased, %v", n, err)
		}
		status, err := q.Ack(ctx, l[:2]...)
		wantStatus(t, status, err, queue.StatusStale, queue.StatusOK)
	})
}

// TestQueue_VerifyWakes: a task that the repair makes ready runs at once.
func TestQueue_VerifyWakes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		other, asleep := sleeper(t, rdb, queue.Config{Prefix: q.Prefix()})
		handled := make(chan string, 1)
		start(t, other, sendIDs(handled), queue.RunConfig{MaxIdle: 10 * time.Minute})
		receive(t, "asleep", asleep)
		// A worker that fetches would find the task itself.
		must(t, rdb.HSet(await.Context(t), q.Prefix()+"body", "a", "x").Err())
		verify(t, q, true)
		if id := receive(t, "the task", handled); id != "a" {
			t.Fatalf("handled %s", id)
		}
	})
}

// TestQueue_VerifyMaxDead: the bound on dead letters applies to those that a repair makes.
func TestQueue_VerifyMaxDead(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{MaxDead: 2})
		enqueue(t, q, numbered(5)...)
		must(t, rdb.Del(await.Context(t), q.Prefix()+"body").Err())
		if r := verify(t, q, true); len(r.Bodiless) != 5 || r.Clean() {
			t.Errorf("%+v, want five without a payload", r)
		}
		wantStats(t, q, queue.Stats{Dead: 2})
		if s := counted(t, q); s.Died != 5 {
			t.Errorf("%d died, want 5", s.Died)
		}
		wantClean(t, q)
	})
}

// TestQueue_VerifyFails: if Redis fails during a check, the report has what was found until then.
func TestQueue_VerifyFails(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		admin := newQueue(t, rdb, queue.Config{})
		enqueue(t, admin, queue.Task{ID: "lost"})
		must(t, rdb.Del(await.Context(t), admin.Prefix()+"ready").Err())
		q := process(t, rdb, queue.Config{Prefix: admin.Prefix()}, tap{lose: func(name string) bool { return name == "zscan" }})
		r, err := q.Verify(await.Context(t), false)
		if !errors.Is(err, errLost) || !slices.Equal(r.Lost, []string{"lost"}) {
			t.Errorf("%+v, %v; want the lost task and the failure", r, err)
		}
	})
}

// TestQueue_VerifyEntries: a repaired task counts all its entries, also if it was a dead letter, which counts as one.
func TestQueue_VerifyEntries(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, parcels("dead", 7)...)
		reject(t, q, queue.Rejection{Task: take(t, q, "dead0")[0], Dead: true})
		enqueue(t, q, parcels("ready", 5)...)
		must(t, rdb.Del(ctx, q.Prefix()+"dead", q.Prefix()+"ready").Err())
		verify(t, q, true)
		wantEntries(t, "repaired", q, 12)
		// A record without payload is dropped with its entries.
		must(t, rdb.ZRem(ctx, q.Prefix()+"ready", "ready0").Err())
		must(t, rdb.HDel(ctx, q.Prefix()+"body", "ready0").Err())
		verify(t, q, true)
		wantEntries(t, "dropped", q, 7)
	})
}
