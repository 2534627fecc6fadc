package lock

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// ghosts puts waiters into the queue whose process does not exist.
func ghosts(t *testing.T, m *Manager, name string, n int) (tokens []string) {
	t.Helper()
	for range n {
		token := "GHOST." + rand.Text()
		r, err := m.store.acquire(t.Context(), &attempt{caller: t.Context(), keys: *mustKeys(t, name), settings: m.defaults, token: token, member: token})
		if err != nil || r.held {
			t.Fatalf("%+v, %v; want a place in the queue", r, err)
		}
		tokens = append(tokens, token)
	}
	return tokens
}

// TestManager_Acquire_DeadWaiters_Cluster: in a cluster PUBLISH does not show which processes listen, so
// dead waiters are recognised by their missing keep-alives: all at once, not one claim after the other.
func TestManager_Acquire_DeadWaiters_Cluster(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		const dead = 20
		ctx, name := await.Context(t), resource(t)
		cfg := Config{TTL: patience, CallTimeout: patience, ClaimTTL: 500 * time.Millisecond, Liveness: 100 * time.Millisecond}
		m := newManager(t, rdb, cfg)
		m.store.(*node).contended = contendedSettings(m.cfg, false)
		l := mustAcquire(t, m, name)
		dying := ghosts(t, m, name, dead)
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, dead+1)
		// The holder of the key after each script that may hand it over.
		var mu sync.Mutex
		served := make(map[string]bool)
		rdb.AddHook(around(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if !acquires(cmds[0]) && !releases(cmds[0]) {
				return err
			}
			token, _, ok := strings.Cut(rdb.Get(ctx, mustKeys(t, name)[keyLock]).Val(), ":")
			if ok && slices.Contains(dying, token) {
				mu.Lock()
				served[token] = true
				mu.Unlock()
			}
			return err
		}))
		mustRelease(t, l)
		l = awaitLock(t, next)
		// On a busy machine ClaimTTL may already have passed.
		if err := l.Release(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
			t.Error(err)
		}
		awaitNoTrace(t, rdb, name)
		// While one of them had the lock, the keep-alives of the others became overdue.
		mu.Lock()
		defer mu.Unlock()
		if len(served) > 1 {
			t.Errorf("the lock went to %d dead waiters, want one at most", len(served))
		}
	})
}

// TestManager_giveBack_HandedOver: a waiter that leaves right after it was handed the lock passes it on.
func TestManager_giveBack_HandedOver(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		l := mustAcquire(t, m, name)
		leaving := ghosts(t, m, name, 1)[0]
		mustRelease(t, l)
		if got := rdb.Get(ctx, k[keyLock]).Val(); !strings.HasPrefix(got, leaving+":") {
			t.Fatalf("key holds %q, want the leaving waiter's value", got)
		}
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		m.giveBack(ctx, &attempt{caller: t.Context(), keys: *k, token: leaving, member: leaving})
		mustRelease(t, awaitLock(t, next))
	})
}

// TestManager_Acquire_ExpiredWithWaiters: after the key of a dead holder has expired, a newcomer does not
// take the lock but passes it to the first waiter.
func TestManager_Acquire_ExpiredWithWaiters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, other := newManager(t, rdb, slow), newManager(t, rdb, slow)
		k := mustKeys(t, name)
		must(t, rdb.Set(ctx, k[keyLock], "a dead holder", time.Minute).Err())
		first := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		must(t, rdb.Del(ctx, k[keyLock]).Err())
		wantTaken(t, other, name)
		mustRelease(t, awaitLock(t, first))
		// Without a newcomer the waiter itself checks when the key expires.
		must(t, rdb.Set(ctx, k[keyLock], "a dead holder", 50*time.Millisecond).Err())
		mustRelease(t, mustAcquire(t, m, name))
	})
}

// TestManager_Acquire_KeepAlive: a keep-alive counts for two and a half Liveness intervals, keeps the queue
// for four times as long but at least a minute, and does not change the order.
func TestManager_Acquire_KeepAlive(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, tc := range []struct{ liveness, alive, queue time.Duration }{
			{time.Second, 2500 * time.Millisecond, time.Minute},
			{time.Minute, 150 * time.Second, 10 * time.Minute},
		} {
			ctx, name := await.Context(t), resource(t)
			cfg := slow
			cfg.Liveness = tc.liveness
			m, k := newManager(t, rdb, cfg), mustKeys(t, name)
			mustAcquire(t, m, name)
			tokens := ghosts(t, m, name, 2)
			must(t, rdb.HSet(ctx, k[keySeen], tokens[0], 1).Err())
			before, fence := rdb.Time(ctx).Val(), rdb.Get(ctx, k[keyFence]).Val()
			first := &attempt{keys: *k, settings: m.defaults, token: tokens[0], member: tokens[0]}
			if r, err := m.store.acquire(ctx, first); err != nil || r.held {
				t.Fatalf("%+v, %v; want a place in the queue", r, err)
			}
			after := rdb.Time(ctx).Val()
			until, err := rdb.HGet(ctx, k[keySeen], tokens[0]).Int64()
			must(t, err)
			for _, end := range []struct {
				what string
				at   time.Time
				in   time.Duration
			}{
				{"the waiter counts as alive", time.UnixMilli(until), tc.alive},
				{"the queue lives", time.Unix(0, int64(rdb.PExpireTime(ctx, k[keyWaiters]).Val())), tc.queue},
				{"the keep-alives live", time.Unix(0, int64(rdb.PExpireTime(ctx, k[keySeen]).Val())), tc.queue},
			} {
				if end.at.Before(before.Add(end.in).Truncate(time.Millisecond)) || end.at.After(after.Add(end.in)) {
					t.Errorf("Liveness %s: %s until %s, want %s after %s", tc.liveness, end.what, end.at, end.in, before)
				}
			}
			if got := rdb.ZRange(ctx, k[keyWaiters], 0, -1).Val(); !slices.Equal(got, tokens) {
				t.Errorf("queue %q, want %q", got, tokens)
			}
			if got := rdb.Get(ctx, k[keyFence]).Val(); got != fence {
				t.Errorf("fence %q, want %q", got, fence)
			}
		}
	})
}

// TestManager_Acquire_DeadWaiters: a release skips up to 64 waiters whose processes do not listen. If there
// are more, or the number of receivers is not known, the first of them gets the lock for ClaimTTL.
func TestManager_Acquire_DeadWaiters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, tc := range []struct {
			dead          int
			known, served bool
		}{{64, true, true}, {65, true, false}, {1, false, false}} {
			ctx, name := await.Context(t), resource(t)
			m := newManager(t, rdb, slow)
			m.store.(*node).contended = contendedSettings(m.cfg, tc.known)
			l := mustAcquire(t, m, name)
			want := ghosts(t, m, name, tc.dead)[0]
			next := acquireAsync(ctx, m, name)
			awaitWaiters(t, rdb, name, int64(tc.dead+1))
			if tc.served {
				want = rdb.ZRange(ctx, mustKeys(t, name)[keyWaiters], -1, -1).Val()[0]
			}
			mustRelease(t, l)
			if got := rdb.Get(ctx, mustKeys(t, name)[keyLock]).Val(); !strings.HasPrefix(got, want+":") {
				t.Fatalf("%+v: the key holds %q, want the value of %q", tc, got, want)
			}
			if tc.served {
				mustRelease(t, awaitLock(t, next))
			} else if left := keyTTL(t, rdb, name); left <= 0 || left > slow.ClaimTTL {
				t.Errorf("%+v: the dead waiter has it for %s, want ClaimTTL", tc, left)
			}
		}
	})
}

// TestManager_TryAcquire_DeadWaiters_Bound: one call removes up to 1,024 dead waiters. While there are
// more, the lock stays free for a live waiter, and the fence stays marked.
func TestManager_TryAcquire_DeadWaiters_Bound(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const dead, fence = 1027, "1w"
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		var waiters []redis.Z
		for i := range dead {
			waiters = append(waiters, redis.Z{Score: float64(i), Member: "GHOST." + rand.Text()})
		}
		must(t, errors.Join(rdb.ZAdd(ctx, k[keyWaiters], waiters...).Err(), rdb.Set(ctx, k[keyFence], fence, time.Hour).Err()))
		wantTaken(t, m, name)
		if n, mark := rdb.ZCard(ctx, k[keyWaiters]).Val(), rdb.Get(ctx, k[keyFence]).Val(); n != dead-1024 || mark != fence {
			t.Errorf("%d waiters are left and the fence is %q, want %d and %q", n, mark, dead-1024, fence)
		}
		wantDay(t, rdb, name)
		l, err := m.TryAcquire(ctx, name)
		must(t, err)
		mustRelease(t, l)
	})
}

// wantDay fails unless the last fencing token is kept for a day.
func wantDay(t *testing.T, rdb *redis.Client, name string) {
	t.Helper()
	if left := rdb.PTTL(t.Context(), mustKeys(t, name)[keyFence]).Val(); left < 23*time.Hour || left > 24*time.Hour {
		t.Errorf("the fence is kept for %s, want a day", left)
	}
}

// TestLock_Release_Mark: the fence is marked until the last waiter was served, so that each release hands
// the lock over, and it is kept for a day.
func TestLock_Release_Mark(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		wantMark := func(when string, want bool) {
			t.Helper()
			if fence := rdb.Get(ctx, k[keyFence]).Val(); strings.HasSuffix(fence, "w") != want {
				t.Fatalf("%s: fence %q, marked %v", when, fence, !want)
			}
			wantDay(t, rdb, name)
		}
		l := mustAcquire(t, m, name)
		wantMark("without waiters", false)
		tokens := ghosts(t, m, name, 2)
		wantMark("with two waiters", true)
		for i, token := range append([]string{l.Token()}, tokens...) {
			held, handed, err := m.store.release(ctx, k, token, "")
			if err != nil || !held || handed != (i < 2) {
				t.Fatalf("release %d: held %v, handed over %v, %v", i, held, handed, err)
			}
			wantMark("after a release", i == 0)
		}
	})
}

// Given a free lock whose queue has dead waiters, of processes that no longer listen or whose keep-alives
// are overdue, when it is tried, then it is acquired.
func TestManager_TryAcquire_DeadWaiters(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, tc := range []struct {
			name   string
			n      int
			silent bool
		}{{"DoNotListen", 20, false}, {"DoNotListenMany", 100, false}, {"Silent", 100, true}} {
			ctx, name := await.Context(t), resource(t)
			m, k := newManager(t, rdb, slow), mustKeys(t, name)
			// The holder died as well, so the lock is not handed over.
			must(t, rdb.Set(ctx, k[keyLock], "a dead holder", time.Hour).Err())
			for _, member := range ghosts(t, m, name, tc.n) {
				if !tc.silent {
					continue
				}
				must(t, rdb.HSet(ctx, k[keySeen], member, 1).Err())
			}
			must(t, rdb.Del(ctx, k[keyLock]).Err())
			l, err := m.TryAcquire(ctx, name)
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
				continue
			}
			mustRelease(t, l)
		}
	})
}
