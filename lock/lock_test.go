package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestLock_Fence: a fencing token exceeds the last one, also if both are of the same microsecond or the clock was set
// back. A foreign value in place of the last one is ignored.
func TestLock_Fence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const now = 1_800_000_000_000_000
		ctx, name := await.Context(t), resource(t)
		m, fenceKey := newManager(t, rdb, slow), mustKeys(t, name)[keyFence]
		mint := redis.NewScript(handoverLua + "return lock_mint(ARGV[1], tonumber(ARGV[2]))")
		for stored, want := range map[string]int64{
			"": now, fmt.Sprint(now - 1): now, fmt.Sprint(now): now + 1, fmt.Sprint(now+7) + "w": now + 8,
			"9007199254739999": 9007199254740000, "9007199254740000": now, "9007199254740993": now,
			"x": now, "-5": now, "1e300": now, "nan": now,
		} {
			if got, err := mint.Run(ctx, rdb, nil, stored, now).Int64(); err != nil || got != want {
				t.Errorf("after %q: %d, %v; want %d", stored, got, err, want)
			}
		}
		// An acquire mints it from the clock of Redis.
		clock := rdb.Time(ctx).Val().UnixMicro()
		ahead := fmt.Sprint(clock + 3_600_000_000)
		for _, stored := range []string{ahead, "junk", "-5", "1e300", "nan", "9007199254740993"} {
			must(t, rdb.Set(ctx, fenceKey, stored, time.Minute).Err())
			l := mustAcquire(t, m, name)
			if behind := l.Fence() == clock+3_600_000_001; l.Fence() < clock || l.Fence() >= 1<<53 || behind != (stored == ahead) {
				t.Errorf("after %q: an acquire at %d got %d", stored, clock, l.Fence())
			}
			mustRelease(t, l)
		}
	})
}

// TestLock_Release_ForeignQueue: a foreign key in place of the queue or the fence does not keep the lock held.
func TestLock_Release_ForeignQueue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		for _, foreign := range []string{k[keyWaiters], k[keySeen], k[keyFence]} {
			l := mustAcquire(t, m, name)
			must(t, errors.Join(rdb.Del(ctx, k[keyFence]).Err(), rdb.LPush(ctx, foreign, "x").Err()))
			mustRelease(t, l)
			if n := rdb.Del(ctx, k[keyLock], foreign).Val(); n != 1 {
				t.Errorf("%s: %d keys, want the foreign one", foreign, n)
			}
		}
	})
}

// TestLock_Release_Unreachable: a release that did not reach Redis may be repeated.
func TestLock_Release_Unreachable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		flaky := redistest.Second(t, rdb)
		m := newManager(t, flaky, slow)
		cut := errors.New("connection reset")
		var fails atomic.Int64 // so many calls do not reach Redis
		flaky.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			if releases(cmds[0]) && fails.Add(-1) >= 0 {
				cmds[0].SetErr(cut)
				return cut
			}
			return next()
		}))
		fails.Store(2)
		l := mustAcquire(t, m, name)
		wantErr(t, l.Release(t.Context()), cut)
		if l.Context().Err() == nil {
			t.Fatal("the holder's context did not end after a failed release")
		}
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

// A deferred Release of a lock that was not acquired must not panic.
func TestLock_Release_Nil(t *testing.T) {
	t.Parallel()
	var l *Lock
	wantErr(t, l.Release(t.Context()), ErrNotHeld)
	var all *MultiLock
	wantErr(t, all.Release(t.Context()), ErrNotHeld)
}
