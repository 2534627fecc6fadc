package lock

import (
	"context"
	"fmt"
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

// TestLock_Release_Unreachable: a release that did not reach Redis may be repeated.
func TestLock_Release_Unreachable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		flaky, f := failingClient(t, rdb)
		m := newManager(t, flaky, slow)
		l := mustAcquire(t, m, name)
		f.set(refuse)
		wantErr(t, l.Release(t.Context()), errRefused)
		if l.Context().Err() == nil {
			t.Fatal("the holder's context did not end after a failed release")
		}
		f.how.Store(nil)
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
