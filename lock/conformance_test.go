package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// specPlace is where the conformance suite keeps its locks, and how its
// managers wait.
type specPlace struct {
	nodes []redis.UniversalClient // several are those of a quorum
	poll  time.Duration
}

func (p *specPlace) quorum() bool { return len(p.nodes) > 1 }

// need is on how many nodes a lock must be.
func (p *specPlace) need() int { return len(p.nodes)/2 + 1 }

// manager returns one more manager, another process as it were.
func (p *specPlace) manager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	cfg.Poll = p.poll
	if !p.quorum() {
		return newManager(t, p.nodes[0], cfg)
	}
	ttl := cfg.TTL
	setDefault(&ttl, 10*time.Second)
	cfg.NodeTimeout, cfg.CallTimeout = min(ttl/3, patience), patience
	m, err := NewQuorum(p.nodes, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil && !t.Failed() {
			t.Logf("close: %v", err)
		}
	})
	return m
}

// each does something to the keys of a resource on every node.
func (p *specPlace) each(t *testing.T, name string, do func(ctx context.Context, rdb redis.UniversalClient, k *keys) error) {
	t.Helper()
	for _, rdb := range p.nodes {
		if err := do(t.Context(), rdb, mustKeys(t, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// holders counts the nodes whose lock key holds this value.
func (p *specPlace) holders(t *testing.T, name, value string) (n int) {
	t.Helper()
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		got, err := rdb.Get(ctx, k[keyLock]).Result()
		if err == nil && got == value {
			n++
		}
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		return err
	})
	return n
}

// everywhere waits until every node holds the lock, also those of a quorum that
// grant it when the majority is complete: what is done to the keys before that
// they would not notice.
func (p *specPlace) everywhere(t *testing.T, l *Lock) {
	t.Helper()
	await.True(t, "every node holds the lock", func() bool {
		return p.holders(t, l.Resource(), l.GuardValue()) == len(p.nodes)
	})
}

// inLine waits until so many are in the queue. Where there is none it does
// not matter whether they have asked already.
func (p *specPlace) inLine(t *testing.T, name string, n int64) {
	t.Helper()
	if !p.quorum() {
		awaitWaiters(t, p.nodes[0], name, n)
	}
}

// clean waits until no holder or waiter has left anything.
func (p *specPlace) clean(t *testing.T, names ...string) {
	t.Helper()
	await.True(t, "no trace of a holder or waiter", func() bool {
		var n int64
		for _, rdb := range p.nodes {
			n += traces(t, rdb, names...)
		}
		return n == 0
	})
}

// accepts counts the nodes on which the guard lets l write.
func (p *specPlace) accepts(t *testing.T, l *Lock) (n int) {
	t.Helper()
	for _, rdb := range p.nodes {
		if guarded(t, rdb, l) >= 0 {
			n++
		}
	}
	return n
}

// specCause waits until the lock's context ends, and wants these causes.
func specCause(t *testing.T, l *Lock, causes ...error) {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(patience):
		t.Fatal("the lock's context did not end")
	}
	specIs(t, context.Cause(l.Context()), causes...)
	if left := time.Until(l.ValidUntil()); left > 0 {
		t.Errorf("a lock that ended is valid for %s", left)
	}
}

// specIs wants err to be each of these.
func specIs(t *testing.T, err error, wants ...error) {
	t.Helper()
	for _, want := range wants {
		if !errors.Is(err, want) {
			t.Errorf("err = %v, want it to be %v", err, want)
		}
	}
}

// spec is what every manager promises, wherever it keeps its locks and however
// its waiters wait.
var spec = []struct {
	name  string
	queue bool // only where waiters stand in a queue
	run   func(t *testing.T, p *specPlace)
}{
	{"TryAcquire", false, specTryAcquire},
	{"AcquireWaits", false, specAcquireWaits},
	{"MutualExclusion", false, specMutualExclusion},
	{"FirstComeFirstServed", true, specOrder},
	{"NobodyBarges", true, specNobodyBarges},
	{"WaitEnds", false, specWaitEnds},
	{"WaitLimit", false, specWaitLimit},
	{"CancelledBeforeRelease", false, specCancelledBeforeRelease},
	{"ReleaseRepeated", false, specReleaseRepeated},
	{"Renewed", false, specRenewed},
	{"HandedOverRenewed", false, specHandedOverRenewed},
	{"DeadHolder", false, specDeadHolder},
	{"KeyDeleted", false, specKeyDeleted},
	{"KeyOverwritten", false, specKeyOverwritten},
	{"DataLost", false, specDataLost},
	{"Extend", false, specExtend},
	{"WithoutWatchdog", false, specWithoutWatchdog},
	{"MaxHold", false, specMaxHold},
	{"Reentry", false, specReentry},
	{"Metadata", false, specMetadata},
	{"KeyWithoutTTL", false, specKeyWithoutTTL},
	{"ForeignKey", false, specForeignKey},
	{"Do", false, specDo},
	{"ForceRelease", false, specForceRelease},
	{"AcquireAll", false, specAcquireAll},
	{"ReleaseAll", false, specReleaseAll},
	{"Close", false, specClose},
}

// TestConformance runs the suite for managers that listen and that poll on each
// engine, and for quorums.
func TestConformance(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, p *specPlace) {
		for _, s := range spec {
			if s.queue && p.quorum() {
				continue
			}
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, p)
			})
		}
	}
	const often = 5 * time.Millisecond
	t.Run("listening", func(t *testing.T) {
		t.Parallel()
		redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
			run(t, &specPlace{nodes: []redis.UniversalClient{rdb}})
		})
	})
	// The scripts are the same in the other modes.
	t.Run("polling", func(t *testing.T) {
		t.Parallel()
		redistest.AnyEngine(t, func(t *testing.T, rdb *redis.Client) {
			run(t, &specPlace{nodes: []redis.UniversalClient{rdb}, poll: often})
		})
	})
	t.Run("quorum", func(t *testing.T) {
		t.Parallel()
		_, nodes := realNodes(t)
		p := &specPlace{poll: often}
		for _, rdb := range nodes {
			p.nodes = append(p.nodes, rdb)
		}
		run(t, p)
	})
}

func specTryAcquire(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)

	// Given a free resource, when it is tried, then it is held as told,
	l, err := m.TryAcquire(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if n := p.holders(t, name, l.GuardValue()); n < p.need() {
		t.Errorf("%d nodes hold the lock's value, want %d", n, p.need())
	}
	if held, err := l.Held(ctx); err != nil || !held {
		t.Errorf("held = %v, %v", held, err)
	}
	if n := p.accepts(t, l); n < p.need() {
		t.Errorf("the guard lets it write on %d nodes, want %d", n, p.need())
	}
	// and for no longer than its keys live.
	until, alive := l.ValidUntil(), 0
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		left, err := rdb.PTTL(ctx, k[keyLock]).Result()
		if left > time.Until(until) {
			alive++
		}
		return err
	})
	if alive < p.need() || time.Until(until) < slow.TTL*9/10 {
		t.Errorf("valid for %s, and %d keys live longer", time.Until(until), alive)
	}
	// When others try, then they are refused at once, and leave nothing.
	for _, m := range []*Manager{m, other} {
		_, err := m.TryAcquire(ctx, name)
		specIs(t, err, ErrTaken)
	}
	// When it is released, then nothing is left, and the guard refuses.
	mustRelease(t, l)
	specCause(t, l, ErrReleased)
	p.clean(t, name)
	if n := p.accepts(t, l); n != 0 {
		t.Errorf("the guard lets a former holder write on %d nodes", n)
	}
	next, err := other.TryAcquire(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if next.Fence() <= l.Fence() || next.Fence() >= 1<<53 || next.Token() == l.Token() {
		t.Errorf("fence %d after %d, token %s after %s", next.Fence(), l.Fence(), next.Token(), l.Token())
	}
	mustRelease(t, next)
}

func specAcquireWaits(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a lock that is held, with others that wait in this process and another,
	l := mustAcquire(t, m, name)
	waiting := []<-chan result{acquireAsync(ctx, m, name), acquireAsync(ctx, other, name)}
	p.inLine(t, name, 2)
	// when it is released, then both have it in turn, with rising fences. The TTL
	// is far longer than the test.
	last := l.Fence()
	mustRelease(t, l)
	for range waiting {
		var r result
		select {
		case r = <-waiting[0]:
		case r = <-waiting[1]:
		case <-ctx.Done():
			t.Fatal("no waiter was served")
		}
		if r.err != nil {
			t.Fatal(r.err)
		}
		if r.lock.Fence() <= last {
			t.Errorf("fence %d after %d", r.lock.Fence(), last)
		}
		last = r.lock.Fence()
		if n := p.accepts(t, r.lock); n < p.need() {
			t.Errorf("the guard lets the holder write on %d nodes, want %d", n, p.need())
		}
		mustRelease(t, r.lock)
	}
	p.clean(t, name)
}

func specMutualExclusion(t *testing.T, p *specPlace) {
	const managers, goroutines, rounds = 3, 2, 5
	ctx, name := await.Context(t), resource(t)
	var inside, overlaps atomic.Int64
	var fences []int64 // guarded by the lock under test; the race detector looks on
	var all sync.WaitGroup
	for range managers {
		m := p.manager(t, Config{TTL: patience, ClaimTTL: patience, CallTimeout: patience, Liveness: 500 * time.Millisecond})
		for range goroutines {
			all.Go(func() {
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
	all.Wait()
	if overlaps.Load() != 0 || len(fences) != managers*goroutines*rounds {
		t.Errorf("%d overlaps, %d holdings", overlaps.Load(), len(fences))
	}
	if !slices.IsSorted(fences) || len(slices.Compact(fences)) != managers*goroutines*rounds {
		t.Errorf("fences do not rise: %v", fences)
	}
	p.clean(t, name)
}

func specOrder(t *testing.T, p *specPlace) {
	const waiters = 6
	ctx, name := await.Context(t), resource(t)
	managers := []*Manager{p.manager(t, slow), p.manager(t, slow)}
	// Given waiters of two processes that came one after the other,
	l := mustAcquire(t, managers[0], name)
	var waiting []<-chan result
	for i := range waiters {
		waiting = append(waiting, acquireAsync(ctx, managers[i%2], name))
		p.inLine(t, name, int64(i+1))
	}
	// when the lock is released again and again, then they have it in that order.
	mustRelease(t, l)
	for i, w := range waiting {
		l := awaitLock(t, w)
		for j := i + 1; j < waiters; j++ {
			select {
			case r := <-waiting[j]:
				t.Fatalf("waiter %d was served with %d: %v", j, i, r.err)
			default:
			}
		}
		mustRelease(t, l)
	}
	p.clean(t, name)
}

func specNobodyBarges(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)
	next := acquireAsync(ctx, other, name)
	p.inLine(t, name, 1)
	// Given a waiter, when the holder releases and takes the lock again at once,
	mustRelease(t, l)
	_, err := m.TryAcquire(ctx, name)
	// then it is the waiter's.
	specIs(t, err, ErrTaken)
	mustRelease(t, awaitLock(t, next))
}

func specWaitEnds(t *testing.T, p *specPlace) {
	name := resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)

	// Given a waiter, when its context is cancelled, then it says so and why.
	why := errors.New("the buyer left")
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := acquireAsync(ctx, other, name)
	p.inLine(t, name, 1)
	cancel(why)
	specIs(t, awaitResult(t, waiting).err, ErrWaitTimeout, context.Canceled, why)

	// When its deadline comes, likewise.
	ctx, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	_, err := other.Acquire(ctx, name)
	specIs(t, err, ErrWaitTimeout, context.DeadlineExceeded)
	if errors.Is(err, ErrTaken) || errors.Is(err, ErrNoQuorum) {
		t.Errorf("err = %v", err)
	}
	// Nothing of them is left.
	p.inLine(t, name, 0)
	mustRelease(t, l)
	p.clean(t, name)
}

func specWaitLimit(t *testing.T, p *specPlace) {
	name := resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)
	// Given a context that goes on, when the limit is over, then so is the wait.
	ctx := await.Context(t)
	_, err := other.Acquire(ctx, name, WithWaitLimit(30*time.Millisecond))
	specIs(t, err, ErrWaitTimeout, context.DeadlineExceeded)
	if ctx.Err() != nil {
		t.Error("only the context's own end ended the wait")
	}
	p.inLine(t, name, 0)
	mustRelease(t, l)
	p.clean(t, name)
}

func specCancelledBeforeRelease(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	// Given a request that ended while it held the lock,
	ctx, cancel := context.WithCancel(t.Context())
	l, err := m.Acquire(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	// then the lock's context ends too, and the lock is held until its release;
	specIs(t, context.Cause(l.Context()), context.Canceled)
	if n := p.accepts(t, l); n < p.need() {
		t.Errorf("the guard lets the holder write on %d nodes, want %d", n, p.need())
	}
	if err := l.Extend(await.Context(t), time.Hour); err != nil {
		t.Error(err)
	}
	// when it releases, then the key goes at once.
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
	p.clean(t, name)
}

func specReleaseRepeated(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	// Given a lock that was released, and is another's now,
	l := mustAcquire(t, m, name)
	mustRelease(t, l)
	after := mustAcquire(t, m, name)
	// when it is released again, then nothing happens to the other's.
	mustRelease(t, l)
	if held, err := after.Held(t.Context()); err != nil || !held || after.Context().Err() != nil {
		t.Errorf("the next holder's lock: held = %v, %v", held, err)
	}
	if held, err := l.Held(t.Context()); err != nil || held {
		t.Errorf("the former holder's lock: held = %v, %v", held, err)
	}
	mustRelease(t, after)
}

func specRenewed(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	// A third of the TTL is waited for. The rest may pass without a turn on a
	// processor.
	m, other := p.manager(t, Config{TTL: 20 * time.Second, CallTimeout: patience}), p.manager(t, slow)
	// Given a holder that works on, when a renewal is due,
	l := mustAcquire(t, m, name)
	first := l.ValidUntil()
	await.True(t, "a renewal", func() bool { return l.Context().Err() != nil || l.ValidUntil().After(first) })
	if l.Context().Err() != nil {
		t.Fatal("lost: ", context.Cause(l.Context()))
	}
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
	_, err := other.TryAcquire(ctx, name)
	specIs(t, err, ErrTaken)
	if n := p.accepts(t, l); n < p.need() {
		t.Errorf("the guard lets the holder write on %d nodes, want %d", n, p.need())
	}
	mustRelease(t, l)
}

func specHandedOverRenewed(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	cfg := slow
	cfg.ClaimTTL = patience
	m := p.manager(t, cfg)
	// Given a waiter that was handed the lock, for a moment at first,
	l := mustAcquire(t, m, name)
	next := acquireAsync(ctx, m, name)
	p.inLine(t, name, 1)
	mustRelease(t, l)
	l = awaitLock(t, next)
	// then it has its full TTL before that moment is over.
	await.True(t, "the full TTL", func() bool {
		return l.Context().Err() != nil || time.Until(l.ValidUntil()) > 2*cfg.ClaimTTL
	})
	if l.Context().Err() != nil {
		t.Errorf("it ended: %v", context.Cause(l.Context()))
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

func specDeadHolder(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	// Given a holder that died: nobody renews its lock, and one that waits,
	set := m.defaults
	set.ttl = 2 * time.Second
	dead := &attempt{caller: t.Context(), resource: name, keys: *mustKeys(t, name), settings: set, token: "GHOST.1"}
	r, err := m.store.acquire(ctx, dead)
	if err != nil || !r.held {
		t.Fatalf("%+v, %v", r, err)
	}
	// then the TTL frees the lock, and the fence goes on rising.
	l := mustAcquire(t, m, name)
	if l.Fence() <= r.fence {
		t.Errorf("fence %d after %d", l.Fence(), r.fence)
	}
	mustRelease(t, l)
	p.clean(t, name)
}

func specKeyDeleted(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	p.everywhere(t, l)
	// Given a holder, when a stranger deletes its key,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Del(ctx, k[keyLock]).Err()
	})
	// then its writes are refused from then on, and at its next renewal its
	// context ends because Redis said so.
	if n := p.accepts(t, l); n != 0 {
		t.Errorf("the guard lets it write on %d nodes", n)
	}
	renewNow(l)
	specCause(t, l, ErrLost, ErrNotHeld)
	specIs(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
	specIs(t, l.Extend(t.Context(), time.Second), ErrLost)
	p.clean(t, name)
}

func specKeyOverwritten(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	// Given a holder, when a stranger overwrites its key,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Set(ctx, k[keyLock], "stranger", time.Minute).Err()
	})
	// then the holder learns of it likewise,
	if n := p.accepts(t, l); n != 0 {
		t.Errorf("the guard lets it write on %d nodes", n)
	}
	renewNow(l)
	specCause(t, l, ErrLost, ErrNotHeld)
	// and its release leaves the stranger's key alone.
	specIs(t, l.Release(t.Context()), ErrNotHeld, ErrLost)
	if n := p.holders(t, name, "stranger"); n != len(p.nodes) {
		t.Errorf("%d nodes have the stranger's key, want %d", n, len(p.nodes))
	}
}

func specDataLost(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	// Given that Redis lost everything it knew, when the next one takes the lock,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Del(ctx, k[:]...).Err()
	})
	next := mustAcquire(t, m, name)
	// then its fence is greater, and the first one can do it no harm.
	if next.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), l.Fence())
	}
	specIs(t, l.Release(t.Context()), ErrNotHeld)
	if n := p.holders(t, name, next.GuardValue()); n < p.need() {
		t.Errorf("%d nodes hold the next one's value, want %d", n, p.need())
	}
	mustRelease(t, next)
}

func specExtend(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	l := mustAcquire(t, m, name)
	// Given a lock, when it is extended to more than its TTL, and then to less,
	for _, ttl := range []time.Duration{time.Hour, time.Second} {
		if err := l.Extend(ctx, ttl); err != nil {
			t.Fatal(err)
		}
		// then it has the longer time.
		if left := time.Until(l.ValidUntil()); left < 2*slow.TTL {
			t.Errorf("extend %s: valid for %s", ttl, left)
		}
		long := 0
		p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
			left, err := rdb.PTTL(ctx, k[keyLock]).Result()
			if left > 2*slow.TTL {
				long++
			}
			return err
		})
		if long < p.need() {
			t.Errorf("extend %s: %d nodes keep it for that long, want %d", ttl, long, p.need())
		}
	}
	specIs(t, l.Extend(ctx, 9*time.Millisecond), ErrInvalid)
	mustRelease(t, l)
	specIs(t, l.Extend(ctx, time.Minute), ErrReleased)
}

func specWithoutWatchdog(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	// Given a lock that is not to be renewed,
	l := mustAcquire(t, m, name, WithTTL(1500*time.Millisecond), WithoutWatchdog())
	// then it ends with its TTL, which nobody else brought about,
	specCause(t, l, ErrLost)
	if errors.Is(context.Cause(l.Context()), ErrNotHeld) {
		t.Errorf("cause = %v, want the end of its time", context.Cause(l.Context()))
	}
	// and the next one has it soon.
	mustRelease(t, mustAcquire(t, m, name))
	p.clean(t, name)
}

func specMaxHold(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a holder that hangs while its lock is renewed,
	l, err := m.Acquire(ctx, name, WithMaxHold(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	next := acquireAsync(ctx, other, name)
	// then its context ends at the maximum hold, and the lock goes to the next,
	// a TTL of minutes before it would have expired.
	specCause(t, l, ErrMaxHold)
	if errors.Is(context.Cause(l.Context()), ErrLost) {
		t.Error("a maximum hold counts as a loss")
	}
	after := awaitLock(t, next)
	specIs(t, l.Release(ctx), ErrNotHeld, ErrMaxHold)
	mustRelease(t, after)
	p.clean(t, name)
}

func specReentry(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a lock that is entered again through its context,
	outer := mustAcquire(t, m, name)
	inner, err := m.Acquire(outer.Context(), name, WithReentry())
	if err != nil {
		t.Fatal(err)
	}
	if inner.Fence() != outer.Fence() || inner.GuardValue() != outer.GuardValue() {
		t.Errorf("fence %d inside %d", inner.Fence(), outer.Fence())
	}
	// when one of both is released, then it is still held.
	mustRelease(t, inner)
	specIs(t, context.Cause(inner.Context()), ErrReleased)
	_, err = other.TryAcquire(ctx, name)
	specIs(t, err, ErrTaken)
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
	// Given a holder that gave its name, when another looks,
	l := mustAcquire(t, m, name)
	info, err := reader.Inspect(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	// then it sees who that is.
	want := Holder{Token: l.Token(), Manager: m.id, Metadata: cfg.Metadata}
	if !info.Held || info.Holder != want || info.Fence != l.Fence() || info.Resource != name || info.Nodes < p.need() {
		t.Errorf("info = %+v, want the holder %+v with fence %d", info, want, l.Fence())
	}
	if info.Remaining <= time.Until(l.ValidUntil()) || info.Remaining > slow.TTL {
		t.Errorf("remaining = %s", info.Remaining)
	}
	if n := p.accepts(t, l); n < p.need() {
		t.Errorf("the guard lets it write on %d nodes, want %d", n, p.need())
	}
	mustRelease(t, l)
	// Of a free lock the last fence is known. A quorum may know of a greater one
	// that a node minted in vain.
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
	ctx, name := await.Context(t), resource(t)
	var repairs atomic.Int64
	cfg := slow
	cfg.Grace = 250 * time.Millisecond
	cfg.Observer.Repaired = func(string) { repairs.Add(1) }
	m := p.manager(t, cfg)
	// Given a key without TTL that another program left,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.Set(ctx, k[keyLock], "1", 0).Err()
	})
	// when it is tried, then the holder keeps it for now, but not for ever.
	_, err := m.TryAcquire(ctx, name)
	specIs(t, err, ErrTaken)
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		left, err := rdb.PTTL(ctx, k[keyLock]).Result()
		if !p.quorum() && (left == -1 || left > cfg.Grace) {
			t.Errorf("the key lives for %s, want at most %s", left, cfg.Grace)
		}
		return err
	})
	l := mustAcquire(t, m, name)
	// A majority decides before every node was heard, so some may be counted later.
	if n := repairs.Load(); n < 1 || n > 1 && !p.quorum() {
		t.Errorf("%d repairs counted, want 1", n)
	}
	mustRelease(t, l)
	p.clean(t, name)
}

func specForeignKey(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m := p.manager(t, slow)
	// Given a key of another type in the place of the lock's,
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		return rdb.RPush(ctx, k[keyLock], "x").Err()
	})
	// then everybody hears that at once, and the key stays as it is.
	_, err := m.Acquire(ctx, name)
	specIs(t, err, ErrForeignKey)
	_, err = m.TryAcquire(ctx, name)
	specIs(t, err, ErrForeignKey)
	_, err = m.Inspect(ctx, name)
	specIs(t, err, ErrForeignKey)
	p.each(t, name, func(ctx context.Context, rdb redis.UniversalClient, k *keys) error {
		if kind := rdb.Type(ctx, k[keyLock]).Val(); kind != "list" {
			t.Errorf("the stranger's key is a %s now", kind)
		}
		return nil
	})
}

func specDo(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	failure := errors.New("sold out")
	// Given a function, then it runs while the lock is held, and its error comes back.
	err := m.Do(ctx, name, func(held context.Context, l *Lock) error {
		_, err := other.TryAcquire(ctx, name)
		specIs(t, err, ErrTaken)
		if held.Err() != nil || l.Context().Err() != nil {
			t.Error("the context ended before the function")
		}
		return failure
	})
	specIs(t, err, failure)
	p.clean(t, name)
}

func specForceRelease(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, admin := p.manager(t, slow), p.manager(t, slow)
	// Given a holder and a waiter,
	l := mustAcquire(t, m, name)
	p.everywhere(t, l)
	next := acquireAsync(ctx, admin, name)
	p.inLine(t, name, 1)
	// when the lock is taken by force, then the holder can write no more,
	token, err := admin.ForceRelease(ctx, name, "deploy: host a")
	if err != nil || token != l.Token() {
		t.Fatalf("token = %q, err = %v; want %q", token, err, l.Token())
	}
	if n := p.accepts(t, l); n != 0 {
		t.Errorf("the guard lets it write on %d nodes", n)
	}
	// the waiter has the lock, and the holder learns of it.
	after := awaitLock(t, next)
	renewNow(l)
	specCause(t, l, ErrLost, ErrNotHeld)
	if after.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", after.Fence(), l.Fence())
	}
	specIs(t, l.Release(ctx), ErrNotHeld, ErrLost)
	mustRelease(t, after)
	p.clean(t, name)
	_, err = admin.ForceRelease(ctx, name, "again")
	specIs(t, err, ErrNotHeld)
	// Whoever holds it hears why.
	hearsReason(t, m, admin)
}

// hearsReason wants that a holder hears at a renewal why its lock was taken by
// force. It asks for that for a moment only, in which a busy machine may have no
// answer; so one of many holders has to hear it.
func hearsReason(t *testing.T, m, admin *Manager) {
	t.Helper()
	const reason, holders = "deploy: host a", 20
	var cause error
	for range holders {
		l := mustAcquire(t, m, resource(t))
		if _, err := admin.ForceRelease(t.Context(), l.Resource(), reason); err != nil {
			t.Fatal(err)
		}
		renewNow(l)
		specCause(t, l, ErrLost, ErrNotHeld)
		if cause = context.Cause(l.Context()); strings.Contains(cause.Error(), reason) {
			return
		}
	}
	t.Errorf("cause = %v, want the reason in it", cause)
}

func specAcquireAll(t *testing.T, p *specPlace) {
	ctx := await.Context(t)
	names := []string{resource(t), resource(t), resource(t)}
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given one of three resources taken, then none is had,
	l := mustAcquire(t, other, names[1])
	_, err := m.AcquireAll(ctx, names, WithWaitLimit(30*time.Millisecond))
	specIs(t, err, ErrWaitTimeout)
	p.inLine(t, names[1], 0)
	p.clean(t, names[0], names[2])
	// and when it is free, all are.
	mustRelease(t, l)
	all, err := m.AcquireAll(ctx, names)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		_, err := other.TryAcquire(ctx, name)
		specIs(t, err, ErrTaken)
	}
	if err := all.Release(ctx); err != nil {
		t.Error(err)
	}
	p.clean(t, names...)
}

// specHold takes several locks of a manager.
func specHold(t *testing.T, m *Manager, n int) (locks []*Lock, names []string) {
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
	locks, names := specHold(t, m, 10)
	if n := len(m.Held()); n != len(locks) {
		t.Errorf("%d locks are listed, want %d", n, len(locks))
	}
	// Given several locks, when all are released, then nothing is left,
	if err := m.ReleaseAll(ctx); err != nil {
		t.Error(err)
	}
	p.clean(t, names...)
	for _, l := range locks {
		specCause(t, l, ErrReleased)
	}
	if n := len(m.Held()); n != 0 {
		t.Errorf("%d locks are listed, want none", n)
	}
	// and the manager goes on.
	mustRelease(t, mustAcquire(t, m, names[0]))
}

func specClose(t *testing.T, p *specPlace) {
	ctx := await.Context(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	locks, names := specHold(t, m, 10)
	others := resource(t)
	l := mustAcquire(t, other, others)
	waiting := []<-chan result{acquireAsync(ctx, m, names[0]), acquireAsync(ctx, m, others)}
	p.inLine(t, names[0], 1)
	p.inLine(t, others, 1)
	// Given locks, and waiters for one of them and for another's, when the
	// manager is closed, then nothing of it is left and everybody knows why.
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
	p.clean(t, names...)
	p.inLine(t, others, 0)
	for _, l := range locks {
		specCause(t, l, ErrReleased)
	}
	for _, w := range waiting {
		specIs(t, awaitResult(t, w).err, ErrClosed)
	}
	mustRelease(t, l)
	_, err := m.TryAcquire(ctx, names[0])
	specIs(t, err, ErrClosed)
	p.clean(t, others)
}

// TestErrors_Distinct: no two of the package's errors pass for each other.
func TestErrors_Distinct(t *testing.T) {
	t.Parallel()
	all := []error{ErrTaken, ErrWaitTimeout, ErrNested, ErrLost, ErrMaxHold, ErrNotHeld, ErrForeignKey, ErrNoQuorum, ErrReleased, ErrClosed, ErrInvalid}
	for i, a := range all {
		wrapped := opError("try", "x", fmt.Errorf("%w: why", a))
		for j, b := range all {
			if errors.Is(wrapped, b) != (i == j) {
				t.Errorf("%v passes for %v: %v", a, b, errors.Is(wrapped, b))
			}
		}
		if text, ok := strings.CutPrefix(wrapped.Error(), "lock: "); !ok || strings.Contains(text, ": lock: ") {
			t.Errorf("%q names the package more than once", wrapped)
		}
	}
}
