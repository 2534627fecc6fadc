package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

// quorumSize is the number of nodes in the tests; three are a majority.
const quorumSize = 5

// quorumSlow are settings under which nothing expires within a test's patience,
// and calls to nodes that answer never time out.
var quorumSlow = Config{TTL: 20 * time.Minute, NodeTimeout: patience, CallTimeout: patience, Poll: 5 * time.Millisecond}

// quorumBrisk are settings under which locks are renewed within five seconds, and survive a scheduling
// delay of ten.
var quorumBrisk = Config{TTL: 15 * time.Second, NodeTimeout: 5 * time.Second, CallTimeout: 10 * time.Second, Poll: 5 * time.Millisecond}

// quorumNodes are clients of independent nodes.
type quorumNodes []*redis.Client

func embeddedNodes(t *testing.T) quorumNodes {
	t.Helper()
	var nodes quorumNodes
	for range quorumSize {
		nodes = append(nodes, quorumClient(t, redistest.Embedded(t).Options().Addr, nil))
	}
	return nodes
}

// realNodes starts redis-servers without durability, as their own processes.
func realNodes(t *testing.T) ([]*redistest.Server, quorumNodes) {
	t.Helper()
	var servers []*redistest.Server
	var nodes quorumNodes
	for range quorumSize {
		s := redistest.Real(t, "--appendonly", "no")
		rdb := quorumClient(t, s.Addr(), nil)
		servers, nodes = append(servers, s), append(nodes, rdb)
	}
	return servers, nodes
}

// clients are separate connections to the same nodes. They report a refused connection at once instead
// of dialling several times.
func (nodes quorumNodes) clients(t *testing.T) []redis.UniversalClient {
	t.Helper()
	var clients []redis.UniversalClient
	for _, rdb := range nodes {
		clients = append(clients, quorumClient(t, rdb.Options().Addr, nil))
	}
	return clients
}

func quorumClient(t *testing.T, addr string, change func(*redis.Options)) *redis.Client {
	t.Helper()
	opts := redistest.Options(addr)
	opts.DialerRetries = 1
	// The context that a manager has for each call bounds it.
	opts.ReadTimeout, opts.WriteTimeout = patience, patience
	// After so many failed dials a pool would answer from memory for a second,
	// on a goroutine that outlives it.
	opts.PoolSize, opts.PipelinePoolSize = 1<<14, 1<<14
	if change != nil {
		change(opts)
	}
	c := redis.NewClient(opts)
	closeAtEnd(t, c)
	return c
}

// manager returns a manager on all nodes that is closed when the test ends.
func (nodes quorumNodes) manager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	return newQuorum(t, nodes.clients(t), cfg)
}

func newQuorum(t *testing.T, clients []redis.UniversalClient, cfg Config) *Manager {
	t.Helper()
	m, err := NewQuorum(clients, cfg)
	must(t, err)
	t.Cleanup(func() { closeQuorum(t, m) })
	return m
}

// closeQuorum also waits for all background work.
func closeQuorum(t *testing.T, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := m.Close(ctx); err != nil && !errors.Is(err, ErrNoQuorum) {
		t.Errorf("close: %v", err)
	}
}

// values returns the value of the lock's key on each node, "" without one.
func (nodes quorumNodes) values(t *testing.T, name string) []string {
	t.Helper()
	values := make([]string, len(nodes))
	for i, rdb := range nodes {
		v, err := rdb.Get(t.Context(), mustKeys(t, name)[keyLock]).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatalf("node %d: %v", i, err)
		}
		values[i] = v
	}
	return values
}

// awaitValue waits until the lock's key has this value on all of the nodes.
func (nodes quorumNodes) awaitValue(t *testing.T, name, want string) {
	t.Helper()
	await.True(t, fmt.Sprintf("all nodes hold %q", want), func() bool {
		for _, v := range nodes.values(t, name) {
			if v != want {
				return false
			}
		}
		return true
	})
}

// awaitHeld waits until all of the nodes have granted the lock.
func (nodes quorumNodes) awaitHeld(t *testing.T, l *Lock) {
	t.Helper()
	await.True(t, "all nodes hold the lock", func() bool {
		for _, v := range nodes.values(t, l.Resource()) {
			if !strings.HasPrefix(v, l.Token()+":") {
				return false
			}
		}
		return true
	})
}

// awaitFree waits until no node has a trace of a holder.
func (nodes quorumNodes) awaitFree(t *testing.T, name string) {
	t.Helper()
	for _, rdb := range nodes {
		awaitNoTrace(t, rdb, name)
	}
}

// forget deletes all keys of the resource on these nodes.
func (nodes quorumNodes) forget(t *testing.T, name string) {
	t.Helper()
	for _, rdb := range nodes {
		must(t, rdb.Del(t.Context(), mustKeys(t, name)[:]...).Err())
	}
}

// block writes a foreign key in place of the lock.
func (nodes quorumNodes) block(t *testing.T, name string) {
	t.Helper()
	for _, rdb := range nodes {
		must(t, rdb.Set(t.Context(), mustKeys(t, name)[keyLock], "stranger", time.Hour).Err())
	}
}

// fence is the last fencing token that a node has stored.
func quorumFence(t *testing.T, rdb *redis.Client, name string) int64 {
	t.Helper()
	text, err := rdb.Get(t.Context(), mustKeys(t, name)[keyFence]).Result()
	must(t, err)
	// A single Redis marks it while there are waiters.
	fence, err := strconv.ParseInt(strings.TrimSuffix(text, "w"), 10, 64)
	must(t, err)
	return fence
}

// TestQuorum runs the tests that kill no processes, on five redis-servers. What a quorum has in common with a
// single Redis is in TestConformance.
func TestQuorum(t *testing.T) {
	t.Parallel()
	_, nodes := realNodes(t)
	for name, test := range map[string]func(*testing.T, quorumNodes){
		"Emptied": quorumEmptied, "EmptiedMajority": quorumEmptiedMajority, "Strangers": quorumStrangers, "ForeignType": quorumForeignType,
		"Fence": quorumFences, "LateGrants": quorumLateGrants, "SplitVotes": quorumSplitVotes, "Inspect": quorumInspect,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, nodes)
		})
	}
}

func TestQuorum_Contention_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	_, nodes := realNodes(t)
	// Polling takes longer than a try, or the votes split forever.
	mutualExclusion(t, &specPlace{nodes: nodes.clients(t), poll: 40 * time.Millisecond}, 2, 4, 13)
}

// Given a held lock, when one or two nodes lose it, then the next renewal restores the same key there,
// including fencing token and metadata.
func quorumEmptied(t *testing.T, nodes quorumNodes) {
	for _, emptied := range []quorumNodes{nodes[:1], nodes[3:]} {
		ctx, name := await.Context(t), resource(t)
		m := nodes.manager(t, quorumSlow)
		l, err := m.Acquire(ctx, name, withMetadata("of host:7"))
		must(t, err)
		nodes.awaitValue(t, name, l.GuardValue())
		emptied.forget(t, name)
		await.True(t, "a renewal restores it", func() bool {
			renewNow(l)
			return !slices.ContainsFunc(nodes.values(t, name), func(v string) bool { return v != l.GuardValue() })
		})
		if !strings.HasSuffix(l.GuardValue(), ":of host:7") {
			t.Errorf("value %q without its metadata", l.GuardValue())
		}
		for i, rdb := range nodes {
			if got := quorumFence(t, rdb, name); got < l.Fence() {
				t.Errorf("node %d stores fence %d, the lock has %d", i, got, l.Fence())
			}
			if left := rdb.PTTL(ctx, mustKeys(t, name)[keyLock]).Val(); left <= 0 || left > quorumSlow.TTL {
				t.Errorf("node %d: the key lives for %s", i, left)
			}
		}
		if l.Context().Err() != nil {
			t.Fatal("lost: ", context.Cause(l.Context()))
		}
		mustRelease(t, l)
		nodes.awaitFree(t, name)
	}
}

// Given a held lock, when a majority loses it, then it is lost at the next renewal and not restored:
// another client may hold it.
func quorumEmptiedMajority(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m := nodes.manager(t, quorumSlow)
	l := mustAcquire(t, m, name)
	nodes.awaitHeld(t, l)
	nodes[:3].forget(t, name)
	wantErr(t, l.Extend(ctx, quorumSlow.TTL), ErrLost, ErrNotHeld)
	wantCause(t, l, ErrLost)
	closeQuorum(t, m) // no background work is left after this
	for i, v := range nodes[:3].values(t, name) {
		if v != "" {
			t.Errorf("node %d got %q", i, v)
		}
	}
	wantErr(t, l.Release(ctx), ErrNotHeld, ErrLost)
	nodes.awaitFree(t, name)
}

// Given foreign keys in place of the lock, when they are on a minority, then the lock is acquired
// without these nodes; on a majority it is taken until they are gone. The foreign keys are not changed.
func quorumStrangers(t *testing.T, nodes quorumNodes) {
	ctx := await.Context(t)
	m := nodes.manager(t, quorumSlow)
	for n := range 3 {
		name := resource(t)
		nodes[:n].block(t, name)
		l := mustAcquire(t, m, name)
		nodes[n:].awaitHeld(t, l)
		nodes[:n].awaitValue(t, name, "stranger")
		if err := l.Extend(ctx, 2*quorumSlow.TTL); err != nil {
			t.Errorf("%d foreign keys: %v", n, err)
		}
		nodes[n:].awaitValue(t, name, l.GuardValue())
		mustRelease(t, l)
		nodes[n:].awaitFree(t, name)
		nodes[:n].awaitValue(t, name, "stranger")
	}
	name := resource(t)
	nodes[:3].block(t, name)
	wantTaken(t, m, name)
	nodes[3:].awaitFree(t, name)
	nodes[:3].awaitValue(t, name, "stranger")
	next := acquireAsync(ctx, m, name)
	nodes[:1].forget(t, name)
	l := awaitLock(t, next)
	mustRelease(t, l)
	nodes[3:].awaitFree(t, name)
}

// Given keys of another type in place of the lock, when they are on one node, then that node does not count: the lock
// is free or taken. On a majority the error is ErrForeignKey. The foreign keys are not changed.
func quorumForeignType(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m, key := nodes.manager(t, quorumSlow), mustKeys(t, name)[keyLock]
	foreign := func(i int) { must(t, nodes[i].RPush(ctx, key, "x").Err()) }
	foreign(0)
	l := mustAcquire(t, m, name)
	nodes[1:].awaitHeld(t, l) // a call that arrives after the release would take the key again
	for range 20 {            // the order of the replies is random
		if _, err := m.TryAcquire(ctx, name); !errors.Is(err, ErrTaken) || errors.Is(err, ErrForeignKey) {
			t.Fatalf("try: err = %v, want ErrTaken", err)
		}
	}
	if info, err := m.Inspect(ctx, name); err != nil || info.Holder.Token != l.Token() {
		t.Errorf("inspect: %+v, err = %v", info, err)
	}
	next := acquireAsync(ctx, m, name)
	mustRelease(t, l)
	mustRelease(t, awaitLock(t, next))
	nodes[1:].awaitFree(t, name)
	if info, err := m.Inspect(ctx, name); err != nil || info.Held {
		t.Errorf("inspect while it is free: %+v, err = %v", info, err)
	}
	// Two foreign keys would leave a majority.
	foreign(1)
	nodes[2:3].block(t, name)
	wantTaken(t, m, name)
	nodes[2:3].forget(t, name)
	nodes[2:].awaitFree(t, name)
	foreign(2)
	for range 5 {
		// A call of an earlier try may still arrive at a node, which then counts as taken.
		await.True(t, "ErrForeignKey", func() bool {
			_, err := m.TryAcquire(ctx, name)
			if !errors.Is(err, ErrForeignKey) && !errors.Is(err, ErrTaken) {
				t.Fatalf("try: err = %v, want ErrForeignKey", err)
			}
			nodes[3:].awaitFree(t, name)
			return errors.Is(err, ErrForeignKey)
		})
	}
	wantErr(t, errOf(m.Acquire(ctx, name)), ErrForeignKey)
	wantErr(t, errOf(m.Inspect(ctx, name)), ErrForeignKey)
	nodes[3:].awaitFree(t, name)
	for i, rdb := range nodes[:3] {
		if n := rdb.LLen(ctx, key).Val(); n != 1 {
			t.Errorf("node %d: %d elements in the foreign list", i, n)
		}
	}
}

// Given nodes that stored different fencing tokens, one far ahead, when the lock is taken, then every
// node that granted it holds the greatest; any other majority shares a node with the first, and mints a
// greater one.
func quorumFences(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m, k := nodes.manager(t, quorumSlow), mustKeys(t, name)
	const ahead = int64(5e15) // some decades ahead of the clock, below 2^53
	for i, fence := range []int64{ahead, 7, 1e15} {
		must(t, nodes[i].Set(ctx, k[keyFence], fence, time.Hour).Err())
	}
	nodes[3:].block(t, name) // so that the first three must grant it
	first := mustAcquire(t, m, name)
	if first.Fence() != ahead+1 {
		t.Errorf("fence %d, want the one behind %d", first.Fence(), ahead)
	}
	for i, rdb := range nodes[:3] {
		// The lock counts only once they all have it, so the test need not wait.
		if v := rdb.Get(ctx, k[keyLock]).Val(); v != first.GuardValue() {
			t.Errorf("node %d holds %q, want %q", i, v, first.GuardValue())
		}
		if got := quorumFence(t, rdb, name); got != first.Fence() {
			t.Errorf("node %d stores %d, want %d", i, got, first.Fence())
		}
		wantDay(t, rdb, name)
	}
	mustRelease(t, first)
	nodes[:3].awaitFree(t, name)

	nodes[3:].forget(t, name) // the foreign key
	nodes[:2].block(t, name)
	second := mustAcquire(t, m, name)
	if second.Fence() <= first.Fence() {
		t.Errorf("fence %d of the other majority after %d", second.Fence(), first.Fence())
	}
	for i, rdb := range nodes[2:] {
		if got := quorumFence(t, rdb, name); got != second.Fence() {
			t.Errorf("node %d stores %d, want %d", i+2, got, second.Fence())
		}
	}
	mustRelease(t, second)
}

// Given nodes that stored different fencing tokens, when the lock is taken, then the nodes that acquire
// did not wait for have its fencing token soon, before a renewal: otherwise the guard would refuse the
// holder there.
func quorumLateGrants(t *testing.T, nodes quorumNodes) {
	ctx, name := await.Context(t), resource(t)
	m, k := nodes.manager(t, quorumSlow), mustKeys(t, name)
	for i, rdb := range nodes {
		must(t, rdb.Set(ctx, k[keyFence], int64(4e15)+int64(i), time.Hour).Err())
	}
	l := mustAcquire(t, m, name)
	nodes.awaitHeld(t, l)
	nodes.awaitValue(t, name, l.GuardValue())
	for i, rdb := range nodes {
		if got := quorumFence(t, rdb, name); got < l.Fence() {
			t.Errorf("node %d stores fence %d, the lock has %d", i, got, l.Fence())
		}
	}
	mustRelease(t, l)
}

// Given several clients that ask for the same lock at the same moment, when their votes split, then they
// retry until each has held it.
func quorumSplitVotes(t *testing.T, nodes quorumNodes) {
	const contenders, rounds = 4, 4
	ctx := await.Context(t)
	var managers []*Manager
	for range contenders {
		managers = append(managers, nodes.manager(t, quorumSlow))
	}
	for range rounds {
		name := resource(t)
		start := make(chan struct{})
		var served atomic.Int64
		var all sync.WaitGroup
		for _, m := range managers {
			all.Go(func() {
				<-start
				err := m.Do(ctx, name, func(context.Context, *Lock) error { served.Add(1); return nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(start)
		all.Wait()
		if n := served.Load(); n != contenders {
			t.Errorf("%d served, want %d", n, contenders)
		}
		nodes.awaitFree(t, name)
	}
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
}
