package lock

import (
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
	must(t, err)
	nodes.awaitHeld(t, l)
	for i, rdb := range nodes {
		if left := rdb.PTTL(ctx, key).Val(); left <= 0 || left > time.Minute {
			t.Errorf("node %d: the key lives for %s, want up to a minute", i, left)
		}
	}
	must(t, l.Extend(ctx, time.Hour))
	if left := time.Until(l.ValidUntil()); left <= time.Minute {
		t.Errorf("valid for %s after Extend by an hour", left)
	}
	for i, rdb := range nodes {
		await.True(t, fmt.Sprintf("the key of node %d lives for an hour", i), func() bool { return rdb.PTTL(ctx, key).Val() > time.Minute })
	}
	mustRelease(t, l)
	nodes.awaitFree(t, name)

	short := mustAcquire(t, m, name, WithTTL(2*time.Second), WithoutWatchdog())
	wantCause(t, short, ErrLost)
	nodes.awaitFree(t, name)
	mustRelease(t, mustAcquire(t, m, name))
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
		must(t, err)
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
	wantHeld(t, l, false)
	wantErr(t, l.Release(ctx), ErrNotHeld)
	nodes.awaitFree(t, name)
	info, err = m.Inspect(ctx, name)
	if err != nil || info.Held || info.Fence < l.Fence() {
		t.Errorf("free: %+v, %v, want the last fence %d", info, err, l.Fence())
	}
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
	wantErr(t, errOf(New(rdb, Config{NodeTimeout: time.Second})), ErrInvalid)
}
