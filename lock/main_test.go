package lock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestMain also checks that all the managers, loops and clean-ups of the tests
// have left no goroutine behind.
func TestMain(m *testing.M) {
	// Most tests spend most of their time waiting. The command line overrides this.
	if err := flag.Set("test.parallel", strconv.Itoa(8*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

// patience is the time limit for expected events. It is long, because it only delays a failure.
const patience = 5 * time.Minute

// slow are settings whose timers do not fire within a test's patience: every event is caused by a
// message or a call.
var slow = Config{TTL: 20 * time.Minute, ClaimTTL: 10 * time.Minute, Liveness: 5 * time.Minute, CallTimeout: patience}

// must ends the test if a step that it needs fails.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check fails the test if a step fails, and lets it go on, as on other goroutines.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// errOf is the error of a call whose result does not matter.
func errOf[T any](_ T, err error) error { return err }

// wantErr fails unless err is each of these.
func wantErr(t testing.TB, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Errorf("err = %v, want it to be %v", err, want)
		}
	}
}

// receive waits for a value, or for the end of a channel.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: did not happen", what)
		panic("not reached")
	}
}

// closeAtEnd closes a client when the test ends.
func closeAtEnd(t *testing.T, c io.Closer) {
	t.Helper()
	t.Cleanup(func() { check(t, c.Close()) })
}

// newManager returns a manager that is closed when the test ends.
func newManager(t *testing.T, rdb redis.UniversalClient, cfg Config) *Manager {
	t.Helper()
	m, err := New(rdb, cfg)
	must(t, err)
	closeManager(t, m)
	return m
}

// inline makes a manager call Redis on the caller's goroutine, as with the client options that the README
// recommends. The deadlines of calls do not count for the clients of package redistest, whose servers have no faults.
func inline(m *Manager) *Manager {
	m.bounded = true
	return m
}

// closeManager closes a manager when the test ends.
func closeManager(t *testing.T, m *Manager) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil && !t.Failed() {
			t.Logf("close: %v", err)
		}
	})
}

// resource returns a name that only this test uses.
func resource(t *testing.T) string { return redistest.Prefix(t) + "item" }

func mustKeys(t *testing.T, name string) *keys {
	t.Helper()
	k, err := keysOf("lock:", name)
	must(t, err)
	return &k
}

// steady are settings under which no lock is lost by delays: renewals, claims and calls may be slow
// on a busy machine.
var steady = Config{TTL: patience, ClaimTTL: patience, CallTimeout: patience}

// mustAcquire takes a lock. If the TTL or CallTimeout is so short that the reply may be late on a
// busy machine, it asks again.
func mustAcquire(t *testing.T, m *Manager, name string, opts ...Option) *Lock {
	t.Helper()
	ctx := await.Context(t)
	for {
		// The lock's context lasts as long as the test.
		l, err := m.Acquire(t.Context(), name, append([]Option{WithWaitLimit(patience)}, opts...)...)
		if err == nil {
			return l
		}
		late := errors.Is(err, errLate) || errors.Is(err, ErrNoQuorum) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
		if !late || !wait(ctx, 10*time.Millisecond) {
			t.Fatal(err)
		}
	}
}

// renewNow renews a lock as the watchdog does, but at once. It returns when the outcome is known.
func renewNow(l *Lock) { l.h.m.renewTogether([]*holding{l.h}, l.h.settings.ttl) }

// wantTaken fails unless a try finds that another holder has the lock.
func wantTaken(t *testing.T, m *Manager, name string) {
	t.Helper()
	wantErr(t, errOf(m.TryAcquire(await.Context(t), name)), ErrTaken)
}

// wantHeld fails unless Redis answers that the lock is held, or is not.
func wantHeld(t *testing.T, l *Lock, want bool) {
	t.Helper()
	if held, err := l.Held(await.Context(t)); err != nil || held != want {
		t.Errorf("held = %v, %v; want %v", held, err, want)
	}
}

// wantCause waits until the lock's context ends, and checks its causes.
func wantCause(t *testing.T, l *Lock, causes ...error) {
	t.Helper()
	receive(t, "the end of the lock's context", l.Context().Done())
	wantErr(t, context.Cause(l.Context()), causes...)
	if left := time.Until(l.ValidUntil()); left > 0 {
		t.Errorf("a lock that ended is valid for %s", left)
	}
}

func mustRelease(t *testing.T, l *Lock) {
	t.Helper()
	must(t, l.Release(t.Context()))
}

// result is the outcome of an Acquire on another goroutine.
type result struct {
	lock *Lock
	err  error
}

func acquireAsync(ctx context.Context, m *Manager, name string, opts ...Option) <-chan result {
	done := make(chan result, 1)
	go func() {
		l, err := m.Acquire(ctx, name, opts...)
		done <- result{l, err}
	}()
	return done
}

func awaitResult(t *testing.T, done <-chan result) result {
	t.Helper()
	return receive(t, "the end of Acquire", done)
}

func awaitLock(t *testing.T, done <-chan result) *Lock {
	t.Helper()
	r := awaitResult(t, done)
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.lock
}

// awaitWaiters waits until this number of waiters is in the queue.
func awaitWaiters(t *testing.T, rdb redis.UniversalClient, name string, n int64) {
	t.Helper()
	k := mustKeys(t, name)
	await.True(t, fmt.Sprintf("%d waiters", n), func() bool {
		got, err := rdb.ZCard(t.Context(), k[keyWaiters]).Result()
		must(t, err)
		return got == n
	})
}

// traces counts the keys of a resource that belong to a holder or a waiter.
func traces(t *testing.T, rdb redis.UniversalClient, names ...string) int64 {
	t.Helper()
	var all int64
	for _, name := range names {
		k := mustKeys(t, name)
		n, err := rdb.Exists(t.Context(), k[keyLock], k[keyWaiters], k[keySeen]).Result()
		must(t, err)
		all += n
	}
	return all
}

func wantNoTrace(t *testing.T, rdb redis.UniversalClient, names ...string) {
	t.Helper()
	if n := traces(t, rdb, names...); n != 0 {
		t.Errorf("%d keys left", n)
	}
}

func awaitNoTrace(t *testing.T, rdb redis.UniversalClient, name string) {
	t.Helper()
	await.True(t, "no trace of a holder or waiter", func() bool { return traces(t, rdb, name) == 0 })
}

// around is a go-redis hook for every call, single or pipelined.
type around func(ctx context.Context, cmds []redis.Cmder, next func() error) error

func (h around) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(ctx, []redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (h around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(ctx, cmds, func() error { return next(ctx, cmds) })
	}
}

// before is a go-redis hook that runs before the calls of one client and may delay them.
func before(do func(cmds []redis.Cmder)) redis.Hook {
	return around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		do(cmds)
		return next()
	})
}

// runs reports whether a command runs this script.
func runs(cmd redis.Cmder, script *redis.Script) bool {
	args := cmd.Args()
	return len(args) > 1 && (args[1] == script.Hash())
}

func acquires(cmd redis.Cmder) bool { return runs(cmd, acquireScript) }
func releases(cmd redis.Cmder) bool { return runs(cmd, releaseScript) }

// withMetadata overrides [Config.Metadata] for one lock or waiter, for tests that distinguish them
// by it.
func withMetadata(text string) Option { return func(s *settings) { s.meta = metaSuffix(text) } }

// pass advances the clock of a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }
