package queue_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

func TestNew_Done(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, tt := range map[string]struct {
		cfg queue.Config
		ok  bool
	}{
		"kept":            {queue.Config{KeepDone: time.Hour}, true},
		"bounded":         {queue.Config{KeepDone: time.Hour, MaxDone: 1}, true},
		"a year":          {queue.Config{KeepDone: 365 * 24 * time.Hour}, true},
		"too long":        {queue.Config{KeepDone: 366 * 24 * time.Hour}, false},
		"negative":        {queue.Config{KeepDone: -1}, false},
		"negative bound":  {queue.Config{KeepDone: time.Hour, MaxDone: -1}, false},
		"bound of nought": {queue.Config{MaxDone: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Prefix = "{p}"
			q, err := queue.New(rdb, tt.cfg)
			if tt.ok && err != nil {
				t.Fatal(err)
			}
			if !tt.ok && !errors.Is(err, queue.ErrConfig) {
				t.Fatalf("%v, %v; want ErrConfig", q, err)
			}
		})
	}
}

// finishes are the two ways in which a task is acknowledged.
var finishes = map[string]func(t testing.TB, q *queue.Queue, tasks ...queue.Leased) []queue.AckStatus{
	"ack": ack,
	"complete": func(t testing.TB, q *queue.Queue, tasks ...queue.Leased) []queue.AckStatus {
		t.Helper()
		done := make([]queue.Completion, len(tasks))
		for i := range tasks {
			done[i].Task = tasks[i]
		}
		status, err := q.Complete(testContext(t), done...)
		if err != nil {
			t.Fatal(err)
		}
		return status
	},
}

// eachFinish runs f for both ways on every engine.
func eachFinish(t *testing.T, f func(t *testing.T, rdb redis.UniversalClient, finish func(testing.TB, *queue.Queue, ...queue.Leased) []queue.AckStatus)) {
	t.Helper()
	for name, finish := range finishes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) { f(t, rdb, finish) })
		})
	}
}

func TestQueue_KeepDone(t *testing.T) {
	t.Parallel()
	eachFinish(t, func(t *testing.T, rdb redis.UniversalClient, finish func(testing.TB, *queue.Queue, ...queue.Leased) []queue.AckStatus) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour, MaxLength: 3})
		ctx := testContext(t)
		task := queue.Task{ID: "a", Payload: []byte("pay"), Priority: 3, Type: "mail;A", MaxAttempts: 7, Timeout: time.Second, Unique: "k;A"}
		enqueue(t, q, task, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		reject(t, q, queue.Rejection{Task: l[0]})
		l[0] = take(t, q, "a")[0]
		begin := serverTime(t, rdb)
		if status := finish(t, q, l...); !slices.Equal(status, []queue.AckStatus{queue.Done, queue.Done}) {
			t.Fatal(status)
		}
		end := serverTime(t, rdb)
		doneAt(t, rdb, prefix, begin.Add(-time.Second), "b") // so that a is the latest

		// It can be looked at in every way, and is no more in the way.
		wantStats(t, q, queue.Stats{Done: 2})
		wantClean(t, q)
		info := get(t, q, "a")
		if all := list(t, q, queue.StateDone); len(all) != 2 || !reflect.DeepEqual(all[0], info) || info.Type != task.Type ||
			info.Unique != task.Unique || info.MaxAttempts != task.MaxAttempts || info.Timeout != task.Timeout || info.Priority != task.Priority {
			t.Fatalf("%+v in %+v, want %+v", info, all, task)
		}
		if info.State != queue.StateDone || info.Attempt != 2 || string(info.Payload) != "pay" || info.Reason != "" ||
			info.At.Before(begin.Truncate(time.Millisecond)) || info.At.After(end) {
			t.Fatalf("%+v, acknowledged from %v to %v", info, begin, end)
		}
		if info := get(t, q, "b"); info.State != queue.StateDone || info.Attempt != 1 {
			t.Fatalf("%+v", info)
		}
		enqueue(t, q, queue.Task{ID: "c", Unique: "k;A"}, queue.Task{ID: "d"})

		// A repeat after a lost reply is harmless, and its id is refused.
		late := func(l queue.Leased) {
			t.Helper()
			before := content(t, rdb, prefix)
			if status := finish(t, q, l); status[0] != queue.Missing {
				t.Fatalf("again: %v", status)
			}
			status, err := q.Reject(ctx, queue.Rejection{Task: l, Dead: true})
			wantStatus(t, status, err, queue.Missing)
			status, err = q.Extend(ctx, l)
			wantStatus(t, status, err, queue.Missing)
			wantRefused(t, q, queue.Task{ID: l.ID})
			for op, err := range map[string]error{"retry": q.Retry(ctx, l.ID), "discard": q.Discard(ctx, l.ID)} {
				if !errors.Is(err, queue.ErrTaskNotFound) {
					t.Fatalf("%s: %v", op, err)
				}
			}
			for name, dump := range content(t, rdb, prefix) {
				if dump != before[name] {
					t.Fatalf("%s changed", name)
				}
			}
		}
		late(l[0])
		late(l[1])

		states, err := q.Cancel(ctx, "a", "b", "a")
		if err != nil || !slices.Equal(states, []queue.State{queue.StateDone, queue.StateDone, ""}) {
			t.Fatalf("%q, %v", states, err)
		}
		wantGone(t, q, "a")
		wantRefused(t, q, queue.Task{ID: "e", Unique: "k;A"}) // c's, still
		ack(t, q, take(t, q, "c", "d")...)
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		wantClean(t, q)
	})
}

// TestQueue_DoneList: the latest come first.
func TestQueue_DoneList(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour})
		enqueue(t, q, queue.Task{ID: "b"}, queue.Task{ID: "c"}, queue.Task{ID: "a"})
		ack(t, q, take(t, q, "b", "c", "a")...)
		now := serverTime(t, rdb)
		doneAt(t, rdb, prefix, now.Add(-3*time.Second), "a")
		doneAt(t, rdb, prefix, now.Add(-2*time.Second), "c")
		doneAt(t, rdb, prefix, now.Add(-time.Second), "b")
		wantPages(t, q, queue.StateDone, "b", "c", "a")
		if at := list(t, q, queue.StateDone)[2].At; !at.Equal(now.Add(-3 * time.Second).Truncate(time.Millisecond)) {
			t.Fatalf("done at %v", at)
		}
	})
}

// doneAt moves the time at which tasks were done.
func doneAt(t testing.TB, rdb redis.UniversalClient, prefix string, at time.Time, ids ...string) {
	t.Helper()
	for _, id := range ids {
		z := redis.Z{Score: float64(at.UnixMilli()), Member: id}
		if n, err := rdb.ZAdd(testContext(t), prefix+"done", z).Result(); err != nil || n != 0 {
			t.Fatalf("%s was not done: %d, %v", id, n, err)
		}
	}
}

// TestQueue_DoneTooMany: the oldest go, with all that is known of them.
func TestQueue_DoneTooMany(t *testing.T) {
	t.Parallel()
	eachFinish(t, func(t *testing.T, rdb redis.UniversalClient, finish func(testing.TB, *queue.Queue, ...queue.Leased) []queue.AckStatus) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour, MaxDone: 3})
		now := serverTime(t, rdb)
		for i := range 5 {
			id := fmt.Sprintf("%d", 9-i)
			enqueue(t, q, queue.Task{ID: id, Type: "x"})
			finish(t, q, take(t, q, id)...)
			doneAt(t, rdb, prefix, now.Add(time.Duration(i-10)*time.Second), id)
		}
		wantPages(t, q, queue.StateDone, "5", "6", "7")
		wantKept(t, rdb, q, "5", "6", "7")
		enqueue(t, q, queue.Task{ID: "9"}) // may come again
		// More than are kept, in one call.
		enqueue(t, q, numbered(511)...)
		finish(t, q, dequeue(t, q, 512).Tasks...)
		wantStats(t, q, queue.Stats{Done: 3})
		wantClean(t, q)
		// A lower bound is reached in steps.
		one := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour, MaxDone: 1})
		dequeue(t, one, 1)
		wantStats(t, q, queue.Stats{Done: 1})
	})
}

// wantKept fails unless these are the ids whose body and record are there.
func wantKept(t testing.TB, rdb redis.UniversalClient, q *queue.Queue, want ...string) {
	t.Helper()
	for _, hash := range q.EnqueueKeys()[3:5] {
		ids, err := rdb.HKeys(testContext(t), hash).Result()
		slices.Sort(ids)
		if err != nil || !slices.Equal(ids, want) {
			t.Fatalf("%s holds %q, %v; want %q", hash, ids, err, want)
		}
	}
}

// TestQueue_DoneTooOld: what is too old goes when a worker looks and when another is
// acknowledged, what is not stays, and one call does not do more than its share.
func TestQueue_DoneTooOld(t *testing.T) {
	t.Parallel()
	eachFinish(t, func(t *testing.T, rdb redis.UniversalClient, finish func(testing.TB, *queue.Queue, ...queue.Leased) []queue.AckStatus) {
		const keep = 10 * time.Minute
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: keep})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"}, queue.Task{ID: "d"}, queue.Task{ID: "e"})
		l := take(t, q, "a", "b", "c", "d", "e")
		finish(t, q, l[:4]...)
		now := serverTime(t, rdb)
		doneAt(t, rdb, prefix, now.Add(-keep), "a", "b")
		doneAt(t, rdb, prefix, now.Add(limit-keep), "c") // for as long as a test may take
		if f := dequeue(t, q, 1); len(f.Tasks) > 0 {
			t.Fatalf("%v", names(f.Tasks))
		}
		wantPages(t, q, queue.StateDone, "d", "c")
		wantKept(t, rdb, q, "c", "d", "e")
		doneAt(t, rdb, prefix, now.Add(-keep), "c", "d")
		finish(t, q, l[4])
		wantKept(t, rdb, q, "e")

		enqueue(t, q, numbered(600)...)
		for n := 0; n < 600; {
			f := dequeue(t, q, 512)
			n += len(f.Tasks)
			finish(t, q, f.Tasks...)
		}
		doneAt(t, rdb, prefix, now.Add(-keep), infoNames(list(t, q, queue.StateDone))...) // 512 of them
		dequeue(t, q, 1)
		left := stats(t, q).Done
		if left <= 601-512 || left >= 601 {
			t.Fatalf("one look left %d of 601, want it to remove some and to leave some", left)
		}
		dequeue(t, q, 1)
		dequeue(t, q, 1)
		wantStats(t, q, queue.Stats{Done: 601 - 512})
		wantClean(t, q)
	})
}

// TestQueue_CompleteOwnID: a task that is followed by itself is not kept, but goes on.
func TestQueue_CompleteOwnID(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{KeepDone: time.Hour})
		enqueue(t, q, queue.Task{ID: "a"})
		wantComplete(t, q, queue.Done, take(t, q, "a")[0], queue.Task{ID: "b"}, queue.Task{ID: "a", Payload: []byte("2")})
		wantStats(t, q, queue.Stats{Ready: 2})
		l := take(t, q, "b", "a")
		if string(l[1].Payload) != "2" || l[1].Attempt != 1 {
			t.Fatalf("%+v", l[1])
		}
		wantComplete(t, q, queue.Done, l[1], queue.Task{ID: "c"})
		wantStats(t, q, queue.Stats{Ready: 1, Leased: 1, Done: 1})
		wantClean(t, q)
	})
}

// TestQueue_VerifyDone: done is a state like the others; a task whose state was lost is done again, not run again.
func TestQueue_VerifyDone(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		ctx := testContext(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour})
		enqueue(t, q, queue.Task{ID: "bodiless"}, queue.Task{ID: "doubled"}, queue.Task{ID: "lost"}, queue.Task{ID: "well"})
		ack(t, q, take(t, q, "bodiless", "doubled", "lost", "well")...)
		if r := verify(t, q, false); !r.Clean() || r.Tasks != 12 { // in set, body and record
			t.Fatalf("%+v", r)
		}
		must(rdb.HDel(ctx, q.EnqueueKeys()[3], "bodiless").Err())
		must(rdb.ZAdd(ctx, q.EnqueueKeys()[0], redis.Z{Score: 1, Member: "doubled"}).Err())
		must(rdb.ZRem(ctx, prefix+"done", "lost").Err())
		r := verify(t, q, true)
		if !slices.Equal(r.Lost, []string{"lost"}) || !slices.Equal(r.Doubled, []string{"doubled"}) || len(r.Bodiless) > 0 {
			t.Fatalf("%+v", r)
		}
		wantClean(t, q)
		wantStats(t, q, queue.Stats{Ready: 1, Done: 3})
		if info := get(t, q, "lost"); info.State != queue.StateDone {
			t.Fatalf("%+v", info)
		}
	})
}

// TestQueue_DoneWrongType: a key of another type fails before anything is changed.
func TestQueue_DoneWrongType(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		ctx := testContext(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, KeepDone: time.Hour})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a")[0]
		must(rdb.Set(ctx, prefix+"done", "x", 0).Err())
		body := rdb.HGetAll(ctx, prefix+"body").String()
		leased := rdb.ZRangeWithScores(ctx, prefix+"leased", 0, -1).String()
		if status, err := q.Ack(ctx, l); err == nil {
			t.Fatal(status)
		}
		if status, err := q.Complete(ctx, queue.Completion{Task: l}); err == nil {
			t.Fatal(status)
		}
		if f, err := q.Dequeue(ctx, 1); err == nil {
			t.Fatal(f)
		}
		if now := rdb.HGetAll(ctx, prefix+"body").String(); now != body {
			t.Fatalf("%s, was %s", now, body)
		}
		if now := rdb.ZRangeWithScores(ctx, prefix+"leased", 0, -1).String(); now != leased {
			t.Fatalf("%s, was %s", now, leased)
		}
		must(rdb.Del(ctx, prefix+"done").Err())
		ack(t, q, l)
	})
}
