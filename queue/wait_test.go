package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// blocked waits until n clients of the server are in a blocking command.
func blocked(t testing.TB, rdb *redis.Client, n int) {
	t.Helper()
	waitFor(t, func() bool {
		info, err := rdb.Info(await.Context(t), "clients").Result()
		must(t, err)
		return strings.Contains(info, "blocked_clients:"+strconv.Itoa(n)+"\r\n")
	})
}

// calls is the number of calls of these commands, by the server's statistics.
func calls(t testing.TB, rdb *redis.Client, commands ...string) int {
	t.Helper()
	info, err := rdb.Info(await.Context(t), "commandstats").Result()
	must(t, err)
	n := 0
	for line := range strings.SplitSeq(info, "\r\n") {
		for _, name := range commands {
			var got int
			if rest, ok := strings.CutPrefix(line, "cmdstat_"+name+":calls="); ok {
				if _, err := fmt.Sscanf(rest, "%d", &got); err != nil {
					t.Fatal(err)
				}
				n += got
			}
		}
	}
	return n
}

func TestQueue_WaitTimesOut(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		for _, wait := range []time.Duration{-1, 0, 30 * time.Millisecond, time.Second} {
			start := time.Now()
			must(t, q.Wait(await.Context(t), wait))
			if got := time.Since(start); got < wait {
				t.Fatalf("waited %v, want %v", got, wait)
			}
		}
	})
}

func TestQueue_WaitCancelled(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(await.Context(t))
		ended := make(chan error, 1)
		go func() { ended <- q.Wait(ctx, time.Hour) }()
		cancel(stop)
		wantErr(t, receive(t, "the end of Wait", ended), stop)
		wantErr(t, q.Wait(ctx, time.Hour), stop)
		// The connection was kept and has no pending reply.
		enqueue(t, q, queue.Task{ID: "a"})
		take(t, q, "a")
	})
}

// TestQueue_WaitUnbounded: the longest limit is one that never passes.
func TestQueue_WaitUnbounded(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "a"})
		must(t, q.Wait(await.Context(t), math.MaxInt64))
	})
}

// TestQueue_WaitCancelledWhileBlocked: cancelling Wait during its blocking pop loses no wake-up.
func TestQueue_WaitCancelledWhileBlocked(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{})
	for range 20 {
		ctx, cancel := context.WithCancel(await.Context(t))
		ended := make(chan error, 1)
		go func() { ended <- q.Wait(ctx, time.Hour) }()
		blocked(t, rdb, 1)
		added := make(chan struct{})
		go func() {
			defer close(added)
			enqueue(t, q, queue.Task{ID: "a"})
		}()
		cancel()
		err := <-ended
		<-added
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err != nil {
			// Another waiter gets the wake-up that this one did not use.
			if err := q.Wait(await.Context(t), 10*limit); err != nil {
				t.Fatalf("the wake-up was lost: %v", err)
			}
		}
		ack(t, q, take(t, q, "a")...)
		// Leave no token for the next round.
		must(t, rdb.Del(await.Context(t), q.EnqueueKeys()[6]).Err())
	}
}

func TestQueue_WaitWokenByEarlierDue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "far", Due: time.Now().Add(time.Hour)})
		ctx := await.Context(t)
		drain := func() {
			must(t, rdb.Del(ctx, q.EnqueueKeys()[6]).Err())
		}
		drain()
		enqueue(t, q, queue.Task{ID: "farther", Due: time.Now().Add(2 * time.Hour)})
		if n, err := rdb.LLen(ctx, q.EnqueueKeys()[6]).Result(); err != nil || n != 0 {
			t.Fatalf("a later due time woke a worker: %d, %v", n, err)
		}
		enqueue(t, q, queue.Task{ID: "near", Due: time.Now().Add(time.Minute)})
		if err := q.Wait(ctx, 10*limit); err != nil {
			t.Fatalf("an earlier due time woke no worker: %v", err)
		}
		enqueue(t, q, queue.Task{ID: "now"})
		l := take(t, q, "now")
		drain()
		reject(t, q, queue.Rejection{Task: l[0], Delay: time.Second})
		if err := q.Wait(ctx, 10*limit); err != nil {
			t.Fatalf("an earlier retry woke no worker: %v", err)
		}
	})
}

// TestQueue_WakeChain: one wake-up starts as many workers as the ready tasks need.
func TestQueue_WakeChain(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		ctx := await.Context(t)
		const workers = 4
		started := make(chan error, workers)
		for range workers {
			go func() {
				err := q.Wait(ctx, 10*limit)
				if err == nil {
					var f queue.Fetched
					if f, err = q.Dequeue(ctx, 1); err == nil && len(f.Tasks) != 1 {
						err = fmt.Errorf("woken for %d tasks", len(f.Tasks))
					}
				}
				started <- err
			}()
		}
		enqueue(t, q, numbered(workers)...)
		for range workers {
			must(t, <-started)
		}
	})
}

// TestRun_Idle: an idle worker sends almost no commands, and yet starts a task when it arrives.
func TestRun_Idle(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb, admin := clientOf(t, srv), clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{})
	handled := make(chan string, 10)
	stop := start(t, q, sendIDs(handled), queue.RunConfig{MaxIdle: time.Hour, Workers: 4})
	blocked(t, admin, 1)
	before := calls(t, admin, "evalsha", "eval", "blpop")
	// The test observes that nothing happens, so time has to pass on the server's clock.
	began := serverTime(t, admin)
	waitFor(t, func() bool { return serverTime(t, admin).Sub(began) > 1500*time.Millisecond })
	if sent := calls(t, admin, "evalsha", "eval", "blpop") - before; sent > 0 {
		t.Errorf("an idle worker sent %d commands", sent)
	}
	for i := range 3 {
		id := strconv.Itoa(i)
		enqueue(t, q, queue.Task{ID: id})
		if got := receive(t, "the idle worker wakes", handled); got != id {
			t.Fatalf("handled %s, want %s", got, id)
		}
		blocked(t, admin, 1)
	}
	enqueue(t, q, queue.Task{ID: "later", Due: serverTime(t, admin).Add(200 * time.Millisecond)})
	receive(t, "the delayed task", handled)
	stop()
}

// TestRun_NextDueHandedOn: two processes sleep and one of them is woken to wait for two delayed
// tasks. While it is busy with the first, the other runs the second at its due time.
func TestRun_NextDueHandedOn(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		began, second := make(chan struct{}), make(chan struct{})
		for range 2 {
			other, asleep := sleeper(t, rdb, queue.Config{Prefix: q.Prefix()})
			start(t, other, func(ctx context.Context, tasks []queue.Leased) []error {
				if tasks[0].ID == "second" {
					close(second)
					return nil
				}
				close(began)
				select {
				case <-second:
				case <-ctx.Done():
				}
				return nil
			}, queue.RunConfig{Batch: 1, Workers: 1, MaxIdle: 10 * time.Minute})
			receive(t, "a worker goes to sleep", asleep)
		}
		now := serverTime(t, rdb)
		enqueue(t, q, queue.Task{ID: "first", Due: now.Add(300 * time.Millisecond)},
			queue.Task{ID: "second", Due: now.Add(1500 * time.Millisecond)})
		receive(t, "the first", began)
		receive(t, "the second, while the first keeps its worker", second)
	})
}
