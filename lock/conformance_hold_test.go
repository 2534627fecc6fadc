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
)

func specRenewed(t *testing.T, p *specPlace) {
	name := resource(t)
	// The test waits for a third of the TTL. The rest is a margin for a busy machine.
	m, other := p.manager(t, Config{TTL: 20 * time.Second, CallTimeout: patience}), p.manager(t, slow)
	// Given a holder of many locks that keeps working, when their renewals are due,
	l := mustAcquire(t, m, name)
	first := l.ValidUntil()
	others, names := hold(t, m, 9)
	awaitRenewals(t, 1, append(others, l)...)
	// then its keys outlive the first TTL, no other holder gets the lock, and it can
	// still be released.
	longer := 0
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		asked := time.Now()
		left, err := rdb.PTTL(ctx, k[keyLock]).Result()
		if asked.Add(left).After(first.Add(time.Second)) {
			longer++
		}
		return err
	})
	if longer < p.need() {
		t.Errorf("%d keys outlive the first TTL, want %d", longer, p.need())
	}
	wantTaken(t, other, name)
	p.wantAccepted(t, l)
	mustRelease(t, l)
	for _, l := range others {
		p.wantAccepted(t, l)
		mustRelease(t, l)
	}
	p.clean(t, names...)
}

func specHandedOverRenewed(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	cfg := slow
	cfg.ClaimTTL = patience
	m := p.manager(t, cfg)
	// Given a waiter that was handed the lock, with ClaimTTL at first,
	l := mustAcquire(t, m, name)
	next := acquireAsync(ctx, m, name)
	p.inLine(t, name, 1)
	mustRelease(t, l)
	l = awaitLock(t, next)
	if n := p.holders(t, name, l.GuardValue()); n < p.need() {
		t.Errorf("%d nodes hold its value, want %d", n, p.need())
	}
	// then it has its full TTL before ClaimTTL has passed.
	await.True(t, "the full TTL", func() bool {
		return l.Context().Err() != nil || time.Until(l.ValidUntil()) > 2*cfg.ClaimTTL
	})
	if l.Context().Err() != nil {
		t.Errorf("it ended: %v", context.Cause(l.Context()))
	}
	check(t, l.Release(ctx))
}

func specDeadHolder(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	// Given a holder that died, so that its lock is not renewed,
	set := m.defaults
	set.ttl = 2 * time.Second
	dead := &attempt{caller: t.Context(), resource: name, keys: *mustKeys(t, name), settings: set, token: "GHOST.1"}
	r, err := m.store.acquire(ctx, dead)
	if err != nil || !r.held {
		t.Fatalf("%+v, %v", r, err)
	}
	// then those who wait get it when the TTL has passed, not before, and the fences still rise.
	until := time.Now().Add(set.ttl)
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		asked := time.Now()
		left, err := rdb.PTTL(ctx, k[keyLock]).Result() // below zero on a node that has not granted it yet
		until = earlier(until, asked.Add(left-time.Millisecond))
		return err
	})
	first, second := acquireAsync(ctx, m, name), acquireAsync(ctx, m, name)
	last := r.fence
	for range 2 {
		var got result
		select {
		case got = <-first:
		case got = <-second:
		case <-ctx.Done():
			t.Fatal("no waiter was served")
		}
		must(t, got.err)
		if time.Now().Before(until) {
			t.Error("it was served before the TTL had passed")
		}
		if got.lock.Fence() <= last {
			t.Errorf("fence %d after %d", got.lock.Fence(), last)
		}
		last = got.lock.Fence()
		mustRelease(t, got.lock)
	}
	p.clean(t, name)
}

func specStranger(t *testing.T, p *specPlace) {
	for what, change := range map[string]func(ctx context.Context, rdb redis.UniversalClient, key string) error{
		"deleted": func(ctx context.Context, rdb redis.UniversalClient, key string) error { return rdb.Del(ctx, key).Err() },
		"overwritten": func(ctx context.Context, rdb redis.UniversalClient, key string) error {
			return rdb.Set(ctx, key, "stranger", 0).Err()
		},
		"of another type": func(ctx context.Context, rdb redis.UniversalClient, key string) error {
			return errors.Join(rdb.Del(ctx, key).Err(), rdb.RPush(ctx, key, "x").Err())
		},
	} {
		name := resource(t)
		m := p.manager(t, slow)
		l := mustAcquire(t, m, name)
		p.everywhere(t, l)
		// Given a holder, when another program deletes or overwrites its key,
		p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
			return change(ctx, rdb, k[keyLock])
		})
		// then its writes are refused from then on, and at its next renewal, long before its
		// deadline, its context ends because Redis said so.
		p.wantRefused(t, l)
		renewNow(l)
		wantCause(t, l, ErrLost, ErrNotHeld)
		// No release touches the foreign key.
		for range 2 {
			wantErr(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
		}
		wantErr(t, l.Extend(t.Context(), time.Second), ErrLost)
		p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
			want := map[string]string{"deleted": "none", "overwritten": "string", "of another type": "list"}[what]
			got, err := rdb.Type(ctx, k[keyLock]).Result()
			if got != want {
				t.Errorf("%s: a node has a %s in place of the lock, want %s", what, got, want)
			}
			return err
		})
	}
}

func specDataLost(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	p.everywhere(t, l)
	// Given that Redis lost all data, when the next holder takes the lock,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Del(ctx, k[:]...).Err()
	})
	next := mustAcquire(t, m, name)
	// then its fence is greater, and the first holder cannot affect it.
	p.wantRefused(t, l)
	p.wantAccepted(t, next)
	if next.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), l.Fence())
	}
	wantErr(t, l.Release(t.Context()), ErrNotHeld)
	if n := p.holders(t, name, next.GuardValue()); n < p.need() {
		t.Errorf("%d nodes hold the next one's value, want %d", n, p.need())
	}
	mustRelease(t, next)
}

func specExtend(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	p.everywhere(t, l)
	// Given a lock, when it is extended to more than its TTL, and then to less,
	for _, ttl := range []time.Duration{time.Hour, time.Second} {
		must(t, l.Extend(ctx, ttl))
		// then it has the longer time.
		if left := time.Until(l.ValidUntil()); left < 2*slow.TTL {
			t.Errorf("extend %s: valid for %s", ttl, left)
		}
		// The nodes that a majority does not need follow.
		await.True(t, "every key lives for the longer time", func() bool {
			long := 0
			p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
				left, err := rdb.PTTL(ctx, k[keyLock]).Result()
				if left > 2*slow.TTL {
					long++
				}
				return err
			})
			return long == len(p.nodes)
		})
	}
	wantErr(t, l.Extend(ctx, 9*time.Millisecond), ErrInvalid)
	mustRelease(t, l)
	wantErr(t, l.Extend(ctx, time.Minute), ErrReleased)
}

func specWithoutWatchdog(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	// Given a lock without watchdog, and another one with it,
	beside := mustAcquire(t, m, resource(t))
	l := mustAcquire(t, m, name, WithTTL(1500*time.Millisecond), WithoutWatchdog())
	until := l.ValidUntil()
	// then the first ends with its TTL, for no other reason,
	wantCause(t, l, ErrLost)
	if time.Now().Before(until) || l.ValidUntil().After(until) {
		t.Errorf("valid until %s, want %s", l.ValidUntil(), until)
	}
	mustRelease(t, beside)
	if errors.Is(context.Cause(l.Context()), ErrNotHeld) {
		t.Errorf("cause = %v, want the end of its time", context.Cause(l.Context()))
	}
	// and the next holder gets it soon.
	mustRelease(t, mustAcquire(t, m, name))
	p.clean(t, name)
}

func specMaxHold(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a holder that hangs while its lock is renewed,
	l, err := m.Acquire(ctx, name, WithMaxHold(100*time.Millisecond))
	must(t, err)
	next := acquireAsync(ctx, other, name)
	// then its context ends at the maximum hold, and the next waiter gets the lock minutes
	// before its TTL would have passed.
	wantCause(t, l, ErrMaxHold)
	if errors.Is(context.Cause(l.Context()), ErrLost) {
		t.Error("a maximum hold counts as a loss")
	}
	after := awaitLock(t, next)
	wantErr(t, l.Release(ctx), ErrNotHeld, ErrMaxHold)
	mustRelease(t, after)
	p.clean(t, name)
}

func specReentry(t *testing.T, p *specPlace) {
	name := resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a lock that is re-entered through its context,
	outer := mustAcquire(t, m, name)
	inner, err := m.Acquire(outer.Context(), name, WithReentry())
	must(t, err)
	if inner.Fence() != outer.Fence() || inner.GuardValue() != outer.GuardValue() {
		t.Errorf("fence %d inside %d", inner.Fence(), outer.Fence())
	}
	// when one of the two handles is released, then it is still held.
	mustRelease(t, inner)
	wantErr(t, context.Cause(inner.Context()), ErrReleased)
	wantTaken(t, other, name)
	if outer.Context().Err() != nil {
		t.Error("the outer handle ended with the inner")
	}
	mustRelease(t, outer)
	p.clean(t, name)
}

func specMetadata(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	cfg := slow
	cfg.Metadata = "host:a pid:1"
	m, reader := p.manager(t, cfg), p.manager(t, slow)
	// Given a holder with metadata, when another client inspects the lock,
	l := mustAcquire(t, m, name)
	info, err := reader.Inspect(ctx, name)
	must(t, err)
	// then it sees the holder.
	want := Holder{Token: l.Token(), Manager: m.id, Metadata: cfg.Metadata}
	if !info.Held || info.Holder != want || info.Fence != l.Fence() || info.Resource != name || info.Nodes < p.need() {
		t.Errorf("info = %+v, want the holder %+v with fence %d", info, want, l.Fence())
	}
	if info.Remaining <= time.Until(l.ValidUntil()) || info.Remaining > slow.TTL {
		t.Errorf("remaining = %s", info.Remaining)
	}
	p.wantAccepted(t, l)
	mustRelease(t, l)
	// For a free lock the last fence is known. A quorum may know a greater one that a node
	// minted for a failed try.
	await.True(t, "the lock is seen free", func() bool {
		info, err = reader.Inspect(ctx, name)
		return err == nil && !info.Held
	})
	lastKnown := info.Fence == l.Fence() || p.quorum() && info.Fence > l.Fence()
	if info.Holder != (Holder{}) || !lastKnown || info.Remaining != 0 || info.Nodes != 0 {
		t.Errorf("info of a free lock = %+v, want the last fence %d", info, l.Fence())
	}
}

func specKeyWithoutTTL(t *testing.T, p *specPlace) {
	name := resource(t)
	var repairs atomic.Int64
	cfg := slow
	cfg.Grace = 250 * time.Millisecond
	cfg.Observer.Repaired = func(string) { repairs.Add(1) }
	m := p.manager(t, cfg)
	// Given a key without TTL that another program left,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Set(ctx, k[keyLock], "1", 0).Err()
	})
	// when it is tried, then the holder keeps it, but not forever.
	wantTaken(t, m, name)
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		left, err := rdb.PTTL(ctx, k[keyLock]).Result()
		if !p.quorum() && (left == -1 || left > cfg.Grace) {
			t.Errorf("the key lives for %s, want at most %s", left, cfg.Grace)
		}
		return err
	})
	l := mustAcquire(t, m, name)
	// A majority decides before every node has answered, so some may be counted later.
	if n := repairs.Load(); n < 1 || n > 1 && !p.quorum() {
		t.Errorf("%d repairs counted, want 1", n)
	}
	mustRelease(t, l)
	p.clean(t, name)
}

func specForeignKey(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	// Given a key of another type in place of the lock's key,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.RPush(ctx, k[keyLock], "x").Err()
	})
	// then every call reports that at once, and the key stays unchanged.
	_, err := m.Acquire(ctx, name)
	wantErr(t, err, ErrForeignKey)
	_, err = m.TryAcquire(ctx, name)
	wantErr(t, err, ErrForeignKey)
	_, err = m.Inspect(ctx, name)
	wantErr(t, err, ErrForeignKey)
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		if kind := rdb.Type(ctx, k[keyLock]).Val(); kind != "list" {
			t.Errorf("the foreign key is a %s now", kind)
		}
		return nil
	})
}

func specDo(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	failure := errors.New("sold out")
	// Given a function, then it runs while the lock is held, and Do returns its error.
	err := m.Do(ctx, name, func(held context.Context, l *Lock) error {
		wantTaken(t, other, name)
		if held.Err() != nil || l.Context().Err() != nil {
			t.Error("the context ended before the function")
		}
		return failure
	})
	wantErr(t, err, failure)
	p.clean(t, name)
}

func specAcquireAll(t *testing.T, p *specPlace) {
	ctx := await.Context(t)
	names := []string{resource(t), resource(t), resource(t)}
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given one taken resource of three, then none is acquired,
	l := mustAcquire(t, other, names[1])
	_, err := m.AcquireAll(ctx, names, WithWaitLimit(30*time.Millisecond))
	wantErr(t, err, ErrWaitTimeout)
	p.inLine(t, names[1], 0)
	p.clean(t, names[0], names[2])
	// and when it is free, all are acquired.
	mustRelease(t, l)
	all, err := m.AcquireAll(ctx, names)
	must(t, err)
	for _, name := range names {
		wantTaken(t, other, name)
	}
	check(t, all.Release(ctx))
	p.clean(t, names...)
}

// hold takes several locks of a manager.
func hold(t *testing.T, m *Manager, n int) (locks []*Lock, names []string) {
	t.Helper()
	for range n {
		name := resource(t)
		names = append(names, name)
		locks = append(locks, mustAcquire(t, m, name))
	}
	return locks, names
}

func specReleaseAll(t *testing.T, p *specPlace) {
	ctx := await.Context(t)
	m := p.manager(t, slow)
	locks, names := hold(t, m, 10)
	if n := len(m.Held()); n != len(locks) {
		t.Errorf("%d locks are listed, want %d", n, len(locks))
	}
	// Given several locks, when all are released, then nothing is left,
	check(t, m.ReleaseAll(ctx))
	p.clean(t, names...)
	for _, l := range locks {
		wantCause(t, l, ErrReleased)
	}
	if n := len(m.Held()); n != 0 {
		t.Errorf("%d locks are listed, want none", n)
	}
	// and the manager still works.
	mustRelease(t, mustAcquire(t, m, names[0]))
}

func specClose(t *testing.T, p *specPlace) {
	ctx := await.Context(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	locks, names := hold(t, m, 10)
	others := resource(t)
	l := mustAcquire(t, other, others)
	waiting := []<-chan result{acquireAsync(ctx, m, others)}
	for range 4 {
		waiting = append(waiting, acquireAsync(ctx, m, names[0]))
	}
	p.inLine(t, names[0], 4)
	p.inLine(t, others, 1)
	// Given locks, and waiters for one of them and for another's, when the
	// manager is closed twice concurrently, then nothing of it is left and all of them get the reason.
	var closing sync.WaitGroup
	for range 2 {
		closing.Go(func() {
			check(t, m.Close(ctx))
		})
	}
	closing.Wait()
	p.clean(t, names...)
	p.inLine(t, others, 0)
	for _, l := range locks {
		wantCause(t, l, ErrReleased)
	}
	for _, w := range waiting {
		wantErr(t, awaitResult(t, w).err, ErrClosed)
	}
	mustRelease(t, l)
	_, err := m.TryAcquire(ctx, names[0])
	wantErr(t, err, ErrClosed)
	p.clean(t, others)
}
