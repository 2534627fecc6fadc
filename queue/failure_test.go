package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// TestRun_OnFailure: the hook gets each failed attempt once, with the handler's error
// and whether it was the last one, and nothing that does not count.
func TestRun_OnFailure(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{MaxAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		enqueue(t, q, queue.Task{ID: "fails"}, queue.Task{ID: "once", MaxAttempts: 1}, queue.Task{ID: "bad"},
			queue.Task{ID: "panics"}, queue.Task{ID: "slow", Timeout: time.Millisecond, MaxAttempts: 1}, queue.Task{ID: "early"}, queue.Task{ID: "fine"})
		broken := errors.New("broken")
		type call struct {
			at   string
			dead bool
		}
		calls := make(chan call, 100)
		end := launchEach(t, q, func(ctx context.Context, task queue.Leased) error {
			switch task.ID {
			case "fails", "once":
				return fmt.Errorf("handle: %w", broken)
			case "bad":
				return queue.Discard(broken)
			case "panics":
				if task.Attempt == 1 {
					panic("of the handler")
				}
			case "slow":
				<-ctx.Done()
				return broken
			case "early":
				return queue.Snooze(time.Hour)
			}
			return nil
		}, queue.RunConfig{OnError: ignore, OnFailure: func(task queue.Leased, err error, dead bool) {
			calls <- call{fmt.Sprint(task.ID, " ", task.Attempt, " ", errors.Is(err, broken), " ", errors.Is(err, queue.ErrTimeout)), dead}
		}})
		want := []call{
			{"bad 1 true false", true}, {"fails 1 true false", false}, {"fails 2 true false", false}, {"fails 3 true false", true},
			{"once 1 true false", true}, {"panics 1 false false", false}, {"slow 1 true true", true},
		}
		awaitStats(t, q, queue.Stats{Delayed: 1, Dead: 4})
		must(t, end())
		got := collect(calls)
		slices.SortFunc(got, func(a, b call) int { return slices.Compare([]byte(a.at), []byte(b.at)) })
		if !slices.Equal(got, want) {
			t.Errorf("reported %v, want %v", got, want)
		}
	})
}

// TestRun_OnFailure_Expired: the attempts of a worker that died are reported once, by the worker that takes its
// tasks back.
func TestRun_OnFailure_Expired(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "again", Type: "t", Priority: 1}, queue.Task{ID: "dead", MaxAttempts: 1}, queue.Task{ID: "stays"})
		take(t, q, "again", "dead", "stays")
		expire(t, rdb, q, "again", "dead")
		calls := make(chan string, 10)
		stop := start(t, q, succeed, queue.RunConfig{
			OnFailure: func(l queue.Leased, err error, dead bool) {
				calls <- fmt.Sprintf("%s %d %d %q %v %v", l.ID, l.Attempt, l.Priority, l.Type, errors.Is(err, queue.ErrLeaseLost), dead)
			},
		})
		awaitStats(t, q, queue.Stats{Leased: 1, Dead: 1})
		stop()
		got := collect(calls)
		slices.Sort(got)
		if want := []string{`again 1 1 "t" true false`, `dead 1 0 "" true true`}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
	})
}

// TestRun_OnFailure_Slow: a task whose expired lease is being reported is already with a worker, so
// a slow callback does not let its new lease expire, too.
func TestRun_OnFailure_Slow(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "again"})
		take(t, q, "again")
		expire(t, rdb, q, "again")
		handled, reported := make(chan struct{}), make(chan struct{})
		stop := start(t, q, func(context.Context, []queue.Leased) []error {
			close(handled)
			return nil
		}, queue.RunConfig{OnFailure: func(queue.Leased, error, bool) {
			select {
			case <-handled:
			case <-await.Context(t).Done():
				t.Error("no handler was called during the report")
			}
			close(reported)
		}})
		<-reported
		stop()
	})
}

// TestRun_Denied: a Run whose password is wrong, or whose user may not run the
// scripts, ends with an error instead of trying for ever.
func TestRun_Denied(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	admin := clientOf(t, srv)
	prefix := redistest.Prefix(t)
	for name, rules := range map[string][]string{
		"no scripts":  {"~*", "+@all", "-evalsha", "-eval"},
		"no keys":     {"~other", "+@all"},
		"no commands": {"~*", "+@all", "-zrangebyscore"},
	} {
		args := []any{"acl", "setuser", name[3:], "on", ">secret"}
		for _, rule := range rules {
			args = append(args, rule)
		}
		must(t, admin.Do(await.Context(t), args...).Err())
	}
	for _, login := range [][2]string{{"scripts", "wrong"}, {"scripts", "secret"}, {"keys", "secret"}, {"commands", "secret"}} {
		opt := redistest.Options(srv.Addr())
		opt.Username, opt.Password = login[0], login[1]
		rdb := redis.NewClient(opt)
		closeAtEnd(t, rdb)
		q := newQueue(t, rdb, queue.Config{Prefix: prefix})
		err := q.Run(await.Context(t), succeed, queue.RunConfig{OnError: ignore})
		if !errors.Is(err, queue.ErrDenied) {
			t.Errorf("%q: Run ended with %v, want ErrDenied", login, err)
		}
	}
}

// TestRunAll_Denied_Abandoned: the end of a Run for one queue's sake does not hide that
// a handler of another one still runs.
func TestRunAll_Denied_Abandoned(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{})
	enqueue(t, q, queue.Task{ID: "hangs"})
	opt := redistest.Options(srv.Addr())
	opt.Username, opt.Password = "nobody", "wrong"
	other := redis.NewClient(opt)
	closeAtEnd(t, other)
	began, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	other.AddHook(tap{seen: func(string) { <-began }})
	err := queue.RunAll(await.Context(t), []queue.Source{
		{Queue: q, Each: func(context.Context, queue.Leased) error {
			close(began)
			<-release
			return nil
		}},
		{Queue: newQueue(t, other, queue.Config{}), Each: func(context.Context, queue.Leased) error { return nil }},
	}, queue.RunConfig{Drain: time.Millisecond, OnError: ignore})
	if !errors.Is(err, queue.ErrDenied) || !errors.Is(err, queue.ErrAbandoned) {
		t.Errorf("RunAll ended with %v, want ErrDenied and ErrAbandoned", err)
	}
}

// leastRules are the permissions that README.md lists for a client of the queue.
var leastRules = []any{
	"resetchannels", "-@all",
	"+auth", "+hello", "+ping", "+client",
	"+eval", "+evalsha", "+blpop", "+del", "+hscan", "+zscan",
	"+time", "+exists", "+get", "+set", "+setnx", "+strlen", "+pexpire", "+llen", "+rpush",
	"+hget", "+hset", "+hdel", "+hlen", "+hmget", "+hexists", "+hgetall", "+hincrby",
	"+zadd", "+zrem", "+zcard", "+zcount", "+zscore", "+zmscore", "+zrank", "+zrange", "+zrevrange",
	"+zrangebyscore", "+zrevrangebyscore", "+zremrangebyrank",
}

// TestQueue_LeastPrivilege: a user with exactly the listed permissions can do everything,
// and without any one of the data commands something fails.
func TestQueue_LeastPrivilege(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	admin := clientOf(t, srv)
	prefix := redistest.Prefix(t)
	rules := append([]any{"acl", "setuser", "worker", "on", ">secret", "~" + prefix + "*"}, leastRules...)
	must(t, admin.Do(await.Context(t), rules...).Err())
	opt := redistest.Options(srv.Addr())
	opt.Username, opt.Password = "worker", "secret"
	rdb := redis.NewClient(opt)
	closeAtEnd(t, rdb)
	if err := everything(t, rdb, prefix); err != nil {
		t.Fatalf("with the permissions listed: %v", err)
	}
	for _, rule := range leastRules[6:] {
		name := rule.(string)[1:]
		must(t, admin.Do(await.Context(t), "acl", "setuser", "worker", "-"+name).Err())
		err := everything(t, rdb, prefix)
		// With the scripts cached nothing needs eval, and a task does not fail because it is not counted.
		if err == nil && name != "eval" && name != "hincrby" {
			t.Errorf("%s is listed, and nothing needs it", name)
		}
		must(t, admin.Do(await.Context(t), "acl", "setuser", "worker", "+"+name).Err())
		must(t, admin.FlushDB(await.Context(t)).Err())
	}
}

// everything uses all of the package once, and joins the errors.
func everything(t *testing.T, rdb *redis.Client, prefix string) error {
	t.Helper()
	var failed error
	note := func(err error) { failed = errors.Join(failed, err) }
	q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: never, MaxDead: 9})
	ctx := await.Context(t)
	later := time.Now().Add(time.Hour)
	add := func(tasks ...queue.Task) {
		_, err := q.Enqueue(ctx, tasks...)
		note(err)
	}
	add(numbered(20)...)
	add(queue.Task{ID: "soon", Due: time.Now().Add(time.Millisecond), Type: "t"}, queue.Task{ID: "later", Due: later}, queue.Task{ID: "also later", Due: later})
	f, err := q.Dequeue(ctx, 12)
	note(err)
	if len(f.Tasks) >= 6 {
		_, err = q.Extend(ctx, f.Tasks...)
		note(err)
		_, err = q.Ack(ctx, f.Tasks[:2]...)
		note(err)
		_, err = q.Complete(ctx, queue.Completion{Task: f.Tasks[2], Next: []queue.Task{{ID: "next"}}})
		note(err)
		_, err = q.Reject(ctx, queue.Rejection{Task: f.Tasks[3], Dead: true}, queue.Rejection{Task: f.Tasks[4], Delay: time.Hour}, queue.Rejection{Task: f.Tasks[5]})
		note(err)
		_, err = q.RunNow(ctx, time.Time{}, f.Tasks[3].ID, "later")
		note(err)
	}
	note(q.Pause(ctx))
	note(q.Resume(ctx))
	for _, state := range []queue.State{queue.StateReady, queue.StateDead} {
		_, err = q.List(ctx, queue.Query{State: state, Limit: 10, Reverse: state == queue.StateReady})
		note(err)
	}
	for _, reverse := range []bool{true, false} {
		_, err = q.List(ctx, queue.Query{State: queue.StateDead, After: queue.Place{At: later, ID: "x"}, DiedBy: later, Limit: 10, Reverse: reverse})
		note(err)
	}
	for _, fields := range []queue.Fields{queue.AllFields, queue.PayloadField} {
		_, err = q.List(ctx, queue.Query{IDs: []string{"later", "none"}, Fields: fields})
		note(err)
		_, err = q.List(ctx, queue.Query{Limit: 10, Fields: fields})
		note(err)
	}
	_, err = q.Stats(ctx)
	note(err)
	_, err = q.Load(ctx)
	note(err)
	_, err = q.Verify(ctx, true)
	note(err)
	_, err = q.Cancel(ctx, "later")
	note(err)
	_, err = q.DeleteDead(ctx, "none")
	note(err)
	_, err = q.Empty(ctx, queue.StateReady)
	note(err)
	note(q.Wait(ctx, time.Second))      // a token is there
	note(q.Wait(ctx, time.Millisecond)) // recalled
	return failed
}

// TestRun_OnFetch: OnFetch gets each attempt to fetch with its error, also of an idle worker.
func TestRun_OnFetch(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	closeAtEnd(t, rdb)
	q := newQueue(t, rdb, queue.Config{})
	fetched := make(chan error, 1000)
	start(t, q, succeed, queue.RunConfig{
		MaxIdle: 10 * time.Millisecond, OnFetch: func(err error) {
			select {
			case fetched <- err:
			default:
			}
		},
	})
	for range 3 {
		must(t, receive(t, "an idle worker fetches", fetched))
	}
	server.SetError("LOADING the test says so")
	waitFor(t, func() bool { return receive(t, "a fetch", fetched) != nil })
	server.SetError("")
	waitFor(t, func() bool { return receive(t, "a fetch", fetched) == nil })
}
