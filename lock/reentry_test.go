package lock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func TestWithReentry(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		counted, calls := counting(t, rdb, nil)
		m, other := newManager(t, counted, slow), newManager(t, rdb, slow)
		for name, test := range map[string]func(t *testing.T, rdb *redis.Client, m, other *Manager){
			"AnyOrder": reentryAnyOrder, "Lost": reentryLost, "AfterRelease": reentryAfterRelease,
			"OtherResource": reentryOtherResource, "OtherManager": reentryOtherManager, "WithoutOption": reentryWithoutOption,
			"TheOthersWait": reentryTheOthersWait,
		} {
			t.Run(name, func(t *testing.T) { test(t, rdb, m, other) })
		}
		t.Run("NoRoundTrip", func(t *testing.T) { reentryNoRoundTrip(t, rdb, m, calls) })
	})
}

// reenter takes a lock that its context may hold already.
func reenter(ctx context.Context, t *testing.T, m *Manager, name string) *Lock {
	t.Helper()
	l, err := m.Acquire(ctx, name, WithReentry())
	must(t, err)
	return l
}

func reentryNoRoundTrip(t *testing.T, rdb *redis.Client, m *Manager, calls *atomic.Int64) {
	name := resource(t)
	outer := mustAcquire(t, m, name)
	before := calls.Load()
	inner := reenter(outer.Context(), t, m, name)
	tried, err := m.TryAcquire(inner.Context(), name, WithReentry())
	must(t, err)
	for _, l := range []*Lock{inner, tried} {
		if l.Fence() != outer.Fence() || l.Token() != outer.Token() || !l.ValidUntil().Equal(outer.ValidUntil()) {
			t.Errorf("fence %d, token %s; want those of the first", l.Fence(), l.Token())
		}
		mustRelease(t, l)
	}
	if n := calls.Load() - before; n != 0 {
		t.Errorf("%d commands for a nested acquire and release, want none", n)
	}
	mustRelease(t, outer)
	awaitNoTrace(t, rdb, name)
}

func reentryAnyOrder(t *testing.T, rdb *redis.Client, m, other *Manager) {
	// Given three handles, when they are released in any order, then
	// the last one frees the resource.
	for _, order := range [][]int{{2, 1, 0}, {0, 1, 2}, {1, 0, 2}, {1, 2, 0}} {
		name := resource(t)
		handles := []*Lock{mustAcquire(t, m, name)}
		handles = append(handles, reenter(handles[0].Context(), t, m, name))
		handles = append(handles, reenter(handles[1].Context(), t, m, name))
		for n, i := range order {
			wantTaken(t, other, name)
			// A handle's context ends with that of the handle through which it was acquired.
			for _, rest := range order[n:] {
				if below := slices.Min(append(slices.Clone(order[:n]), rest)) < rest; (handles[rest].Context().Err() != nil) != below {
					t.Errorf("%v after %d releases: the context of handle %d has ended: %v", order, n, rest, !below)
				}
			}
			mustRelease(t, handles[i])
			mustRelease(t, handles[i]) // a repeated release counts once
			if cause := context.Cause(handles[i].Context()); !errors.Is(cause, ErrReleased) {
				t.Errorf("%v: cause = %v", order, cause)
			}
		}
		if n := traces(t, rdb, name); n != 0 {
			t.Errorf("%v: %d keys left", order, n)
		}
	}
}

func reentryLost(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	// Given a lost lock, then the contexts of all handles end, and none of them releases the
	// lock of the next holder.
	name := resource(t)
	outer := mustAcquire(t, m, name)
	inner := reenter(outer.Context(), t, m, name)
	k := mustKeys(t, name)
	must(t, rdb.Set(t.Context(), k[keyLock], "stranger", time.Minute).Err())
	wantErr(t, inner.Extend(t.Context(), time.Hour), ErrLost)
	for _, l := range []*Lock{outer, inner} {
		wantCause(t, l, ErrLost, ErrNotHeld)
		wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
	}
	if got := rdb.Get(t.Context(), k[keyLock]).Val(); got != "stranger" {
		t.Errorf("the foreign key holds %q", got)
	}
	// An acquire whose context has a lost lock's values but not its end has to queue.
	_, err := m.TryAcquire(context.WithoutCancel(inner.Context()), name, WithReentry())
	wantErr(t, err, ErrTaken)
}

func reentryAfterRelease(t *testing.T, _ *redis.Client, m, _ *Manager) {
	// Given an ended lock, then its context re-enters nothing.
	name := resource(t)
	outer := mustAcquire(t, m, name)
	mustRelease(t, outer)
	_, err := m.Acquire(outer.Context(), name, WithReentry())
	wantErr(t, err, ErrReleased)
	l := reenter(context.WithoutCancel(outer.Context()), t, m, name)
	if l.Fence() <= outer.Fence() {
		t.Errorf("fence %d after %d", l.Fence(), outer.Fence())
	}
	mustRelease(t, l)
}

func reentryOtherResource(t *testing.T, _ *redis.Client, m, other *Manager) {
	name, second := resource(t), resource(t)
	outer := mustAcquire(t, m, name)
	held := mustAcquire(t, other, second)
	_, err := m.TryAcquire(outer.Context(), second, WithReentry())
	wantErr(t, err, ErrTaken)
	mustRelease(t, held)
	l := reenter(outer.Context(), t, m, second)
	if l.Token() == outer.Token() {
		t.Error("another resource counted as the same")
	}
	mustRelease(t, l)
	mustRelease(t, outer)
}

func reentryOtherManager(t *testing.T, _ *redis.Client, m, other *Manager) {
	name := resource(t)
	outer := mustAcquire(t, m, name)
	_, err := other.TryAcquire(outer.Context(), name, WithReentry())
	wantErr(t, err, ErrTaken)
	mustRelease(t, outer)
}

func reentryWithoutOption(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	// Given the lock's context, when it is acquired again without the option,
	// then that fails at once and does not wait for itself.
	name := resource(t)
	outer := mustAcquire(t, m, name)
	_, err := m.TryAcquire(outer.Context(), name)
	wantErr(t, err, ErrTaken)
	_, err = m.Acquire(outer.Context(), name)
	wantErr(t, err, ErrNested)
	_, err = m.AcquireAll(outer.Context(), []string{resource(t), name})
	wantErr(t, err, ErrNested)
	err = m.Do(outer.Context(), name, func(context.Context, *Lock) error { t.Error("called"); return nil })
	wantErr(t, err, ErrNested)
	mustRelease(t, outer)
	// Once it is released, a context that carries it but has not ended can acquire it.
	again, err := m.Acquire(context.WithoutCancel(outer.Context()), name)
	must(t, err)
	mustRelease(t, again)
	awaitNoTrace(t, rdb, name)
}

func reentryTheOthersWait(t *testing.T, rdb *redis.Client, m, other *Manager) {
	// Given waiters, when the lock is re-entered, then no waiter is served before
	// the last release.
	name := resource(t)
	outer := mustAcquire(t, m, name)
	waiting := acquireAsync(await.Context(t), other, name)
	awaitWaiters(t, rdb, name, 1)
	inner := reenter(outer.Context(), t, m, name)
	mustRelease(t, outer)
	wantHeld(t, inner, true)
	mustRelease(t, inner)
	mustRelease(t, awaitLock(t, waiting))
}
