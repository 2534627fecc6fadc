package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// sortedNames returns resources in the order of their keys.
func sortedNames(t *testing.T, n int) []string {
	t.Helper()
	names := make([]string, n)
	for i := range names {
		names[i] = resource(t)
	}
	slices.Sort(names)
	return names
}

func acquireAllAsync(ctx context.Context, m *Manager, names []string) <-chan error {
	done := make(chan error, 1)
	go func() {
		l, err := m.AcquireAll(ctx, names)
		if err == nil {
			err = l.Release(ctx)
		}
		done <- err
	}()
	return done
}

func TestManager_AcquireAll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m, other := newManager(t, rdb, slow), newManager(t, rdb, slow)
		t.Run("Handles", func(t *testing.T) { acquireAllHandles(t, rdb, m) })
		t.Run("ReleaseOrder", func(t *testing.T) { acquireAllReleaseOrder(t, rdb) })
		t.Run("NothingKept", func(t *testing.T) { acquireAllNothingKept(t, rdb, m, other) })
		t.Run("ReleaseFails", func(t *testing.T) { acquireAllReleaseFails(t, rdb, other) })
		t.Run("OneLost", func(t *testing.T) { acquireAllOneLost(t, rdb, m) })
		t.Run("SameKey", func(t *testing.T) { acquireAllSameKey(t, m) })
		t.Run("Invalid", func(t *testing.T) { acquireAllInvalid(t, rdb, m) })
	})
}

func acquireAllHandles(t *testing.T, rdb *redis.Client, m *Manager) {
	ctx := await.Context(t)
	names := sortedNames(t, 3)
	// Given names in any order, one of them twice,
	opts := []Option{WithTTL(time.Hour), withMetadata("the caller's")}
	all, err := m.AcquireAll(ctx, []string{names[2], names[0], names[2], names[1]}, opts[:1]...)
	must(t, err)
	if opts[1] == nil {
		t.Error("the caller's options were overwritten")
	}
	// whose list is the caller's own,
	all.Locks()[0] = nil
	// then each is locked once, in the order of the keys.
	var got []string
	for _, l := range all.Locks() {
		got = append(got, l.Resource())
		if guarded(t, rdb, l) != 0 {
			t.Errorf("%s is not held", l.Resource())
		}
		if time.Until(l.ValidUntil()) <= slow.TTL {
			t.Errorf("%s is valid until %s", l.Resource(), l.ValidUntil())
		}
	}
	if !slices.Equal(got, names) {
		t.Errorf("locked %q, want %q", got, names)
	}
	// Its context can re-enter each of them.
	for _, name := range names {
		inner, err := m.TryAcquire(all.Context(), name, WithReentry())
		must(t, err)
		mustRelease(t, inner)
	}
	// When they are released repeatedly, then nothing is left.
	for range 2 {
		check(t, all.Release(ctx))
	}
	wantErr(t, context.Cause(all.Context()), ErrReleased)
	wantNoTrace(t, rdb, names...)
}

func acquireAllSameKey(t *testing.T, m *Manager) {
	ctx := await.Context(t)
	// Given two names of one resource, without a hash tag and as its keys begin, then it is locked once.
	plain := strings.NewReplacer("{", "", "}", "").Replace(resource(t))
	tagged := strings.TrimSuffix(mustKeys(t, plain)[keyLock], suffixes[keyLock])
	all, err := m.AcquireAll(ctx, []string{plain, tagged})
	must(t, err)
	if n := len(all.Locks()); n != 1 {
		t.Errorf("%d locks, want one", n)
	}
	check(t, all.Release(ctx))
}

func acquireAllReleaseOrder(t *testing.T, rdb *redis.Client) {
	ctx := await.Context(t)
	// Given three locks, then the last one taken is released first.
	names := sortedNames(t, 3)
	counted := redistest.Second(t, rdb)
	var released []string
	counted.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		for _, cmd := range cmds {
			if releases(cmd) {
				released = append(released, cmd.Args()[3].(string))
			}
		}
		return next()
	}))
	m := newManager(t, counted, slow)
	mustRelease(t, mustAcquire(t, m, resource(t))) // loads the script
	all, err := m.AcquireAll(ctx, names)
	must(t, err)
	released = nil
	check(t, all.Release(ctx))
	slices.Reverse(names)
	var want []string
	for _, name := range names {
		want = append(want, mustKeys(t, name)[keyLock])
	}
	// A cluster node that did not know the script gets two calls.
	if released = slices.Compact(released); !slices.Equal(released, want) {
		t.Errorf("released %q, want %q", released, want)
	}
}

func acquireAllNothingKept(t *testing.T, rdb *redis.Client, m *Manager, other *Manager) {
	ctx := await.Context(t)
	// Given three resources of which the second is taken, when the wait ends, then the first lock is
	// released and the third was never requested.
	names := sortedNames(t, 3)
	l := mustAcquire(t, other, names[1])
	waitCtx, cancel := context.WithCancel(ctx)
	done := acquireAllAsync(waitCtx, m, names)
	awaitWaiters(t, rdb, names[1], 1)
	if n := rdb.Exists(ctx, mustKeys(t, names[0])[keyLock]).Val(); n != 1 {
		t.Error("the first one is not held while the second is waited for")
	}
	cancel()
	wantErr(t, receive(t, "the end of AcquireAll", done), ErrWaitTimeout, context.Canceled)
	_, err := m.AcquireAll(ctx, names, WithWaitLimit(20*time.Millisecond))
	wantErr(t, err, ErrWaitTimeout, context.DeadlineExceeded)
	_, err = m.AcquireAll(ctx, names, WithWaitLimit(1)) // it has passed before the first lock
	wantErr(t, err, ErrWaitTimeout, context.DeadlineExceeded)
	awaitNoTrace(t, rdb, names[0])
	awaitWaiters(t, rdb, names[1], 0)
	if traces(t, rdb, names[2]) != 0 || rdb.Exists(ctx, mustKeys(t, names[2])[keyFence]).Val() != 0 {
		t.Error("the third one was taken before the second")
	}
	mustRelease(t, l)
}

func acquireAllReleaseFails(t *testing.T, rdb *redis.Client, other *Manager) {
	ctx := await.Context(t)
	// Given a wait for the third lock, when the first is lost, then the wait ends with the reason, also if the second
	// cannot be released.
	names := sortedNames(t, 3)
	own, f := failingClient(t, rdb)
	f.set(func(ctx context.Context, cmds []redis.Cmder) error {
		if releases(cmds[0]) && cmds[0].Args()[3] == mustKeys(t, names[1])[keyLock] {
			return refuse(ctx, cmds)
		}
		return nil
	})
	m := newManager(t, own, slow)
	l := mustAcquire(t, other, names[2])
	done := acquireAllAsync(ctx, m, names)
	awaitWaiters(t, rdb, names[2], 1)
	must(t, rdb.Del(ctx, mustKeys(t, names[0])[keyLock]).Err())
	renewNow(m.Held()[0])
	err := receive(t, "the end of AcquireAll", done)
	wantErr(t, err, ErrWaitTimeout, ErrLost, errRefused)
	if errors.Is(err, ErrReleased) {
		t.Errorf("err = %v", err)
	}
	awaitWaiters(t, rdb, names[2], 0)
	mustRelease(t, l)
	awaitNoTrace(t, rdb, names[0])
}

func acquireAllOneLost(t *testing.T, rdb *redis.Client, m *Manager) {
	ctx := await.Context(t)
	// Given all locks held, when one of them is lost, then the common context ends with its cause,
	// the others stay held, and the release returns the loss.
	names := sortedNames(t, 3)
	all, err := m.AcquireAll(ctx, names)
	must(t, err)
	must(t, rdb.Del(ctx, mustKeys(t, names[1])[keyLock]).Err())
	locks := all.Locks()
	wantErr(t, locks[1].Extend(ctx, time.Hour), ErrLost)
	receive(t, "the end of the common context", all.Context().Done())
	wantErr(t, context.Cause(all.Context()), ErrLost, ErrNotHeld)
	for _, i := range []int{0, 2} {
		wantHeld(t, locks[i], true)
	}
	wantErr(t, all.Release(ctx), ErrNotHeld, ErrLost)
	wantNoTrace(t, rdb, names...)
}

func acquireAllInvalid(t *testing.T, rdb *redis.Client, m *Manager) {
	ctx := await.Context(t)
	name := resource(t)
	for _, names := range [][]string{nil, {}, {name, ""}} {
		_, err := m.AcquireAll(ctx, names)
		wantErr(t, err, ErrInvalid)
	}
	wantNoTrace(t, rdb, name)
}

// Given a wait limit, then it covers the waits for all locks together.
func TestManager_AcquireAll_WaitLimit(t *testing.T) {
	t.Parallel()
	names := sortedNames(t, 2)
	inOwnTime(t, redistest.Embedded(t), Config{TTL: time.Hour}, func(t *testing.T, m *Manager, _ *failing) {
		const limit = 300 * time.Millisecond
		first, second := mustAcquire(t, m, names[0]), mustAcquire(t, m, names[1])
		began := time.Now()
		released := make(chan error, 1)
		time.AfterFunc(limit*2/3, func() { released <- first.Release(t.Context()) })
		_, err := m.AcquireAll(t.Context(), names, WithWaitLimit(limit))
		wantErr(t, err, ErrWaitTimeout)
		if waited := time.Since(began); waited != limit {
			t.Errorf("waited for %s, want %s", waited, limit)
		}
		check(t, <-released)
		mustRelease(t, second)
	})
}

// TestManager_AcquireAll_OppositeOrders: goroutines of two processes that name the same resources in
// all orders get them in turn and never deadlock.
func TestManager_AcquireAll_OppositeOrders(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const goroutines, rounds = 6, 6
		ctx, names := await.Context(t), sortedNames(t, 4)
		// A deadlock would last longer than the test.
		managers := []*Manager{newManager(t, rdb, slow), newManager(t, rdb, slow)}
		holders := make([]atomic.Int64, len(names))
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				for range rounds {
					// Some of them, in a random order.
					chosen := rand.Perm(len(names))[:2+g%3]
					var wanted []string
					for _, i := range chosen {
						wanted = append(wanted, names[i])
					}
					l, err := managers[g%2].AcquireAll(ctx, wanted)
					if err != nil {
						t.Error(err)
						return
					}
					for _, i := range chosen {
						if holders[i].Add(1) != 1 {
							t.Errorf("%s has two holders", names[i])
						}
					}
					for _, i := range chosen {
						holders[i].Add(-1)
					}
					check(t, l.Release(ctx))
				}
			})
		}
		all.Wait()
		for _, name := range names {
			awaitNoTrace(t, rdb, name)
		}
	})
}
