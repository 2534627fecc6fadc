package lock

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// TestInstant_Fence: the tokens of instant holdings and of others rise together, and a lock
// that is held or waited for is refused.
func TestInstant_Fence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		script := redis.NewScript(InstantLua + `
			local fence = lock_instant(KEYS[1], KEYS[2], KEYS[3])
			if not fence then return 0 end
			lock_instant_end(KEYS[3], fence)
			return tonumber(fence)`)
		m, name := newManager(t, rdb, steady), resource(t)
		lockKey, waitersKey, fenceKey := m.InstantKeys(name)
		instant := func() int64 {
			t.Helper()
			fence, err := script.Run(await.Context(t), rdb, []string{lockKey, waitersKey, fenceKey}).Int64()
			must(t, err)
			return fence
		}
		last := int64(0)
		for range 20 {
			first := instant()
			wantDay(t, rdb, name)
			l := mustAcquire(t, m, name)
			if first <= last || l.Fence() <= first {
				t.Errorf("tokens %d, %d, %d do not rise", last, first, l.Fence())
			}
			last = l.Fence()
			if got := instant(); got != 0 {
				t.Errorf("instant holding %d of a lock that is held", got)
			}
			mustRelease(t, l)
		}
		l := mustAcquire(t, m, name)
		next := acquireAsync(await.Context(t), m, name)
		awaitWaiters(t, rdb, name, 1)
		// As if the holder had died: the lock is free, and there is a waiter.
		must(t, rdb.Del(await.Context(t), lockKey).Err())
		if got := instant(); got != 0 {
			t.Errorf("instant holding %d before the waiter", got)
		}
		n := awaitLock(t, next)
		mustRelease(t, n)
		// The mark of waiters, although there are none, is for the scripts that acquire.
		must(t, rdb.Set(await.Context(t), fenceKey, fmt.Sprint(n.Fence())+"w", 0).Err())
		if got := instant(); got != 0 {
			t.Errorf("instant holding %d of a lock with the mark of waiters", got)
		}
		// The stored token is ahead of the clock if the clock was set back.
		must(t, rdb.Set(await.Context(t), fenceKey, n.Fence()+3_600_000_000, 0).Err())
		if got := instant(); got != 0 {
			t.Errorf("instant holding %d below the last token", got)
		}
		if l.Fence() >= n.Fence() {
			t.Errorf("tokens %d, %d do not rise", l.Fence(), n.Fence())
		}
	})
}
