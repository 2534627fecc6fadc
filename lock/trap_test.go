package lock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Given held locks and a context that has ended, as after SIGTERM, when the manager is closed, then the
// locks are released before Close returns.
func TestManager_Close_EndedContext(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m := newManager(t, rdb, slow)
		_, names := hold(t, m, 20)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		check(t, m.Close(ctx))
		wantNoTrace(t, rdb, names...)
	})
}

// Given a call that takes the lock, when the manager is closed before the reply arrives, then the
// caller gets ErrClosed, and the lock is released.
func TestManager_Close_DuringAcquire(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		for _, wait := range []bool{false, true} {
			ctx, name := await.Context(t), resource(t)
			own := redis.NewClient(redistest.Options(rdb.Options().Addr))
			cfg := slow
			cfg.Poll = time.Second // then the first call joins the queue
			m, err := New(own, cfg)
			must(t, err)
			mustRelease(t, mustAcquire(t, m, name)) // Redis now knows the scripts
			closed := make(chan error, 1)
			own.AddHook(around(func(ctx context.Context, cmds []redis.Cmder, next func() error) error {
				err := next()
				if err == nil && acquires(cmds[0]) {
					go func() { closed <- m.Close(ctx) }()
					<-m.closing
				}
				return err
			}))
			_, err = m.acquire(ctx, name, wait, nil)
			wantErr(t, err, ErrClosed)
			check(t, errors.Join(<-closed, own.Close()))
			if n := traces(t, rdb, name); n != 0 {
				t.Errorf("wait %v: %d keys left", wait, n)
			}
		}
	})
}

// Given a Redis that hangs and a context that has ended, when the manager is closed, then Close returns
// after CallTimeout with the reason.
func TestManager_Close_EndedContext_Blackhole(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	proxy := redistest.NewProxy(t, server.Addr())
	rdb := redis.NewClient(redistest.Options(proxy.Addr()))
	defer rdb.Close()
	m := newManager(t, rdb, Config{TTL: patience, CallTimeout: time.Second})
	mustAcquire(t, m, resource(t))
	proxy.Blackhole(true)
	why := errors.New("terminated")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	// Either bound may be the first to end: that of the release, or that of Close.
	if err := m.Close(ctx); err == nil {
		t.Error("a close that released nothing succeeds")
	}
	proxy.Blackhole(false)
}

// A deferred Release of a lock that was not acquired must not panic.
func TestLock_Release_Nil(t *testing.T) {
	t.Parallel()
	var l *Lock
	wantErr(t, l.Release(t.Context()), ErrNotHeld)
}

// Given a client with go-redis's default options, which do not end a call with its context, when Redis
// hangs, then Acquire and TryAcquire return at their deadline, before the call does.
func TestManager_Acquire_Blackhole_DefaultOptions(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Blackhole(true)
	// The client's own timeouts are longer than the test.
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DialTimeout: patience, ReadTimeout: 2 * patience, WriteTimeout: patience})
	defer rdb.Close()
	m, err := New(rdb, Config{})
	must(t, err)
	for _, acquire := range []func(context.Context, string, ...Option) (*Lock, error){m.Acquire, m.TryAcquire} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		done := make(chan error, 1)
		go func() {
			_, err := acquire(ctx, resource(t))
			done <- err
		}()
		select {
		case err := <-done:
			wantErr(t, err, context.DeadlineExceeded)
		case <-time.After(patience / 2):
			t.Error("the call outlasts its deadline")
		}
		cancel()
	}
	proxy.Sever()
	proxy.Blackhole(false)
	check(t, m.Close(await.Context(t)))
}

// Given a function that re-entered the lock and panics before it releases the inner handle, then nothing
// of the lock is left, and it is no longer renewed.
func TestManager_Do_PanicsInside(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		m, name := newManager(t, rdb, slow), resource(t)
		var inner *Lock
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			err := m.Do(await.Context(t), name, func(ctx context.Context, _ *Lock) error {
				one, err := m.Acquire(ctx, name, WithReentry())
				if err != nil {
					t.Error(err)
				}
				inner, err = m.Acquire(one.Context(), name, WithReentry())
				if err != nil {
					t.Error(err)
				}
				panic("boom")
			})
			t.Errorf("do returned %v", err)
		}()
		if n := traces(t, rdb, name); n != 0 || len(m.Held()) != 0 {
			t.Errorf("%d keys and %d locks left", n, len(m.Held()))
		}
		wantErr(t, context.Cause(inner.Context()), ErrReleased)
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
