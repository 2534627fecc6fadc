package lock

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

// The environment variables that a parent sets for a child process.
const (
	addrsVar = "LOCK_TEST_ADDRS" // of one Redis, or of the masters of a cluster
	nameVar  = "LOCK_TEST_NAME"  // the resource
)

// startProcess runs a test in another process, on the servers of rdb.
func startProcess(t *testing.T, test string, rdb redis.UniversalClient, name string) *redistest.Child {
	t.Helper()
	var addrs []string
	switch c := rdb.(type) {
	case *redis.Client:
		addrs = []string{c.Options().Addr}
	case *redis.ClusterClient:
		addrs = c.Options().Addrs
	}
	return redistest.Reexec(t, test, addrsVar+"="+strings.Join(addrs, ","), nameVar+"="+name)
}

// processClient is the client of a child process. It has long timeouts, because the process may be
// stopped during a call.
func processClient(t *testing.T) redis.UniversalClient {
	t.Helper()
	addrs := strings.Split(os.Getenv(addrsVar), ",")
	var rdb redis.UniversalClient
	if len(addrs) == 1 {
		o := redistest.Options(addrs[0])
		o.ReadTimeout, o.WriteTimeout = patience, patience
		rdb = redis.NewClient(o)
	} else {
		rdb = redis.NewClusterClient(redistest.ClusterOptions(addrs...))
	}
	closeAtEnd(t, rdb)
	return rdb
}

// said returns the next line that a child process prints.
func said(t *testing.T, c *redistest.Child) string {
	t.Helper()
	select {
	case line, ok := <-c.Lines():
		if !ok {
			t.Fatal("the process ended without output")
		}
		return line
	case <-time.After(patience):
		t.Fatal("the process printed nothing")
	}
	return ""
}

// stamped writes under the guard and returns the clock of Redis in microseconds, or 0 if the guard
// refuses.
var stamped = redis.NewScript(GuardLua + `
if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then return 0 end
redis.call('RPUSH', KEYS[3], ARGV[2])
local t = redis.call('TIME')
return tonumber(t[1]) * 1000000 + tonumber(t[2])
`)

// stamp runs stamped with an entry for the list "<resource>:entries".
func stamp(ctx context.Context, rdb redis.UniversalClient, l *Lock, entry any) (int64, error) {
	lockKey, waitersKey := l.h.m.GuardKeys(l.Resource())
	return stamped.Run(ctx, rdb, []string{lockKey, waitersKey, l.Resource() + ":entries"}, l.GuardValue(), entry).Int64()
}

// fenced writes without the guard, like a database that only compares fencing tokens: it returns 1,
// or 0 for a token that is smaller than the last.
var fenced = redis.NewScript(`
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or '0') then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('INCR', KEYS[2])
return 1
`)

func writeFenced(t *testing.T, rdb redis.UniversalClient, l *Lock) int {
	t.Helper()
	n, err := fenced.Run(t.Context(), rdb, []string{l.Resource() + ":row", l.Resource() + ":rows"}, l.Fence()).Int()
	must(t, err)
	return n
}

// TestManager_Acquire_FIFOProcesses: 16 waiters in four processes get the lock in the order of their
// arrival. If one process, which has every fourth place of the queue, is killed, the waiters of the
// others are served in their order, each once.
func TestManager_Acquire_FIFOProcesses(t *testing.T) {
	if redistest.IsChild() {
		queueUp(t)
		return
	}
	t.Parallel()
	testFIFOProcesses(t, redistest.Redis(t))
}

// On a cluster a dead waiter is skipped only after its keep-alive is overdue.
func TestManager_Acquire_FIFOProcesses_Long(t *testing.T) {
	if redistest.IsChild() {
		queueUp(t)
		return
	}
	longtest.Only(t)
	t.Parallel()
	testFIFOProcesses(t, redistest.Cluster(t))
}

func testFIFOProcesses(t *testing.T, rdb redis.UniversalClient) {
	name := resource(t)
	m := newManager(t, rdb, processConfig(rdb))
	var children []*redistest.Child
	for range 4 {
		children = append(children, startProcess(t, t.Name(), rdb, name))
	}
	served := make(chan string, 256)
	for _, c := range children {
		go func() {
			for line := range c.Lines() {
				served <- line
			}
		}()
	}
	l := mustAcquire(t, m, name)
	last := l.Fence()
	order := joinInTurn(t, rdb, children, name, 0, 16)
	mustRelease(t, l)
	last = awaitServed(t, served, order, last)

	l = mustAcquire(t, m, name)
	order = joinInTurn(t, rdb, children, name, 16, 8)
	must(t, children[1].Kill())
	awaitDeaf(t, rdb, name, order[1])
	order = slices.DeleteFunc(order, func(number string) bool {
		n, err := strconv.Atoi(number)
		return err != nil || n%4 == 1
	})
	mustRelease(t, l)
	awaitServed(t, served, order, last)

	// The order of their writes in Redis is the same, and no waiter writes twice.
	got := rdb.LRange(t.Context(), name+":entries", 0, -1).Val()
	if want := 16 + len(order); len(got) != want || !slices.Equal(got[16:], order) {
		t.Errorf("%d writes, want %d; the last by %v, want %v", len(got), want, got[min(16, len(got)):], order)
	}
	for i, c := range children {
		if i == 1 {
			continue
		}
		check(t, errors.Join(c.Stdin().Close(), c.Wait()))
	}
}

// processConfig has timers so long that they do not fire, except on a cluster: Redis cannot know
// there whether a waiter's process still listens, so a dead one costs ClaimTTL until its keep-alive
// is overdue.
func processConfig(rdb redis.UniversalClient) Config {
	cfg := slow
	if _, cluster := rdb.(*redis.ClusterClient); cluster {
		cfg.ClaimTTL, cfg.Liveness = 3*time.Second, 2*time.Second
	}
	return cfg
}

// queueUp runs in a child process: each line of its input is a number and adds a waiter, which prints
// a line when it is served.
func queueUp(t *testing.T) {
	rdb, name := processClient(t), os.Getenv(nameVar)
	m := newManager(t, rdb, processConfig(rdb))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var waiters sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		number := lines.Text()
		waiters.Go(func() {
			l, err := m.Acquire(ctx, name, withMetadata(number))
			if err != nil {
				t.Error(err)
				return
			}
			if at, err := stamp(ctx, rdb, l, number); err != nil || at == 0 {
				t.Errorf("waiter %s: guarded write at %d, %v", number, at, err)
			}
			redistest.Say("%s %d", number, l.Fence())
			check(t, l.Release(ctx))
		})
	}
	waiters.Wait()
}

// joinInTurn makes the processes add waiters in turn, and returns their numbers in the order of the
// queue, which is the order of arrival.
func joinInTurn(t *testing.T, rdb redis.UniversalClient, children []*redistest.Child, name string, first, n int) []string {
	t.Helper()
	var want []string
	for i := range n {
		number := strconv.Itoa(first + i)
		if _, err := fmt.Fprintln(children[i%len(children)].Stdin(), number); err != nil {
			t.Fatal(err)
		}
		awaitWaiters(t, rdb, name, int64(i+1))
		want = append(want, number)
	}
	var order []string
	for _, member := range rdb.ZRange(t.Context(), mustKeys(t, name)[keyWaiters], 0, -1).Val() {
		_, number, _ := strings.Cut(member, ":")
		order = append(order, number)
	}
	if !slices.Equal(order, want) {
		t.Fatalf("the queue is %v, want %v", order, want)
	}
	return order
}

// awaitServed waits until this number of waiters was served, in the order of their fencing tokens,
// each greater than last; it returns the greatest.
func awaitServed(t *testing.T, served <-chan string, want []string, last int64) int64 {
	t.Helper()
	type turn struct {
		number string
		fence  int64
	}
	var turns []turn
	for range want {
		select {
		case line := <-served:
			number, fence, _ := strings.Cut(line, " ")
			n, err := strconv.ParseInt(fence, 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			turns = append(turns, turn{number, n})
		case <-time.After(patience):
			t.Fatalf("%d of %d were served: %v", len(turns), len(want), turns)
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.fence, b.fence) })
	for i, s := range turns {
		if s.number != want[i] || s.fence <= last {
			t.Fatalf("at place %d: waiter %s with fence %d after %d, want waiter %s; all: %v", i, s.number, s.fence, last, want[i], turns)
		}
		last = s.fence
	}
	return last
}

// awaitDeaf waits until Redis knows that a waiter's process no longer listens.
func awaitDeaf(t *testing.T, rdb redis.UniversalClient, name, number string) {
	t.Helper()
	if _, cluster := rdb.(*redis.ClusterClient); cluster {
		return // a handover in a cluster does not depend on it
	}
	for _, member := range rdb.ZRange(t.Context(), mustKeys(t, name)[keyWaiters], 0, -1).Val() {
		if manager, _, _ := strings.Cut(member, "."); strings.HasSuffix(member, ":"+number) {
			channel := channelPrefix + manager
			await.True(t, "the killed process is gone", func() bool {
				return rdb.PubSubNumSub(t.Context(), channel).Val()[channel] == 0
			})
			return
		}
	}
	t.Fatalf("waiter %s is not in the queue", number)
}

// TestLock_HolderStopped: a process is stopped (SIGSTOP) for longer than the TTL while it holds the
// lock. When it continues it can change nothing, neither under the guard nor in data that compares
// fencing tokens, and its lock has ended with ErrLost.
func TestLock_HolderStopped(t *testing.T) {
	if redistest.IsChild() {
		writeUntilRefused(t)
		return
	}
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		c := startProcess(t, "TestLock_HolderStopped", rdb, name)
		data := func() [3]string {
			return [3]string{rdb.Get(ctx, name+":data").Val(), rdb.Get(ctx, name+":row").Val(), rdb.Get(ctx, name+":rows").Val()}
		}
		theirs, err := strconv.ParseInt(said(t, c), 10, 64)
		must(t, err)
		await.True(t, "it writes", func() bool { return rdb.Get(ctx, name+":rows").Val() != "" })
		must(t, c.Pause())
		l := mustAcquire(t, newManager(t, rdb, slow), name)
		if l.Fence() <= theirs {
			t.Errorf("fence %d after %d", l.Fence(), theirs)
		}
		if guarded(t, rdb, l) != 0 || writeFenced(t, rdb, l) != 1 {
			t.Error("the new holder's write was refused")
		}
		before := data()
		must(t, c.Continue())
		for _, want := range []string{"refused", "lost"} {
			if got := said(t, c); got != want {
				t.Errorf("the stale holder printed %q, want %q", got, want)
			}
		}
		if after := data(); after != before {
			t.Errorf("the stale holder changed %v to %v", before, after)
		}
		check(t, c.Wait())
		mustRelease(t, l)
	})
}

// writeUntilRefused runs in the stopped process. It ignores the lock's context, so that only the data
// protects itself.
func writeUntilRefused(t *testing.T) {
	rdb := processClient(t)
	m := newManager(t, rdb, Config{TTL: 3 * time.Second})
	l := mustAcquire(t, m, os.Getenv(nameVar))
	redistest.Say("%d", l.Fence())
	stop := time.Now().Add(patience)
	for refused := 0; refused < 20; {
		g, f := guarded(t, rdb, l), writeFenced(t, rdb, l)
		switch {
		case g == -1 && f == 0:
			refused++
		case refused > 0:
			t.Fatalf("after %d refusals a write passed: %d, %d", refused, g, f)
		case time.Now().After(stop):
			t.Fatal("never refused")
		}
	}
	redistest.Say("refused")
	wantCause(t, l, ErrLost)
	wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
	redistest.Say("lost")
}

// holdAndWrite takes the lock, writes under the guard, and releases it. A
// refused write is no error if the lock has ended.
func holdAndWrite(ctx context.Context, t *testing.T, w *witness, m *Manager, rdb redis.UniversalClient, name string) error {
	t.Helper()
	l, err := m.Acquire(ctx, name)
	if err != nil {
		return err
	}
	w.enter(t, l)
	var failures []error
	for range 2 {
		at, err := stamp(ctx, rdb, l, l.Fence())
		switch {
		case err != nil:
			failures = append(failures, fmt.Errorf("guarded write: %w", err))
		case at > 0:
			w.wrote(l, at)
		case l.ValidUntil().After(time.Now()):
			failures = append(failures, fmt.Errorf("%w: guarded write refused", ErrNotHeld))
		}
	}
	w.leave(l)
	return errors.Join(errors.Join(failures...), l.Release(ctx))
}
