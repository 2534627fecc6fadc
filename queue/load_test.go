package queue_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// moveAll gives all members of a sorted set one score.
func moveAll(t *testing.T, rdb redis.UniversalClient, key string, score float64) {
	t.Helper()
	ctx := await.Context(t)
	members, err := rdb.ZRange(ctx, key, 0, -1).Result()
	must(t, err)
	for some := range slices.Chunk(members, 1000) {
		z := make([]redis.Z, len(some))
		for i, member := range some {
			z[i] = redis.Z{Score: score, Member: member}
		}
		must(t, rdb.ZAdd(ctx, key, z...).Err())
	}
}

// size is the number of members of a sorted set.
func size(t *testing.T, rdb redis.UniversalClient, key string) int {
	t.Helper()
	n, err := rdb.ZCard(await.Context(t), key).Result()
	must(t, err)
	return int(n)
}

// TestQueue_ManyAtOneMoment: many tasks fall due, or their leases end, at the same time. A
// single call moves at most 256 of each and reports More; workers finish all of them.
func TestQueue_ManyAtOneMoment(t *testing.T) {
	t.Parallel()
	testManyAtOneMoment(t, map[string]int{"embedded": 800, "redis": 2000})
}

func TestQueue_ManyAtOneMoment_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testManyAtOneMoment(t, map[string]int{"embedded": 2000, "redis": 10_000})
}

func testManyAtOneMoment(t *testing.T, totals map[string]int) {
	for engine, total := range totals {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			const bound = 256
			rdb, prefix := ownEngine(t, engine), redistest.Prefix(t)
			q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: never})
			delayed, leased := prefix+"delayed", prefix+"leased"
			tasks := numbered(total)
			for i := range tasks {
				tasks[i].Due = time.Now().Add(time.Hour)
			}
			enqueue(t, q, tasks...)
			moveAll(t, rdb, delayed, float64(serverTime(t, rdb).UnixMilli()-1))
			most := func(key string, calls int) (n int) {
				for range calls {
					before := size(t, rdb, key)
					f := dequeue(t, q, 1)
					if len(f.Tasks) != 1 || !f.More {
						t.Fatalf("took %d tasks, more: %v", len(f.Tasks), f.More)
					}
					now := size(t, rdb, key)
					if key == leased {
						now--
					}
					n = max(n, before-now)
				}
				return n
			}
			if n := most(delayed, 2); n != bound {
				t.Errorf("a call promoted %d tasks, want %d", n, bound)
			}
			for held := 2; held < total-2; {
				held += len(dequeue(t, q, 512).Tasks)
			}
			moveAll(t, rdb, leased, 1)
			if n := most(leased, 2); n != bound {
				t.Errorf("a call reclaimed %d leases, want %d", n, bound)
			}
			moveAll(t, rdb, leased, 1)
			before := slowScripts(t, engine, rdb)
			var seen attempts
			for range 2 { // as two processes
				start(t, newQueue(t, redistest.Second(t, rdb), queue.Config{Prefix: prefix, MaxAttempts: 100}), seen.handle, queue.RunConfig{MaxIdle: never, OnError: onlyTimeouts(t)})
			}
			awaitStats(t, q, queue.Stats{})
			seen.wantAll(t, total)
			t.Logf("%d commands took Redis more than 5 ms", slowScripts(t, engine, rdb)-before)
		})
	}
}

// slowScripts is the number of slow commands so far, if the engine counts them. It is only
// logged.
func slowScripts(t *testing.T, engine string, rdb *redis.Client) int64 {
	t.Helper()
	if engine != "redis" {
		return 0
	}
	ctx := await.Context(t)
	for setting, value := range map[string]string{"slowlog-log-slower-than": "5000", "slowlog-max-len": "10000"} {
		must(t, rdb.ConfigSet(ctx, setting, value).Err())
	}
	n, err := rdb.Do(ctx, "slowlog", "len").Int64()
	must(t, err)
	return n
}

// TestQueue_EightReclaim: eight processes dequeue concurrently after 1,000 leases have
// expired; each task is taken over once, as the second attempt.
func TestQueue_EightReclaim(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		const total = 1000
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: never}
		q := newQueue(t, rdb, cfg)
		enqueue(t, q, numbered(total)...)
		old := append(dequeue(t, q, 512).Tasks, dequeue(t, q, 512).Tasks...)
		moveAll(t, rdb, cfg.Prefix+"leased", 1)
		var mu sync.Mutex
		taken := make(map[string]queue.Leased)
		var all sync.WaitGroup
		begin := make(chan struct{})
		for range 8 {
			other := newQueue(t, redistest.Second(t, rdb), cfg)
			all.Go(func() {
				<-begin
				for {
					f, err := other.Dequeue(t.Context(), 37)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					for _, task := range f.Tasks {
						if before, twice := taken[task.ID]; twice {
							t.Errorf("%s was taken over as attempt %d and as attempt %d", task.ID, before.Attempt, task.Attempt)
						}
						if task.Attempt != 2 {
							t.Errorf("%s was taken over as attempt %d, want 2", task.ID, task.Attempt)
						}
						taken[task.ID] = task
					}
					mu.Unlock()
					if !f.More {
						return
					}
				}
			})
		}
		close(begin)
		all.Wait()
		if len(taken) != total {
			t.Errorf("%d of %d tasks were taken over", len(taken), total)
		}
		wantStats(t, q, queue.Stats{Leased: total})
		wantAll(t, ack(t, q, old...), queue.StatusStale)
		for _, task := range taken {
			old = append(old, task)
		}
		wantAll(t, ack(t, q, old[total:]...), queue.StatusOK)
		wantStats(t, q, queue.Stats{})
		wantClean(t, q)
	})
}

// stepBack simulates a server clock that was an hour ahead and has just stepped back.
func stepBack(t *testing.T, rdb *redis.Client, prefix string) {
	t.Helper()
	ctx := await.Context(t)
	ready, err := rdb.ZRangeWithScores(ctx, prefix+"ready", 0, -1).Result()
	must(t, err)
	for i := range ready {
		ready[i].Score += float64(time.Hour.Microseconds())
	}
	must(t, rdb.ZAdd(ctx, prefix+"ready", ready...).Err())
	must(t, rdb.IncrBy(ctx, prefix+"clock", time.Hour.Microseconds()).Err())
}

// TestQueue_OrderWithinOneMoment: 1,000 tasks arrive from two processes and from another
// script, most of them after the server's clock stepped back. They are taken in the order
// of arrival.
func TestQueue_OrderWithinOneMoment(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		other := newQueue(t, redistest.Second(t, rdb), queue.Config{Prefix: q.Prefix()})
		must(t, rdb.Set(await.Context(t), q.Prefix()+"stock", 1000, 0).Err())
		tasks := numbered(1000)
		for i, rest := 0, tasks; len(rest) > 0; i++ {
			some := rest[:min(len(rest), 1+i*7%40)]
			rest = rest[len(some):]
			if i == 3 {
				stepBack(t, rdb, q.Prefix())
			}
			switch i % 3 {
			case 0:
				enqueue(t, q, some...)
			case 1:
				enqueue(t, other, some...)
			default:
				args := []any{q.MaxLength(), len(some)}
				for _, task := range some {
					args = append(args, task.ID, task.Payload)
				}
				keys := append([]string{q.Prefix() + "stock"}, q.EnqueueKeys()...)
				if answer, err := sell.Run(await.Context(t), rdb, keys, args...).Text(); err != nil || answer != "sold" {
					t.Fatal(answer, err)
				}
			}
		}
		at := 0
		for at < len(tasks) {
			f := dequeue(t, q, 77)
			if len(f.Tasks) == 0 {
				t.Fatalf("empty after %d tasks", at)
			}
			for _, task := range f.Tasks {
				if task.ID != tasks[at].ID {
					t.Fatalf("place %d: %s, want %s", at, task.ID, tasks[at].ID)
				}
				at++
			}
		}
	})
}
