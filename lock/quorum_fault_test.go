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
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

func killNodes(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

func startNodes(t *testing.T, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

// pauseNodes stops nodes, and lets them go on when the test ends, before its
// managers are closed.
func pauseNodes(t *testing.T, servers []*redistest.Server) (resume func()) {
	t.Helper()
	for _, s := range servers {
		if err := s.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	resume = sync.OnceFunc(func() {
		for _, s := range servers {
			if err := s.Continue(); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(resume)
	return resume
}

// Given two of five nodes killed, when the lock is taken, extended and
// released, then all of it works and others are excluded. When these two come
// back empty and two others go, then the fencing token still rises, though but
// one node has seen the former.
func TestQuorum_MinorityKilled(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	m, other := nodes.manager(t, quorumSlow), nodes.manager(t, quorumSlow)
	const ahead = int64(5e15)
	if err := nodes[0].Set(ctx, mustKeys(t, name)[keyFence], ahead, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	killNodes(t, servers[3:])
	l := mustAcquire(t, m, name)
	if l.Fence() <= ahead {
		t.Errorf("fence %d, want more than the stored %d", l.Fence(), ahead)
	}
	nodes[:3].awaitValue(t, name, l.GuardValue())
	if _, err := other.TryAcquire(ctx, name); !errors.Is(err, ErrTaken) {
		t.Errorf("err = %v, want ErrTaken", err)
	}
	if _, err := other.Acquire(ctx, name, WithWaitLimit(50*time.Millisecond)); !errors.Is(err, ErrWaitTimeout) {
		t.Errorf("err = %v, want ErrWaitTimeout", err)
	}
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

// Given three of five nodes killed, when the lock is asked for, then there is
// no quorum, and the other two are left with nothing.
func TestQuorum_MajorityKilled(t *testing.T) {
	t.Parallel()
	servers, nodes := realNodes(t)
	ctx, name := await.Context(t), resource(t)
	cfg := quorumSlow
	cfg.NodeTimeout = 2 * time.Second // then what could not be given back is so soon
	cfg.Poll = 25 * time.Millisecond
	m := nodes.manager(t, cfg)
	before := mustAcquire(t, m, name)
	nodes.awaitHeld(t, before)
	other := mustAcquire(t, m, resource(t))
	waiter := acquireAsync(ctx, m, other.Resource())
	killNodes(t, servers[2:])
	if err := before.Extend(ctx, time.Minute); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("extend: err = %v, want ErrNoQuorum", err)
	}
	if before.Context().Err() != nil {
		t.Error("an extension without a quorum ended the lock before its deadline")
	}
	if err := before.Release(ctx); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("release: err = %v, want ErrNoQuorum", err)
	}
	for what, acquire := range map[string]func() error{
		"try":         func() error { _, err := m.TryAcquire(ctx, name); return err },
		"acquire":     func() error { _, err := m.Acquire(ctx, name); return err },
		"acquire all": func() error { _, err := m.AcquireAll(ctx, []string{name, resource(t)}); return err },
	} {
		// What is left of one try would make the next one find it taken.
		nodes[:2].awaitFree(t, name)
		if err := acquire(); !errors.Is(err, ErrNoQuorum) {
			t.Errorf("%s: err = %v, want ErrNoQuorum", what, err)
		}
	}
	if _, err := m.Inspect(ctx, name); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("inspect: err = %v, want ErrNoQuorum", err)
	}
	if _, err := m.ForceRelease(ctx, name, "try"); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("force: err = %v, want ErrNoQuorum", err)
	}
	nodes[:2].awaitFree(t, name)
	// Who waited before outlasts the interruption.
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

// Given a held lock, when two nodes are killed, then it is renewed as before;
// when a third is, then it is lost by its deadline, while the nodes that are
// left still hold it.
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
	if _, err := other.TryAcquire(ctx, name); !errors.Is(err, ErrTaken) {
		t.Errorf("err = %v, want ErrTaken", err)
	}
	killNodes(t, servers[2:3])
	// No majority has set a TTL since, so a majority of keys may expire then.
	gone := time.Now()
	limit := gone.Add(quorumBrisk.TTL)
	ends(t, l)
	if !l.ValidUntil().Before(limit) {
		t.Errorf("valid for %s without a quorum, the TTL is %s", l.ValidUntil().Sub(gone), quorumBrisk.TTL)
	}
	values := nodes[:2].values(t, name)
	// The keys live 1 % of the TTL longer than the context: a look that comes later
	// on a busy machine tells nothing.
	late := time.Now().After(l.ValidUntil().Add(quorumBrisk.TTL / 100))
	for i, v := range values {
		if v != l.GuardValue() && !late {
			t.Errorf("node %d holds %q when the context ends, want %q", i, v, l.GuardValue())
		}
	}
	if err := l.Release(ctx); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("release: err = %v, want ErrNoQuorum", err)
	}
	nodes[:2].awaitFree(t, name)
}

// quorumHours lets a node's silence last for longer than any test.
var quorumHours = Config{TTL: 3 * time.Hour, NodeTimeout: time.Hour, CallTimeout: time.Hour, Poll: 5 * time.Millisecond}

// Given two nodes that hang, with time-outs of an hour, when the lock is taken,
// extended and released, then nothing waits for them; what asks all nodes ends
// with its context; and when they go on, nothing stays behind on them.
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
		"ForceRelease": func(ctx context.Context, m *Manager, l *Lock) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			if _, err := m.ForceRelease(ctx, l.Resource(), "try"); ctx.Err() == nil {
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
				t.Log("once they go on: ", <-done)
			}
			// The time for ForceRelease may have ended when some nodes had released the lock.
			// Then the answers of the nodes that hang decide whether it was held.
			release, cancel := context.WithTimeout(ctx, patience/4)
			defer cancel()
			err := l.Release(release)
			split := name == "ForceRelease" && release.Err() != nil
			if err != nil && !errors.Is(err, ErrNotHeld) && !split {
				t.Error(err)
			}
			nodes[:3].awaitFree(t, res)
			resume()
			for _, rdb := range nodes[3:] {
				// It answers behind what was sent to it while it was stopped.
				await.True(t, "the node answers", func() bool { return rdb.Ping(ctx).Err() == nil })
			}
			nodes.awaitFree(t, res)
			closeQuorum(t, m)
			nodes.awaitFree(t, res)
		})
	}
}

// longManager is manager with clients that do not give up on their own.
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

// Given three nodes that hang, when the lock is asked for, then there is no
// quorum once they have had their time; when they go on, no key of it outlives
// the TTL, and the lock can be had again.
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
		nodes[:2].awaitFree(t, name) // of the try before
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
	if err != nil {
		t.Fatal(err)
	}
	mustRelease(t, l)
}

// Given a lock whose TTL is shorter than a node may take to answer, when a
// minority hangs, then it is renewed all the same.
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

// Given nodes that answer later than their time-out allows, when the lock is
// taken or not had, then what they granted too late is given back.
func TestQuorum_LateNodes(t *testing.T) {
	t.Parallel()
	testLateNodes(t, 2)
}

// With a majority that is late, twice as many time-outs pass one after the other.
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
		// Who gives up after the first half of an exchange sends no script in full.
		for _, script := range []*redis.Script{acquireScript, releaseScript, keepScript} {
			if err := script.Load(ctx, rdb).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if i >= late {
			clients = append(clients, quorumClient(t, rdb.Options().Addr, nil))
			continue
		}
		proxy := redistest.NewProxy(t, rdb.Options().Addr)
		c := quorumClient(t, proxy.Addr(), nil)
		// With a connection that is up the script is on its way at once.
		if err := c.Ping(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		proxy.SetLatency(latency, latency)
		clients = append(clients, c)
	}
	m := newQuorum(t, clients, Config{TTL: 10 * time.Minute, NodeTimeout: 1500 * time.Millisecond, CallTimeout: 6 * time.Second})
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
	// The late nodes take it, as their fencing tokens show, and are freed.
	for _, rdb := range nodes {
		await.True(t, "the node ran the script", func() bool {
			return rdb.Exists(ctx, mustKeys(t, name)[keyFence]).Val() == 1
		})
	}
	nodes.awaitFree(t, name)
	closeQuorum(t, m)
	nodes.awaitFree(t, name)
}

// nodeHook is a go-redis hook that runs before the commands of one client; it
// may hold them up.
type nodeHook func(cmds ...redis.Cmder)

func (h nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h nodeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd)
		return next(ctx, cmd)
	}
}

func (h nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h(cmds...)
		return next(ctx, cmds)
	}
}

// Given an acquire that waits for the nodes' answers, when its wait limit ends,
// then it returns, and what the nodes granted afterwards is given back.
func TestQuorum_EndsDuringCall(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients, held := nodes.clients(t), make(chan struct{})
	for _, c := range clients {
		c.AddHook(nodeHook(func(...redis.Cmder) { <-held }))
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

// Given a node that forgot the lock, when the renewal that puts it back there
// is on its way and the lock is released, then it does not stay behind.
func TestQuorum_ReleasedDuringRestore(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients := nodes.clients(t)
	restoring, released := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(released) })
	defer letGo()
	var armed, keeps atomic.Int64
	clients[0].AddHook(nodeHook(func(cmds ...redis.Cmder) {
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
	if err := l.Extend(ctx, quorumSlow.TTL); err != nil {
		t.Fatal(err)
	}
	nodes.awaitValue(t, name, l.GuardValue()) // the last two were restored
	nodes[:1].forget(t, name)
	armed.Store(1)
	if err := l.Extend(ctx, quorumSlow.TTL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-restoring:
	case <-ctx.Done():
		t.Fatal("the key was not put back")
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
	letGo()
	closeQuorum(t, m) // waits for what goes on in the background
	for i, v := range nodes.values(t, name) {
		if v != "" {
			t.Errorf("node %d holds %q after the release", i, v)
		}
	}
}

// Given a node where the acquire is still on its way, when the lock is released,
// then the release waits for it there, and the key does not stay behind.
func TestQuorum_ReleasedDuringAcquire(t *testing.T) {
	t.Parallel()
	nodes := embeddedNodes(t)
	ctx, name := await.Context(t), resource(t)
	clients, released := nodes.clients(t), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(released) })
	defer letGo()
	clients[0].AddHook(nodeHook(func(cmds ...redis.Cmder) {
		if runs(cmds[0], acquireScript) {
			<-released
		}
	}))
	m := newQuorum(t, clients, quorumSlow)
	l := mustAcquire(t, m, name)
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
	letGo()
	closeQuorum(t, m) // waits for what goes on in the background
	nodes[:1].awaitValue(t, name, "")
	if quorumFence(t, nodes[0], name) == 0 {
		t.Error("the node was not asked")
	}
}
