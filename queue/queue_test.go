package queue_test

import (
	"context"
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

func TestNew(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	other := newQueue(t, rdb, queue.Config{Prefix: "t:{b}:"})
	for name, tt := range map[string]struct {
		cfg queue.Config
		ok  bool
	}{
		"defaults":       {queue.Config{Prefix: "fs:{p0}:q:"}, true},
		"no hash tag":    {queue.Config{Prefix: "fs:q:"}, false},
		"empty hash tag": {queue.Config{Prefix: "fs:{}:q:"}, false},
		"open hash tag":  {queue.Config{Prefix: "fs:{p0:q:"}, false},
		"lease":          {queue.Config{Prefix: "{p}", Lease: time.Millisecond}, false},
		"negative lease": {queue.Config{Prefix: "{p}", Lease: -time.Second}, false},
		"attempts":       {queue.Config{Prefix: "{p}", MaxAttempts: -1}, false},
		"backoff":        {queue.Config{Prefix: "{p}", BackoffBase: time.Minute, BackoffMax: time.Second}, false},
		"large base":     {queue.Config{Prefix: "{p}", BackoffBase: time.Hour}, true},
		"length":         {queue.Config{Prefix: "{p}", MaxLength: -1}, false},
		"dead":           {queue.Config{Prefix: "{p}", MaxDead: -1}, false},
		"followers":      {queue.Config{Prefix: "u:{b}:x:", Followers: other}, true},
		"another tag":    {queue.Config{Prefix: "t:{a}:", Followers: other}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, err := queue.New(rdb, tt.cfg)
			if tt.ok && err != nil {
				t.Fatal(err)
			}
			if !tt.ok && !errors.Is(err, queue.ErrConfig) {
				t.Fatalf("%v, %v; want ErrConfig", q, err)
			}
		})
	}
	for _, none := range []redis.UniversalClient{nil, (*redis.Client)(nil)} {
		if q, err := queue.New(none, queue.Config{Prefix: "{p}"}); !errors.Is(err, queue.ErrConfig) {
			t.Fatalf("without a client: %v, %v; want ErrConfig", q, err)
		}
	}
}

func TestQueue_Priority(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q,
			queue.Task{ID: "low"}, queue.Task{ID: "middle", Priority: 5},
			queue.Task{ID: "high 1", Priority: 9}, queue.Task{ID: "high 2", Priority: 9})
		// Failed and handed back, a task keeps its priority.
		a := take(t, q, "high 1", "high 2")
		reject(t, q, queue.Rejection{Task: a[0]})
		reject(t, q, queue.Rejection{Task: a[1], Uncounted: true})
		take(t, q, "high 2", "high 1", "middle", "low")
		// An expired lease gives priority, too, although that of a lower task expired first.
		expire(t, rdb, q, "low", "middle")
		take(t, q, "middle", "low")
	})
}

func TestQueue_PriorityAges(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		later := time.Now().Add(time.Hour)
		before := serverTime(t, rdb)
		enqueue(t, q, queue.Task{ID: "young", Due: later}, queue.Task{ID: "old", Due: later},
			queue.Task{ID: "late high", Due: later, Priority: 9}, queue.Task{ID: "high", Priority: 9})
		after := serverTime(t, rdb)
		// Nine levels count as nine minutes. The arrival of a task of priority 0 is its score.
		enqueue(t, q, queue.Task{ID: "aged"}, queue.Task{ID: "less aged"})
		for id, arrival := range map[string]time.Time{
			"aged": before.Add(-9*time.Minute - time.Second), "less aged": after.Add(-9*time.Minute + time.Second),
		} {
			must(t, rdb.ZAdd(await.Context(t), q.EnqueueKeys()[0], redis.Z{Score: float64(arrival.UnixMicro()), Member: id}).Err())
		}
		take(t, q, "aged", "high", "less aged")
		// The delayed ones fall due, as if time had passed: they age from then on.
		now := serverTime(t, rdb)
		for id, ago := range map[string]int64{"young": 50, "old": 100, "late high": 50} {
			due := redis.Z{Score: float64(now.UnixMilli() - ago), Member: id}
			must(t, rdb.ZAdd(await.Context(t), q.Prefix()+"delayed", due).Err())
		}
		take(t, q, "late high", "old", "young")
	})
}

func TestQueue_LeaseExpires(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: 100 * time.Millisecond})
		enqueue(t, q, queue.Task{ID: "a", Payload: []byte("x")}, queue.Task{ID: "b"})
		first := take(t, q, "a", "b")
		enqueue(t, q, queue.Task{ID: "c"})
		// A long lease for the second round, so that it does not expire during the test.
		slow := newQueue(t, rdb, queue.Config{Prefix: q.Prefix()})
		waitFor(t, func() bool { return dequeueOnly(t, slow, "a") })
		second := get(t, slow, "a")
		if second.Attempt != 2 || second.State != queue.StateLeased {
			t.Fatalf("after expiry: %+v", second)
		}
		// The dequeue that took a again has reclaimed b as well, and left it ready.
		if info := get(t, slow, "b"); info.State != queue.StateReady || info.Reason != "lease expired" || info.Attempt != 1 {
			t.Fatalf("reclaimed task: %+v", info)
		}
		// Reclaimed tasks come first: b before c, and each once.
		rest := take(t, slow, "b", "c")
		if rest[0].Attempt != 2 || rest[1].Attempt != 1 {
			t.Fatalf("attempts %d and %d, want 2 and 1", rest[0].Attempt, rest[1].Attempt)
		}
		if f := dequeue(t, slow, 10); len(f.Tasks) != 0 {
			t.Fatalf("redelivered twice: %v", names(f.Tasks))
		}
		status, err := q.Ack(await.Context(t), first...)
		wantStatus(t, status, err, queue.StatusStale, queue.StatusStale)
		status, err = q.Extend(await.Context(t), first...)
		wantStatus(t, status, err, queue.StatusStale, queue.StatusStale)
		status, err = q.Reject(await.Context(t), queue.Rejection{Task: first[0], Dead: true})
		wantStatus(t, status, err, queue.StatusStale)
		if info := get(t, slow, "a"); info.State != queue.StateLeased || string(info.Payload) != "x" {
			t.Fatalf("a stale lease changed the task: %+v", info)
		}
		status, err = slow.Ack(await.Context(t), rest...)
		wantStatus(t, status, err, queue.StatusOK, queue.StatusOK)
		wantStats(t, slow, queue.Stats{Leased: 1})
	})
}

// TestQueue_LeaseAfterClockSetBack: after the clock was set back, a dead worker's lease lasts a full lease longer at
// most, not the difference. Otherwise the longer lease of another worker is kept.
func TestQueue_LeaseAfterClockSetBack(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix, ctx := redistest.Prefix(t), await.Context(t)
		long := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: time.Hour})
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: time.Minute})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		held := take(t, long, "a", "b")
		if f := dequeue(t, q, 1); f.Next <= 2*time.Minute {
			t.Fatalf("the next lease ends in %v; want that of the other worker", f.Next)
		}
		// The server's clock is an hour behind the time of the last arrival.
		now, err := rdb.Time(ctx).Result()
		must(t, err)
		must(t, rdb.Set(ctx, prefix+"clock", now.Add(time.Hour).UnixMicro(), 0).Err())
		if f := dequeue(t, q, 1); len(f.Tasks) != 0 || f.Next < 0 || f.Next > 2*time.Minute {
			t.Fatalf("%d tasks, and the next lease ends in %v; want none, and about a minute", len(f.Tasks), f.Next)
		}
		status, err := q.Ack(ctx, held...)
		wantStatus(t, status, err, queue.StatusOK, queue.StatusOK)
	})
}

// dequeueOnly takes one task and reports whether it is the named one.
func dequeueOnly(t testing.TB, q *queue.Queue, id string) bool {
	t.Helper()
	f := dequeue(t, q, 1)
	if len(f.Tasks) == 0 || f.Tasks[0].ID == id {
		return len(f.Tasks) == 1
	}
	// Not expired yet: put it back where it was.
	reject(t, q, queue.Rejection{Task: f.Tasks[0], Uncounted: true})
	return false
}

// waitFor polls cond until it holds. A slow machine only polls less often.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	ctx := await.Context(t)
	pause := 2 * time.Millisecond
	for !cond() {
		select {
		case <-ctx.Done():
			t.Fatal("did not happen in time")
		case <-time.After(pause):
		}
		pause = min(pause*3/2, 20*time.Millisecond) // most conditions run a script, which costs a millisecond
	}
}

func TestQueue_AckRepeated(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, numbered(300)...)
		l := dequeue(t, q, 300).Tasks
		if s := ack(t, q, l[:299]...); slices.Contains(s, queue.StatusMissing) || slices.Contains(s, queue.StatusStale) {
			t.Fatal("first acknowledgement refused")
		}
		s := ack(t, q, l...)
		if s[299] != queue.StatusOK || slices.Contains(s[:299], queue.StatusOK) {
			t.Fatalf("repeated acknowledgement: last %v", s[299])
		}
		wantKeys(t, rdb, q.Prefix(), "clock", "wake")
	})
}

func TestQueue_Extend(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: time.Minute})
		enqueue(t, q, queue.Task{ID: "a"})
		var l []queue.Leased
		for range 20 {
			if len(l) > 0 {
				reject(t, q, queue.Rejection{Task: l[0], Uncounted: true})
			}
			sent := serverTime(t, rdb)
			l = take(t, q, "a")
			if end := get(t, q, "a").At; end.Before(sent.Add(time.Minute)) {
				t.Fatalf("taken at %v until %v, want a minute", sent, end)
			}
		}
		before := get(t, q, "a").At
		waitFor(t, func() bool {
			sent := serverTime(t, rdb)
			status, err := q.Extend(await.Context(t), l...)
			wantStatus(t, status, err, queue.StatusOK)
			replied := serverTime(t, rdb)
			if end := get(t, q, "a").At; end.Before(sent.Add(time.Minute)) || end.After(replied.Add(time.Minute+time.Millisecond)) {
				t.Fatalf("extended between %v and %v until %v, want a minute", sent, replied, end)
			}
			return get(t, q, "a").At.After(before)
		})
		if end := get(t, q, "a").At; queue.LeaseEnd(l[0]).After(end) {
			t.Fatalf("local lease end %v is later than the server's %v", queue.LeaseEnd(l[0]), end)
		}
		ack(t, q, l...)
		status, err := q.Extend(await.Context(t), l...)
		wantStatus(t, status, err, queue.StatusMissing)
		wantStats(t, q, queue.Stats{})
	})
}

func TestQueue_RejectDelay(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"})
		l := take(t, q, "a")
		sent := serverTime(t, rdb)
		reject(t, q, queue.Rejection{Task: l[0], Delay: 120 * time.Millisecond, Reason: "no luck"})
		if info := get(t, q, "a"); info.State != queue.StateDelayed || info.Reason != "no luck" ||
			info.At.Before(sent.Add(120*time.Millisecond)) {
			t.Fatalf("rejected at %v: %+v", sent, info)
		}
		again := take(t, q, "a")
		if late := serverTime(t, rdb).Sub(sent); late < 120*time.Millisecond {
			t.Fatalf("redelivered after %v", late)
		}
		if again[0].Attempt != 2 {
			t.Fatalf("attempt %d, want 2", again[0].Attempt)
		}
		reject(t, q, queue.Rejection{Task: again[0], Delay: time.Millisecond, Uncounted: true})
		if again = take(t, q, "a"); again[0].Attempt != 2 {
			t.Fatalf("attempt %d after an uncounted one, want 2", again[0].Attempt)
		}
	})
}

// TestQueue_RejectOrder: tasks that are rejected together keep their order. Those that were not processed go in
// front of older tasks, the others behind them.
func TestQueue_RejectOrder(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "d"}, queue.Task{ID: "c"}, queue.Task{ID: "b"}, queue.Task{ID: "a"})
		l := take(t, q, "d", "c", "b", "a")
		enqueue(t, q, queue.Task{ID: "ready"})
		reject(t, q, queue.Rejection{Task: l[0], Uncounted: true}, queue.Rejection{Task: l[1], Uncounted: true},
			queue.Rejection{Task: l[2]}, queue.Rejection{Task: l[3]})
		take(t, q, "d", "c", "ready", "b", "a")
	})
}

// TestQueue_RejectTwice: of two rejections of one task in a call, the last one counts.
func TestQueue_RejectTwice(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"})
		l := take(t, q, "a", "b")
		status, err := q.Reject(await.Context(t), queue.Rejection{Task: l[0], Dead: true}, queue.Rejection{Task: l[1]},
			queue.Rejection{Task: l[0], Delay: time.Hour})
		wantStatus(t, status, err, queue.StatusStale, queue.StatusOK, queue.StatusOK)
		wantStats(t, q, queue.Stats{Ready: 1, Delayed: 1})
	})
}

func TestQueue_DueNeverEarly(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		due := make(map[string]time.Time)
		now := serverTime(t, rdb)
		for i := range 20 {
			id := fmt.Sprintf("t%02d", i)
			due[id] = now.Add(time.Duration(50+i*7)*time.Millisecond + time.Duration(i)*37*time.Microsecond)
			enqueue(t, q, queue.Task{ID: id, Due: due[id]})
			info := get(t, q, id)
			if info.State != queue.StateDelayed {
				continue // a slow machine: it is due already
			}
			if at := info.At; at.Before(due[id]) || at.Sub(due[id]) >= time.Millisecond {
				t.Fatalf("%s is kept as due at %v, want %v rounded up to the millisecond", id, at, due[id])
			}
		}
		// On a slow machine those that were due when they were added come first.
		for taken := 0; taken < 20; {
			f := dequeue(t, q, 1)
			if len(f.Tasks) == 0 {
				must(t, q.Wait(await.Context(t), f.Next))
				continue
			}
			tasks, at := f.Tasks, serverTime(t, rdb)
			for _, task := range tasks {
				if at.Before(due[task.ID]) {
					t.Fatalf("%s taken at %v, due at %v", task.ID, at, due[task.ID])
				}
			}
			ack(t, q, tasks...)
			taken += len(tasks)
		}
	})
}

func TestQueue_Backoff(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const base, limit = 30 * time.Second, 100 * time.Second
		q := newQueue(t, rdb, queue.Config{BackoffBase: base, BackoffMax: limit, MaxAttempts: 1000})
		enqueue(t, q, queue.Task{ID: "a"})
		seen := make(map[time.Duration]bool)
		for attempt := 1; attempt <= 60; attempt++ {
			l := take(t, q, "a")[0]
			// The Attempt passed to Reject decides the range; the meta keeps its own count.
			before := serverTime(t, rdb)
			reject(t, q, queue.Rejection{Task: l, Delay: -1})
			bound := limit
			if attempt <= 2 {
				bound = base << (attempt - 1)
			}
			wait := get(t, q, "a").At.Sub(before)
			if wait < 0 || wait > bound+5*time.Second {
				t.Fatalf("attempt %d waits %v, want at most %v", attempt, wait, bound)
			}
			seen[wait.Round(time.Second)] = true
			must(t, rdb.ZAdd(await.Context(t), q.EnqueueKeys()[1], redis.Z{Score: 1, Member: "a"}).Err())
		}
		if len(seen) < 10 {
			t.Fatalf("60 delays take %d values: no jitter", len(seen))
		}
	})
}

// TestQueue_RejectReason: the first 4 KiB of a reason are kept, as valid UTF-8.
func TestQueue_RejectReason(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"})
		reject(t, q, queue.Rejection{Task: take(t, q, "a")[0], Dead: true, Reason: "\xff" + strings.Repeat("é", 3000)})
		if got, want := get(t, q, "a").Reason, "?"+strings.Repeat("é", 2047)+"?"; got != want {
			t.Errorf("%d bytes, %.5q to %q; want %d", len(got), got, got[len(got)-3:], len(want))
		}
	})
}

// TestQueue_MemoryFull: when Redis refuses commands that need memory, adding tasks writes
// nothing, and the tasks in the queue can still be processed.
func TestQueue_MemoryFull(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	ctx := await.Context(t)
	q := newQueue(t, rdb, queue.Config{MaxAttempts: 2})
	enqueue(t, q, numbered(20)...)
	enqueue(t, q, queue.Task{ID: "due", Due: serverTime(t, rdb).Add(time.Millisecond)})
	old := dequeue(t, q, 4).Tasks
	reject(t, q, queue.Rejection{Task: old[1]})
	if again := take(t, q, "t000016"); again[0].Attempt != 1 {
		t.Fatalf("%+v", again)
	}
	// The first expired lease belongs to a last attempt, so that a dead letter comes first.
	if err := rdb.HSet(ctx, q.EnqueueKeys()[4], old[0].ID, "2,0;Lx").Err(); err != nil {
		t.Fatal(err)
	}
	must(t, rdb.ZAdd(ctx, q.EnqueueKeys()[2], redis.Z{Score: 1, Member: old[0].ID}, redis.Z{Score: 2, Member: old[2].ID}).Err())
	must(t, rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	before := stats(t, q)
	if status, err := q.Enqueue(ctx, queue.Task{ID: "no room"}); err == nil || status[0] != queue.StatusUnknown {
		t.Fatalf("enqueue without memory: %v, %v", status, err)
	}
	wantStats(t, q, before)
	wantGone(t, q, "no room")
	waiting, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- q.Wait(waiting, time.Hour) }()
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, rdb.Del(ctx, q.EnqueueKeys()[6]).Err()) // without a wake-up, the limit ends the wait
	if err := q.Wait(ctx, 10*time.Millisecond); err != nil {
		t.Errorf("a wait without memory: %v", err)
	}
	done := 0
	for {
		f := dequeue(t, q, 7)
		if len(f.Tasks) == 0 {
			break
		}
		status, err := q.Extend(ctx, f.Tasks[0])
		wantStatus(t, status, err, queue.StatusOK)
		reject(t, q, queue.Rejection{Task: f.Tasks[0], Dead: true})
		ack(t, q, f.Tasks[1:]...)
		done += len(f.Tasks)
	}
	if s := stats(t, q); s.Ready != 0 || s.Delayed != 0 || done < 18 {
		t.Fatalf("%d tasks done, left %+v", done, s)
	}
	if info := get(t, q, old[0].ID); info.State != queue.StateDead {
		t.Fatalf("%+v", info)
	}
}
