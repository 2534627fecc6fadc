package lock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Options and functions of the manager on a quorum; TestQuorum runs these.

// Given WithTTL and no watchdog, when the TTL has passed, then the lock is lost
// and its keys are gone; Extend makes it last longer on every node.
func quorumTTL(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m, key := nodes.manager(t, quorumSlow), mustKeys(t, name)[keyLock]
	l, err := m.Acquire(ctx, name, WithTTL(time.Minute), WithoutWatchdog())
	if err != nil {
		t.Fatal(err)
	}
	nodes.awaitHeld(t, l)
	for i, rdb := range nodes {
		if left := rdb.PTTL(ctx, key).Val(); left <= 0 || left > time.Minute {
			t.Errorf("node %d: the key lives for %s, want up to a minute", i, left)
		}
	}
	if err := l.Extend(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(l.ValidUntil()); left <= time.Minute {
		t.Errorf("valid for %s after Extend by an hour", left)
	}
	for i, rdb := range nodes {
		await.True(t, fmt.Sprintf("the key of node %d lives for an hour", i), func() bool { return rdb.PTTL(ctx, key).Val() > time.Minute })
	}
	mustRelease(t, l)
	nodes.awaitFree(t, name)

	short := mustAcquire(t, m, name, WithTTL(2*time.Second), WithoutWatchdog())
	ends(t, short)
	nodes.awaitFree(t, name)
	mustRelease(t, mustAcquire(t, m, name))
}

// Given a taken lock, when the wait limit ends, then the error is ErrWaitTimeout and the waiter leaves
// nothing behind; the holder is not affected.
func quorumWaitLimit(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m, other := nodes.manager(t, quorumSlow), nodes.manager(t, quorumSlow)
	l := mustAcquire(t, m, name)
	nodes.awaitHeld(t, l)
	if _, err := other.Acquire(ctx, name, WithWaitLimit(50*time.Millisecond)); !errors.Is(err, ErrWaitTimeout) {
		t.Fatalf("err = %v, want ErrWaitTimeout", err)
	}
	why := errors.New("no more interest")
	cancelled, cancel := context.WithCancelCause(ctx)
	waiter := acquireAsync(cancelled, other, name)
	cancel(why)
	if r := awaitResult(t, waiter); !errors.Is(r.err, ErrWaitTimeout) || !errors.Is(r.err, why) {
		t.Fatalf("err = %v, want ErrWaitTimeout and the cause", r.err)
	}
	nodes.awaitHeld(t, l)
	mustRelease(t, l)
	closeQuorum(t, other)
	nodes.awaitFree(t, name)
}

// Given a maximum hold, when it ends, then the lock ends and all nodes are free for the next holder.
func quorumMaxHold(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m := nodes.manager(t, quorumSlow)
	l, err := m.Acquire(ctx, name, WithMaxHold(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	next := acquireAsync(ctx, m, name)
	after := awaitLock(t, next)
	if cause := context.Cause(l.Context()); !errors.Is(cause, ErrMaxHold) {
		t.Errorf("cause = %v, want ErrMaxHold", cause)
	}
	if after.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", after.Fence(), l.Fence())
	}
	if err := l.Release(ctx); !errors.Is(err, ErrNotHeld) || !errors.Is(err, ErrMaxHold) {
		t.Errorf("release: err = %v, want ErrNotHeld and ErrMaxHold", err)
	}
	if held, err := after.Held(ctx); err != nil || !held {
		t.Errorf("the next holder's: held = %v, %v", held, err)
	}
	mustRelease(t, after)
	nodes.awaitFree(t, name)
}

// Given a held lock, when it is re-entered through its context, then no node is
// called, the fencing token stays, and the last release frees all nodes.
func quorumReentry(t *testing.T, nodes quorumNodes) {
	name := resource(t)
	clients, calls := nodes.clients(t), &linClient{}
	for _, c := range clients {
		c.AddHook(calls)
	}
	m := newQuorum(t, clients, quorumSlow)
	outer := mustAcquire(t, m, name)
	nodes.awaitHeld(t, outer)
	before := calls.calls.Load()
	inner, err := m.Acquire(outer.Context(), name, WithReentry(), WithWaitLimit(patience))
	if err != nil {
		t.Fatal(err)
	}
	if inner.Fence() != outer.Fence() || inner.Token() != outer.Token() {
		t.Errorf("re-entered as %s %d, want %s %d", inner.Token(), inner.Fence(), outer.Token(), outer.Fence())
	}
	mustRelease(t, outer)
	// The inner handle's context came from the outer one and ended with it.
	if cause := context.Cause(inner.Context()); !errors.Is(cause, ErrReleased) {
		t.Errorf("cause = %v, want ErrReleased", cause)
	}
	if n := calls.calls.Load() - before; n != 0 {
		t.Errorf("%d calls, want none", n)
	}
	nodes.awaitHeld(t, inner)
	mustRelease(t, inner)
	nodes.awaitFree(t, name)
}

// Given locks on all nodes, on some, and on too few, when they are inspected, then Info has the holder
// with its metadata and the number of its nodes.
func quorumInspect(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	cfg := quorumSlow
	cfg.Metadata = "host:7"
	m := nodes.manager(t, cfg)
	l := mustAcquire(t, m, name)
	nodes.awaitValue(t, name, l.GuardValue())
	for lost := range 3 {
		nodes[:lost].forget(t, name)
		info, err := m.Inspect(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if !info.Held || info.Holder.Token != l.Token() || info.Holder.Metadata != "host:7" || info.Fence != l.Fence() {
			t.Errorf("%d nodes lost: %+v", lost, info)
		}
		if info.Nodes != quorumSize-lost || info.Remaining <= 0 || info.Remaining > cfg.TTL || info.Resource != name {
			t.Errorf("%d nodes lost: %+v", lost, info)
		}
	}
	nodes[:3].forget(t, name)
	info, err := m.Inspect(ctx, name)
	if err != nil || info.Held || info.Nodes != 0 {
		t.Errorf("a minority holds it: %+v, %v", info, err)
	}
	if held, err := l.Held(ctx); err != nil || held {
		t.Errorf("a minority holds it: held = %v, %v", held, err)
	}
	if err := l.Release(ctx); !errors.Is(err, ErrNotHeld) {
		t.Errorf("release: err = %v, want ErrNotHeld", err)
	}
	nodes.awaitFree(t, name)
	info, err = m.Inspect(ctx, name)
	if err != nil || info.Held || info.Fence < l.Fence() {
		t.Errorf("free: %+v, %v, want the last fence %d", info, err, l.Fence())
	}
}

// takeMany takes the locks of n resources.
func takeMany(t *testing.T, m *Manager, n int) (locks []*Lock) {
	t.Helper()
	prefix := resource(t)
	for i := range n {
		locks = append(locks, mustAcquire(t, m, fmt.Sprint(prefix, i)))
	}
	return locks
}

func quorumReleaseAll(t *testing.T, nodes quorumNodes) {
	ctx := await.Context(t)
	m := nodes.manager(t, quorumSlow)
	locks := takeMany(t, m, 10)
	if n := len(m.Held()); n != len(locks) {
		t.Errorf("%d held, want %d", n, len(locks))
	}
	if err := m.ReleaseAll(ctx); err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrReleased) {
			t.Errorf("cause = %v, want ErrReleased", cause)
		}
		nodes.awaitFree(t, l.Resource())
	}
	mustRelease(t, mustAcquire(t, m, locks[0].Resource()))
}

// Given 50 held locks and a waiter, when the manager is closed, then no node has a key of them.
func quorumClose(t *testing.T, nodes quorumNodes) {
	ctx := await.Context(t)
	m, other := nodes.manager(t, quorumSlow), nodes.manager(t, quorumSlow)
	locks := takeMany(t, m, 50)
	foreign := mustAcquire(t, other, resource(t))
	waiter := acquireAsync(ctx, m, foreign.Resource())
	if err := m.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if r := awaitResult(t, waiter); !errors.Is(r.err, ErrClosed) {
		t.Errorf("waiter: err = %v, want ErrClosed", r.err)
	}
	if _, err := m.TryAcquire(ctx, resource(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("err = %v, want ErrClosed", err)
	}
	for _, l := range locks {
		if cause := context.Cause(l.Context()); !errors.Is(cause, ErrReleased) {
			t.Errorf("cause = %v, want ErrReleased", cause)
		}
		for i, rdb := range nodes {
			if n := traces(t, rdb, l.Resource()); n != 0 {
				t.Errorf("node %d: %d keys left after Close", i, n)
			}
		}
	}
	mustRelease(t, foreign)
}

// Given several resources, when they are taken together, then all of them are held or none.
func quorumAcquireAll(t *testing.T, nodes quorumNodes) {
	ctx := await.Context(t)
	m, other := nodes.manager(t, quorumSlow), nodes.manager(t, quorumSlow)
	names := []string{resource(t), resource(t), resource(t)}
	all, err := m.AcquireAll(ctx, names)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Release(ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		nodes.awaitFree(t, name)
	}
	one := mustAcquire(t, m, names[1])
	if _, err := other.AcquireAll(ctx, names, WithWaitLimit(100*time.Millisecond)); !errors.Is(err, ErrWaitTimeout) {
		t.Errorf("err = %v, want ErrWaitTimeout", err)
	}
	nodes.awaitFree(t, names[0])
	nodes.awaitFree(t, names[2])
	mustRelease(t, one)
}

// TestNewQuorum_Config: invalid settings are rejected, and defaults fit the given settings.
func TestNewQuorum_Config(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	nodes := make([]redis.UniversalClient, quorumSize)
	for i := range nodes {
		nodes[i] = quorumClient(t, fmt.Sprintf("127.0.0.1:%d", i+1), nil) // never dialled
	}
	for _, tc := range []struct {
		name  string
		nodes []redis.UniversalClient
		cfg   Config
		valid bool
	}{
		{"nothing set", nodes, Config{}, true},
		{"three nodes", nodes[:3], Config{}, true},
		{"an even number", nodes[:4], Config{}, true},
		{"no nodes", nil, Config{}, false},
		{"two nodes", nodes[:2], Config{}, false},
		{"one is nil", []redis.UniversalClient{nodes[0], nil, nodes[1]}, Config{}, false},
		{"one is twice", []redis.UniversalClient{nodes[0], nodes[1], nodes[0]}, Config{}, false},
		{"one address twice", []redis.UniversalClient{rdb, nodes[0], redistest.Second(t, rdb)}, Config{}, false},
		{"negative NodeTimeout", nodes, Config{NodeTimeout: -1}, false},
		{"NodeTimeout of a third of TTL", nodes, Config{TTL: 3 * time.Second, NodeTimeout: time.Second}, true},
		{"NodeTimeout beyond a third of TTL", nodes, Config{TTL: 3 * time.Second, NodeTimeout: time.Second + 1}, false},
		{"NodeTimeout of CallTimeout", nodes, Config{TTL: time.Minute, CallTimeout: time.Second, NodeTimeout: time.Second}, true},
		{"NodeTimeout beyond CallTimeout", nodes, Config{TTL: time.Minute, CallTimeout: time.Second, NodeTimeout: time.Second + 1}, false},
		{"least TTL", nodes, Config{TTL: 10 * time.Millisecond}, true},
		{"TTL too short", nodes, Config{TTL: 9 * time.Millisecond}, false},
		{"only a long TTL", nodes, Config{TTL: time.Minute}, true},
		{"only a short CallTimeout", nodes, Config{CallTimeout: 100 * time.Millisecond}, true},
		{"Poll beyond the claim", nodes, Config{Poll: time.Second}, false},
	} {
		m, err := NewQuorum(tc.nodes, tc.cfg)
		if (err == nil) != tc.valid || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: err = %v, want valid = %v", tc.name, err, tc.valid)
		}
		if m != nil {
			closeQuorum(t, m)
		}
	}
	if _, err := New(rdb, Config{NodeTimeout: time.Second}); !errors.Is(err, ErrInvalid) {
		t.Errorf("New with NodeTimeout: err = %v, want ErrInvalid", err)
	}
}
