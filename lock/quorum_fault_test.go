package lock

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

func killNodes(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		must(t, s.Kill())
	}
}

func startNodes(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		must(t, s.Start())
	}
}

// pauseNodes stops nodes, and continues them when the test ends, before its managers are closed.
func pauseNodes(t *testing.T, servers []*redistest.Server) (resume func()) {
	t.Helper()
	for _, s := range servers {
		must(t, s.Pause())
	}
	resume = sync.OnceFunc(func() {
		for _, s := range servers {
			check(t, s.Continue())
		}
	})
	t.Cleanup(resume)
	return resume
}

// Given two of five nodes killed, when the lock is taken, extended and released, then all of it works
// and others are excluded. When these two return empty and two others are killed, then the fencing
// token still rises, although only one node has the previous one.
func TestQuorum_MinorityKilled(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	m, other := nodes.manager(t, quorumSlow), nodes.manager(t, quorumSlow)
	const ahead = int64(5e15)
	must(t, nodes[0].Set(ctx, mustKeys(t, name)[keyFence], ahead, time.Hour).Err())
	killNodes(t, servers[3:])
	l := mustAcquire(t, m, name)
	if l.Fence() <= ahead {
		t.Errorf("fence %d, want more than the stored %d", l.Fence(), ahead)
	}
	nodes[:3].awaitValue(t, name, l.GuardValue())
	wantTaken(t, other, name)
	wantErr(t, errOf(other.Acquire(ctx, name, WithWaitLimit(50*time.Millisecond))), ErrWaitTimeout)
	if err := l.Extend(ctx, 2*quorumSlow.TTL); err != nil {
		t.Errorf("extend: %v", err)
	}
	if info, err := other.Inspect(ctx, name); err != nil || info.Nodes != 3 || info.Holder.Token != l.Token() {
		t.Errorf("inspect: %+v, %v", info, err)
	}
	mustRelease(t, l)
	nodes[:3].awaitFree(t, name)

	startNodes(t, servers[3:])
	killNodes(t, servers[:2])
	after := mustAcquire(t, m, name)
	if after.Fence() <= l.Fence() {
		t.Errorf("fence %d of the other majority after %d", after.Fence(), l.Fence())
	}
	mustRelease(t, after)
	nodes[2:].awaitFree(t, name)
}

// Given three of five nodes killed, when a client asks for the lock, then there is no quorum, and
// nothing is left on the other two.
func TestQuorum_MajorityKilled(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	cfg := quorumSlow
	cfg.NodeTimeout = 2 * time.Second // then pending releases are done soon
	cfg.Poll = 25 * time.Millisecond
	m := nodes.manager(t, cfg)
	before := mustAcquire(t, m, name)
	nodes.awaitHeld(t, before)
	other := mustAcquire(t, m, resource(t))
	waiter := acquireAsync(ctx, m, other.Resource())
	killNodes(t, servers[2:])
	wantErr(t, before.Extend(ctx, time.Minute), ErrNoQuorum)
	if before.Context().Err() != nil {
		t.Error("an extension without a quorum ended the lock before its deadline")
	}
	wantErr(t, before.Release(ctx), ErrNoQuorum)
	for what, acquire := range map[string]func(m *Manager) error{
		"try":         func(m *Manager) error { _, err := m.TryAcquire(ctx, name); return err },
		"acquire":     func(m *Manager) error { _, err := m.Acquire(ctx, name); return err },
		"acquire all": func(m *Manager) error { _, err := m.AcquireAll(ctx, []string{name, resource(t)}); return err },
	} {
		// Leftovers of one try would make the next one find the lock taken. A try returns before
		// the slower nodes have answered; closing its manager waits for them.
		nodes[:2].awaitFree(t, name)
		m := nodes.manager(t, cfg)
		if err := acquire(m); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("%s: err = %v, want ErrNoQuorum", what, err)
		}
		closeQuorum(t, m)
	}
	wantErr(t, errOf(m.Inspect(ctx, name)), ErrNoQuorum)
	nodes[:2].awaitFree(t, name)
	// An earlier waiter survives the outage.
	startNodes(t, servers[2:3])
	// A release that found no quorum may be repeated.
	await.True(t, "the release to reach a majority", func() bool {
		err := other.Release(ctx)
		return err == nil || errors.Is(err, ErrNotHeld)
	})
	l := awaitLock(t, waiter)
	if l.Fence() <= other.Fence() {
		t.Errorf("fence %d after %d", l.Fence(), other.Fence())
	}
	mustRelease(t, l)
	closeQuorum(t, m)
	nodes[:3].awaitFree(t, name)
	nodes[:3].awaitFree(t, l.Resource())
}

// Given a held lock, when two nodes are killed, then it is still renewed; when a third is killed, then
// it is lost by its deadline, while the remaining nodes still hold it.
func TestQuorum_KilledWhileHeld(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	m, other := nodes.manager(t, quorumBrisk), nodes.manager(t, quorumSlow)
	l := mustAcquire(t, m, name)
	nodes.awaitHeld(t, l)
	killNodes(t, servers[3:])
	end := time.Now().Add(quorumBrisk.TTL * 5 / 4)
	await.True(t, "it is renewed beyond its TTL", func() bool { return l.ValidUntil().After(end) })
	if l.Context().Err() != nil {
		t.Fatal("lost: ", context.Cause(l.Context()))
	}
	wantTaken(t, other, name)
	killNodes(t, servers[2:3])
	// No majority has set a TTL since, so a majority of keys may expire then.
	gone := time.Now()
	limit := gone.Add(quorumBrisk.TTL)
	wantCause(t, l, ErrLost)
	if !l.ValidUntil().Before(limit) {
		t.Errorf("valid for %s without a quorum, the TTL is %s", l.ValidUntil().Sub(gone), quorumBrisk.TTL)
	}
	values := nodes[:2].values(t, name)
	// The keys exist for 1 % of the TTL longer than the context. A later read, on a busy machine,
	// shows nothing.
	late := time.Now().After(l.ValidUntil().Add(quorumBrisk.TTL / 100))
	for i, v := range values {
		if v != l.GuardValue() && !late {
			t.Errorf("node %d holds %q when the context ends, want %q", i, v, l.GuardValue())
		}
	}
	wantErr(t, l.Release(ctx), ErrNoQuorum)
	nodes[:2].awaitFree(t, name)
}

// quorumHours has node timeouts that are longer than any test.
var quorumHours = Config{TTL: 3 * time.Hour, NodeTimeout: time.Hour, CallTimeout: time.Hour, Poll: 5 * time.Millisecond}

// Given two nodes that hang, with timeouts of an hour, when the lock is taken, extended and released,
// then no call waits for them. Calls that need all nodes end with their context. When the nodes
// continue, nothing is left on them.
func TestQuorum_MinorityHangs(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(context.Context, *Manager, *Lock) error{
		"Acquire": func(context.Context, *Manager, *Lock) error { return nil },
		"Extend":  func(ctx context.Context, _ *Manager, l *Lock) error { return l.Extend(ctx, 2*quorumHours.TTL) },
		"Inspect": func(ctx context.Context, m *Manager, l *Lock) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if _, err := m.Inspect(ctx, l.Resource()); ctx.Err() == nil {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers, nodes := realNodes(t)
			m := nodes.longManager(t, quorumHours)
			resume := pauseNodes(t, servers[3:])
			ctx, res := await.Context(t), resource(t)
			l := mustAcquire(t, m, res)
			done := make(chan error, 1)
			go func() { done <- use(ctx, m, l) }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience / 4):
				t.Error("it waits for nodes that hang")
				resume()
				t.Log("once they continue: ", <-done)
			}
			release, cancel := context.WithTimeout(ctx, patience/4)
			defer cancel()
			err := l.Release(release)
			if err != nil && !errors.Is(err, ErrNotHeld) {
				t.Error(err)
			}
			nodes[:3].awaitFree(t, res)
			resume()
			for _, rdb := range nodes[3:] {
				// It answers after the commands that it got while it was stopped.
				await.True(t, "the node answers", func() bool { return rdb.Ping(ctx).Err() == nil })
			}
			nodes.awaitFree(t, res)
			closeQuorum(t, m)
			nodes.awaitFree(t, res)
		})
	}
}

// longManager is manager with clients that have no timeouts of their own.
func (nodes quorumNodes) longManager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	var clients []redis.UniversalClient
	for _, rdb := range nodes {
		clients = append(clients, quorumClient(t, rdb.Options().Addr, func(o *redis.Options) {
			o.DialTimeout, o.ReadTimeout, o.WriteTimeout = time.Hour, time.Hour, time.Hour
		}))
	}
	return newQuorum(t, clients, cfg)
}

// Given three nodes that hang, when a client asks for the lock, then there is no quorum after
// NodeTimeout. When the nodes continue, no key of the try outlives the TTL, and the lock is available
// again.
func TestQuorum_MajorityHangs(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	cfg := Config{TTL: 3 * time.Second, NodeTimeout: time.Second, Poll: 5 * time.Millisecond}
	m := nodes.manager(t, cfg)
	mustRelease(t, mustAcquire(t, m, name)) // so that there are connections
	nodes.awaitFree(t, name)
	resume := pauseNodes(t, servers[2:])
	for what, acquire := range map[string]func(context.Context, string, ...Option) (*Lock, error){"try": m.TryAcquire, "acquire": m.Acquire} {
		nodes[:2].awaitFree(t, name) // of the previous try
		if _, err := acquire(ctx, name); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("%s: err = %v, want ErrNoQuorum", what, err)
		}
	}
	nodes[:2].awaitFree(t, name)
	resume()
	for _, rdb := range nodes[2:] {
		await.True(t, "the node answers", func() bool { return rdb.Ping(ctx).Err() == nil })
		if left := rdb.PTTL(ctx, mustKeys(t, name)[keyLock]).Val(); left > cfg.TTL {
			t.Errorf("a key lives for %s, the TTL is %s", left, cfg.TTL)
		}
	}
	nodes.awaitFree(t, name)
	l, err := m.Acquire(ctx, name)
	must(t, err)
	mustRelease(t, l)
}

// Given a lock whose TTL is shorter than NodeTimeout, when a minority hangs, then it is still renewed.
func TestQuorum_ShortTTLMinorityHangs(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	m := nodes.manager(t, Config{TTL: 30 * time.Second, NodeTimeout: 5 * time.Second, CallTimeout: 5 * time.Second})
	const ttl = 3600 * time.Millisecond
	l := mustAcquire(t, m, resource(t), WithTTL(ttl))
	nodes.awaitHeld(t, l)
	resume := pauseNodes(t, servers[:1])
	end := time.Now().Add(ttl * 5 / 4)
	await.True(t, "it is renewed or lost", func() bool { return l.Context().Err() != nil || l.ValidUntil().After(end) })
	if l.Context().Err() != nil {
		t.Errorf("lost although four of five nodes answer: %v", context.Cause(l.Context()))
	}
	resume()
	if err := l.Release(t.Context()); err != nil && !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
}

// Given nodes that answer after their timeout, when the lock is acquired or not, then locks that they
// granted too late are released.
func TestQuorum_LateNodes(t *testing.T) {
	t.Parallel()
	testLateNodes(t, 2)
}

// With a late majority, twice as many timeouts pass one after the other.
func TestQuorum_LateNodes_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testLateNodes(t, 3)
}

func testLateNodes(t *testing.T, late int) {
	const latency = 800 * time.Millisecond
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	var clients []redis.UniversalClient
	for i, rdb := range nodes {
		// A client that gives up after the first half of an exchange does not send the script.
		for _, script := range []*redis.Script{acquireScript, releaseScript, keepScript} {
			must(t, script.Load(ctx, rdb).Err())
		}
		if i >= late {
			clients = append(clients, quorumClient(t, rdb.Options().Addr, nil))
			continue
		}
		proxy := redistest.NewProxy(t, rdb.Options().Addr)
		c := quorumClient(t, proxy.Addr(), nil)
		// With an open connection the script is sent at once.
		must(t, c.Ping(ctx).Err())
		proxy.SetLatency(latency, latency)
		clients = append(clients, c)
	}
	// The release of a late lock is not repeated, so CallTimeout must not end it on a busy machine.
	m := newQuorum(t, clients, Config{TTL: 10 * time.Minute, NodeTimeout: 1500 * time.Millisecond, CallTimeout: patience})
	var l *Lock
	await.True(t, "a try ends as it must", func() bool {
		var err error
		l, err = m.TryAcquire(ctx, name)
		if late == 3 {
			if !errors.Is(err, ErrNoQuorum) {
				t.Fatalf("%d late: err = %v", late, err)
			}
			return true
		}
		// On a busy machine a node that is not delayed may be late, too; then the
		// next try may find the lock taken by this one.
		if err != nil && !errors.Is(err, ErrNoQuorum) && !errors.Is(err, ErrTaken) {
			t.Fatalf("%d late: err = %v", late, err)
		}
		return err == nil
	})
	if l != nil {
		mustRelease(t, l)
	}
	// The late nodes take the lock, as their fencing tokens show, and release it.
	for _, rdb := range nodes {
		await.True(t, "the node ran the script", func() bool {
			return rdb.Exists(ctx, mustKeys(t, name)[keyFence]).Val() == 1
		})
	}
	nodes.awaitFree(t, name)
	closeQuorum(t, m)
	nodes.awaitFree(t, name)
}

// Given an acquire that waits for the nodes' replies, when its wait limit ends, then it returns, and
// locks that the nodes grant afterwards are released.
func TestQuorum_EndsDuringCall(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients, held := nodes.clients(t), make(chan struct{})
	for _, c := range clients {
		c.AddHook(before(func([]redis.Cmder) { <-held }))
	}
	m := newQuorum(t, clients, quorumSlow)
	_, err := m.Acquire(ctx, name, WithWaitLimit(50*time.Millisecond))
	close(held)
	if !errors.Is(err, ErrWaitTimeout) {
		t.Errorf("err = %v, want ErrWaitTimeout", err)
	}
	closeQuorum(t, m)
	nodes.awaitFree(t, name)
	for i, rdb := range nodes {
		if quorumFence(t, rdb, name) == 0 {
			t.Errorf("node %d was not asked", i)
		}
	}
}

// Given a node that lost the lock, when the lock is released while the renewal that restores it there
// is in flight, then no key is left.
func TestQuorum_ReleasedDuringRestore(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients := nodes.clients(t)
	restoring, released := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(released) })
	defer letGo()
	var armed, keeps atomic.Int64
	clients[0].AddHook(before(func(cmds []redis.Cmder) {
		// The first finds the key gone, the second restores it.
		if armed.Load() == 1 && runs(cmds[0], keepScript) && keeps.Add(1) == 2 {
			close(restoring)
			<-released
		}
	}))
	m := newQuorum(t, clients, quorumSlow)
	nodes[3:].block(t, name) // so that the first three grant it, and none later
	l := mustAcquire(t, m, name)
	nodes[3:].forget(t, name)
	nodes[:3].awaitValue(t, name, l.GuardValue())
	must(t, l.Extend(ctx, quorumSlow.TTL))
	nodes.awaitValue(t, name, l.GuardValue()) // the last two were restored
	nodes[:1].forget(t, name)
	armed.Store(1)
	must(t, l.Extend(ctx, quorumSlow.TTL))
	receive(t, "the key is restored", restoring)
	check(t, l.Release(ctx))
	letGo()
	closeQuorum(t, m) // waits for background work
	if m.store.(*quorum).keep(ctx, l.h, 0, quorumSlow.TTL, true) {
		t.Error("a renewal that is later than the release restored the lock")
	}
	for i, v := range nodes.values(t, name) {
		if v != "" {
			t.Errorf("node %d holds %q after the release", i, v)
		}
	}
}

// Given a node to which the acquire is still in flight, when the lock is released, then the release
// waits for it there, and no key is left.
func TestQuorum_ReleasedDuringAcquire(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients, released := nodes.clients(t), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(released) })
	defer letGo()
	clients[0].AddHook(before(func(cmds []redis.Cmder) {
		if acquires(cmds[0]) {
			<-released
		}
	}))
	m := newQuorum(t, clients, quorumSlow)
	l := mustAcquire(t, m, name)
	check(t, l.Release(ctx))
	letGo()
	closeQuorum(t, m) // waits for background work
	nodes[:1].awaitValue(t, name, "")
	if quorumFence(t, nodes[0], name) == 0 {
		t.Error("the node was not asked")
	}
	if n := len(m.store.(*quorum).lanes); n != 0 {
		t.Errorf("%d lanes are left", n)
	}
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
