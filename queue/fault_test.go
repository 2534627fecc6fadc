package queue_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// clientOf returns a client of a server that only this test uses.
func clientOf(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	closeAtEnd(t, rdb)
	return rdb
}

// ownEngine is an engine that only this test uses, without persistence.
func ownEngine(t *testing.T, engine string) *redis.Client {
	t.Helper()
	if engine == "embedded" {
		return redistest.Embedded(t)
	}
	return clientOf(t, redistest.Real(t, "--appendonly", "no"))
}

// proxied is a client over a proxy, without timeouts. Its connections are open in advance,
// because on a new one the first lost reply would be that of the handshake.
func proxied(t *testing.T, rdb *redis.Client) (*redis.Client, *redistest.Proxy) {
	t.Helper()
	p := redistest.NewProxy(t, rdb.Options().Addr)
	o := redistest.Options(p.Addr())
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour, time.Hour
	c := redis.NewClient(o)
	closeAtEnd(t, c)
	conns := make([]*redis.Conn, 8)
	for i := range conns {
		conns[i] = c.Conn()
		must(t, conns[i].Ping(await.Context(t)).Err())
	}
	for _, conn := range conns {
		must(t, conn.Close())
	}
	return c, p
}

// loseReply makes a call whose reply is lost: when ran reports that Redis has run the
// command, the connections are cut. It returns the call's error.
func loseReply[T any](t *testing.T, p *redistest.Proxy, ran func() bool, call func(context.Context) (T, error)) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	type answer struct {
		value T
		err   error
	}
	p.DropReplies(true)
	done := make(chan answer, 1)
	go func() {
		value, err := call(ctx)
		done <- answer{value, err}
	}()
	awaitThat(t, "Redis has run the script", ran)
	// No reply can arrive between the two.
	p.Blackhole(true)
	p.Sever()
	p.DropReplies(false)
	p.Blackhole(false)
	select {
	case a := <-done:
		return a.value, a.err
	case <-time.After(patience):
		t.Fatal("the call does not return")
		panic("not reached")
	}
}

// knowScripts loads the scripts whose replies the test is going to lose. Otherwise it would
// lose the NOSCRIPT reply.
func knowScripts(t *testing.T, q *queue.Queue) {
	t.Helper()
	nobody := queue.Leased{ID: "nobody", Token: "nothing"}
	dequeue(t, q, 1)
	ack(t, q, nobody)
	wantComplete(t, q, queue.StatusMissing, nobody)
	status, err := q.Reject(await.Context(t), queue.Rejection{Task: nobody})
	wantStatus(t, status, err, queue.StatusMissing)
}

// TestQueue_RepliesLost: a call whose reply is lost after Redis ran it fails with an unknown
// outcome. A repeat succeeds, reports that it was done before, and changes nothing.
func TestQueue_RepliesLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		direct := newQueue(t, rdb, queue.Config{Lease: never})
		enqueue(t, direct, queue.Task{ID: "ack"}, queue.Task{ID: "fail"}, queue.Task{ID: "back"}, queue.Task{ID: "wait"},
			queue.Task{ID: "bury"}, queue.Task{ID: "complete"})
		l := take(t, direct, "ack", "fail", "back", "wait", "bury", "complete")
		client, p := proxied(t, rdb)
		q := newQueue(t, client, queue.Config{Prefix: direct.Prefix(), Lease: never})
		knowScripts(t, q)
		rejection := func(r queue.Rejection) func(context.Context) (string, error) {
			return func(ctx context.Context) (string, error) {
				status, err := q.Reject(ctx, r)
				return fmt.Sprint(status), err
			}
		}
		for _, tc := range []struct {
			name string
			call func(context.Context) (string, error)
			lost string
			want string
		}{
			{"enqueue", func(ctx context.Context) (string, error) {
				status, err := q.Enqueue(ctx, queue.Task{ID: "now"}, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)}, queue.Task{ID: "one", Priority: 3})
				return fmt.Sprint(status), err
			}, "[unknown unknown unknown]", "[duplicate duplicate duplicate]"},
			{"ack", func(ctx context.Context) (string, error) {
				status, err := q.Ack(ctx, l[0])
				return fmt.Sprint(status), err
			}, "[unknown]", "[missing]"},
			{"reject", rejection(queue.Rejection{Task: l[1], Reason: "failed"}), "[unknown]", "[stale]"},
			{"hand back", rejection(queue.Rejection{Task: l[2], Uncounted: true}), "[unknown]", "[stale]"},
			{"reject with a delay", rejection(queue.Rejection{Task: l[3], Delay: time.Hour}), "[unknown]", "[stale]"},
			{"reject for good", rejection(queue.Rejection{Task: l[4], Dead: true}), "[unknown]", "[stale]"},
			{"complete", func(ctx context.Context) (string, error) {
				status, err := q.Complete(ctx, queue.Completion{Task: l[5], Next: []queue.Task{{ID: "next"}}})
				return fmt.Sprint(status), err
			}, "[unknown]", "[missing]"},
		} {
			before := content(t, rdb, direct.Prefix())
			got, err := loseReply(t, p, func() bool { return !maps.Equal(content(t, rdb, direct.Prefix()), before) }, tc.call)
			if err == nil || got != tc.lost {
				t.Fatalf("%s: %s, %v; want %s and an error", tc.name, got, err, tc.lost)
			}
			after := content(t, rdb, direct.Prefix())
			if got, err := tc.call(await.Context(t)); err != nil || got != tc.want {
				t.Fatalf("%s, repeated: %s, %v; want %s", tc.name, got, err, tc.want)
			}
			wantContent(t, rdb, direct.Prefix(), after)
		}
		wantStats(t, direct, queue.Stats{Ready: 5, Delayed: 2, Dead: 1})
		// A repeat adds nothing even if the follow-up task is done by then.
		_, err := direct.Cancel(await.Context(t), "next")
		must(t, err)
		wantComplete(t, q, queue.StatusMissing, l[5], queue.Task{ID: "next"})
		wantStats(t, direct, queue.Stats{Ready: 4, Delayed: 2, Dead: 1})
		for id, attempt := range map[string]int{"fail": 1, "back": 0, "wait": 1, "bury": 1, "now": 0} {
			if info := get(t, direct, id); info.Attempt != attempt {
				t.Errorf("%+v, want attempt %d", info, attempt)
			}
		}
		wantClean(t, direct)
	})
}

// TestQueue_DequeueReplyLost: if the reply to a dequeue is lost, no worker gets its tasks
// before the lease ends. Then they are delivered once, as the second attempt.
func TestQueue_DequeueReplyLost(t *testing.T) {
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		cfg := queue.Config{Prefix: redistest.Prefix(t), Lease: never}
		client, p := proxied(t, rdb)
		q := newQueue(t, client, cfg)
		knowScripts(t, q)
		direct := newQueue(t, rdb, cfg)
		ids := idsOf(numbered(3))
		enqueue(t, direct, numbered(3)...)
		f, err := loseReply(t, p, func() bool { return stats(t, direct).Leased == 3 }, func(ctx context.Context) (queue.Fetched, error) {
			return q.Dequeue(ctx, 3)
		})
		if err == nil || len(f.Tasks) != 0 {
			t.Fatalf("%+v, %v; want an error", f, err)
		}
		enqueue(t, direct, queue.Task{ID: "new"})
		if got := names(dequeue(t, direct, 10).Tasks); !slices.Equal(got, []string{"new"}) {
			t.Fatalf("took %v before the leases end", got)
		}
		expire(t, rdb, direct, ids...)
		for _, task := range take(t, direct, slices.Sorted(slices.Values(ids))...) { // leases that end together, by id
			if task.Attempt != 2 {
				t.Errorf("%s came as attempt %d, want 2", task.ID, task.Attempt)
			}
		}
		wantStats(t, direct, queue.Stats{Leased: 4})
	})
}

// TestRun_AckReplyLost: if the reply to an acknowledgement is lost, the worker repeats it,
// runs nothing twice, and does not report a lost lease.
func TestRun_AckReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		direct := newQueue(t, rdb, queue.Config{})
		client, p := proxied(t, rdb)
		q := newQueue(t, client, queue.Config{Prefix: direct.Prefix()})
		knowScripts(t, direct)
		enqueue(t, direct, numbered(10)...)
		var seen attempts
		reported := make(chan error, 1000)
		var cut atomic.Bool
		stop := start(t, q, func(_ context.Context, tasks []queue.Leased) []error {
			seen.add(tasks)
			if cut.CompareAndSwap(false, true) {
				p.DropReplies(true)
			}
			return nil
		}, queue.RunConfig{Batch: 10, Workers: 1, Ahead: -1, MaxIdle: never, OnError: sendErrors(reported)})
		awaitStats(t, direct, queue.Stats{})
		p.Blackhole(true)
		p.Sever()
		p.DropReplies(false)
		p.Blackhole(false)
		enqueue(t, direct, queue.Task{ID: "after"})
		awaitStats(t, direct, queue.Stats{})
		stop()
		close(reported)
		failures := 0
		for err := range reported {
			failures++
			if errors.Is(err, queue.ErrLeaseLost) {
				t.Errorf("reported %v", err)
			}
		}
		if failures == 0 {
			t.Error("no failure was reported: no reply was lost")
		}
		seen.wantOnce(t, 11)
	})
}

// TestRun_ScriptFlushUnderLoad: repeated SCRIPT FLUSH under load from producers and two
// worker processes fails no call, and every task is handled.
func TestRun_ScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	rdb, prefix := ownEngine(t, "redis"), redistest.Prefix(t)
	cfg := queue.Config{Prefix: prefix, MaxLength: 200}
	var seen attempts
	for range 2 {
		start(t, newQueue(t, redistest.Second(t, rdb), cfg), seen.handle, queue.RunConfig{Batch: 8, MaxIdle: never, OnError: onlyTimeouts(t)})
	}
	q := newQueue(t, rdb, cfg)
	p := produce(t, q, "a", onlyTimeouts(t))
	for range 100 {
		n := seen.distinct()
		awaitThat(t, "they work", func() bool { return seen.distinct() > n })
		must(t, rdb.ScriptFlush(await.Context(t)).Err())
	}
	p.end()
	awaitStats(t, q, queue.Stats{})
	seen.check(t, p)
}

// TestRun_RedisKilledUnderLoad: a Redis that syncs its file at each command is killed
// repeatedly under load. Every confirmed task is handled, no attempt twice, and nothing is
// left.
func TestRun_RedisKilledUnderLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb, prefix := clientOf(t, server), redistest.Prefix(t)
	cfg := queue.Config{Prefix: prefix, Lease: processLease, MaxLength: 100}
	var seen attempts
	var failures atomic.Int64
	for range 2 {
		start(t, newQueue(t, redistest.Second(t, rdb), cfg), seen.handle, queue.RunConfig{Batch: 8, MaxIdle: time.Second, OnError: func(error) { failures.Add(1) }})
	}
	q := newQueue(t, rdb, cfg)
	p := produce(t, newQueue(t, redistest.Second(t, rdb), cfg), "a", func(error) {})
	work := func() {
		added, handled := p.confirmed.Load(), seen.distinct()
		awaitThat(t, "they work", func() bool { return p.confirmed.Load() > added+100 && seen.distinct() > handled+100 })
	}
	for round := range 3 {
		work()
		must(t, server.Kill())
		if round == 0 { // long enough for everyone to fail more than once or twice
			before := failures.Load()
			awaitThat(t, "the workers fail again and again", func() bool { return failures.Load() >= before+12 })
		}
		must(t, server.Start())
	}
	work()
	p.end()
	awaitStats(t, q, queue.Stats{})
	if failures.Load() == 0 || p.failures.Load() == 0 {
		t.Errorf("%d failures of workers and %d of the producer: Redis was not missed", failures.Load(), p.failures.Load())
	}
	seen.check(t, p)
	wantClean(t, q)
}

// TestRun_RedisLosesAll: a Redis without persistence is killed and restarted. No earlier task
// runs again, a running handler's context ends at the next extension, the worker continues
// with new tasks, and the ids of the lost ones are free.
func TestRun_RedisLosesAll(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t, "--appendonly", "no")
	rdb, prefix := clientOf(t, server), redistest.Prefix(t)
	q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: processLease})
	var seen attempts
	holding, cause, reported := make(chan struct{}), make(chan error, 1), make(chan error, 1000)
	stop := start(t, newQueue(t, redistest.Second(t, rdb), queue.Config{Prefix: prefix, Lease: processLease}),
		func(ctx context.Context, tasks []queue.Leased) []error {
			if tasks[0].ID == "held" {
				close(holding)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return []error{ctx.Err()}
			}
			seen.add(tasks)
			return nil
		}, queue.RunConfig{Batch: 1, Workers: 1, Ahead: -1, MaxIdle: never, OnError: sendErrors(reported)})
	enqueue(t, q, queue.Task{ID: "held"})
	receive(t, "it is held", holding)
	enqueue(t, q, numbered(20)...)
	enqueue(t, q, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
	must(t, errors.Join(server.Kill(), server.Start()))
	wantErr(t, receive(t, "the end of the handler's context", cause), queue.ErrLeaseLost)
	wantStats(t, q, queue.Stats{})
	enqueue(t, q, queue.Task{ID: "held again"}, queue.Task{ID: "t000007"}, queue.Task{ID: "new"})
	awaitStats(t, q, queue.Stats{})
	stop()
	close(reported)
	lease := 0
	for err := range reported {
		if errors.Is(err, queue.ErrLeaseLost) {
			lease++
		}
	}
	if lease == 0 {
		t.Error("OnError got no report of a lost lease")
	}
	seen.wantOnce(t, 3) // those that were added afterwards
	wantClean(t, q)
}
