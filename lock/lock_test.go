package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestManager_Acquire_ReplyLost: the script ran, but its reply was lost.
func TestManager_Acquire_ReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		flaky := redistest.Second(t, rdb)
		m := newManager(t, flaky, slow)
		// The first reply with the lock is lost. A script that Redis does not know yet costs a
		// call without a lock before it.
		var first, calls atomic.Int64
		flaky.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			call, ok := cmds[0].(*redis.Cmd)
			if !ok {
				return err
			}
			r, rerr := granted(call)
			if rerr != nil || !r.held || calls.Add(1) > 1 {
				return err
			}
			first.Store(r.fence)
			err = errors.New("connection reset")
			cmds[0].SetErr(err)
			return err
		}))
		l, err := m.TryAcquire(ctx, name)
		must(t, err)
		if calls.Load() != 2 || l.Fence() != first.Load() {
			t.Fatalf("calls = %d, fence = %d; want 2 granted calls and the first fence %d", calls.Load(), l.Fence(), first.Load())
		}
		mustRelease(t, l)
		awaitNoTrace(t, rdb, name)
	})
}

func TestLock_Fence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		var last int64
		rises := func(how string, l *Lock) {
			t.Helper()
			if l.Fence() <= last || l.Fence() >= 1<<53 {
				t.Fatalf("%s: fence %d after %d", how, l.Fence(), last)
			}
			last = l.Fence()
		}
		l := mustAcquire(t, m, name)
		rises("first", l)
		mustRelease(t, l)
		l = mustAcquire(t, m, name)
		rises("again", l)

		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		mustRelease(t, l)
		l = awaitLock(t, next)
		rises("handover", l)
		mustRelease(t, l)

		must(t, rdb.Del(ctx, k[:]...).Err())
		l = mustAcquire(t, m, name)
		rises("all keys deleted", l)
		mustRelease(t, l)

		// The stored token is ahead of the clock if the clock was set back.
		last += 3_600_000_000
		must(t, rdb.Set(ctx, k[keyFence], last, time.Minute).Err())
		l = mustAcquire(t, m, name)
		rises("clock set back", l)
		mustRelease(t, l)

		// A foreign value in its place is ignored.
		last = l.Fence() - 3_600_000_000
		for _, junk := range []string{"junk", "-5", "1e300", "nan", "9007199254740993"} {
			must(t, rdb.Set(ctx, k[keyFence], junk, time.Minute).Err())
			l = mustAcquire(t, m, name)
			rises("foreign value "+junk, l)
			mustRelease(t, l)
		}
	})
}

// TestLock_Fence_Mint: a fencing token exceeds the last one also if both are of the same microsecond.
func TestLock_Fence_Mint(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const now = 1_800_000_000_000_000
		mint := redis.NewScript(handoverLua + "return lock_mint(ARGV[1], tonumber(ARGV[2]))")
		for stored, want := range map[string]int64{
			"": now, fmt.Sprint(now - 1): now, fmt.Sprint(now): now + 1, fmt.Sprint(now+7) + "w": now + 8,
			"9007199254739999": 9007199254740000, "9007199254740000": now, "x": now,
		} {
			if got, err := mint.Run(await.Context(t), rdb, nil, stored, now).Int64(); err != nil || got != want {
				t.Errorf("after %q: %d, %v; want %d", stored, got, err, want)
			}
		}
	})
}

func TestLock_Release(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		m := newManager(t, rdb, slow)

		t.Run("ForeignQueue", func(t *testing.T) {
			// A foreign key in place of the queue or the fence does not keep the lock held.
			ctx, k := t.Context(), mustKeys(t, name)
			for _, foreign := range []string{k[keyWaiters], k[keySeen], k[keyFence]} {
				l := mustAcquire(t, m, name)
				must(t, errors.Join(rdb.Del(ctx, k[keyFence]).Err(), rdb.LPush(ctx, foreign, "x").Err()))
				mustRelease(t, l)
				if n := rdb.Del(ctx, k[keyLock], foreign).Val(); n != 1 {
					t.Errorf("%s: %d keys, want the foreign one", foreign, n)
				}
			}
		})
		t.Run("Repeated", func(t *testing.T) {
			l := mustAcquire(t, m, name)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					check(t, l.Release(t.Context()))
				})
			}
			wg.Wait()
			after := mustAcquire(t, m, name)
			mustRelease(t, l)
			if after.Context().Err() != nil || rdb.Exists(t.Context(), mustKeys(t, name)[keyLock]).Val() != 1 {
				t.Fatal("a repeated release ended another's lock")
			}
			mustRelease(t, after)
		})
		t.Run("NotHeld", func(t *testing.T) {
			l := mustAcquire(t, m, name)
			k := mustKeys(t, name)
			must(t, rdb.Set(t.Context(), k[keyLock], "stranger", time.Minute).Err())
			for range 2 {
				wantErr(t, l.Release(t.Context()), ErrNotHeld)
			}
			if got := rdb.Get(t.Context(), k[keyLock]).Val(); got != "stranger" {
				t.Fatalf("the foreign key holds %q", got)
			}
			must(t, rdb.Del(t.Context(), k[keyLock]).Err())
		})
	})
}

// TestLock_Release_Unreachable: a release that did not reach Redis may be repeated, and one whose
// reply was lost counts as done.
func TestLock_Release_Unreachable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		flaky := redistest.Second(t, rdb)
		m := newManager(t, flaky, slow)
		cut := errors.New("connection reset")
		var before, after atomic.Int64 // number of calls that fail before, and after, they ran
		flaky.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if releases(cmds[0]) && before.Add(-1) >= 0 {
				cmds[0].SetErr(cut)
				return cut
			}
			err := next()
			if err == nil && releases(cmds[0]) && after.Add(-1) >= 0 {
				err = cut
				cmds[0].SetErr(cut)
			}
			return err
		}))
		before.Store(2)
		l := mustAcquire(t, m, name)
		wantErr(t, l.Release(t.Context()), cut)
		if l.Context().Err() == nil {
			t.Fatal("the holder's context did not end after a failed release")
		}
		mustRelease(t, l)
		l = mustAcquire(t, m, name)
		after.Store(1)
		mustRelease(t, l)
		wantNoTrace(t, rdb, name)
	})
}

// Given a lock that ended before the context that acquired it, when its context is made after both, then
// the cause is the lock's.
func TestLock_Context_MadeLate(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := newManager(t, redistest.Embedded(t), slow).Acquire(ctx, resource(t))
	must(t, err)
	mustRelease(t, l)
	cancel()
	wantErr(t, context.Cause(l.Context()), ErrReleased)
}

// TestLock_Extend: an extension that finds the lock gone ends it.
func TestLock_Extend(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		l := mustAcquire(t, newManager(t, rdb, slow), name)
		must(t, rdb.Del(ctx, mustKeys(t, name)[keyLock]).Err())
		wantErr(t, l.Extend(ctx, time.Minute), ErrLost, ErrNotHeld)
		wantCause(t, l, ErrLost)
	})
}
