package queue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/queue"
)

// patience is the time limit for events across processes, restarts and leases. It is long,
// because it only delays a failure.
const patience = 2 * time.Minute

// never is an idle time so long that no test reaches its end.
const never = 10 * time.Minute

// processLease is short enough to wait for and long enough for a busy machine.
const processLease = 2 * time.Second

// killedLease is the lease of tasks whose holder renews it until it is killed. It must not
// end earlier, although another process is starting at the same time.
const killedLease = 6 * time.Second

// The environment variables that a parent sets for a child process.
const (
	addrVar   = "QUEUE_TEST_ADDR"
	prefixVar = "QUEUE_TEST_PREFIX"
	roleVar   = "QUEUE_TEST_ROLE"
)

// startProcess runs the calling test in a further process, on the server of rdb.
func startProcess(t *testing.T, rdb *redis.Client, prefix, role string) *redistest.Child {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	return redistest.Reexec(t, test, addrVar+"="+rdb.Options().Addr, prefixVar+"="+prefix, roleVar+"="+role)
}

// processQueue is the queue of a child process. Its client has long timeouts, because the
// process may be stopped during a call. It records each blocking pop in the list that
// sleeps counts.
func processQueue(t *testing.T, cfg queue.Config) (*redis.Client, *queue.Queue) {
	t.Helper()
	o := redistest.Options(os.Getenv(addrVar))
	o.ReadTimeout, o.WriteTimeout = patience, patience
	rdb := redis.NewClient(o)
	closeAtEnd(t, rdb)
	notes := redis.NewClient(o)
	closeAtEnd(t, notes)
	rdb.AddHook(tap{seen: func(name string) {
		if name == "blpop" {
			if err := notes.Incr(t.Context(), sleepsKey(os.Getenv(prefixVar), os.Getenv(roleVar))).Err(); err != nil {
				t.Error(err)
			}
		}
	}})
	cfg.Prefix = os.Getenv(prefixVar)
	return rdb, newQueue(t, rdb, cfg)
}

func sleepsKey(prefix, role string) string { return prefix + "test:sleeps:" + role }

// sleeps is the number of blocking pops of the process with that role.
func sleeps(t *testing.T, rdb *redis.Client, prefix, role string) int {
	t.Helper()
	n, err := rdb.Get(await.Context(t), sleepsKey(prefix, role)).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// untilToldToEnd ends when the parent closes the child's standard input.
func untilToldToEnd(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			t.Error(err)
		}
	}()
	return ctx
}

// wantSaid fails unless this is the next line that the process prints.
func wantSaid(t *testing.T, c *redistest.Child, want string) {
	t.Helper()
	select {
	case line, ok := <-c.Lines():
		if !ok || line != want {
			t.Fatalf("the process printed %q, want %q", line, want)
		}
	case <-time.After(patience):
		t.Fatalf("the process did not print %q", want)
	}
}

// wantEnd fails unless the process ends on its own with exit code 0.
func wantEnd(t *testing.T, c *redistest.Child) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the process does not end")
	}
	must(t, c.Wait())
}

// awaitThat is waitFor with patience, for events that need a lease or another process.
func awaitThat(t testing.TB, what string, cond func() bool) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-late.C:
			t.Fatalf("did not happen: %s", what)
		case <-tick.C:
		}
	}
}

// noted records that a task is handled, by the clock of Redis, and applies the task's effect
// once. KEYS are the notes, the task's effect and the number of effects; ARGV are role, id
// and attempt.
var noted = redis.NewScript(`
local t = redis.call('TIME')
redis.call('RPUSH', KEYS[1], table.concat({ARGV[1], ARGV[2], ARGV[3], t[1] .. string.format('%06d', t[2])}, ' '))
if redis.call('SETNX', KEYS[2], ARGV[1]) == 1 then
  redis.call('INCR', KEYS[3])
end
return 1
`)

// note is one handling of a task.
type note struct {
	who, id string
	attempt int
	at      time.Time
}

func takeNote(ctx context.Context, rdb *redis.Client, prefix, who string, task queue.Leased) error {
	keys := []string{prefix + "test:notes", prefix + "test:effect:" + task.ID, prefix + "test:effects"}
	return noted.Run(ctx, rdb, keys, who, task.ID, task.Attempt).Err()
}

// notes returns the records and the number of effects.
func notes(t *testing.T, rdb *redis.Client, prefix string) (all []note, effects int) {
	t.Helper()
	lines, err := rdb.LRange(await.Context(t), prefix+"test:notes", 0, -1).Result()
	must(t, err)
	for _, line := range lines {
		var n note
		var at int64
		if _, err := fmt.Sscanf(line, "%s %s %d %d", &n.who, &n.id, &n.attempt, &at); err != nil {
			t.Fatalf("note %q: %v", line, err)
		}
		n.at = time.UnixMicro(at)
		all = append(all, n)
	}
	if len(all) > 0 {
		if effects, err = rdb.Get(await.Context(t), prefix+"test:effects").Int(); err != nil {
			t.Fatal(err)
		}
	}
	return all, effects
}

// TestRun_ProcessKilled: a process is killed (SIGKILL) while it holds 64 leases and has
// applied half of the effects. A sleeping process runs all 64 tasks again when the leases
// end, not before, each once and as the second attempt. No effect is applied twice.
func TestRun_ProcessKilled(t *testing.T) {
	if redistest.IsChild() {
		holdOrInherit(t)
		return
	}
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		q := newQueue(t, rdb, queue.Config{Lease: killedLease})
		tasks := numbered(64)
		enqueue(t, q, tasks...)
		holder := startProcess(t, rdb, q.Prefix(), "holder")
		wantSaid(t, holder, "holds 64")
		heir := startProcess(t, rdb, q.Prefix(), "heir")
		awaitThat(t, "the heir sleeps", func() bool { return sleeps(t, rdb, q.Prefix(), "heir") > 0 })
		must(t, holder.Kill())
		killed := serverTime(t, rdb)
		leases := list(t, q, queue.StateLeased)
		awaitStats(t, q, queue.Stats{})
		must(t, heir.Stdin().Close())
		wantEnd(t, heir)

		all, effects := notes(t, rdb, q.Prefix())
		again := make(map[string]int)
		var last time.Time
		for _, n := range all {
			if n.who != "heir" {
				continue
			}
			again[n.id]++
			last = n.at
			if n.attempt != 2 {
				t.Errorf("%s ran again as attempt %d, want 2", n.id, n.attempt)
			}
			// If the leases ended before the test read them, their ends are not known.
			if len(leases) == 64 && n.at.Before(leases[0].At) {
				t.Errorf("%s ran again at %v, the first lease ends at %v", n.id, n.at, leases[0].At)
			}
		}
		for _, task := range tasks {
			if again[task.ID] != 1 {
				t.Errorf("%s ran %d times after the kill, want once", task.ID, again[task.ID])
			}
		}
		if len(all) != 32+64 || effects != 64 {
			t.Errorf("%d runs and %d effects, want 96 and 64", len(all), effects)
		}
		wantClean(t, q)
		t.Logf("the last ran again %v after the kill, with a lease of %v", last.Sub(killed), killedLease)
	})
}

// holdOrInherit runs in both processes: the holder applies half of the effects and then
// keeps its tasks, and the heir runs every task that it gets.
func holdOrInherit(t *testing.T) {
	rdb, q := processQueue(t, queue.Config{Lease: killedLease})
	prefix, role := os.Getenv(prefixVar), os.Getenv(roleVar)
	err := q.Run(untilToldToEnd(t), func(ctx context.Context, tasks []queue.Leased) []error {
		for i, task := range tasks {
			if role == "holder" && i == 32 {
				redistest.Say("holds %d", len(tasks))
				<-ctx.Done() // the parent kills it first
				t.Error("ended: ", context.Cause(ctx))
			}
			if err := takeNote(ctx, rdb, prefix, role, task); err != nil {
				t.Error(err)
			}
		}
		return nil
	}, queue.RunConfig{Batch: 64, Workers: 1, MaxIdle: never, OnError: onlyTimeouts(t)})
	if err != nil {
		t.Error(err)
	}
}

// TestRun_ProcessStopped: a process is stopped (SIGSTOP) for longer than its leases, and
// another takes over its tasks. When the first continues, its acknowledgement is stale, its
// handler's context ends with ErrLeaseLost, and the leases of the other are unchanged.
func TestRun_ProcessStopped(t *testing.T) {
	if redistest.IsChild() {
		acknowledgeLate(t)
		return
	}
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		prefix := redistest.Prefix(t)
		// The process that takes over keeps its leases for as long as the test may take.
		q := newQueue(t, rdb, queue.Config{Prefix: prefix, Lease: never})
		enqueue(t, q, numbered(3)...)
		stalled := startProcess(t, rdb, prefix, "stalled")
		wantSaid(t, stalled, "holds 3")
		must(t, stalled.Pause())
		var taken []queue.Leased
		awaitThat(t, "the leases end", func() bool {
			taken = append(taken, dequeue(t, q, 3).Tasks...)
			return len(taken) == 3
		})
		before := content(t, rdb, prefix)
		if _, err := fmt.Fprintln(stalled.Stdin(), "go on"); err != nil {
			t.Fatal(err)
		}
		must(t, stalled.Continue())
		for _, want := range []string{"acknowledged: [stale stale stale]", "lease lost: true", "ended: <nil>, loss reported: true"} {
			wantSaid(t, stalled, want)
		}
		wantEnd(t, stalled)
		for name, dump := range content(t, rdb, prefix) {
			if dump != before[name] && name != "wake" {
				t.Errorf("the stalled process changed %s from %s to %s", name, before[name], dump)
			}
		}
		for _, task := range taken {
			if task.Attempt != 2 {
				t.Errorf("%s was taken over as attempt %d, want 2", task.ID, task.Attempt)
			}
		}
		wantAll(t, ack(t, q, taken...), queue.StatusOK)
		wantStats(t, q, queue.Stats{})
	})
}

// acknowledgeLate runs in the stopped process: it acknowledges as soon as it continues, and
// once more by returning.
func acknowledgeLate(t *testing.T) {
	_, q := processQueue(t, queue.Config{Lease: processLease})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reported := make(chan error, 1000)
	err := q.Run(ctx, func(ctx context.Context, tasks []queue.Leased) []error {
		defer cancel()
		redistest.Say("holds %d", len(tasks))
		var line string
		if _, err := fmt.Scanln(&line, &line); err != nil {
			t.Error(err)
		}
		late, end := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer end()
		status, err := q.Ack(late, tasks...)
		if err != nil {
			t.Error(err)
		}
		redistest.Say("acknowledged: %v", status)
		<-ctx.Done()
		redistest.Say("lease lost: %v", errors.Is(context.Cause(ctx), queue.ErrLeaseLost))
		return nil
	}, queue.RunConfig{Batch: 3, Workers: 1, Ahead: -1, MaxIdle: never, OnError: sendErrors(reported)})
	close(reported)
	lost := false
	for err := range reported {
		lost = lost || errors.Is(err, queue.ErrLeaseLost)
	}
	redistest.Say("ended: %v, loss reported: %v", err, lost)
}

// TestQueue_PauseProcesses: two processes under constant load take no task from a paused
// queue from their next fetch on, although new tasks wake them. After Resume they continue.
func TestQueue_PauseProcesses(t *testing.T) {
	if redistest.IsChild() {
		goRound(t)
		return
	}
	t.Parallel()
	redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
		ctx := t.Context()
		q := newQueue(t, rdb, queue.Config{Lease: never})
		enqueue(t, q, numbered(100)...)
		roles := []string{"first", "second"}
		workers := make(map[string]*redistest.Child)
		for _, role := range roles {
			workers[role] = startProcess(t, rdb, q.Prefix(), role)
		}
		handled := func(role string) (n int) {
			all, _ := notes(t, rdb, q.Prefix())
			for _, one := range all {
				if one.who == role {
					n++
				}
			}
			return n
		}
		awaitThat(t, "both work", func() bool { return handled("first") >= 10 && handled("second") >= 10 })
		pause(t, q)
		ready, err := rdb.ZRange(ctx, q.Prefix()+"ready", 0, -1).Result()
		must(t, err)
		// The next sleep may follow a fetch from before the pause; the second one does not.
		from := map[string]int{}
		for _, role := range roles {
			from[role] = sleeps(t, rdb, q.Prefix(), role)
		}
		awaitThat(t, "both have fetched", func() bool {
			id := fmt.Sprintf("new%03d", len(ready))
			enqueue(t, q, queue.Task{ID: id})
			ready = append(ready, id)
			return sleeps(t, rdb, q.Prefix(), "first") >= from["first"]+2 && sleeps(t, rdb, q.Prefix(), "second") >= from["second"]+2
		})
		awaitThat(t, "they finish what they have", func() bool { return stats(t, q).Leased == 0 })
		if now, err := rdb.ZRange(ctx, q.Prefix()+"ready", 0, -1).Result(); err != nil || !slices.Equal(now, ready) {
			t.Fatalf("in the pause ready went from %v to %v, %v", ready, now, err)
		}
		must(t, rdb.Set(ctx, q.Prefix()+"test:enough", 1, 0).Err())
		resume(t, q)
		awaitStats(t, q, queue.Stats{})
		for _, role := range roles {
			must(t, workers[role].Stdin().Close())
			wantEnd(t, workers[role])
		}
	})
}

// goRound runs in the processes: each task adds itself again until the test has enough.
func goRound(t *testing.T) {
	rdb, q := processQueue(t, queue.Config{Lease: never})
	prefix, role := os.Getenv(prefixVar), os.Getenv(roleVar)
	err := q.Run(untilToldToEnd(t), func(ctx context.Context, tasks []queue.Leased) []error {
		if err := takeNote(ctx, rdb, prefix, role, tasks[0]); err != nil {
			t.Error(err)
		}
		enough, err := rdb.Exists(ctx, prefix+"test:enough").Result()
		if err != nil {
			t.Error(err)
		}
		if enough == 0 {
			return []error{queue.Snooze(time.Millisecond)}
		}
		return nil
	}, queue.RunConfig{Batch: 1, Workers: 1, Ahead: -1, MaxIdle: never, OnError: onlyTimeouts(t)})
	if err != nil {
		t.Error(err)
	}
}
