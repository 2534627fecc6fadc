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

// specPlace is the storage of the conformance suite's locks and the way in which its
// managers wait.
type specPlace struct {
	nodes []redis.UniversalClient // several for a quorum
	poll  time.Duration
}

func (p *specPlace) quorum() bool { return len(p.nodes) > 1 }

// need is the number of nodes that a lock needs.
func (p *specPlace) need() int { return len(p.nodes)/2 + 1 }

// manager returns another manager, as in another process.
func (p *specPlace) manager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	cfg.Poll = p.poll
	if !p.quorum() {
		return inline(newManager(t, p.nodes[0], cfg))
	}
	ttl := cfg.TTL
	setDefault(&ttl, 10*time.Second)
	cfg.NodeTimeout, cfg.CallTimeout = min(ttl/3, patience), patience
	m, err := NewQuorum(p.nodes, cfg)
	must(t, err)
	closeManager(t, m)
	return m
}

// each calls a function for the keys of a resource on every node.
func (p *specPlace) each(t *testing.T, name string, do func(ctx context.Context, rdb redis.UniversalClient, k *keys) error) {
	t.Helper()
	for _, rdb := range p.nodes {
		must(t, do(t.Context(), rdb, mustKeys(t, name)))
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

// everywhere waits until every node holds the lock, including those of a quorum that grant
// it after the majority is complete: they would overwrite earlier changes of the keys.
func (p *specPlace) everywhere(t *testing.T, l *Lock) {
	t.Helper()
	await.True(t, "every node holds the lock", func() bool {
		return p.holders(t, l.Resource(), l.GuardValue()) == len(p.nodes)
	})
}

// inLine waits until this number of waiters is in the queue. Without a queue it does not
// matter whether they have asked yet.
func (p *specPlace) inLine(t *testing.T, name string, n int64) {
	t.Helper()
	if !p.quorum() {
		awaitWaiters(t, p.nodes[0], name, n)
	}
}

// clean waits until no trace of a holder or waiter is left.
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

// wantAccepted fails unless a majority's guard accepts writes of l.
func (p *specPlace) wantAccepted(t *testing.T, l *Lock) {
	t.Helper()
	if n := p.accepts(t, l); n < p.need() {
		t.Errorf("the guard lets it write on %d nodes, want %d", n, p.need())
	}
}

// wantRefused fails if a guard accepts writes of l.
func (p *specPlace) wantRefused(t *testing.T, l *Lock) {
	t.Helper()
	if n := p.accepts(t, l); n != 0 {
		t.Errorf("the guard lets it write on %d nodes", n)
	}
}

// accepts counts the nodes on which the guard accepts l.
func (p *specPlace) accepts(t *testing.T, l *Lock) (n int) {
	t.Helper()
	for _, rdb := range p.nodes {
		if guarded(t, rdb, l) >= 0 {
			n++
		}
	}
	return n
}

// spec is the contract of every manager, whatever its storage and its way of waiting.
var spec = []struct {
	name  string
	queue bool // only if waiters form a queue
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
	{"Stranger", false, specStranger},
	{"DataLost", false, specDataLost},
	{"Extend", false, specExtend},
	{"WithoutWatchdog", false, specWithoutWatchdog},
	{"MaxHold", false, specMaxHold},
	{"Reentry", false, specReentry},
	{"Metadata", false, specMetadata},
	{"KeyWithoutTTL", false, specKeyWithoutTTL},
	{"ForeignKey", false, specForeignKey},
	{"Do", false, specDo},
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

	// Given a free resource, when it is tried, then it is held as the handle says,
	l, err := m.TryAcquire(ctx, name)
	must(t, err)
	if n := p.holders(t, name, l.GuardValue()); n < p.need() {
		t.Errorf("%d nodes hold the lock's value, want %d", n, p.need())
	}
	wantHeld(t, l, true)
	p.wantAccepted(t, l)
	// and no longer than its keys exist.
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
		wantTaken(t, m, name)
	}
	// When it is released, then nothing is left, and the guard refuses.
	mustRelease(t, l)
	wantCause(t, l, ErrReleased)
	p.clean(t, name)
	p.wantRefused(t, l)
	next, err := other.TryAcquire(ctx, name)
	must(t, err)
	if next.Fence() <= l.Fence() || next.Fence() >= 1<<53 || next.Token() == l.Token() {
		t.Errorf("fence %d after %d, token %s after %s", next.Fence(), l.Fence(), next.Token(), l.Token())
	}
	mustRelease(t, next)
}

func specAcquireWaits(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	// Given a held lock, with a waiter in this process and one in another,
	l := mustAcquire(t, m, name)
	waiting := []<-chan result{acquireAsync(ctx, m, name), acquireAsync(ctx, other, name)}
	p.inLine(t, name, 2)
	// when it is released, then both get it in turn, with rising fences. The TTL
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
		p.wantAccepted(t, r.lock)
		mustRelease(t, r.lock)
	}
	p.clean(t, name)
}

func specMutualExclusion(t *testing.T, p *specPlace) { mutualExclusion(t, p, 3, 2, 5) }

// mutualExclusion has goroutines of several managers take the lock for a number of rounds each.
func mutualExclusion(t *testing.T, p *specPlace, managers, goroutines, rounds int) {
	t.Helper()
	ctx, name := await.Context(t), resource(t)
	var inside, overlaps atomic.Int64
	var fences []int64 // guarded by the lock under test; the race detector checks it
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
					check(t, l.Release(ctx))
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
	var handed atomic.Int64
	cfg := slow
	cfg.Observer.HandedOver = func(string) { handed.Add(1) }
	managers := []*Manager{p.manager(t, cfg), p.manager(t, cfg)}
	// Given waiters of two processes that arrived one after the other,
	l := mustAcquire(t, managers[0], name)
	var waiting []<-chan result
	for i := range waiters {
		waiting = append(waiting, acquireAsync(ctx, managers[i%2], name))
		p.inLine(t, name, int64(i+1))
	}
	// when the lock is released repeatedly, then they get it in that order.
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
	if n := handed.Load(); n != waiters {
		t.Errorf("%d releases handed the lock over, want %d", n, waiters)
	}
}

func specNobodyBarges(t *testing.T, p *specPlace) {
	ctx, name := await.Context(t), resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)
	next := acquireAsync(ctx, other, name)
	p.inLine(t, name, 1)
	// Given a waiter, when the holder releases the lock and asks for it again at once,
	mustRelease(t, l)
	_, err := m.TryAcquire(ctx, name)
	// then the waiter gets it.
	wantErr(t, err, ErrTaken)
	mustRelease(t, awaitLock(t, next))
}

func specWaitEnds(t *testing.T, p *specPlace) {
	name := resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)

	// Given a waiter, when its context is cancelled, then the error has the cause.
	why := errors.New("the buyer left")
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := acquireAsync(ctx, other, name)
	p.inLine(t, name, 1)
	cancel(why)
	wantErr(t, awaitResult(t, waiting).err, ErrWaitTimeout, context.Canceled, why)

	// The same holds for its deadline.
	ctx, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer end()
	_, err := other.Acquire(ctx, name)
	wantErr(t, err, ErrWaitTimeout, context.DeadlineExceeded)
	if errors.Is(err, ErrTaken) || errors.Is(err, ErrNoQuorum) {
		t.Errorf("err = %v", err)
	}
	// A context that has ended does not wait.
	ended, cancelled := context.WithCancel(t.Context())
	cancelled()
	_, err = other.Acquire(ended, name)
	wantErr(t, err, ErrWaitTimeout, context.Canceled)
	_, err = other.TryAcquire(ended, name)
	wantErr(t, err, context.Canceled)
	if errors.Is(err, ErrWaitTimeout) {
		t.Errorf("try: err = %v", err)
	}
	// They leave nothing behind.
	p.inLine(t, name, 0)
	mustRelease(t, l)
	p.clean(t, name)
}

func specWaitLimit(t *testing.T, p *specPlace) {
	name := resource(t)
	m, other := p.manager(t, slow), p.manager(t, slow)
	l := mustAcquire(t, m, name)
	// Given a context that does not end, when the limit has passed, then the wait ends.
	ctx := await.Context(t)
	_, err := other.Acquire(ctx, name, WithWaitLimit(30*time.Millisecond))
	wantErr(t, err, ErrWaitTimeout, context.DeadlineExceeded)
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
	must(t, err)
	cancel()
	// then the lock's context ends too, and the lock is held until its release;
	wantErr(t, context.Cause(l.Context()), context.Canceled)
	p.wantAccepted(t, l)
	check(t, l.Extend(await.Context(t), time.Hour))
	// when it releases, then the key is deleted at once.
	check(t, l.Release(ctx))
	p.clean(t, name)
}

func specReleaseRepeated(t *testing.T, p *specPlace) {
	name := resource(t)
	m := p.manager(t, slow)
	// Given a lock that was released several times concurrently, and that another holder has now,
	l := mustAcquire(t, m, name)
	var releasing sync.WaitGroup
	for range 4 {
		releasing.Go(func() { check(t, l.Release(t.Context())) })
	}
	releasing.Wait()
	after := mustAcquire(t, m, name)
	// when it is released again, then the other's lock is unchanged.
	mustRelease(t, l)
	if held, err := after.Held(t.Context()); err != nil || !held || after.Context().Err() != nil {
		t.Errorf("the next holder's lock: held = %v, %v", held, err)
	}
	wantHeld(t, l, false)
	mustRelease(t, after)
}

// TestErrors_Distinct: no error of the package matches another one.
func TestErrors_Distinct(t *testing.T) {
	t.Parallel()
	all := []error{ErrTaken, ErrWaitTimeout, ErrNested, ErrLost, ErrMaxHold, ErrNotHeld, ErrForeignKey, ErrNoQuorum, ErrReleased, ErrClosed, ErrInvalid}
	for i, a := range all {
		wrapped := opError("try", "x", fmt.Errorf("%w: why", a))
		for j, b := range all {
			if errors.Is(wrapped, b) != (i == j) {
				t.Errorf("%v matches %v: %v", a, b, errors.Is(wrapped, b))
			}
		}
		if text, ok := strings.CutPrefix(wrapped.Error(), "lock: "); !ok || strings.Contains(text, ": lock: ") {
			t.Errorf("%q names the package more than once", wrapped)
		}
	}
}
