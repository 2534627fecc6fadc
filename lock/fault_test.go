package lock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// ownEngines runs fn on the embedded engine and on a redis-server that only this test uses,
// so that no other test removes the scripts.
func ownEngines(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		fn(t, redistest.Embedded(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		fn(t, clientOf(t, redistest.Real(t, "--appendonly", "no")))
	})
}

// clientOf returns a client of a server that only this test uses.
func clientOf(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	closeAtEnd(t, rdb)
	return rdb
}

// proxied returns a manager whose connections pass a proxy, with the proxy and the client.
// The client has long timeouts, so that only the lock ends a call. A connection is open, and
// Redis knows the scripts.
func proxied(t *testing.T, rdb *redis.Client, cfg Config) (*Manager, *redistest.Proxy, *redis.Client) {
	t.Helper()
	p := redistest.NewProxy(t, rdb.Options().Addr)
	o := redistest.Options(p.Addr())
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour, time.Hour
	c := redis.NewClient(o)
	closeAtEnd(t, c)
	m := newManager(t, c, cfg)
	// On a busy machine a call may take longer than a test's settings allow.
	await.True(t, "a lock is taken, extended and released", func() bool {
		l := mustAcquire(t, m, resource(t))
		err := errors.Join(l.Extend(t.Context(), time.Hour), l.Release(t.Context()))
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
	return m, p, c
}

// loseReply makes a call whose reply is lost: when ran reports that Redis has run the
// script, the connections are cut. It returns the call's error.
func loseReply(t *testing.T, p *redistest.Proxy, ran func() bool, call func() error) error {
	t.Helper()
	p.DropReplies(true)
	done := make(chan error, 1)
	go func() { done <- call() }()
	await.True(t, "Redis has run the script", ran)
	select {
	case err := <-done:
		t.Fatalf("it returned without a reply: %v", err)
	default:
	}
	// No reply can arrive between the two.
	p.Blackhole(true)
	p.Sever()
	p.DropReplies(false)
	p.Blackhole(false)
	return receive(t, "the end of the call", done)
}

// TestLock_RepliesLost: a call whose reply is lost together with its connection still
// succeeds, and counts once.
func TestLock_RepliesLost(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		k := mustKeys(t, name)
		cfg := slow
		cfg.CallTimeout = patience
		m, p, _ := proxied(t, rdb, cfg)
		value := func() string { return rdb.Get(ctx, k[keyLock]).Val() }

		var l *Lock
		var first string
		err := loseReply(t, p, func() bool { first = value(); return first != "" }, func() (err error) {
			l, err = m.TryAcquire(ctx, name)
			return err
		})
		must(t, err)
		if l.GuardValue() != first || value() != first || l.Fence() <= 0 {
			t.Fatalf("acquire: holds %q, the first run stored %q, the key is %q", l.GuardValue(), first, value())
		}

		until := l.ValidUntil()
		err = loseReply(t, p, func() bool { return rdb.PTTL(ctx, k[keyLock]).Val() > 2*slow.TTL }, func() error {
			return l.Extend(ctx, 3*slow.TTL)
		})
		if err != nil || !l.ValidUntil().After(until.Add(slow.TTL)) || value() != first {
			t.Fatalf("extend: %v; valid for %s more, the key is %q", err, l.ValidUntil().Sub(until), value())
		}

		// The repeated release must not take the lock from the next holder.
		next := acquireAsync(ctx, newManager(t, rdb, slow), name)
		awaitWaiters(t, rdb, name, 1)
		err = loseReply(t, p, func() bool { return value() != first }, func() error { return l.Release(ctx) })
		if err != nil {
			t.Fatalf("release: %v", err)
		}
		after := awaitLock(t, next)
		if value() != after.GuardValue() || after.Context().Err() != nil {
			t.Fatalf("release: the key is %q, the next holder has %q", value(), after.GuardValue())
		}
		mustRelease(t, after)

		// And without a waiter.
		l = mustAcquire(t, m, name)
		err = loseReply(t, p, func() bool { return value() == "" }, func() error { return l.Release(ctx) })
		if err != nil || traces(t, rdb, name) != 0 {
			t.Fatalf("release: %v, %d keys left", err, traces(t, rdb, name))
		}
	})
}

// stall is the longest scheduling delay of a goroutine on a busy machine.
const stall = 10 * time.Second

// TestLock_Blackhole: given a link that drops all packets, the holder's context ends before
// the key can expire, and its release returns within CallTimeout.
func TestLock_Blackhole(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		key := mustKeys(t, name)[keyLock]
		m, p, _ := proxied(t, rdb, Config{TTL: 3 * time.Second, CallTimeout: time.Second})
		var l *Lock
		var expires time.Time // at the earliest, by the reply of Redis
		// On a busy machine the lock may end before the link is cut.
		await.True(t, "a renewed lock is cut off while Redis has it", func() bool {
			p.Blackhole(false)
			l = mustAcquire(t, m, name)
			until := l.ValidUntil()
			await.True(t, "a renewal", func() bool { return l.ValidUntil().After(until) || l.Context().Err() != nil })
			p.Blackhole(true)
			asked := time.Now()
			expires = asked.Add(rdb.PTTL(ctx, key).Val())
			return l.Context().Err() == nil && expires.After(asked)
		})
		await.True(t, "the context ends", func() bool {
			asked := time.Now()
			if left := rdb.PTTL(ctx, key).Val(); left > 0 && asked.Add(left).After(expires) {
				expires = asked.Add(left)
			}
			return l.Context().Err() != nil
		})
		ended := time.Now()
		wantCause(t, l, ErrLost)
		// The validity of a lock that ended at its deadline is that deadline.
		if !l.ValidUntil().Before(expires) || ended.After(expires.Add(stall)) {
			t.Errorf("valid until %s, ended %s, after the key could expire", l.ValidUntil().Sub(expires), ended.Sub(expires))
		}
		released := make(chan error, 1)
		go func() { released <- l.Release(ctx) }()
		if err := receive(t, "the end of Release", released); err == nil || errors.Is(err, ErrNotHeld) {
			t.Errorf("release: err = %v, want the network's", err)
		}
		p.Blackhole(false)
		awaitNoTrace(t, rdb, name)
	})
}

// TestManager_Acquire_Blackhole: waiters behind a link that drops all packets return at their
// deadline, whether or not they were in the queue before, and leave nothing behind once the
// link works again.
func TestManager_Acquire_Blackhole(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		name := resource(t)
		cfg := slow
		cfg.CallTimeout = 6 * time.Second // after which a cancellation is noticed, and the clean-up is repeated
		m, p, c := proxied(t, rdb, cfg)
		replies := make(chan struct{}, 64)
		c.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if acquires(cmds[0]) {
				replies <- struct{}{}
			}
			return err
		}))
		l := mustAcquire(t, newManager(t, rdb, slow), name)
		waits, cancel := context.WithCancel(t.Context())
		defer cancel()
		joined := acquireAsync(waits, m, name)
		<-replies // that the lock is taken
		<-replies // that it has a place in the queue
		p.Blackhole(true)
		for what, limit := range map[string]time.Duration{"inline": 2 * inlineLeft, "beside": inlineLeft / 2} {
			ctx, stop := context.WithTimeout(t.Context(), limit)
			if r := awaitResult(t, acquireAsync(ctx, m, name)); !errors.Is(r.err, ErrWaitTimeout) || !errors.Is(r.err, context.DeadlineExceeded) {
				t.Errorf("%s: %+v, want ErrWaitTimeout and DeadlineExceeded", what, r)
			}
			stop()
			ctx, stop = context.WithTimeout(t.Context(), limit)
			if got, err := m.TryAcquire(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: try: %v, %v, want DeadlineExceeded", what, got, err)
			}
			stop()
		}
		cancel()
		if r := awaitResult(t, joined); !errors.Is(r.err, ErrWaitTimeout) || !errors.Is(r.err, context.Canceled) {
			t.Errorf("joined: %+v, want ErrWaitTimeout and Canceled", r)
		}
		p.Blackhole(false)
		awaitWaiters(t, rdb, name, 0)
		mustRelease(t, l)
		awaitNoTrace(t, rdb, name)
	})
}

// twoLinks is a client whose subscription uses another route than its commands.
type twoLinks struct {
	redis.UniversalClient
	sub *redis.Client
}

func (c twoLinks) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	return c.sub.Subscribe(ctx, channels...)
}

// TestManager_Acquire_HalfOpen: given a subscription that gets no messages although its
// connection is open, a waiter that was handed the lock finds out at its next keep-alive. If a
// new connection would work, the manager detects the silence, with a waiter and without.
func TestManager_Acquire_HalfOpen(t *testing.T) {
	t.Parallel()
	rdb := clientOf(t, redistest.Real(t, "--appendonly", "no"))
	t.Run("SignOfLife", func(t *testing.T) {
		t.Parallel()
		h := newHalfOpen(t, rdb, 300*time.Millisecond)
		h.proxy.Blackhole(true)
		mustRelease(t, h.held)
		mustRelease(t, awaitLock(t, h.next))
		awaitNoTrace(t, rdb, h.held.Resource())
	})
	t.Run("NoticedWithWaiter", func(t *testing.T) {
		t.Parallel()
		h := newHalfOpen(t, rdb, 300*time.Millisecond)
		h.proxy.Blackhole(true)
		h.heals.Store(true)
		h.awaitSubscriptions(t, rdb, 2)
		mustRelease(t, h.held)
		mustRelease(t, awaitLock(t, h.next))
	})
	t.Run("NoticedWithoutWaiter", func(t *testing.T) {
		t.Parallel()
		h := newHalfOpen(t, rdb, slow.Liveness)
		mustRelease(t, h.held)
		l := awaitLock(t, h.next)
		h.proxy.Blackhole(true)
		h.heals.Store(true)
		h.awaitSubscriptions(t, rdb, 2)
		// No keep-alive is due in this test, so only the message can wake the waiter.
		next := acquireAsync(await.Context(t), h.m, l.Resource())
		awaitWaiters(t, rdb, l.Resource(), 1)
		mustRelease(t, l)
		mustRelease(t, awaitLock(t, next))
	})
}

// halfOpen is a manager whose subscription passes a proxy, with a waiter.
type halfOpen struct {
	m     *Manager
	proxy *redistest.Proxy
	heals atomic.Bool // new connections go past the proxy
	held  *Lock       // held by another manager
	next  <-chan result
}

func newHalfOpen(t *testing.T, rdb *redis.Client, liveness time.Duration) *halfOpen {
	t.Helper()
	h := &halfOpen{proxy: redistest.NewProxy(t, rdb.Options().Addr)}
	o := redistest.Options(h.proxy.Addr())
	dial := redis.NewDialer(o)
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if h.heals.Load() {
			addr = rdb.Options().Addr
		}
		return dial(ctx, network, addr)
	}
	sub := redis.NewClient(o)
	closeAtEnd(t, sub)
	cfg := slow
	cfg.Liveness = liveness
	h.m = newManager(t, twoLinks{redistest.Second(t, rdb), sub}, cfg)
	name := resource(t)
	h.held = mustAcquire(t, newManager(t, rdb, slow), name)
	h.next = acquireAsync(await.Context(t), h.m, name)
	awaitWaiters(t, rdb, name, 1)
	h.awaitSubscriptions(t, rdb, 1)
	if n := h.proxy.Connections(); n != 1 {
		t.Fatalf("%d connections pass the proxy, want that of the subscription", n)
	}
	return h
}

// awaitSubscriptions waits until Redis counts this number of subscriptions of the manager; a
// half-open one counts.
func (h *halfOpen) awaitSubscriptions(t *testing.T, rdb *redis.Client, n int64) {
	t.Helper()
	channel := channelPrefix + h.m.id
	await.True(t, "a subscription", func() bool { return rdb.PubSubNumSub(t.Context(), channel).Val()[channel] == n })
}

// TestManager_Acquire_SubscriptionsKilled: given 16 waiters of two managers, when their
// subscriptions are killed repeatedly, just before each handover, all are served. Only a new
// subscription can do that here.
func TestManager_Acquire_SubscriptionsKilled(t *testing.T) {
	t.Parallel()
	const waiters = 16
	server := redistest.Real(t, "--appendonly", "no") // the kill hits every subscription
	rdb := clientOf(t, server)
	ctx, name := await.Context(t), resource(t)
	managers := []*Manager{newManager(t, rdb, slow), newManager(t, redistest.Second(t, rdb), slow)}
	var killed atomic.Int64
	kill := func() {
		n, err := rdb.ClientKillByFilter(ctx, "TYPE", "pubsub").Result()
		if err != nil {
			t.Error(err)
		}
		killed.Add(n)
	}
	l := mustAcquire(t, managers[0], name)
	var waiting, killing sync.WaitGroup
	for i := range waiters {
		waiting.Go(func() {
			l, err := managers[i%2].Acquire(ctx, name)
			if err != nil {
				t.Error(err)
				return
			}
			kill()
			check(t, l.Release(ctx))
		})
		awaitWaiters(t, rdb, name, int64(i+1))
	}
	served, stop := context.WithCancel(ctx)
	killing.Go(func() {
		for wait(served, 20*time.Millisecond) {
			kill()
		}
	})
	kill()
	mustRelease(t, l)
	waiting.Wait()
	stop()
	killing.Wait()
	if killed.Load() < 4 {
		t.Errorf("%d subscriptions were killed", killed.Load())
	}
	awaitNoTrace(t, rdb, name)
}

// TestManager_FlushAll: Redis is emptied repeatedly under load. Every holder learns of it at
// its next renewal, and the fences still rise.
func TestManager_FlushAll(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t, "--appendonly", "no")
	rdb := clientOf(t, server)
	ctx, name := await.Context(t), resource(t)
	w := newWitness()
	working, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for range 2 {
		m := newManager(t, redistest.Second(t, rdb), Config{TTL: patience, ClaimTTL: patience, CallTimeout: patience, Liveness: 100 * time.Millisecond})
		for range 4 {
			workers.Go(func() {
				for working.Err() == nil {
					w.flushed(ctx, t, m, rdb, name)
				}
			})
		}
	}
	holder := newManager(t, rdb, slow)
	var last int64
	for range 4 {
		l := mustAcquire(t, holder, name+":long")
		if l.Fence() <= last {
			t.Errorf("fence %d after %d", l.Fence(), last)
		}
		last = l.Fence()
		n := w.count()
		await.True(t, "they work", func() bool { return w.count() >= n+10 })
		must(t, rdb.FlushAll(ctx).Err())
		wantGuard(t, rdb, l, -1)
		renewNow(l)
		wantCause(t, l, ErrLost)
		n = w.count()
		await.True(t, "they continue", func() bool { return w.count() >= n+10 })
	}
	stop()
	workers.Wait()
	w.check(t)
	awaitNoTrace(t, rdb, name)
}

// flushed takes the lock once while Redis may be emptied at any time. Two clients may then
// believe that they hold it, but only one can write.
func (w *witness) flushed(ctx context.Context, t *testing.T, m *Manager, rdb redis.UniversalClient, name string) {
	t.Helper()
	l, err := m.Acquire(ctx, name)
	if err != nil {
		t.Error(err)
		return
	}
	w.mu.Lock()
	w.entered++
	w.mu.Unlock()
	at, err := stamp(ctx, rdb, l, l.Fence())
	if err != nil {
		t.Error(err)
	}
	if at > 0 {
		w.wrote(l, at)
	}
	if err := l.Release(ctx); err != nil && !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
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
