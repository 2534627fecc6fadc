package lock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// inOwnTime is the function of that name for a quorum. It passes the hooks of the nodes.
func (nodes quorumNodes) inOwnTime(t *testing.T, cfg Config, test func(t *testing.T, m *Manager, f []*failing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clients, f := make([]redis.UniversalClient, len(nodes)), make([]*failing, len(nodes))
		for i, rdb := range nodes {
			own := untimedClient(rdb.Options().Addr)
			clients[i], f[i] = own, new(failing)
			own.AddHook(around(f[i].hook))
		}
		m, err := NewQuorum(clients, cfg)
		must(t, err)
		defer func() {
			closeQuorum(t, m)
			for _, own := range clients {
				check(t, own.Close())
			}
		}()
		test(t, m, f)
	})
}

// Given a waiter that gets a majority only after its TTL, then it gives the locks back, and its next try
// takes the lock.
func TestQuorum_Acquire_OutlastsTTL(t *testing.T) {
	t.Parallel()
	const ttl = time.Minute
	nodes, name := embeddedNodes(t), resource(t)
	cfg := Config{TTL: 24 * time.Hour, ClaimTTL: time.Hour, NodeTimeout: time.Hour, CallTimeout: time.Hour, Poll: ttl / 6}
	nodes.inOwnTime(t, cfg, func(t *testing.T, m *Manager, f []*failing) {
		nodes[:3].block(t, name)
		next := make(chan result, 1)
		go func() {
			l, err := m.Acquire(t.Context(), name, WithTTL(ttl), WithWaitLimit(4*ttl))
			next <- result{l, err}
		}()
		synctest.Wait() // the first try has found the lock taken
		nodes[:3].forget(t, name)
		for _, one := range f[:3] {
			slow := func(cmds []redis.Cmder) {
				if acquires(cmds[0]) {
					one.after.Store(nil)
					pass(ttl)
				}
			}
			one.after.Store(&slow)
		}
		mustRelease(t, awaitLock(t, next))
	})
}

// Given a try that failed, when its release arrives a second time after the next try has taken the lock,
// then the lock stays: each try has its own token.
func TestQuorum_Acquire_ReleaseArrivesLate(t *testing.T) {
	t.Parallel()
	nodes, name := embeddedNodes(t), resource(t)
	nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, f []*failing) {
		var release []any // of the first try on the last node
		after := func(cmds []redis.Cmder) {
			if releases(cmds[0]) && release == nil {
				release = cmds[0].Args()
			}
		}
		f[4].after.Store(&after)
		nodes[:3].block(t, name)
		next := acquireAsync(t.Context(), m, name)
		synctest.Wait() // the first try was refused, and is released
		nodes[:3].forget(t, name)
		l := awaitLock(t, next)
		synctest.Wait()
		must(t, nodes[4].Do(t.Context(), release...).Err())
		for i, v := range nodes.values(t, name) {
			if v != l.GuardValue() {
				t.Errorf("node %d holds %q, want %q", i, v, l.GuardValue())
			}
		}
		mustRelease(t, l)
	})
}

// Given three nodes that grant the lock, when one of them loses it, fails or hangs before it has stored the
// lock's fence, then no majority holds the lock, and nothing is left of the try.
func TestQuorum_Settle_Minority(t *testing.T) {
	t.Parallel()
	for what, want := range map[string]error{"Lost": ErrTaken, "Fails": ErrNoQuorum, "Hangs": context.DeadlineExceeded} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			nodes, name := embeddedNodes(t), resource(t)
			nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, f []*failing) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				nodes[3:].block(t, name)
				f[0].set(func(callCtx context.Context, cmds []redis.Cmder) error {
					switch {
					case !runs(cmds[0], keepScript):
						return nil
					case what == "Lost":
						return nodes[0].Del(t.Context(), mustKeys(t, name)[keyLock]).Err()
					case what == "Hangs":
						pass(2 * time.Minute)
					}
					return refuse(callCtx, cmds)
				})
				_, err := m.TryAcquire(ctx, name)
				wantErr(t, err, want)
				pass(2 * time.Minute)
				synctest.Wait()
				for i, v := range nodes[:3].values(t, name) {
					if v != "" {
						t.Errorf("node %d holds %q", i, v)
					}
				}
			})
		})
	}
}

// Given a lock that one node has lost, when a renewal reaches no majority, or another client has the lock
// there, then it is not restored on that node.
func TestQuorum_Extend_NotRestored(t *testing.T) {
	t.Parallel()
	nodes, name := embeddedNodes(t), resource(t)
	nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, f []*failing) {
		l := mustAcquire(t, m, name)
		synctest.Wait()
		nodes[:1].forget(t, name)
		for _, one := range f[1:3] {
			one.set(refuse)
		}
		wantErr(t, l.Extend(t.Context(), quorumSlow.TTL), ErrNoQuorum)
		synctest.Wait()
		if v := nodes[:1].values(t, name)[0]; v != "" {
			t.Errorf("the node holds %q", v)
		}
		nodes[:1].block(t, name)
		if m.store.(*quorum).keep(t.Context(), l.h, 0, quorumSlow.TTL, true) {
			t.Error("the lock was restored on a node where another client has it")
		}
		if v := nodes[:1].values(t, name)[0]; v != "stranger" {
			t.Errorf("the node holds %q, want another client's value", v)
		}
		for _, one := range f[1:3] {
			one.how.Store(nil)
		}
		mustRelease(t, l)
	})
}

// Given a node that stores a greater fencing token than that of the lock, when the lock is renewed, then
// the stored token stays.
func TestQuorum_Extend_FenceStays(t *testing.T) {
	t.Parallel()
	nodes, name := embeddedNodes(t), resource(t)
	nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, _ []*failing) {
		l := mustAcquire(t, m, name)
		synctest.Wait()
		greater := l.Fence() + 1
		must(t, nodes[0].Set(t.Context(), mustKeys(t, name)[keyFence], greater, time.Hour).Err())
		check(t, l.Extend(t.Context(), quorumSlow.TTL))
		synctest.Wait()
		if got := quorumFence(t, nodes[0], name); got != greater {
			t.Errorf("the node stores %d, want %d", got, greater)
		}
		mustRelease(t, l)
	})
}

// Given a lock that two nodes have lost and two still have, when the fifth cannot be reached, then the
// release succeeds: a majority may have held the lock.
func TestQuorum_Release_Undecided(t *testing.T) {
	t.Parallel()
	nodes, name := embeddedNodes(t), resource(t)
	nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, f []*failing) {
		l := mustAcquire(t, m, name)
		synctest.Wait()
		nodes[:2].forget(t, name)
		f[2].set(refuse)
		mustRelease(t, l)
	})
}

// Given nodes that hang, when the context of an extension ends before any of them has replied, then the
// lock stays held.
func TestQuorum_Extend_NoReply(t *testing.T) {
	t.Parallel()
	nodes, name := embeddedNodes(t), resource(t)
	nodes.inOwnTime(t, quorumSlow, func(t *testing.T, m *Manager, f []*failing) {
		l := mustAcquire(t, m, name)
		for _, one := range f {
			one.set(func(context.Context, []redis.Cmder) error {
				pass(2 * time.Minute)
				return nil
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantErr(t, l.Extend(ctx, quorumSlow.TTL), ErrNoQuorum, context.DeadlineExceeded)
		if cause := context.Cause(l.Context()); cause != nil {
			t.Errorf("the lock has ended: %v", cause)
		}
		for _, one := range f {
			one.how.Store(nil)
		}
		mustRelease(t, l)
	})
}
