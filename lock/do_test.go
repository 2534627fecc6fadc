package lock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

type valueKey struct{}

func TestManager_Do(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m, other := newManager(t, rdb, slow), newManager(t, rdb, slow)
		for name, test := range map[string]func(t *testing.T, rdb *redis.Client, m, other *Manager){
			"Returns": doReturns, "Panics": doPanics, "Lost": doLost, "ReleasedInside": doReleasedInside,
			"ReleasedByOthers": doReleasedByOthers, "ContextEnds": doContextEnds, "Nested": doNested, "NotAcquired": doNotAcquired,
		} {
			t.Run(name, func(t *testing.T) { test(t, rdb, m, other) })
		}
	})
}

func doReturns(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	failure := errors.New("sold out")
	// Given a function, then it runs once under the lock, and its error is
	// the whole outcome.
	for _, want := range []error{nil, failure} {
		name, calls := resource(t), 0
		ctx := context.WithValue(await.Context(t), valueKey{}, "a trace")
		var lock *Lock
		var held context.Context
		err := m.Do(ctx, name, func(c context.Context, l *Lock) error {
			calls, lock, held = calls+1, l, c
			wantGuard(t, rdb, l, 0)
			if c.Value(valueKey{}) != "a trace" || l.Resource() != name {
				t.Errorf("value %v, resource %q", c.Value(valueKey{}), l.Resource())
			}
			return want
		})
		if !errors.Is(err, want) || calls != 1 {
			t.Errorf("err = %v, want %v; %d calls", err, want, calls)
		}
		wantCause(t, lock, ErrReleased)
		if held.Err() == nil {
			t.Error("the function's context did not end with it")
		}
		wantNoTrace(t, rdb, name)
	}
}

func doPanics(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	// Given a function that panics, then the lock is released.
	name := resource(t)
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		err := m.Do(await.Context(t), name, func(context.Context, *Lock) error { panic("boom") })
		t.Errorf("do returned %v", err)
	}()
	wantNoTrace(t, rdb, name)
}

func doLost(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	failure := errors.New("sold out")
	// Given a function that is running when the lock is lost, then its context ends, and
	// the error has both reasons.
	name := resource(t)
	err := m.Do(await.Context(t), name, func(ctx context.Context, l *Lock) error {
		check(t, rdb.Del(ctx, mustKeys(t, name)[keyLock]).Err())
		wantErr(t, l.Extend(ctx, time.Hour), ErrLost)
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), ErrLost, ErrNotHeld)
		return failure
	})
	wantErr(t, err, failure, ErrLost)
	// Even a function that succeeded may have overlapped with another holder.
	err = m.Do(await.Context(t), name, func(ctx context.Context, _ *Lock) error {
		return rdb.Del(ctx, mustKeys(t, name)[keyLock]).Err()
	})
	wantErr(t, err, ErrNotHeld)
}

func doReleasedInside(t *testing.T, rdb *redis.Client, m, other *Manager) {
	// Given a function that releases the lock itself, then that is no error, even if it
	// continues working.
	name := resource(t)
	err := m.Do(await.Context(t), name, func(ctx context.Context, l *Lock) error {
		err := l.Release(ctx)
		<-ctx.Done()
		wantErr(t, context.Cause(ctx), ErrReleased)
		next, tryErr := other.TryAcquire(t.Context(), name)
		if tryErr != nil {
			t.Error(tryErr)
			return err
		}
		mustRelease(t, next)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	wantNoTrace(t, rdb, name)
}

func doReleasedByOthers(t *testing.T, rdb *redis.Client, _, _ *Manager) {
	// Given a running function, when ReleaseAll releases all locks of the manager, then the
	// caller gets an error, because another holder may have overlapped.
	name := resource(t)
	alone := newManager(t, rdb, slow)
	err := alone.Do(await.Context(t), name, func(context.Context, *Lock) error {
		return alone.ReleaseAll(t.Context())
	})
	wantErr(t, err, ErrReleased)
	wantNoTrace(t, rdb, name)
}

func doContextEnds(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	// Given a caller whose context ends, then the function's context ends with the same
	// cause, and the lock is still released.
	name, why := resource(t), errors.New("the buyer left")
	ctx, cancel := context.WithCancelCause(await.Context(t))
	err := m.Do(ctx, name, func(held context.Context, l *Lock) error {
		cancel(why)
		<-held.Done()
		wantErr(t, context.Cause(held), why)
		wantGuard(t, rdb, l, 0)
		return held.Err()
	})
	wantErr(t, err, context.Canceled)
	wantNoTrace(t, rdb, name)
}

func doNested(t *testing.T, rdb *redis.Client, m, _ *Manager) {
	// Given a function that needs the same lock again, through its context.
	name := resource(t)
	err := m.Do(await.Context(t), name, func(ctx context.Context, outer *Lock) error {
		err := m.Do(ctx, name, func(_ context.Context, inner *Lock) error {
			if inner.Fence() != outer.Fence() {
				t.Error("another holding")
			}
			return nil
		}, WithReentry())
		if ctx.Err() != nil || guarded(t, rdb, outer) != 0 {
			t.Error("the inner function released the outer's lock")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	wantNoTrace(t, rdb, name)
}

func doNotAcquired(t *testing.T, rdb *redis.Client, m, other *Manager) {
	// Given a lock that cannot be acquired, then the function is not called.
	name := resource(t)
	l := mustAcquire(t, other, name)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want, try := range map[error]func() error{
		ErrWaitTimeout: func() error {
			return m.Do(await.Context(t), name, func(context.Context, *Lock) error { t.Error("called"); return nil }, WithWaitLimit(20*time.Millisecond))
		},
		context.Canceled: func() error {
			return m.Do(ended, name, func(context.Context, *Lock) error { t.Error("called"); return nil })
		},
	} {
		err := try()
		wantErr(t, err, want)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("err = %v, want the resource named", err)
		}
	}
	mustRelease(t, l)
	awaitNoTrace(t, rdb, name)
}

// Given a function that re-entered the lock and panics before it releases the inner handle, then nothing
// of the lock is left, and it is no longer renewed.
func TestManager_Do_PanicsInside(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m, name := newManager(t, rdb, slow), resource(t)
		var inner *Lock
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			err := m.Do(await.Context(t), name, func(ctx context.Context, _ *Lock) error {
				one, err := m.Acquire(ctx, name, WithReentry())
				if err != nil {
					t.Error(err)
				}
				inner, err = m.Acquire(one.Context(), name, WithReentry())
				if err != nil {
					t.Error(err)
				}
				panic("boom")
			})
			t.Errorf("do returned %v", err)
		}()
		if n := traces(t, rdb, name); n != 0 || len(m.Held()) != 0 {
			t.Errorf("%d keys and %d locks left", n, len(m.Held()))
		}
		wantErr(t, context.Cause(inner.Context()), ErrReleased)
	})
}
