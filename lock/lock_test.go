package lock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func TestManager_TryAcquire(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, other := newManager(t, rdb, slow), newManager(t, rdb, slow)

		// Given a free resource, when it is tried, then it is held as told.
		l, err := m.TryAcquire(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		lockKey, _ := m.GuardKeys(name)
		if got := rdb.Get(ctx, lockKey).Val(); got != l.GuardValue() {
			t.Fatalf("lock key holds %q, want %q", got, l.GuardValue())
		}
		if got, left := l.ValidUntil(), rdb.PTTL(ctx, lockKey).Val(); time.Until(got) > left {
			t.Fatalf("believed for longer than the key lives: %s > %s", time.Until(got), left)
		}
		// When another tries, then it is refused at once and nothing queues.
		if _, err := other.TryAcquire(ctx, name); !errors.Is(err, ErrTaken) {
			t.Fatalf("err = %v, want ErrTaken", err)
		}
		// When it is released, then the context says so and no key is left.
		mustRelease(t, l)
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrReleased) {
			t.Fatalf("cause = %v, want ErrReleased", cause)
		}
		if n := traces(t, rdb, name); n != 0 {
			t.Fatalf("%d keys left", n)
		}
		if l, err = other.TryAcquire(ctx, name); err != nil {
			t.Fatal(err)
		}
		mustRelease(t, l)
	})
}

// TestManager_Acquire_MutualExclusion: N goroutines of M managers never hold the lock
// together, and the fence rises in the order of holding.
func TestManager_Acquire_MutualExclusion(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const managers, goroutines, rounds = 4, 3, 6
		ctx, name := await.Context(t), resource(t)
		var inside, overlaps atomic.Int64
		var fences []int64 // guarded by the lock under test; the race detector looks on
		var wg sync.WaitGroup
		for range managers {
			m := newManager(t, rdb, Config{TTL: patience, ClaimTTL: patience, CallTimeout: patience, Liveness: 200 * time.Millisecond})
			for range goroutines {
				wg.Go(func() {
					for range rounds {
						l, err := m.Acquire(ctx, name)
						if err != nil {
							t.Error(err)
							return
						}
						if inside.Add(1) != 1 {
							overlaps.Add(1)
						}
						fences = append(fences, l.Fence())
						inside.Add(-1)
						if err := l.Release(ctx); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		wg.Wait()
		if n := overlaps.Load(); n != 0 {
			t.Errorf("%d overlaps", n)
		}
		if len(fences) != managers*goroutines*rounds {
			t.Errorf("%d holdings, want %d", len(fences), managers*goroutines*rounds)
		}
		for i := 1; i < len(fences); i++ {
			if fences[i] <= fences[i-1] {
				t.Fatalf("fence %d after %d", fences[i], fences[i-1])
			}
		}
		awaitNoTrace(t, rdb, name)
	})
}

// TestManager_Acquire_ReplyLost: the script ran, its answer did not arrive.
func TestManager_Acquire_ReplyLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		flaky := redistest.Second(t, rdb)
		m := newManager(t, flaky, slow)
		// The first reply with the lock is lost. A script that Redis does not know yet costs a
		// call without a lock before it.
		var first, calls atomic.Int64
		flaky.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				err := next(ctx, cmd)
				call, ok := cmd.(*redis.Cmd)
				if !ok {
					return err
				}
				r, rerr := granted(call)
				if rerr != nil || !r.held || calls.Add(1) > 1 {
					return err
				}
				first.Store(r.fence)
				err = errors.New("connection reset")
				cmd.SetErr(err)
				return err
			}
		}))
		l, err := m.TryAcquire(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
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

		if err := rdb.Del(ctx, k.list()...).Err(); err != nil {
			t.Fatal(err)
		}
		l = mustAcquire(t, m, name)
		rises("all keys deleted", l)
		mustRelease(t, l)

		// The stored token is ahead of the clock when that was set back.
		last += 3_600_000_000
		if err := rdb.Set(ctx, k[keyFence], last, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		l = mustAcquire(t, m, name)
		rises("clock set back", l)
		mustRelease(t, l)

		// What a stranger left in its place is passed over.
		last = l.Fence() - 3_600_000_000
		for _, junk := range []string{"junk", "-5", "1e300", "nan"} {
			if err := rdb.Set(ctx, k[keyFence], junk, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			l = mustAcquire(t, m, name)
			rises("stranger's value "+junk, l)
			mustRelease(t, l)
		}
	})
}

func TestLock_Release(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		m := newManager(t, rdb, slow)

		t.Run("ContextCancelled", func(t *testing.T) {
			// Given a request whose context has ended, when it releases, the key goes.
			ctx, cancel := context.WithCancel(t.Context())
			l, err := m.Acquire(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if cause := context.Cause(l.Context()); !errors.Is(cause, context.Canceled) {
				t.Errorf("cause = %v, want that of the request", cause)
			}
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
			if n := traces(t, rdb, name); n != 0 {
				t.Fatalf("%d keys left", n)
			}
		})
		t.Run("Repeated", func(t *testing.T) {
			l := mustAcquire(t, m, name)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
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
			if err := rdb.Set(t.Context(), k[keyLock], "stranger", time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := l.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
					t.Fatalf("err = %v, want ErrNotHeld", err)
				}
			}
			if got := rdb.Get(t.Context(), k[keyLock]).Val(); got != "stranger" {
				t.Fatalf("the stranger's key holds %q", got)
			}
			if err := rdb.Del(t.Context(), k[keyLock]).Err(); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// TestLock_Release_Unreachable: a release that did not get through may be
// repeated, and one whose reply was lost counts as done.
func TestLock_Release_Unreachable(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		flaky := redistest.Second(t, rdb)
		m := newManager(t, flaky, slow)
		cut := errors.New("connection reset")
		var before, after atomic.Int64 // how many calls fail before, and after, they ran
		flaky.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				if runs(cmd, releaseScript) && before.Add(-1) >= 0 {
					cmd.SetErr(cut)
					return cut
				}
				err := next(ctx, cmd)
				if err == nil && runs(cmd, releaseScript) && after.Add(-1) >= 0 {
					err = cut
					cmd.SetErr(cut)
				}
				return err
			}
		}))
		before.Store(2)
		l := mustAcquire(t, m, name)
		if err := l.Release(t.Context()); !errors.Is(err, cut) {
			t.Fatalf("err = %v, want the network's", err)
		}
		if l.Context().Err() == nil {
			t.Fatal("the holder goes on after a failed release")
		}
		mustRelease(t, l)
		l = mustAcquire(t, m, name)
		after.Store(1)
		mustRelease(t, l)
		if n := traces(t, rdb, name); n != 0 {
			t.Fatalf("%d keys left", n)
		}
	})
}

func TestLock_Extend(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m, k := newManager(t, rdb, slow), mustKeys(t, name)
		l := mustAcquire(t, m, name)
		if err := l.Extend(ctx, time.Hour); err != nil {
			t.Fatal(err)
		}
		if left := rdb.PTTL(ctx, k[keyLock]).Val(); left < 2*slow.TTL || time.Until(l.ValidUntil()) < 2*slow.TTL {
			t.Fatalf("not extended: key %s, deadline %s", left, time.Until(l.ValidUntil()))
		}
		// A shorter one, as may arrive late, takes nothing away.
		if err := l.Extend(ctx, time.Second); err != nil {
			t.Fatal(err)
		}
		if left := rdb.PTTL(ctx, k[keyLock]).Val(); left < 2*slow.TTL {
			t.Fatalf("shortened to %s", left)
		}
		if err := l.Extend(ctx, time.Millisecond); !errors.Is(err, ErrInvalid) {
			t.Fatalf("err = %v, want ErrInvalid", err)
		}
		mustRelease(t, l)
		if err := l.Extend(ctx, time.Minute); !errors.Is(err, ErrReleased) {
			t.Fatalf("err = %v, want ErrReleased", err)
		}
		l = mustAcquire(t, m, name)
		if err := rdb.Del(ctx, k[keyLock]).Err(); err != nil {
			t.Fatal(err)
		}
		if err := l.Extend(ctx, time.Minute); !errors.Is(err, ErrLost) || !errors.Is(err, ErrNotHeld) {
			t.Fatalf("err = %v, want ErrLost and ErrNotHeld", err)
		}
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrLost) {
			t.Fatalf("cause = %v, want ErrLost", cause)
		}
	})
}

// TestManager_LeavesNothing: many short locks leave no key and no loop.
func TestManager_LeavesNothing(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		names := []string{resource(t), resource(t)}
		m := newManager(t, rdb, steady)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 40 {
					l, err := m.Acquire(ctx, names[i%len(names)])
					if err == nil {
						err = l.Release(ctx)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if n := traces(t, rdb, names...); n != 0 {
			t.Errorf("%d keys left", n)
		}
		awaitIdle(t, m)
	})
}

// awaitIdle wants that a manager holds no lock, and that its renewal loop ends
// when it looks next.
func awaitIdle(t *testing.T, m *Manager) {
	t.Helper()
	m.kickDog() // by itself it looks within a third of the TTL
	await.True(t, "the renewal loop ends", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return !m.dog.running && len(m.held) == 0
	})
}

// TestManager_ScriptFlush uses a server of its own: other tests count calls of scripts
// that Redis knows.
func TestManager_ScriptFlush(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx, name := await.Context(t), resource(t)
		flush := func() {
			t.Helper()
			if err := rdb.ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
		}
		m := newManager(t, rdb, slow)
		flush()
		l := mustAcquire(t, m, name)
		flush()
		until := l.ValidUntil()
		renewNow(l)
		if !l.ValidUntil().After(until) {
			t.Error("not renewed")
		}
		flush()
		if err := l.Extend(ctx, time.Minute); err != nil {
			t.Fatal(err)
		}
		flush()
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 1)
		flush()
		mustRelease(t, l)
		l = awaitLock(t, next)
		flush()
		mustRelease(t, l)
	}
	t.Run("embedded", func(t *testing.T) { test(t, redistest.Embedded(t)) })
	t.Run("redis", func(t *testing.T) { test(t, clientOf(t, redistest.Real(t, "--appendonly", "no"))) })
}

func TestManager_ForeignKey(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		for _, tc := range []struct {
			which string
			pick  int
		}{
			{"lock", keyLock},
			{"fence", keyFence},
		} {
			name := resource(t)
			key := mustKeys(t, name)[tc.pick]
			if err := rdb.RPush(ctx, key, "precious").Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := m.TryAcquire(ctx, name); !errors.Is(err, ErrForeignKey) {
				t.Errorf("%s: try: err = %v, want ErrForeignKey", tc.which, err)
			}
			if _, err := m.Acquire(ctx, name); !errors.Is(err, ErrForeignKey) {
				t.Errorf("%s: acquire: err = %v, want ErrForeignKey", tc.which, err)
			}
			if got := rdb.LRange(ctx, key, 0, -1).Val(); len(got) != 1 || got[0] != "precious" {
				t.Errorf("%s: the stranger's key holds %q", tc.which, got)
			}
		}
		// A stranger that takes the queue's names meanwhile does not keep the
		// holder from releasing, and a waiter is told.
		name := resource(t)
		k := mustKeys(t, name)
		l := mustAcquire(t, m, name)
		for _, key := range []string{k[keyWaiters], k[keySeen]} {
			if err := rdb.RPush(ctx, key, "precious").Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Acquire(ctx, name); !errors.Is(err, ErrForeignKey) {
				t.Errorf("err = %v, want ErrForeignKey", err)
			}
		}
		mustRelease(t, l)
		if rdb.Exists(ctx, k[keyLock]).Val() != 0 {
			t.Error("lock key left")
		}
	})
}

func TestManager_Close(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		m := newManager(t, rdb, slow)
		// Given 20 locks held and two waiters, when the manager is closed twice at once,
		var locks []*Lock
		var names []string
		for range 20 {
			names = append(names, resource(t))
			locks = append(locks, mustAcquire(t, m, names[len(names)-1]))
		}
		waiting := []<-chan result{acquireAsync(ctx, m, names[0]), acquireAsync(ctx, m, names[0])}
		awaitWaiters(t, rdb, names[0], 2)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := m.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		// then nothing is left, and everybody knows why.
		if n := traces(t, rdb, names...); n != 0 {
			t.Errorf("%d keys left", n)
		}
		for _, l := range locks {
			if cause := context.Cause(l.Context()); !errors.Is(cause, ErrReleased) {
				t.Errorf("cause = %v, want ErrReleased", cause)
			}
		}
		for _, w := range waiting {
			if r := awaitResult(t, w); !errors.Is(r.err, ErrClosed) {
				t.Errorf("waiter: %+v, want ErrClosed", r)
			}
		}
		if _, err := m.Acquire(ctx, names[0]); !errors.Is(err, ErrClosed) {
			t.Errorf("err = %v, want ErrClosed", err)
		}
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestNew_Config(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, tc := range []struct {
		name string
		cfg  Config
		ok   bool
	}{
		{"zero", Config{}, true},
		{"shortest", Config{TTL: 10 * time.Millisecond}, true},
		{"ttl too short", Config{TTL: 9 * time.Millisecond}, false},
		{"ttl negative", Config{TTL: -time.Second}, false},
		{"ttl not in milliseconds", Config{TTL: 10*time.Millisecond + 1}, false},
		{"claim above ttl", Config{TTL: time.Second, ClaimTTL: 2 * time.Second}, false},
		{"claim too short", Config{ClaimTTL: time.Millisecond}, false},
		{"liveness too short", Config{Liveness: time.Millisecond}, false},
		{"grace too short", Config{Grace: time.Millisecond}, false},
		{"call timeout too short", Config{CallTimeout: time.Millisecond}, false},
		{"prefix with a tag", Config{Prefix: "app:{x}:"}, true},
		{"prefix with an empty tag", Config{Prefix: "app:{}:"}, false},
	} {
		_, err := New(rdb, tc.cfg)
		if tc.ok && err != nil || !tc.ok && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: err = %v", tc.name, err)
		}
	}
	if _, err := New(nil, Config{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("no client: err = %v", err)
	}
}

func TestKeysOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ prefix, resource, lock string }{
		{"lock:", "item", "lock:{item}:lock"},
		{"lock:", "fs:{p3}:sale:item", "fs:{p3}:sale:item:lock"},
		{"app:{x}:", "item", "app:{x}:item:lock"},
		{"app:{x}:", "fs:{p3}:item", "fs:{p3}:item:lock"},
		{"lock:", "a{}b", "lock:{a{}b}:lock"},
		{"lock:", "a}b", "lock:{a}b}:lock"},
		{"lock:", "", ""},
		{"lock:", "}", ""},
	} {
		k, err := keysOf(tc.prefix, tc.resource)
		if k[keyLock] != tc.lock || (err != nil) != (tc.lock == "") {
			t.Errorf("%q %q: %q, %v; want %q", tc.prefix, tc.resource, k[keyLock], err, tc.lock)
		}
	}
}

// FuzzKeysOf: whatever the names, the keys of a resource share a hash tag, no key
// is the resource's name, and two resources without a tag share no lock.
func FuzzKeysOf(f *testing.F) {
	f.Add("lock:", "item", "other")
	f.Add("a{", "x}{y}", "{}")
	tag := func(key string) string {
		for i := range key {
			if key[i] != '{' {
				continue
			}
			for j := i + 1; j < len(key); j++ {
				if key[j] == '}' {
					return key[i+1 : j]
				}
			}
			return ""
		}
		return ""
	}
	f.Fuzz(func(t *testing.T, prefix, a, b string) {
		ka, err := keysOf(prefix, a)
		if err != nil {
			return
		}
		for _, key := range ka.list() {
			if tag(key) == "" || tag(key) != tag(ka[keyLock]) {
				t.Fatalf("%q: tag %q, want %q", key, tag(key), tag(ka[keyLock]))
			}
			if key == a || key == prefix+a {
				t.Fatalf("%q is the key of the resource's data", key)
			}
		}
		if kb, err := keysOf(prefix, b); err == nil && a != b && tag(a) == "" && tag(b) == "" && ka[keyLock] == kb[keyLock] {
			t.Fatalf("%q and %q share the key %q", a, b, ka[keyLock])
		}
	})
}
