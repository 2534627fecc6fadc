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

		// Given a free resource, when it is tried, then it is held as the handle says.
		l, err := m.TryAcquire(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		lockKey, _ := m.GuardKeys(name)
		if got := rdb.Get(ctx, lockKey).Val(); got != l.GuardValue() {
			t.Fatalf("lock key holds %q, want %q", got, l.GuardValue())
		}
		if got, left := l.ValidUntil(), rdb.PTTL(ctx, lockKey).Val(); time.Until(got) > left {
			t.Fatalf("valid for longer than the key exists: %s > %s", time.Until(got), left)
		}
		// When another client tries, then it is refused at once without joining the queue.
		if _, err := other.TryAcquire(ctx, name); !errors.Is(err, ErrTaken) {
			t.Fatalf("err = %v, want ErrTaken", err)
		}
		// When it is released, then the context has the cause and no key is left.
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

// TestManager_Acquire_MutualExclusion: goroutines of several managers never hold the lock
// together, and the fence rises in the order of holding.
func TestManager_Acquire_MutualExclusion(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const managers, goroutines, rounds = 4, 3, 6
		ctx, name := await.Context(t), resource(t)
		var inside, overlaps atomic.Int64
		var fences []int64 // guarded by the lock under test; the race detector checks it
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

		if err := rdb.Del(ctx, k[:]...).Err(); err != nil {
			t.Fatal(err)
		}
		l = mustAcquire(t, m, name)
		rises("all keys deleted", l)
		mustRelease(t, l)

		// The stored token is ahead of the clock if the clock was set back.
		last += 3_600_000_000
		if err := rdb.Set(ctx, k[keyFence], last, time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		l = mustAcquire(t, m, name)
		rises("clock set back", l)
		mustRelease(t, l)

		// A foreign value in its place is ignored.
		last = l.Fence() - 3_600_000_000
		for _, junk := range []string{"junk", "-5", "1e300", "nan"} {
			if err := rdb.Set(ctx, k[keyFence], junk, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			l = mustAcquire(t, m, name)
			rises("foreign value "+junk, l)
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
			// Given a request whose context has ended, when it releases, then the key is deleted.
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
				t.Fatalf("the foreign key holds %q", got)
			}
			if err := rdb.Del(t.Context(), k[keyLock]).Err(); err != nil {
				t.Fatal(err)
			}
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
		flaky.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
			return func(ctx context.Context, cmd redis.Cmder) error {
				if releases(cmd) && before.Add(-1) >= 0 {
					cmd.SetErr(cut)
					return cut
				}
				err := next(ctx, cmd)
				if err == nil && releases(cmd) && after.Add(-1) >= 0 {
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
			t.Fatal("the holder's context did not end after a failed release")
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
		// A shorter extension, which may arrive late, does not shorten the lock.
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
