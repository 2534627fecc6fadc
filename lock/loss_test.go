package lock

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// write is a script that uses the guard.
var write = redis.NewScript(GuardLua + `
local waiting = lock_guard(KEYS[1], KEYS[2], ARGV[1])
if waiting < 0 then return -1 end
redis.call('INCR', KEYS[3])
return waiting
`)

// guarded writes under the guard of l and returns the number of waiters, or -1.
func guarded(t *testing.T, rdb redis.UniversalClient, l *Lock) int {
	t.Helper()
	lockKey, waitersKey := l.h.m.GuardKeys(l.Resource())
	n, err := write.Run(t.Context(), rdb, []string{lockKey, waitersKey, l.Resource() + ":data"}, l.GuardValue()).Int()
	must(t, err)
	return n
}

// wantGuard fails unless the guard finds this number of waiters, or refuses the write: -1.
func wantGuard(t *testing.T, rdb redis.UniversalClient, l *Lock, want int) {
	t.Helper()
	if n := guarded(t, rdb, l); n != want {
		t.Errorf("guard = %d, want %d", n, want)
	}
}

func TestGuardLua(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		l := mustAcquire(t, m, name)
		wantGuard(t, rdb, l, 0)
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		wantGuard(t, rdb, l, 1)
		mustRelease(t, l)
		after := awaitLock(t, next)
		wantGuard(t, rdb, l, -1)
		wantGuard(t, rdb, after, 0)
		mustRelease(t, after)
		wantGuard(t, rdb, after, -1)
		must(t, rdb.RPush(ctx, k[keyLock], "x").Err())
		wantGuard(t, rdb, after, -1)
		if got := rdb.Get(ctx, name+":data").Val(); got != "3" {
			t.Errorf("%s writes, want the 3 of the holders", got)
		}
	})
}

// TestManager_Acquire_Repair: a key that lost its TTL gets one from another client's try, which a live holder keeps
// or extends, and from a renewal of its holder.
func TestManager_Acquire_Repair(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		cfg := slow
		cfg.Grace = time.Minute
		var repairs atomic.Int64
		cfg.Observer.Repaired = func(string) { repairs.Add(1) }
		m, key := newManager(t, rdb, cfg), mustKeys(t, name)[keyLock]
		l := mustAcquire(t, m, name)
		for what, repair := range map[string]func(){
			"a try, and an extension": func() {
				for range 2 { // the second finds it repaired
					wantTaken(t, m, name)
				}
				if n := repairs.Load(); n != 1 {
					t.Errorf("%d repairs, want 1", n)
				}
				if left := rdb.PTTL(ctx, key).Val(); left <= 0 || left > cfg.Grace {
					t.Errorf("the key's TTL is %s, want up to %s", left, cfg.Grace)
				}
				must(t, l.Extend(ctx, 10*time.Minute))
			},
			"a renewal": func() { renewNow(l) },
		} {
			must(t, rdb.Persist(ctx, key).Err())
			repair()
			if left := rdb.PTTL(ctx, key).Val(); left <= cfg.Grace || l.Context().Err() != nil {
				t.Errorf("after %s the live holder's key lives for %s", what, left)
			}
		}
		mustRelease(t, l)
	})
}
