package queue_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

func wantCounted(t testing.TB, q *queue.Queue, processed, failed, died int64) {
	t.Helper()
	if s := counted(t, q); s.Processed != processed || s.Failed != failed || s.Died != died {
		t.Fatalf("processed %d, failed %d, died %d; want %d, %d, %d", s.Processed, s.Failed, s.Died, processed, failed, died)
	}
}

func TestQueue_StatsTotals(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 2, MaxDead: 1, Lease: time.Hour})
		ctx := await.Context(t)
		wantCounted(t, q, 0, 0, 0)
		enqueue(t, q, numbered(5)...)
		l := dequeue(t, q, 5).Tasks
		wantCounted(t, q, 0, 0, 0)

		// Acknowledged: each counts once, however often it is acknowledged.
		ack(t, q, l[0], l[1], l[0])
		ack(t, q, l[0])
		wantComplete(t, q, queue.StatusOK, l[2], queue.Task{ID: "next"})
		wantComplete(t, q, queue.StatusMissing, l[2])
		wantCounted(t, q, 3, 0, 0)

		// Failed: a task that is handed back or snoozed does not count.
		for _, r := range []queue.Rejection{{Uncounted: true}, {Uncounted: true, Delay: time.Millisecond}} {
			r.Task = l[3]
			reject(t, q, r)
			waitFor(t, func() bool {
				if f := dequeue(t, q, 2).Tasks; len(f) > 0 && f[0].ID == l[3].ID {
					l[3] = f[0]
					return true
				}
				return false
			})
		}
		wantCounted(t, q, 3, 0, 0)
		reject(t, q, queue.Rejection{Task: l[3], Delay: time.Hour})
		wantCounted(t, q, 3, 1, 0)
		status, err := q.Reject(ctx, queue.Rejection{Task: l[3]})
		wantStatus(t, status, err, queue.StatusStale)
		reject(t, q, queue.Rejection{Task: l[4], Dead: true})
		wantCounted(t, q, 3, 2, 1)

		// Leases that expire: at first the task is ready again, then it is dead.
		expire(t, rdb, q, "next")
		take(t, q, "next")
		wantCounted(t, q, 3, 3, 1)
		expire(t, rdb, q, "next")
		dequeue(t, q, 1)
		wantCounted(t, q, 3, 4, 2)

		// A task without a payload dies without a failed attempt. A dropped dead letter still counts.
		enqueue(t, q, queue.Task{ID: "bodiless"})
		must(t, rdb.HDel(ctx, q.EnqueueKeys()[3], "bodiless").Err())
		dequeue(t, q, 1)
		wantCounted(t, q, 3, 4, 3)
		wantStats(t, q, queue.Stats{Delayed: 1, Dead: 1})
	})
}

// withinMinute repeats f until it runs inside one minute of the server's clock.
func withinMinute(t testing.TB, rdb redis.UniversalClient, f func(minute int64) error) {
	t.Helper()
	for {
		minute := serverTime(t, rdb).Unix() / 60
		err := f(minute)
		if serverTime(t, rdb).Unix()/60 != minute {
			continue
		}
		must(t, err)
		return
	}
}

func TestQueue_StatsLastMinute(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		withinMinute(t, rdb, func(minute int64) error {
			q := newQueue(t, rdb, queue.Config{})
			ctx := await.Context(t)
			field := func(ago int64) string { return fmt.Sprintf("m%d", minute-ago) }
			for ago, n := range map[int64]int{1: 10, 2: 20, 61: 610, -2: 1, -1: 7} {
				must(t, rdb.HSet(ctx, q.Prefix()+"counts", field(ago), n).Err())
			}
			const sum = 10 + 20 + 610 + 1 + 7
			if s := counted(t, q); s.LastMinute != 10 || s.Processed != sum {
				return fmt.Errorf("%+v, want 10 and %d", s, sum)
			}
			// The first acknowledgement of a minute sums up old minutes.
			enqueue(t, q, numbered(3)...)
			l := dequeue(t, q, 3).Tasks
			ack(t, q, l[0])
			fields := func() []string {
				var minutes []string
				for _, name := range rdb.HKeys(ctx, q.Prefix()+"counts").Val() {
					if name[0] == 'm' {
						minutes = append(minutes, name)
					}
				}
				slices.Sort(minutes)
				return minutes
			}
			left := []string{field(1), field(0), field(-1)}
			if got := fields(); !slices.Equal(got, left) {
				return fmt.Errorf("minutes %v, want %v", got, left)
			}
			if s := counted(t, q); s.LastMinute != 10 || s.Processed != sum+1 {
				return fmt.Errorf("%+v, want 10 and %d", s, sum+1)
			}
			// The others of it do not.
			must(t, rdb.HSet(ctx, q.Prefix()+"counts", field(1000), 1).Err())
			wantComplete(t, q, queue.StatusOK, l[1])
			ack(t, q, l[2])
			if got := fields(); len(got) != len(left)+1 {
				return fmt.Errorf("minutes %v, want an old one to stay", got)
			}
			if n, err := rdb.HGet(ctx, q.Prefix()+"counts", field(0)).Int(); err != nil || n != 3 {
				return fmt.Errorf("this minute has %d, %v", n, err)
			}
			return nil
		})
	})
}

// arrived changes the time since when a task has been ready.
func arrived(t testing.TB, rdb redis.UniversalClient, q *queue.Queue, ago time.Duration, priority int, ids ...string) {
	t.Helper()
	at := float64(serverTime(t, rdb).Add(-ago).UnixMicro() - int64(priority)*time.Minute.Microseconds())
	for i, id := range ids {
		z := redis.Z{Score: at + float64(i), Member: id}
		if n, err := rdb.ZAdd(await.Context(t), q.EnqueueKeys()[0], z).Result(); err != nil || n != 0 {
			t.Fatalf("%s was not ready: %d, %v", id, n, err)
		}
	}
}

// bucket is the index of the bucket that contains d.
func bucket(d time.Duration) int {
	var w queue.Waits
	for i := range w {
		if d <= queue.Bound(i) {
			return i
		}
	}
	panic("the last has no bound")
}

// wantWaits fails unless exactly these waits were counted since before, and returns the new
// counts.
func wantWaits(t testing.TB, q *queue.Queue, before queue.Waits, want map[int]int64) queue.Waits {
	t.Helper()
	now := counted(t, q).Waits
	for i, n := range now {
		if n-before[i] != want[i] {
			t.Fatalf("%d waits up to %v, want %d; all: %v, before: %v", n-before[i], queue.Bound(i), want[i], now, before)
		}
	}
	return now
}

// TestQueue_StatsWaits: the waits are so far from the bounds of a bucket that the duration of
// the test does not matter.
func TestQueue_StatsWaits(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: time.Hour, MaxLength: 1000})
		var w queue.Waits
		const half, three, thirty, long = 30 * time.Second, 3 * time.Minute, 30 * time.Minute, 3 * time.Hour
		enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b", Priority: 9}, queue.Task{ID: "c"}, queue.Task{ID: "d", Type: "x"})
		arrived(t, rdb, q, half, 0, "a")
		arrived(t, rdb, q, three, 9, "b")
		arrived(t, rdb, q, thirty, 0, "c")
		arrived(t, rdb, q, long, 0, "d")
		waited := map[string]time.Duration{"a": half, "b": three, "c": thirty, "d": long}
		l := dequeue(t, q, 10).Tasks
		if len(l) != 4 {
			t.Fatal(names(l))
		}
		for i := range l {
			if want := waited[l[i].ID]; bucket(l[i].Waited) != bucket(want) || l[i].Waited < want || l[i].FetchedAt.IsZero() {
				t.Errorf("%s waited %v until %v, want %v", l[i].ID, l[i].Waited, l[i].FetchedAt, want)
			}
		}
		w = wantWaits(t, q, w, map[int]int64{bucket(half): 1, bucket(three): 1, bucket(long): 2})

		// A delayed task counts from when it fell due, however long ago it was added and however late it is promoted.
		enqueue(t, q, queue.Task{ID: "e", Due: time.Now().Add(time.Hour), Priority: 2})
		due := float64(serverTime(t, rdb).Add(-half).UnixMilli())
		must(t, rdb.ZAdd(await.Context(t), q.EnqueueKeys()[1], redis.Z{Score: due, Member: "e"}).Err())
		take(t, q, "e")
		w = wantWaits(t, q, w, map[int]int64{bucket(half): 1})

		// After the clock stepped back, a task that seems to arrive later has not waited.
		enqueue(t, q, queue.Task{ID: "f"})
		arrived(t, rdb, q, -time.Hour, 0, "f")
		load, err := q.Load(await.Context(t))
		if s := counted(t, q); err != nil || s.OldestReady != 0 || load.OldestReady != 0 {
			t.Errorf("the oldest has waited %v and %v, %v; want 0", s.OldestReady, load.OldestReady, err)
		}
		if waited := take(t, q, "f")[0].Waited; waited != 0 {
			t.Errorf("waited %v, want 0", waited)
		}
		wantWaits(t, q, w, map[int]int64{0: 1})
	})
}

// TestQueue_StatsWaitsAgain: the wait of a task that was handed back counts from then, although
// it is in front of older ones; the mark for that is removed.
func TestQueue_StatsWaitsAgain(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, l queue.Leased){
		"handed back": func(t *testing.T, _ redis.UniversalClient, q *queue.Queue, l queue.Leased) {
			reject(t, q, queue.Rejection{Task: l, Uncounted: true})
		},
		"expired": func(t *testing.T, rdb redis.UniversalClient, q *queue.Queue, l queue.Leased) { expire(t, rdb, q, l.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				q := newQueue(t, rdb, queue.Config{Lease: time.Hour, MaxAttempts: 9})
				enqueue(t, q, queue.Task{ID: "a", Type: "x,b1", Priority: 1}, queue.Task{ID: "old"})
				arrived(t, rdb, q, 3*time.Hour, 1, "a")
				arrived(t, rdb, q, 3*time.Hour, 0, "old")
				l := take(t, q, "a")[0]
				for range 2 {
					w := counted(t, q).Waits
					back(t, rdb, q, l)
					l = take(t, q, "a")[0] // in front of the older one
					now := counted(t, q).Waits
					if now.Total() != w.Total()+1 || now[len(now)-1] != w[len(w)-1] {
						t.Fatalf("waits %v, before %v; want a short one more", now, w)
					}
					if meta, err := rdb.HGet(await.Context(t), q.Prefix()+"meta", "a").Result(); err != nil || meta != l.Token {
						t.Fatalf("meta %q, %v; want %q", meta, err, l.Token)
					}
				}
				if want := fmt.Sprintf("%d,1,yx%%2Cb1;L", l.Attempt); l.Token[:len(want)] != want || l.Type != "x,b1" {
					t.Fatalf("%+v, want a token that begins with %s", l, want)
				}
				ack(t, q, l)
				enqueue(t, q, queue.Task{ID: "c"})
			})
		})
	}
}

// TestQueue_StatsWaitsMark: the mark of a task that was handed back is removed with its state.
func TestQueue_StatsWaitsMark(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		ctx := await.Context(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		marked := func(id string) bool {
			meta, err := rdb.HGet(ctx, prefix+"meta", id).Result()
			must(t, err)
			return strings.Contains(meta, ",b")
		}
		enqueue(t, q, queue.Task{ID: "lost", Type: "x"}, queue.Task{ID: "bodiless", Type: "x"}, queue.Task{ID: "later"})
		l := take(t, q, "lost", "bodiless", "later")
		reject(t, q, queue.Rejection{Task: l[0], Uncounted: true}, queue.Rejection{Task: l[1], Uncounted: true},
			queue.Rejection{Task: l[2], Uncounted: true, Delay: time.Hour})
		if !marked("lost") || !marked("bodiless") || marked("later") {
			t.Fatal("only a task that was handed back must be marked")
		}
		if info := get(t, q, "lost"); info.Type != "x" || info.State != queue.StateReady {
			t.Fatalf("%+v", info)
		}
		must(t, rdb.Del(ctx, prefix+"ready").Err())
		must(t, rdb.HDel(ctx, prefix+"body", "bodiless").Err())
		must(t, rdb.ZAdd(ctx, prefix+"ready", redis.Z{Score: 1, Member: "bodiless"}).Err())
		verify(t, q, true)
		if marked("lost") || marked("bodiless") {
			t.Fatal("marked although it was not handed back")
		}
		if info := get(t, q, "bodiless"); info.State != queue.StateDead || info.Type != "x" {
			t.Fatalf("%+v", info)
		}
		ack(t, q, take(t, q, "lost")...)
	})
}

// TestQueue_StatsWaitsSampled: in a large batch the weights sum to the number of tasks, and
// follow the order.
func TestQueue_StatsWaitsSampled(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const minutes, seconds, now = 3 * time.Minute, 30 * time.Second, 3 * time.Hour
		q := newQueue(t, rdb, queue.Config{Lease: time.Hour})
		for _, n := range []int{16, 17, 31, 33, 100, 101, 205, 512} {
			tasks := numbered(n)
			for i := range tasks {
				tasks[i].ID = fmt.Sprintf("%d of %d", i, n)
			}
			enqueue(t, q, tasks...)
			ids := idsOf(tasks)
			a, b := n/4, n/2
			arrived(t, rdb, q, now, 0, ids[:a]...)
			arrived(t, rdb, q, minutes, 0, ids[a:b]...)
			arrived(t, rdb, q, seconds, 0, ids[b:]...)
			before := counted(t, q).Waits
			l := dequeue(t, q, 512).Tasks
			if len(l) != n {
				t.Fatalf("took %d of %d", len(l), n)
			}
			ack(t, q, l...)
			var each queue.Waits
			for i := range l {
				each[bucket(l[i].Waited)]++
			}
			w := counted(t, q).Waits
			if got := w.Total() - before.Total(); got != int64(n) {
				t.Fatalf("%d waits counted of %d", got, n)
			}
			// This is the largest weight of a sample, so the border may be off by as many.
			off := float64(n)/16 + 1
			if n == 16 {
				off = 0
			}
			for d, want := range map[time.Duration]int{now: a, minutes: b - a, seconds: n - b} {
				i := bucket(d)
				if got := float64(w[i] - before[i]); math.Abs(got-float64(want)) > off {
					t.Fatalf("of %d tasks %v waited %v, want %d or %v more or less", n, got, d, want, off)
				}
				if got := each[i]; got != w[i]-before[i] {
					t.Fatalf("of %d tasks %d say that they waited %v, and %d were counted", n, got, d, w[i]-before[i])
				}
			}
		}
	})
}

// TestQueue_StatsBroken: corrupt counters stop no task.
func TestQueue_StatsBroken(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		ctx := await.Context(t)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		for name, spoil := range map[string]func() error{
			"another type": func() error { return rdb.Set(ctx, prefix+"counts", "x", 0).Err() },
			"no numbers": func() error {
				return rdb.HSet(ctx, prefix+"counts", "processed", "x", "failed", "x", "died", "x", "w1", "x", "w2", "x").Err()
			},
		} {
			must(t, rdb.Del(ctx, prefix+"counts").Err())
			must(t, spoil())
			enqueue(t, q, queue.Task{ID: "a"}, queue.Task{ID: "b"}, queue.Task{ID: "c"}, queue.Task{ID: "d"})
			l := take(t, q, "a", "b", "c", "d")
			ack(t, q, l[0])
			reject(t, q, queue.Rejection{Task: l[1], Dead: true})
			wantComplete(t, q, queue.StatusOK, l[2])
			expire(t, rdb, q, "d")
			ack(t, q, take(t, q, "d")...)
			if s, err := q.Stats(ctx); err == nil {
				t.Fatalf("%s: %+v, want an error", name, s)
			}
			must(t, rdb.Del(ctx, prefix+"counts").Err())
			wantStats(t, q, queue.Stats{Dead: 1})
			deleteDead(t, q, "b")
		}
		// Counters of another version are ignored.
		must(t, rdb.HSet(ctx, prefix+"counts", "processed", 3, "w17", 1, "w0", 1, "mx", 1, "wx", 1, "new", 1, "birth", "x").Err())
		if s := counted(t, q); s.Processed != 3 || s.Waits.Total() != 0 {
			t.Fatalf("%+v", s)
		}
	})
}

func TestWaits_Quantile(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		waits queue.Waits
		p     float64
		want  time.Duration
	}{
		"nothing":              {queue.Waits{}, 0.5, 0},
		"first bucket":         {queue.Waits{10}, 0.5, ms / 2},
		"all of it":            {queue.Waits{10}, 1, ms},
		"none of it":           {queue.Waits{0, 0, 10}, 0, 2 * ms},
		"inside":               {queue.Waits{0, 0, 9}, 1.0 / 3, 3 * ms},
		"at a border":          {queue.Waits{5, 5}, 0.5, ms},
		"behind a gap":         {queue.Waits{5, 0, 0, 5}, 0.75, 7500 * time.Microsecond},
		"above one":            {queue.Waits{5, 5}, 7, 2 * ms},
		"below nought":         {queue.Waits{5, 5}, -1, 0},
		"minutes":              {queue.Waits{14: 2}, 0.5, 5*time.Minute + 30*time.Second},
		"no upper bound":       {queue.Waits{15: 4}, 0.5, 10 * time.Minute},
		"no upper bound's end": {queue.Waits{0: 96, 15: 4}, 1, 10 * time.Minute},
		"below the last":       {queue.Waits{0: 96, 15: 4}, 0.48, ms / 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tt.waits.Quantile(tt.p); (got - tt.want).Abs() > time.Microsecond {
				t.Fatalf("%v, want %v", got, tt.want)
			}
		})
	}
}

func TestQueue_Stats(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		wantStats(t, q, queue.Stats{})
		enqueue(t, q, queue.Task{ID: "a", Priority: 9}, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
		must(t, rdb.ZIncrBy(await.Context(t), q.EnqueueKeys()[0], -float64(time.Hour.Microseconds()), "a").Err())
		s, err := q.Stats(await.Context(t))
		if err != nil || s.OldestReady < time.Hour || s.OldestReady > time.Hour+time.Minute {
			t.Fatalf("%+v, %v; want an age of an hour", s, err)
		}
		f := dequeue(t, q, 1)
		if f.Next <= 0 || f.Next > never+time.Second {
			t.Fatalf("next in %v, want the end of the lease", f.Next)
		}
		wantStats(t, q, queue.Stats{Delayed: 1, Leased: 1})
		ack(t, q, f.Tasks...)
		if f = dequeue(t, q, 1); f.Next < 59*time.Minute || f.Next > time.Hour+time.Second || f.More {
			t.Fatalf("next in %v, want an hour", f.Next)
		}
	})
}

func TestStats_Pending(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stats queue.Stats
		want  int
	}{
		"empty":           {queue.Stats{}, 0},
		"each state":      {queue.Stats{Ready: 1, Delayed: 2, Leased: 3, Dead: 4, Entries: 25}, 21},
		"only dead":       {queue.Stats{Dead: 4, Entries: 4}, 0},
		"lost by a fault": {queue.Stats{Dead: 1, Entries: 5}, 0},
		"only leased":     {queue.Stats{Leased: 1, Entries: 7}, 7},
	} {
		if got := tc.stats.Pending(); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestQueue_Load(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		withinMinute(t, rdb, func(minute int64) error {
			q := newQueue(t, rdb, queue.Config{Lease: time.Hour})
			look := func() queue.Load {
				l, err := q.Load(await.Context(t))
				must(t, err)
				return l
			}
			if l := look(); l.Length != 0 || l.OldestReady != 0 || l.Done != 0 || l.Minute != minute {
				return fmt.Errorf("an empty queue: %+v, in minute %d", l, minute)
			}
			enqueue(t, q, queue.Task{ID: "a", Priority: 3}, queue.Task{ID: "b"}, queue.Task{ID: "c", Due: time.Now().Add(time.Hour)})
			waitFor(t, func() bool { return look().OldestReady >= time.Millisecond })
			if l := look(); l.Length != 3 || l.OldestReady > time.Hour {
				return fmt.Errorf("three tasks: %+v", l)
			}
			got := dequeue(t, q, 2).Tasks
			if l := look(); l.Length != 3 || l.OldestReady != 0 {
				return fmt.Errorf("two of them leased: %+v", l)
			}
			ack(t, q, got...)
			if l := look(); l.Length != 1 || l.Done != 2 {
				return fmt.Errorf("two of them done: %+v", l)
			}
			// A damaged counter does not hide the rest.
			must(t, rdb.HSet(await.Context(t), q.Prefix()+"counts", fmt.Sprint("m", minute), "x").Err())
			if l := look(); l.Length != 1 || l.Done != 0 || l.Minute != minute {
				return fmt.Errorf("with a damaged counter: %+v", l)
			}
			return nil
		})
	})
}
