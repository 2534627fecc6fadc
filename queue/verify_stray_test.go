package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRun_FindsStrays: a task whose entry in leased, ready or delayed was lost is reported and
// runs again, without a call of Verify.
func TestRun_FindsStrays(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		for _, state := range []string{"leased", "ready", "delayed"} {
			q := newQueue(t, rdb, queue.Config{Lease: never})
			enqueue(t, q, queue.Task{ID: "worked on"})
			take(t, q, "worked on")
			enqueue(t, q, queue.Task{ID: "waits", Payload: []byte("w")}, queue.Task{ID: "later", Due: time.Now().Add(24 * time.Hour)})
			id := map[string]string{"leased": "worked on", "ready": "waits", "delayed": "later"}[state]
			if n, err := rdb.ZRem(await.Context(t), q.Prefix()+state, id).Result(); err != nil || n != 1 {
				t.Fatalf("%d, %v", n, err)
			}
			failures, handled := make(chan error, 100), make(chan string, 10)
			stop := start(t, q, sendIDs(handled), queue.RunConfig{MaxIdle: 10 * time.Millisecond, OnError: sendErrors(failures)})
			for err := receive(t, "a report of "+id, failures); !strings.Contains(err.Error(), fmt.Sprintf("%q", id)); {
				if !errors.Is(err, queue.ErrTaskLost) {
					t.Errorf("%s: reported %v", state, err)
				}
				err = receive(t, "a report with the id "+id, failures)
			}
			for got := receive(t, id, handled); got != id; {
				got = receive(t, id, handled)
			}
			stop()
			wantClean(t, q)
			if len(failures) > 0 {
				t.Errorf("%s: still reported after that: %v", state, <-failures)
			}
		}
	})
}

// TestRun_StraysBounded: the commands of a fetch do not depend on the number of tasks, and while
// tasks are in no state each check reads a bounded number.
func TestRun_StraysBounded(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{Lease: never})
	later := numbered(20_000)
	for i := range later {
		later[i].Due = time.Now().Add(time.Hour)
	}
	fetch := func() (calls string) {
		must(t, rdb.ConfigResetStat(await.Context(t)).Err())
		dequeue(t, q, 1)
		info, err := rdb.InfoMap(await.Context(t), "commandstats").Result()
		must(t, err)
		for _, name := range []string{"hscan", "zscan", "zrange", "zcard", "hlen", "hmget", "zrangebyscore"} {
			stat, _, _ := strings.Cut(info["Commandstats"]["cmdstat_"+name], ",")
			calls += name + " " + stat + "; "
		}
		return calls
	}
	few := fetch()
	enqueue(t, q, later...)
	if many := fetch(); many != few {
		t.Errorf("of 20,000 tasks: %s; of none: %s", many, few)
	}
	pages := 0
	other := clientOf(t, srv)
	other.AddHook(tap{seen: func(name string) {
		if strings.HasSuffix(name, "scan") {
			pages++
		}
	}})
	must(t, rdb.ZRem(await.Context(t), q.Prefix()+"delayed", later[0].ID).Err())
	if n := queue.SeekStrays(await.Context(t), newQueue(t, other, queue.Config{Prefix: q.Prefix()})); pages > 16 || n == 0 {
		t.Errorf("%d pages at once, %d reports", pages, n)
	}
}

// TestDequeue_Bytes: a dequeue takes at most 4 MiB of payload, but at least one task, however the
// tasks were added.
func TestDequeue_Bytes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		big := []byte(strings.Repeat("x", 1<<20))
		for i := range 6 {
			enqueue(t, q, queue.Task{ID: fmt.Sprintf("%d big", i), Payload: big}, queue.Task{ID: fmt.Sprintf("%d small", i), Payload: []byte("x")})
		}
		wantBatch := func(n int, more bool) []queue.Leased {
			t.Helper()
			f := dequeue(t, q, 512)
			if len(f.Tasks) != n || f.More != more {
				t.Fatalf("took %v, more %v; want %d, %v", names(f.Tasks), f.More, n, more)
			}
			return f.Tasks
		}
		first := wantBatch(6, true) // a fourth big one is too much
		second := wantBatch(6, false)
		// A task that is handed back is as big as before.
		for _, l := range append(first, second...) {
			reject(t, q, queue.Rejection{Task: l, Reason: "again, ,l1"})
		}
		wantBatch(6, true)
		wantBatch(6, false)
		// A task above the bound is taken on its own.
		huge := queue.Task{ID: "huge", Payload: []byte(strings.Repeat("x", 5<<20)), Due: serverTime(t, rdb).Add(time.Millisecond), Type: "t", Priority: 1}
		enqueue(t, q, queue.Task{ID: "small", Payload: []byte("x")}, huge)
		must(t, rdb.Set(await.Context(t), "stock"+q.Prefix(), 9, 0).Err())
		must(t, sell.Run(await.Context(t), rdb, append([]string{"stock" + q.Prefix()}, q.EnqueueKeys()...), q.MaxLength(), 4, "s1", big, "s2", big, "s3", big, "s4", big).Err())
		waitFor(t, func() bool { return serverTime(t, rdb).After(get(t, q, "huge").At) })
		if l := wantBatch(1, true); len(l[0].Payload) != 5<<20 || l[0].Type != "t" {
			t.Errorf("%s has %d bytes", l[0].ID, len(l[0].Payload))
		}
		wantBatch(4, true)
	})
}

// TestQueue_EqualDue: delayed tasks that are due in the same millisecond are taken in the order in
// which they were added, over several calls and promotions. The same holds for tasks rejected with
// the same due time.
func TestQueue_EqualDue(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		due := serverTime(t, rdb).Add(time.Hour)
		tasks := numbered(600) // by name they are in the reverse order
		ids := idsOf(tasks)
		for i := range tasks {
			tasks[i].Due = due
		}
		for from := 0; from < len(tasks); from += 7 {
			enqueue(t, q, tasks[from:min(from+7, len(tasks))]...)
		}
		for _, info := range list(t, q, queue.StateDelayed) {
			if want := due.Add(time.Millisecond - 1).Truncate(time.Millisecond); !info.At.Equal(want) {
				t.Fatalf("due at %v, want %v", info.At, want)
			}
		}
		// An hour passes.
		must(t, rdb.Eval(await.Context(t), `for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
			redis.call('ZINCRBY', KEYS[1], -3600000, id)
		end
		return 1`, q.EnqueueKeys()[1:2]).Err())
		waitFor(t, func() bool { return serverTime(t, rdb).After(due.Add(time.Millisecond - time.Hour)) })
		l := take(t, q, ids[:300]...)
		take(t, q, ids[300:]...)
		var back []queue.Rejection
		for i := range 5 {
			back = append(back, queue.Rejection{Task: l[i], Delay: 50 * time.Millisecond})
		}
		reject(t, q, back...)
		take(t, q, ids[:5]...)
		// Behind the 4,000th place of a millisecond, tasks share the last one: none becomes due later.
		due = due.Add(time.Hour).Truncate(time.Millisecond)
		enqueue(t, q, queue.Task{ID: "first", Due: due})
		last := redis.Z{Score: float64(due.UnixMilli()) + 3999.0/4000, Member: "first"}
		must(t, rdb.ZAdd(await.Context(t), q.Prefix()+"delayed", last).Err())
		enqueue(t, q, queue.Task{ID: "second", Due: due})
		if at := get(t, q, "second").At; !at.Equal(due) {
			t.Errorf("due at %v, want %v", at, due)
		}
	})
}

// TestRun_StraysLater: fetched tasks do not wait for the check.
func TestRun_StraysLater(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{Lease: never})
	enqueue(t, q, queue.Task{ID: "lost"}, queue.Task{ID: "waits"})
	must(t, rdb.ZRem(await.Context(t), q.Prefix()+"ready", "lost").Err())
	began := make(chan struct{}, 2)
	slow := clientOf(t, srv)
	var once sync.Once
	slow.AddHook(tap{seen: func(name string) {
		if name != "hscan" {
			return
		}
		once.Do(func() {
			select {
			case <-began:
			case <-time.After(limit):
				t.Error("the handler began only after the check")
			}
		})
	}})
	stop := start(t, newQueue(t, slow, queue.Config{Prefix: q.Prefix(), Lease: never}), func(_ context.Context, tasks []queue.Leased) []error {
		for range tasks {
			began <- struct{}{}
		}
		return nil
	}, queue.RunConfig{OnError: ignore})
	awaitStats(t, q, queue.Stats{})
	stop()
}

// TestRunAll_StraysElsewhere: the other queues are served while one is checked, even if that one has more tasks.
func TestRunAll_StraysElsewhere(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		q, other := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: never}), newQueue(t, rdb, queue.Config{Lease: never})
		enqueue(t, q, queue.Task{ID: "lost"}, queue.Task{ID: "waits"})
		must(t, rdb.ZRem(await.Context(t), prefix+"ready", "lost").Err())
		checking, served := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(checking) })
		slow := process(t, rdb, queue.Config{Prefix: prefix, Lease: never}, tap{seen: func(name string) {
			if name == "hscan" {
				begin()
				<-served
			}
		}})
		handled := make(chan string, 10)
		h := sendIDs(handled)
		// The checked queue fetches next whenever it may have tasks.
		stop := startAll(t, queue.RunConfig{OnError: ignore}, queue.Source{Queue: slow, Handler: h, Weight: 1000},
			queue.Source{Queue: other, Handler: h})
		end := sync.OnceFunc(func() { close(served) })
		defer end()
		receive(t, "the check", checking)
		receive(t, "the task that was not lost", handled)
		for _, id := range []string{"1", "2", "3"} {
			enqueue(t, other, queue.Task{ID: id})
			if got := receive(t, "a task of the other queue", handled); got != id {
				t.Fatalf("handled %s, want %s", got, id)
			}
		}
		end()
		receive(t, "the lost task", handled)
		stop()
	})
}

// TestRun_StraysIdle: an idle worker continues the check, whatever its MaxIdle.
func TestRun_StraysIdle(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		tasks := numbered(2_000) // more than one check reads
		for i := range tasks {
			tasks[i].Due = time.Now().Add(time.Hour)
		}
		enqueue(t, q, tasks...)
		var lost []string
		for i := 0; i < len(tasks); i += 100 {
			lost = append(lost, tasks[i].ID)
		}
		must(t, rdb.ZRem(await.Context(t), q.Prefix()+"delayed", lost).Err())
		must(t, rdb.Del(await.Context(t), q.Prefix()+"meta").Err())
		handled := make(chan string, 2*len(lost))
		stop := start(t, q, sendIDs(handled), queue.RunConfig{MaxIdle: never, OnError: ignore})
		for range lost {
			receive(t, "a lost task", handled)
		}
		stop()
	})
}

// TestDequeue_NoCount: tasks are taken even if strays cannot be counted.
func TestDequeue_NoCount(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: never})
		enqueue(t, q, queue.Task{ID: "a"})
		must(t, rdb.Set(await.Context(t), q.Prefix()+"dead", "of another type", 0).Err())
		take(t, q, "a")
	})
}
