package queue_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// tap is a hook that observes a client's commands and can lose the reply of one.
type tap struct {
	seen func(name string)
	lose func(name string) bool
}

var errLost = errors.New("the reply was lost")

func (tap) DialHook(next redis.DialHook) redis.DialHook                                  { return next }
func (tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook { return next }
func (p tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if p.seen != nil {
			p.seen(cmd.Name())
		}
		err := next(ctx, cmd)
		if err == nil && p.lose != nil && p.lose(cmd.Name()) {
			cmd.SetErr(errLost)
			return errLost
		}
		return err
	}
}

// sleeper is a queue on its own client, as in another process, with a signal for each
// blocking pop.
func sleeper(t testing.TB, rdb redis.UniversalClient, cfg queue.Config) (q *queue.Queue, asleep <-chan struct{}) {
	t.Helper()
	signal := make(chan struct{}, 1000)
	other := redistest.Second(t, rdb)
	other.AddHook(tap{seen: func(name string) {
		if name == "blpop" {
			signal <- struct{}{}
		}
	}})
	return newQueue(t, other, cfg), signal
}

func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(limit):
		t.Fatalf("%s: did not happen", what)
		panic("not reached")
	}
}

func pause(t testing.TB, q *queue.Queue) {
	t.Helper()
	must(t, q.Pause(await.Context(t)))
}

func resume(t testing.TB, q *queue.Queue) {
	t.Helper()
	must(t, q.Resume(await.Context(t)))
}

// TestQueue_Pause: no task is taken and none changes its state; everything else works.
func TestQueue_Pause(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "done"}, queue.Task{ID: "failed"}, queue.Task{ID: "expired"})
		l := take(t, q, "done", "failed", "expired")
		pause(t, q)
		pause(t, q)
		enqueue(t, q, queue.Task{ID: "new"}, queue.Task{ID: "later", Due: time.Now().Add(time.Hour)})
		status, err := q.Extend(await.Context(t), l...)
		wantStatus(t, status, err, queue.StatusOK, queue.StatusOK, queue.StatusOK)
		status, err = q.Ack(await.Context(t), l[0])
		wantStatus(t, status, err, queue.StatusOK)
		reject(t, q, queue.Rejection{Task: l[1]})
		expire(t, rdb, q, "expired")
		f := dequeue(t, q, 10)
		if len(f.Tasks) != 0 || f.More || f.Next >= 0 {
			t.Fatalf("a paused queue gave %+v", f)
		}
		wantStats(t, q, queue.Stats{Ready: 2, Delayed: 1, Leased: 1, Paused: true})
		resume(t, q)
		resume(t, q)
		take(t, q, "expired", "new", "failed")
		wantStats(t, q, queue.Stats{Delayed: 1, Leased: 3})
		if n, err := rdb.Exists(await.Context(t), q.Prefix()+"paused").Result(); err != nil || n != 0 {
			t.Fatalf("the pause left a key: %d, %v", n, err)
		}
	})
}

// TestQueue_ResumeWakes: the end of a pause wakes a worker although a worker consumed the
// only wake-up during the pause.
func TestQueue_ResumeWakes(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{})
		pause(t, q)
		other, asleep := sleeper(t, rdb, queue.Config{Prefix: q.Prefix()})
		handled := make(chan string, 10)
		start(t, other, sendIDs(handled), queue.RunConfig{Workers: 1, MaxIdle: 10 * time.Minute})
		receive(t, "asleep at first", asleep)
		enqueue(t, q, queue.Task{ID: "a"})
		receive(t, "asleep again", asleep)
		resume(t, q)
		if id := receive(t, "the task", handled); id != "a" {
			t.Fatalf("handled %s", id)
		}
	})
}

func TestQueue_PauseRestart(t *testing.T) {
	t.Parallel()
	srv := redistest.Real(t)
	rdb := clientOf(t, srv)
	q := newQueue(t, rdb, queue.Config{})
	enqueue(t, q, queue.Task{ID: "a"})
	pause(t, q)
	must(t, srv.Kill())
	must(t, srv.Start())
	waitFor(t, func() bool { return rdb.Ping(await.Context(t)).Err() == nil })
	if f := dequeue(t, q, 1); len(f.Tasks) != 0 {
		t.Fatalf("after a restart the paused queue gave %v", names(f.Tasks))
	}
	wantStats(t, q, queue.Stats{Ready: 1, Paused: true})
	resume(t, q)
	take(t, q, "a")
}

func TestQueue_Cancel(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		q := newQueue(t, rdb, queue.Config{})
		enqueue(t, q, queue.Task{ID: "leased"}, queue.Task{ID: "dead"})
		l := take(t, q, "leased", "dead")
		reject(t, q, queue.Rejection{Task: l[1], Dead: true})
		enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "delayed", Due: time.Now().Add(time.Hour)},
			queue.Task{ID: "stays", Type: "t"})
		states, err := q.Cancel(await.Context(t), "ready", "unknown", "delayed", "leased", "dead", "ready")
		want := []queue.State{queue.StateReady, "", queue.StateDelayed, queue.StateLeased, queue.StateDead, ""}
		if err != nil || !slices.Equal(states, want) {
			t.Fatalf("%q, %v; want %q", states, err, want)
		}
		wantStats(t, q, queue.Stats{Ready: 1})
		for _, hash := range q.EnqueueKeys()[3:5] {
			if ids, err := rdb.HKeys(await.Context(t), hash).Result(); err != nil || !slices.Equal(ids, []string{"stays"}) {
				t.Fatalf("%s holds %q, %v", hash, ids, err)
			}
		}
		status, err := q.Ack(await.Context(t), l[0])
		wantStatus(t, status, err, queue.StatusMissing)
		status, err = q.Extend(await.Context(t), l[0])
		wantStatus(t, status, err, queue.StatusMissing)
		status, err = q.Reject(await.Context(t), queue.Rejection{Task: l[0]})
		wantStatus(t, status, err, queue.StatusMissing)
		enqueue(t, q, queue.Task{ID: "ready"}, queue.Task{ID: "leased"},
			queue.Task{ID: "dead"}, queue.Task{ID: "delayed"})
	})
}
