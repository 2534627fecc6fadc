package lock

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Given a Redis whose reply takes longer than the TTL, when it grants the lock, then the
// caller gets ErrLost, and the lock is released.
func TestManager_Acquire_ErrLost_LateAnswer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl = time.Minute
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: ttl, CallTimeout: time.Hour}, func(t *testing.T, m *Manager, f *failing) {
			for _, acquire := range []func(context.Context, string, ...Option) (*Lock, error){m.TryAcquire, m.Acquire} {
				for _, tc := range []struct {
					late time.Duration
					lost bool
				}{{validity(ttl) - 1, false}, {validity(ttl), true}, {ttl, true}, {3 * ttl, true}} {
					f.delay(acquires, tc.late)
					l, err := acquire(t.Context(), name, WithoutWatchdog())
					f.after.Store(nil)
					if tc.lost && (!errors.Is(err, ErrLost) || l != nil) {
						t.Errorf("answer after %s: lock %v, err = %v, want ErrLost", tc.late, l, err)
					}
					if !tc.lost && (err != nil || l.Context().Err() != nil) {
						t.Errorf("answer after %s: lock %v, err = %v", tc.late, l, err)
					}
					if l != nil {
						mustRelease(t, l)
					}
					awaitNoTrace(t, rdb, name)
				}
			}
		})
	})
}

// Given an extension whose reply arrives after the lock has ended, then the lock stays ended.
func TestLock_Extend_ErrLost_LateAnswer(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const ttl = time.Minute
		name := resource(t)
		inOwnTime(t, rdb, Config{TTL: ttl, CallTimeout: time.Hour}, func(t *testing.T, m *Manager, f *failing) {
			l := mustAcquire(t, m, name, WithoutWatchdog())
			f.delay(func(cmd redis.Cmder) bool { return runs(cmd, extendScript) }, ttl)
			wantErr(t, l.Extend(t.Context(), time.Hour), ErrLost)
			if l.ValidUntil().After(time.Now()) {
				t.Errorf("valid for %s, want that it has ended", time.Until(l.ValidUntil()))
			}
			wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
		})
	})
}

// Given a queue of two, when the waiter mark is lost together with the holder, and the
// second sends its keep-alive first, then the first is served first, and the lock is not
// handed to an entry without a waiter.
func TestManager_Acquire_MarkLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		holder, m1, m2 := newManager(t, rdb, slow), newManager(t, rdb, slow), newManager(t, rdb, slow)
		k := mustKeys(t, name)
		mustAcquire(t, holder, name)
		first := acquireAsync(ctx, m1, name)
		awaitWaiters(t, rdb, name, 1)
		second := acquireAsync(ctx, m2, name)
		awaitWaiters(t, rdb, name, 2)
		if n, err := rdb.Del(ctx, k[keyFence], k[keyLock]).Result(); err != nil || n != 2 {
			t.Fatalf("%d keys deleted, err = %v", n, err)
		}
		m2.wakeWaiters() // as after a reconnection, it runs the script itself
		select {
		case r := <-second:
			t.Fatalf("the second was served before the first: %v, %v", r.lock, r.err)
		case r := <-first:
			if r.err != nil {
				t.Fatal(r.err)
			}
			awaitWaiters(t, rdb, name, 1)
			mustRelease(t, r.lock)
		case <-ctx.Done():
			t.Fatal("no waiter was served")
		}
		mustRelease(t, awaitLock(t, second))
		awaitNoTrace(t, rdb, name)
	})
}

// Given a long queue, when a holder calls Held, then the reply does not list the queue;
// that of Inspect does.
func TestLock_Held_WithoutQueue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const waiters = 5
		ctx, name := await.Context(t), resource(t)
		own := redistest.Second(t, rdb)
		var values atomic.Int64
		own.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if cmd, ok := cmds[0].(*redis.Cmd); ok && runs(cmd, inspectScript) {
				if reply, sliceErr := cmd.Slice(); sliceErr == nil {
					values.Store(int64(len(reply)))
				}
			}
			return err
		}))
		m := newManager(t, own, slow)
		l := mustAcquire(t, m, name)
		ghosts(t, m, name, waiters)
		for range 2 { // the first may have to send the script
			wantHeld(t, l, true)
		}
		if n := values.Load(); n != 4 {
			t.Errorf("%d values for a lock that is held, want 4", n)
		}
		info, err := m.store.inspect(ctx, mustKeys(t, name), 0)
		if err != nil || info.Waiters != waiters || len(info.Queue) != 0 {
			t.Errorf("%d waiters, %d of them listed, err = %v; want %d and none", info.Waiters, len(info.Queue), err, waiters)
		}
		info, err = m.Inspect(ctx, name)
		if err != nil || info.Waiters != waiters || len(info.Queue) != waiters {
			t.Errorf("%d waiters, %d of them listed, err = %v; want %d and all", info.Waiters, len(info.Queue), err, waiters)
		}
		mustRelease(t, l)
	})
}

// Given three nodes that grant the lock, a slow one and one that is down, when one of the
// three fails before it has stored the lock's fence, then the slow one takes its place, and
// a majority holds the same lock.
func TestQuorum_Settle_LateGrant(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	name := resource(t)
	clients := nodes.clients(t)
	failed := make(chan struct{})
	f := new(failing)
	f.set(func(_ context.Context, cmds []redis.Cmder) error {
		if !runs(cmds[0], keepScript) {
			return nil
		}
		select {
		case <-failed:
		default:
			close(failed)
		}
		return io.ErrUnexpectedEOF
	})
	clients[0].AddHook(around(f.hook))
	clients[3].AddHook(before(func(cmds []redis.Cmder) {
		if acquires(cmds[0]) {
			<-failed
		}
	}))
	away := new(failing)
	away.set(refuse)
	clients[4].AddHook(around(away.hook))
	m := newQuorum(t, clients, quorumSlow)
	l, err := m.TryAcquire(await.Context(t), name)
	must(t, err)
	with := 0
	for _, value := range nodes[1:].values(t, name) {
		if value == l.GuardValue() {
			with++
		}
	}
	if with < 3 {
		t.Errorf("%d nodes hold the lock with its fence, want a majority", with)
	}
	away.set(func(context.Context, []redis.Cmder) error { return nil })
	mustRelease(t, l)
	nodes.awaitFree(t, name)
}
