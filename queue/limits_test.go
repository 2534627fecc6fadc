package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
	"flashsale/queue"
)

func TestNew_Limits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	for name, tt := range map[string]struct {
		cfg queue.Config
		ok  bool
	}{
		"leased":              {queue.Config{MaxLeased: 1}, true},
		"negative leased":     {queue.Config{MaxLeased: -1}, false},
		"rate":                {queue.Config{Rate: 0.5}, true},
		"lowest rate":         {queue.Config{Rate: 1e-6}, true},
		"highest rate":        {queue.Config{Rate: 100_000, Burst: 1_000_000}, true},
		"rate too low":        {queue.Config{Rate: 9e-7}, false},
		"rate too high":       {queue.Config{Rate: 100_001}, false},
		"negative rate":       {queue.Config{Rate: -1}, false},
		"rate not a number":   {queue.Config{Rate: math.NaN()}, false},
		"infinite rate":       {queue.Config{Rate: math.Inf(1)}, false},
		"burst without rate":  {queue.Config{Burst: 1}, false},
		"negative burst":      {queue.Config{Rate: 1, Burst: -1}, false},
		"burst too large":     {queue.Config{Rate: 100_000, Burst: 1_000_001}, false},
		"burst of a month":    {queue.Config{Rate: 1, Burst: 30 * 24 * 3600}, false}, // above the bound of a burst
		"burst of too long":   {queue.Config{Rate: 0.01, Burst: 30*24*36 + 1}, false},
		"burst of just right": {queue.Config{Rate: 0.01, Burst: 30 * 24 * 36}, true},
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

// wantHeld fails unless a limit holds everything back, and no token is left for a worker to spin on.
func wantHeld(t testing.TB, rdb redis.UniversalClient, q *queue.Queue) queue.Fetched {
	t.Helper()
	ctx := testContext(t)
	wake := q.EnqueueKeys()[6]
	if err := rdb.Del(ctx, wake).Err(); err != nil {
		t.Fatal(err)
	}
	f := dequeue(t, q, 10)
	if len(f.Tasks) > 0 || f.More || f.Next == 0 {
		t.Fatalf("took %v, More %v, Next %v; want nothing until later", names(f.Tasks), f.More, f.Next)
	}
	if n, err := rdb.LLen(ctx, wake).Result(); err != nil || n != 0 {
		t.Fatalf("%d tokens, %v, although nothing is to be had", n, err)
	}
	return f
}

func TestQueue_MaxLeased(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLeased: 3, Lease: time.Hour})
		enqueue(t, q, numbered(10)...)
		enqueue(t, q, queue.Task{ID: "delayed", Due: time.Now().Add(10 * time.Minute)})
		if f := dequeue(t, q, 2); len(f.Tasks) != 2 || !f.More {
			t.Fatalf("below the limit: %v, More %v", names(f.Tasks), f.More)
		}
		l := take(t, q, "t000008")
		// Until the first lease ends there is nothing to look for, whatever falls due.
		if f := wantHeld(t, rdb, q); f.Next < 59*time.Minute {
			t.Fatalf("Next %v, want the end of the leases", f.Next)
		}
		ack(t, q, l...)
		if f := dequeue(t, q, 10); len(f.Tasks) != 1 || f.More {
			t.Fatalf("with one lease free: %v, More %v", names(f.Tasks), f.More)
		}
		// A lower limit takes nothing away.
		lower := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLeased: 1})
		wantHeld(t, rdb, lower)
		wantStats(t, q, queue.Stats{Ready: 6, Leased: 3, Delayed: 1})
		// Expired leases are free.
		expire(t, rdb, q, "t000007")
		if f := dequeue(t, q, 10); len(f.Tasks) != 1 || f.Tasks[0].ID != "t000007" || f.Tasks[0].Attempt != 2 || f.More {
			t.Fatalf("after an expiry: %+v", f)
		}
	})
}

// TestQueue_MaxLeasedExact: however many take and end leases at once, there are never more.
func TestQueue_MaxLeasedExact(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const bound, tasks = 5, 200
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, MaxLeased: bound, Lease: time.Hour})
		enqueue(t, q, numbered(tasks)...)
		var now, most, done atomic.Int32
		var work sync.WaitGroup
		for i := range 4 {
			work.Go(func() {
				ctx := testContext(t)
				for done.Load() < tasks {
					f, err := q.Dequeue(ctx, 1+i)
					if err != nil {
						t.Error(err)
						return
					}
					held := now.Add(int32(len(f.Tasks)))
					for old := most.Load(); held > old && !most.CompareAndSwap(old, held); old = most.Load() {
					}
					now.Add(-int32(len(f.Tasks)))
					if _, err := q.Ack(ctx, f.Tasks...); err != nil {
						t.Error(err)
						return
					}
					done.Add(int32(len(f.Tasks)))
				}
			})
		}
		work.Wait()
		if most.Load() > bound {
			t.Fatalf("%d tasks were leased at once, want at most %d", most.Load(), bound)
		}
		wantStats(t, q, queue.Stats{})
	})
}

// TestQueue_MaxLeasedFreed: whatever ends a lease starts a worker that sleeps
// because of the limit.
func TestQueue_MaxLeasedFreed(t *testing.T) {
	t.Parallel()
	later := []queue.Task{{ID: "later", Due: time.Now().Add(time.Hour)}}
	for name, end := range map[string]func(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, l []queue.Leased){
		"ack": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) { ack(t, q, l[0]) },
		"complete": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			wantComplete(t, q, queue.Done, l[0])
		},
		"complete with a successor": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			wantComplete(t, q, queue.Done, l[0], later...)
		},
		"reject with a delay": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			reject(t, q, queue.Rejection{Task: l[0], Delay: time.Hour})
		},
		"reject for good": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			reject(t, q, queue.Rejection{Task: l[0], Dead: true})
		},
		"cancel": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			states, err := q.Cancel(testContext(t), l[0].ID)
			if err != nil || states[0] != queue.StateLeased {
				t.Fatalf("%v, %v", states, err)
			}
		},
		"expiry": func(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			expire(t, rdb, q, l[0].ID, l[1].ID)
			take(t, q, l[0].ID)
		},
		"repair": func(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, l []queue.Leased) {
			if err := rdb.HDel(testContext(t), q.EnqueueKeys()[3], l[0].ID).Err(); err != nil {
				t.Fatal(err)
			}
			if r := verify(t, q, true); len(r.Bodiless) != 1 {
				t.Fatalf("%+v", r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				cfg := queue.Config{Prefix: redistest.Prefix(t), MaxLeased: 2, Lease: time.Hour}
				q := newQueue(t, rdb, cfg)
				enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"})
				l := take(t, q, "a", "b")
				// Something that falls due before what a case adds, so that this wakes nobody for its own sake.
				enqueue(t, q, queue.Task{ID: "sooner", Due: time.Now().Add(time.Minute)})
				if err := rdb.Del(testContext(t), q.EnqueueKeys()[6]).Err(); err != nil {
					t.Fatal(err)
				}
				other, asleep := sleeper(t, rdb, cfg)
				started := make(chan string, 8)
				startEach(t, other, func(_ context.Context, task queue.Leased) error {
					started <- task.ID
					return nil
				}, queue.RunConfig{MaxIdle: time.Hour})
				receive(t, "the worker's sleep", asleep)
				end(t, rdb, q, l)
				for id := ""; id != "c"; {
					id = receive(t, "the start of the task that waited", started)
				}
			})
		})
	}
}

// TestQueue_RateBurst: a rate that was not used lets exactly its burst through,
// and says exactly when the next one follows.
func TestQueue_RateBurst(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, tt := range []struct {
			rate  float64
			burst int
			want  int
			next  time.Duration // at most; and a millisecond less than that for each that passed
		}{
			{rate: 0.1, want: 1, next: 10 * time.Second},
			{rate: 0.1, burst: 5, want: 5, next: 10 * time.Second},
			{rate: 0.3, burst: 7, want: 7, next: 3334 * time.Millisecond}, // rounded up
			{rate: 1.5, want: 2, next: 667 * time.Millisecond},
			{rate: 7, want: 7, next: 143 * time.Millisecond},
			{rate: 33, want: 33, next: 31 * time.Millisecond},
			{rate: 1000.0 / 3, burst: 100, want: 100, next: 3 * time.Millisecond},
			{rate: 99_999.9, burst: 499, want: 499, next: time.Millisecond},
			{rate: 1e-6, burst: 2, want: 2, next: 1_000_000 * time.Second},
			{rate: 100_000, burst: 1_000_000, want: 500}, // all there are
		} {
			q := newQueue(t, rdb, queue.Config{Rate: tt.rate, Burst: tt.burst, Lease: time.Hour, MaxLength: 1000})
			enqueue(t, q, numbered(500)...)
			f := dequeue(t, q, 512)
			if len(f.Tasks) != tt.want || f.More {
				t.Fatalf("rate %v, burst %d: took %d tasks, More %v; want %d", tt.rate, tt.burst, len(f.Tasks), f.More, tt.want)
			}
			// Nothing was let through before this call, so the answer is exact.
			if tt.next > 0 && f.Next != tt.next {
				t.Fatalf("rate %v, burst %d: Next %v, want %v", tt.rate, tt.burst, f.Next, tt.next)
			}
		}
	})
}

// TestQueue_RateParts: a burst may be used up in several calls, and what does not fit waits.
func TestQueue_RateParts(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, Rate: 0.01, Burst: 5, Lease: time.Hour})
		enqueue(t, q, numbered(8)...)
		if f := dequeue(t, q, 3); len(f.Tasks) != 3 || !f.More {
			t.Fatalf("%v, More %v", names(f.Tasks), f.More)
		}
		f := dequeue(t, q, 3)
		if len(f.Tasks) != 2 || f.More || f.Next > 100*time.Second || f.Next < 60*time.Second {
			t.Fatalf("%v, More %v, Next %v", names(f.Tasks), f.More, f.Next)
		}
		// What is handed back has used its place all the same.
		status, err := q.Reject(testContext(t), queue.Rejection{Task: f.Tasks[0], Uncounted: true}, queue.Rejection{Task: f.Tasks[1]})
		wantStatus(t, status, err, queue.Done, queue.Done)
		wantHeld(t, rdb, q)
		wantStats(t, q, queue.Stats{Ready: 5, Leased: 3})
		// Where nothing is held back, what falls due counts again.
		if _, err := q.Cancel(testContext(t), infoNames(list(t, q, queue.StateReady))...); err != nil {
			t.Fatal(err)
		}
		enqueue(t, q, queue.Task{ID: "due", Due: serverTime(t, rdb).Add(20 * time.Second)})
		if f := dequeue(t, q, 1); f.Next > 21*time.Second {
			t.Fatalf("Next %v, want when the delayed task is due", f.Next)
		}
	})
}

// TestQueue_RateState: what the key holds cannot hold the queue up for longer than a burst takes.
func TestQueue_RateState(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		ctx := testContext(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, Rate: 0.01, Burst: 3})
		key := prefix + "rate"
		set := func(value string) {
			if err := rdb.Set(ctx, key, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		enqueue(t, q, numbered(5)...)
		// The server's clock has stepped back by years.
		set(fmt.Sprint(serverTime(t, rdb).AddDate(10, 0, 0).UnixMicro()))
		if f := wantHeld(t, rdb, q); f.Next != 100*time.Second {
			t.Fatalf("Next %v, want the time of one task", f.Next)
		}
		// An arrival in the past lets no more than a burst through.
		set(fmt.Sprint(serverTime(t, rdb).AddDate(-1, 0, 0).UnixMicro()))
		if f := dequeue(t, q, 5); len(f.Tasks) != 3 {
			t.Fatalf("after a long pause: %v", names(f.Tasks))
		}
		if life, err := rdb.PTTL(ctx, key).Result(); err != nil || life < 290*time.Second || life > 302*time.Second {
			t.Fatalf("the key lives for %v, %v; want a little more than it says something", life, err)
		}
		set("not a number")
		if f := dequeue(t, q, 1); len(f.Tasks) != 1 {
			t.Fatalf("after an unreadable state: %v", names(f.Tasks))
		}
		// A key of another type fails before anything is changed.
		if err := rdb.Del(ctx, key).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.LPush(ctx, key, "x").Err(); err != nil {
			t.Fatal(err)
		}
		before := content(t, rdb, prefix)
		if f, err := q.Dequeue(ctx, 1); err == nil {
			t.Fatalf("%+v, want an error", f)
		}
		for name, dump := range content(t, rdb, prefix) {
			if dump != before[name] {
				t.Fatalf("%s changed", name)
			}
		}
	})
}

// TestQueue_RateNeverEarly: two processes share the rate, each task starts when
// the rate allows and not before by the server's clock, and nobody polls: with
// an idle time of an hour all are done.
func TestQueue_RateNeverEarly(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const rate, burst, tasks = 125.0, 3, 30
		cfg := queue.Config{Prefix: redistest.Prefix(t), Rate: rate, Burst: burst}
		begin := serverTime(t, rdb)
		started := make(chan time.Time, tasks)
		for range 2 {
			startEach(t, newQueue(t, redistest.Second(t, rdb), cfg), func(context.Context, queue.Leased) error {
				started <- serverTime(t, rdb)
				return nil
			}, queue.RunConfig{MaxIdle: time.Hour})
		}
		enqueue(t, newQueue(t, rdb, cfg), numbered(tasks)...)
		var times []time.Time
		for i := range tasks {
			times = append(times, receive(t, fmt.Sprintf("start %d", i), started))
		}
		// At the i-th of these times in order, i+1 tasks had been let through.
		slices.SortFunc(times, time.Time.Compare)
		for i, at := range times {
			earliest := begin.Add(time.Duration(float64(i-burst+1) / rate * float64(time.Second)))
			if at.Before(earliest) {
				t.Fatalf("start %d at %v, want %v at the earliest", i, at.Sub(begin), earliest.Sub(begin))
			}
		}
	})
}
