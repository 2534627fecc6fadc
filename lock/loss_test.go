package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
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

// TestLock_LostToStranger: another program deletes or overwrites the key. The holder learns of it
// at the next renewal, long before its deadline; its writes are refused at once.
func TestLock_LostToStranger(t *testing.T) {
	t.Parallel()
	for name, stranger := range map[string]func(context.Context, redis.UniversalClient, string) error{
		"Deleted": func(ctx context.Context, rdb redis.UniversalClient, key string) error { return rdb.Del(ctx, key).Err() },
		"Overwritten": func(ctx context.Context, rdb redis.UniversalClient, key string) error {
			return rdb.Set(ctx, key, "x", 0).Err()
		},
		"OtherType": func(ctx context.Context, rdb redis.UniversalClient, key string) error {
			return errors.Join(rdb.Del(ctx, key).Err(), rdb.RPush(ctx, key, "x").Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				ctx, name := await.Context(t), resource(t)
				var losses atomic.Int64
				cfg := slow
				cfg.Observer.Lost = func(string, error) { losses.Add(1) }
				m := newManager(t, rdb, cfg)
				l := mustAcquire(t, m, name)
				key, _ := m.GuardKeys(name)
				must(t, stranger(ctx, rdb, key))
				wantGuard(t, rdb, l, -1)
				renewNow(l)
				wantCause(t, l, ErrLost)
				before := rdb.Type(ctx, key).Val()
				wantErr(t, l.Release(ctx), ErrNotHeld, ErrLost)
				if after := rdb.Type(ctx, key).Val(); after != before {
					t.Errorf("the foreign key was %s and is %s", before, after)
				}
				await.True(t, "the loss is observed", func() bool { return losses.Load() == 1 })
			})
		})
	}
}

// TestLock_RedisGone: if Redis is killed, or stopped so that calls hang, the context ends at a
// deadline before the key can expire.
func TestLock_RedisGone(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Server) error{
		"Killed":  (*redistest.Server).Kill,
		"Hanging": func(s *redistest.Server) error { return syscall.Kill(s.Pid(), syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			rdb := clientOf(t, server)
			cfg := Config{TTL: 4500 * time.Millisecond, CallTimeout: 2 * time.Second}
			m := newManager(t, rdb, cfg)
			l := mustAcquire(t, m, resource(t))
			until := l.ValidUntil()
			await.True(t, "a renewal", func() bool { return l.ValidUntil().After(until) })
			must(t, fail(server))
			// No TTL was set after this, so the key lives until then at the
			// earliest if it was set just before.
			gone := time.Now()
			if limit := gone.Add(cfg.TTL); !l.ValidUntil().Before(limit) {
				t.Errorf("valid until %s after Redis was gone, with a TTL of %s", l.ValidUntil().Sub(gone), cfg.TTL)
			}
			wantCause(t, l, ErrLost)
			if err := l.Release(t.Context()); err == nil || errors.Is(err, ErrNotHeld) {
				t.Errorf("release without Redis: err = %v, want the network's", err)
			}
		})
	}
}

// TestLock_Renewed: all held locks are renewed.
func TestLock_Renewed(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, Config{TTL: 9 * time.Second})
		var locks []*Lock
		for range 10 {
			locks = append(locks, mustAcquire(t, m, resource(t)))
		}
		awaitRenewals(t, 1, locks...)
		for _, l := range locks {
			wantGuard(t, rdb, l, 0)
			must(t, l.Release(ctx))
		}
	})
}

// TestManager_Acquire_Repair: a key without TTL gets one, once, and its holder keeps the lock for
// that time.
func TestManager_Acquire_Repair(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		var repairs atomic.Int64
		cfg := slow
		cfg.Grace = time.Minute
		cfg.Observer.Repaired = func(string) { repairs.Add(1) }
		m, k := newManager(t, rdb, cfg), mustKeys(t, name)
		must(t, rdb.Set(ctx, k[keyLock], "1", 0).Err())
		for range 2 {
			wantTaken(t, m, name)
		}
		if left := rdb.PTTL(ctx, k[keyLock]).Val(); left <= 0 || left > cfg.Grace {
			t.Fatalf("the key's TTL is %s, want up to %s", left, cfg.Grace)
		}
		if err := rdb.PExpire(ctx, k[keyLock], 10*time.Millisecond).Err(); err != nil { // instead of waiting for a minute
			t.Fatal(err)
		}
		l := mustAcquire(t, m, name)
		if n := repairs.Load(); n != 1 {
			t.Errorf("%d repairs, want 1", n)
		}
		// A live holder whose key was made persistent keeps it.
		must(t, rdb.Persist(ctx, k[keyLock]).Err())
		wantTaken(t, m, name)
		must(t, l.Extend(ctx, 10*time.Minute))
		if left := rdb.PTTL(ctx, k[keyLock]).Val(); left <= cfg.Grace || l.Context().Err() != nil {
			t.Errorf("the live holder's key lives for %s", left)
		}
		mustRelease(t, l)
	})
}

// TestManager_Acquire_PersistentOwn: a holder whose key was made persistent repairs it at its next
// renewal.
func TestManager_Acquire_PersistentOwn(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		l := mustAcquire(t, m, name)
		must(t, rdb.Persist(ctx, k[keyLock]).Err())
		renewNow(l)
		if left := rdb.PTTL(ctx, k[keyLock]).Val(); left <= 0 {
			t.Errorf("the key lives for %s", left)
		}
		mustRelease(t, l)
	})
}
