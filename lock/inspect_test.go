package lock

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// inspect inspects a lock, for a test that expects no error.
func inspect(t *testing.T, m *Manager, name string) Info {
	t.Helper()
	info, err := m.Inspect(t.Context(), name)
	must(t, err)
	return info
}

// listen makes a manager subscribe, which it does only at the first contended lock.
func listen(t *testing.T, m *Manager) {
	t.Helper()
	name := resource(t)
	l := mustAcquire(t, m, name)
	next := acquireAsync(await.Context(t), m, name)
	await.True(t, "the subscription", m.subscribed)
	mustRelease(t, l)
	mustRelease(t, awaitLock(t, next))
}

func TestManager_Inspect(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m, reader := newManager(t, rdb, slow), newManager(t, rdb, slow)
		t.Run("Never", func(t *testing.T) { inspectNever(t, reader) })
		t.Run("Queue", func(t *testing.T) { inspectQueue(t, rdb, m, reader) })
		t.Run("FreeWithWaiter", func(t *testing.T) { inspectFreeWithWaiter(t, rdb, m, reader) })
		t.Run("DeadWaiter", func(t *testing.T) { inspectDeadWaiter(t, rdb, m, reader) })
		t.Run("LongQueue", func(t *testing.T) { inspectLongQueue(t, rdb, m, reader) })
		t.Run("Stranger", func(t *testing.T) { inspectStranger(t, rdb, reader) })
	})
}

func inspectNever(t *testing.T, reader *Manager) {
	ctx := await.Context(t)
	name := resource(t)
	if info := inspect(t, reader, name); info.Held || info.Fence != 0 || info.Waiters != 0 || info.Resource != name || info.Nodes != 0 {
		t.Errorf("a lock that was never held: %+v", info)
	}
	_, err := reader.Inspect(ctx, "")
	wantErr(t, err, ErrInvalid)
}

func inspectQueue(t *testing.T, rdb *redis.Client, m *Manager, reader *Manager) {
	ctx := await.Context(t)
	// Given a holder and waiters with metadata,
	name := resource(t)
	l := mustAcquire(t, m, name, withMetadata("the holder"))
	var waiting []<-chan result
	for i, who := range []string{"first", "second", ""} {
		waiting = append(waiting, acquireAsync(ctx, m, name, withMetadata(who)))
		awaitWaiters(t, rdb, name, int64(i+1))
	}
	key := mustKeys(t, name)
	before, expiry := rdb.Get(ctx, key[keyLock]).Val(), rdb.PExpireTime(ctx, key[keyLock]).Val()
	// when the lock is inspected, then they are listed in their order, alive,
	info := inspect(t, reader, name)
	if !info.Held || info.Holder.Metadata != "the holder" || info.Fence != l.Fence() || info.Waiters != 3 || info.Nodes != 1 {
		t.Errorf("info = %+v", info)
	}
	var who []string
	for _, w := range info.Queue {
		who = append(who, w.Metadata)
		if !w.Alive || w.Manager != m.id || !strings.HasPrefix(w.Token, m.id+".") {
			t.Errorf("waiter = %+v", w)
		}
	}
	if !slices.Equal(who, []string{"first", "second", ""}) {
		t.Errorf("queue = %q", who)
	}
	// and Inspect changes nothing.
	if after := rdb.Get(ctx, key[keyLock]).Val(); after != before || rdb.PExpireTime(ctx, key[keyLock]).Val() != expiry {
		t.Errorf("the key held %q and holds %q, or its TTL has changed", before, after)
	}
	mustRelease(t, l)
	for i, w := range waiting {
		l := awaitLock(t, w)
		if info := inspect(t, reader, name); info.Holder.Token != l.Token() || info.Waiters != int64(2-i) {
			t.Errorf("info = %+v, want the holder %s and %d waiters", info, l.Token(), 2-i)
		}
		mustRelease(t, l)
	}
}

func inspectFreeWithWaiter(t *testing.T, rdb *redis.Client, m *Manager, reader *Manager) {
	ctx := await.Context(t)
	// Given a free lock with a waiter, then both facts are shown.
	name := resource(t)
	l := mustAcquire(t, m, name)
	waits := ghosts(t, m, name, 1)[0]
	must(t, rdb.Del(ctx, mustKeys(t, name)[keyLock]).Err())
	info := inspect(t, reader, name)
	if info.Held || info.Holder != (Holder{}) || info.Fence != l.Fence() || info.Waiters != 1 || len(info.Queue) != 1 || info.Queue[0].Token != waits {
		t.Errorf("info = %+v, want fence %d and the waiter %s", info, l.Fence(), waits)
	}
}

func inspectDeadWaiter(t *testing.T, rdb *redis.Client, m *Manager, reader *Manager) {
	ctx := await.Context(t)
	// Given a waiter without keep-alives.
	name := resource(t)
	l := mustAcquire(t, m, name)
	dead := ghosts(t, m, name, 1)[0]
	if info := inspect(t, reader, name); len(info.Queue) != 1 || !info.Queue[0].Alive || info.Queue[0].Token != dead {
		t.Errorf("queue = %+v, want the waiter alive", info.Queue)
	}
	for _, aliveUntil := range []string{strconv.FormatInt(time.Now().Add(-time.Minute).UnixMilli(), 10), "no number"} {
		must(t, rdb.HSet(ctx, mustKeys(t, name)[keySeen], dead, aliveUntil).Err())
		if info := inspect(t, reader, name); info.Waiters != 1 || len(info.Queue) != 1 || info.Queue[0].Alive || info.Queue[0].Manager != "GHOST" {
			t.Errorf("alive until %s: queue = %+v, want the waiter dead", aliveUntil, info.Queue)
		}
	}
	mustRelease(t, l)
}

func inspectLongQueue(t *testing.T, rdb *redis.Client, m *Manager, reader *Manager) {
	ctx := await.Context(t)
	// Given more waiters than are listed, then all of them are counted.
	name := resource(t)
	l := mustAcquire(t, m, name)
	tokens := ghosts(t, m, name, inspectWaiters+5)
	info := inspect(t, reader, name)
	if info.Waiters != inspectWaiters+5 || len(info.Queue) != 100 || info.Queue[inspectWaiters-1].Token != tokens[inspectWaiters-1] {
		t.Errorf("%d waiters, %d listed", info.Waiters, len(info.Queue))
	}
	// Lock.Held needs none of them.
	if info, err := reader.store.inspect(ctx, &l.h.keys, 0); err != nil || info.Waiters != inspectWaiters+5 || len(info.Queue) != 0 {
		t.Errorf("%d waiters, %d listed, %v", info.Waiters, len(info.Queue), err)
	}
	must(t, rdb.Del(ctx, mustKeys(t, name)[keyWaiters]).Err())
	mustRelease(t, l)
}

func inspectStranger(t *testing.T, rdb *redis.Client, reader *Manager) {
	ctx := await.Context(t)
	// Given the key of another program, then its holder is unknown.
	for _, value := range []string{"1", "web-7", "a.b", "a.b:c", "web-7:5", "::", "."} {
		name := resource(t)
		must(t, rdb.Set(ctx, mustKeys(t, name)[keyLock], value, 0).Err())
		info := inspect(t, reader, name)
		if !info.Held || info.Holder != (Holder{}) || info.Fence != 0 || info.Remaining != -1 || info.Nodes != 1 {
			t.Errorf("%q: info = %+v, want a holder without a name and no TTL", value, info)
		}
	}
}

func TestManager_Held(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m := newManager(t, rdb, slow)
		base := resource(t)
		held := func() (names []string) {
			for _, l := range m.Held() {
				names = append(names, strings.TrimPrefix(l.Resource(), base))
			}
			return names
		}
		want := func(names ...string) {
			t.Helper()
			if got := held(); !slices.Equal(got, names) {
				t.Errorf("held = %q, want %q", got, names)
			}
		}
		// Given locks taken in some order, then they are listed by name,
		want()
		locks := make(map[string]*Lock)
		for _, name := range []string{"c", "a", "b"} {
			locks[name] = mustAcquire(t, m, base+name)
		}
		want("a", "b", "c")
		// re-entered ones once,
		inner, err := m.Acquire(locks["b"].Context(), base+"b", WithReentry())
		must(t, err)
		want("a", "b", "c")
		mustRelease(t, locks["b"])
		want("a", "b", "c")
		for _, l := range m.Held() {
			if l == locks["b"] {
				t.Errorf("the handle listed for %s was released", l.Resource())
			}
		}
		// and not ended ones.
		mustRelease(t, inner)
		want("a", "c")
		must(t, rdb.Del(t.Context(), mustKeys(t, base+"a")[keyLock]).Err())
		wantErr(t, locks["a"].Extend(t.Context(), time.Hour), ErrLost)
		want("c")
		mustRelease(t, locks["c"])
		want()
	})
}

func TestManager_ReleaseAll(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx := await.Context(t)
		flaky, f := failingClient(t, rdb)
		m, other := newManager(t, flaky, slow), newManager(t, rdb, slow)

		t.Run("EveryHandle", func(t *testing.T) {
			// Given re-entered locks, a lost one, and a waiter of another manager,
			locks, names := hold(t, m, 12)
			inner, err := m.Acquire(locks[0].Context(), names[0], WithReentry())
			must(t, err)
			must(t, rdb.Del(ctx, mustKeys(t, names[1])[keyLock]).Err())
			foreign := mustAcquire(t, other, resource(t))
			waiting := acquireAsync(ctx, other, names[2])
			awaitWaiters(t, rdb, names[2], 1)
			// when all are released,
			check(t, m.ReleaseAll(ctx))
			// then every handle has ended, the waiter is served, and other managers keep their locks.
			for _, l := range append(locks, inner) {
				wantCause(t, l, ErrReleased)
			}
			for _, l := range []*Lock{inner, locks[0]} {
				mustRelease(t, l)
			}
			wantHeld(t, foreign, true)
			mustRelease(t, awaitLock(t, waiting))
			mustRelease(t, foreign)
			wantNoTrace(t, rdb, names...)
		})
		t.Run("Unreachable", func(t *testing.T) {
			// Given an unreachable Redis, then the error reports it, and the holders'
			// contexts have ended.
			locks, names := hold(t, m, 3)
			f.set(refuse)
			err := m.ReleaseAll(ctx)
			f.how.Store(nil)
			wantErr(t, err, errRefused)
			for i, l := range locks {
				wantCause(t, l, ErrReleased)
				if err == nil || !strings.Contains(err.Error(), names[i]) {
					t.Errorf("err = %v, want %s named", err, names[i])
				}
				mustRelease(t, l)
			}
			wantNoTrace(t, rdb, names...)
		})
		t.Run("Closed", func(t *testing.T) {
			check(t, m.Close(ctx))
			wantErr(t, m.ReleaseAll(ctx), ErrClosed)
		})
	})
}

// Given a queue, when a holder calls Held, then the reply does not list it. That of Inspect does.
func TestLock_Held_WithoutQueue(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const waiters = 5
		name := resource(t)
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
		mustRelease(t, l)
	})
}
