package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/longtest"
	"flashsale/internal/testing/redistest"
)

// witness checks all holdings of several managers in this process.
type witness struct {
	mu      sync.Mutex
	holders map[string]*Lock
	fences  map[string]int64
	writes  map[string][]fencedWrite
	entered int
}

// fencedWrite is a write that the guard accepted, with the time of Redis's clock.
type fencedWrite struct{ at, fence int64 }

func newWitness() *witness {
	return &witness{holders: map[string]*Lock{}, fences: map[string]int64{}, writes: map[string][]fencedWrite{}}
}

// enter records the start of the use of a lock.
func (w *witness) enter(t *testing.T, l *Lock) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if !l.ValidUntil().After(now) {
		return // it has ended before its user got to run
	}
	w.entered++
	name := l.Resource()
	if other := w.holders[name]; other != nil && other.ValidUntil().After(now) {
		t.Errorf("fence %d holds the lock together with fence %d", l.Fence(), other.Fence())
	}
	if l.Fence() <= w.fences[name] {
		t.Errorf("fence %d after %d", l.Fence(), w.fences[name])
	}
	w.holders[name], w.fences[name] = l, l.Fence()
}

func (w *witness) wrote(l *Lock, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes[l.Resource()] = append(w.writes[l.Resource()], fencedWrite{at, l.Fence()})
}

// leave records that a lock is about to be released.
func (w *witness) leave(l *Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holders[l.Resource()] == l {
		delete(w.holders, l.Resource())
	}
}

func (w *witness) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entered
}

// check fails if the writes of a resource overlap: by the clock of Redis, no fence may
// follow a greater one.
func (w *witness) check(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, writes := range w.writes {
		slices.SortFunc(writes, func(a, b fencedWrite) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.fence, b.fence))
		})
		for i := 1; i < len(writes); i++ {
			if writes[i].fence < writes[i-1].fence {
				t.Errorf("%s: a write with fence %d after one with %d", name, writes[i].fence, writes[i-1].fence)
			}
		}
	}
}

// TestManager_ScriptFlushUnderLoad: the scripts are removed repeatedly without an error
// for any caller.
func TestManager_ScriptFlushUnderLoad(t *testing.T) {
	t.Parallel()
	// The embedded engine takes long to compile a script that it does not know.
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		flushScriptsUnderLoad(t, redistest.Embedded(t), 3)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		rdb := clientOf(t, redistest.Real(t, "--appendonly", "no"))
		flushScriptsUnderLoad(t, redistest.Second(t, rdb), 15)
	})
}

// flushScriptsUnderLoad has workers take a lock for a number of rounds each, and removes
// the scripts once for each time that the lock was taken. Flushes at fixed intervals would
// be faster than a slow machine sends the scripts again.
func flushScriptsUnderLoad(t *testing.T, rdb redis.UniversalClient, rounds int) {
	t.Helper()
	const workers = 8
	ctx, name := await.Context(t), resource(t)
	managers := []*Manager{newManager(t, rdb, steady), newManager(t, redistest.Second(t, rdb), steady)}
	taken := make(chan struct{}, workers*rounds)
	var flushing, holding sync.WaitGroup
	// A lock that is renewed during the test, in pipelines.
	long := mustAcquire(t, managers[0], name+":long")
	flushing.Go(func() {
		for range taken {
			check(t, rdb.ScriptFlush(ctx).Err())
			until := long.ValidUntil()
			if renewNow(long); !long.ValidUntil().After(until) {
				t.Errorf("not renewed: %v", context.Cause(long.Context()))
			}
		}
	})
	w := newWitness()
	for i := range workers {
		holding.Go(func() {
			for range rounds {
				l, err := managers[i%2].Acquire(ctx, name)
				if err != nil {
					t.Error(err)
					return
				}
				taken <- struct{}{}
				w.enter(t, l)
				check(t, l.Extend(ctx, 2*patience))
				w.leave(l)
				check(t, l.Release(ctx))
			}
		})
	}
	holding.Wait()
	close(taken)
	flushing.Wait()
	if w.count() != workers*rounds {
		t.Errorf("%d holdings, want %d", w.count(), workers*rounds)
	}
	mustRelease(t, long)
	awaitNoTrace(t, rdb, name)
}

// awaitRenewals waits until each lock was renewed this number of times, and fails if one
// was lost.
func awaitRenewals(t *testing.T, n int, locks ...*Lock) {
	t.Helper()
	for range n {
		until := make([]time.Time, len(locks))
		for i, l := range locks {
			until[i] = l.ValidUntil()
		}
		for i, l := range locks {
			await.True(t, "a renewal", func() bool { return l.ValidUntil().After(until[i]) || l.Context().Err() != nil })
		}
	}
	for _, l := range locks {
		if l.Context().Err() != nil {
			t.Fatalf("lost %s: %v", l.Resource(), context.Cause(l.Context()))
		}
	}
}

// TestManager_ManyShortLocks: 10,000 short locks on 64 resources leave only the keys of
// the fencing tokens, no waiter, and no loop.
func TestManager_ManyShortLocks(t *testing.T) {
	t.Parallel()
	testManyShortLocks(t, 60)
}

func TestManager_ManyShortLocks_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	testManyShortLocks(t, 625)
}

// testManyShortLocks has each of 16 workers take this number of locks.
func testManyShortLocks(t *testing.T, each int) {
	for engine, client := range map[string]func(testing.TB) redis.UniversalClient{
		"embedded": func(t testing.TB) redis.UniversalClient { return redistest.Embedded(t) },
		"redis":    func(t testing.TB) redis.UniversalClient { return redistest.Redis(t) },
		"cluster":  func(t testing.TB) redis.UniversalClient { return redistest.Cluster(t) },
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			const workers, resources = 16, 64
			ctx, rdb := await.Context(t), client(t)
			id := strings.Trim(redistest.Prefix(t), "t:{}")
			m := newManager(t, rdb, steady)
			w := newWitness()
			var working sync.WaitGroup
			for range workers {
				working.Go(func() {
					for range each {
						name := fmt.Sprintf("t:{%s-%d}", id, rand.IntN(resources))
						l, err := m.Acquire(ctx, name)
						if err != nil {
							t.Error(err)
							return
						}
						w.enter(t, l)
						w.leave(l)
						check(t, l.Release(ctx))
					}
				})
			}
			working.Wait()
			if n := w.count(); n != workers*each {
				t.Errorf("%d holdings, want %d", n, workers*each)
			}
			for _, key := range allKeys(t, rdb, "t:{"+id+"-*") {
				if !strings.HasSuffix(key, "}:lock:fence") {
					t.Errorf("%s is left", key)
				}
			}
			awaitIdle(t, m)
			m.wake.mu.Lock()
			if n := len(m.wake.waiters); n != 0 {
				t.Errorf("%d waiters left", n)
			}
			m.wake.mu.Unlock()
			// Close waits for every goroutine of the manager; TestMain checks that no other
			// is left.
			check(t, m.Close(ctx))
		})
	}
}

// allKeys lists the keys that match this pattern on all masters.
func allKeys(t *testing.T, rdb redis.UniversalClient, pattern string) []string {
	t.Helper()
	var mu sync.Mutex
	var found []string
	scan := func(ctx context.Context, c *redis.Client) error {
		for at := c.Scan(ctx, 0, pattern, 1000).Iterator(); ; {
			if !at.Next(ctx) {
				return at.Err()
			}
			mu.Lock()
			found = append(found, at.Val())
			mu.Unlock()
		}
	}
	var err error
	switch c := rdb.(type) {
	case *redis.Client:
		err = scan(t.Context(), c)
	case *redis.ClusterClient:
		err = c.ForEachMaster(t.Context(), scan)
	}
	must(t, err)
	if len(found) == 0 {
		t.Fatalf("no key like %s, not even a fencing token", pattern)
	}
	return found
}

// TestManager_ClusterFaults runs several faults one after the other on one Redis Cluster.
func TestManager_ClusterFaults(t *testing.T) {
	t.Parallel()
	servers := redistest.OwnCluster(t)
	rdb := servers.Client(t)
	t.Run("ScriptFlush", func(t *testing.T) { flushScriptsUnderLoad(t, rdb, 15) })
	t.Run("SlotMoves", func(t *testing.T) { moveSlotUnderLoad(t, servers) })
	t.Run("SlotMovesSlowly", func(t *testing.T) { moveSlotSlowly(t, servers) })
}

// TestManager_ClusterMasterGone_Long waits until the cluster marks a master as failed,
// which takes several times its own timeout.
func TestManager_ClusterMasterGone_Long(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	servers := redistest.OwnCluster(t)
	rdb := servers.Client(t)
	// Without a replica no node takes over for a failed master; the others must
	// continue to serve.
	err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		return c.ConfigSet(ctx, "cluster-require-full-coverage", "no").Err()
	})
	must(t, err)
	node := servers.Nodes()[0]
	t.Run("MasterHangs", func(t *testing.T) { loseMaster(t, servers, node.Pause) })
	must(t, node.Continue())
	await.True(t, "the master is back", func() bool {
		return rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
			info, err := c.ClusterInfo(ctx).Result()
			if err == nil && !strings.Contains(info, "cluster_slots_ok:16384") {
				err = errors.New(info)
			}
			return err
		}) == nil
	})
	t.Run("MasterKilled", func(t *testing.T) { loseMaster(t, servers, node.Kill) })
}

// moveSlotUnderLoad: while a slot moves from master to master, eight goroutines of two
// managers lock, write and release in it without an error or an overlap and with rising
// fences, and a held lock stays held.
func moveSlotUnderLoad(t *testing.T, servers *redistest.ClusterServers) {
	t.Helper()
	const workers, moves = 8, 9
	ctx, prefix := await.Context(t), redistest.Prefix(t)
	name := prefix + "item"
	slot, err := servers.SlotOf(ctx, name)
	must(t, err)
	w := newWitness()
	working, stop := context.WithCancel(ctx)
	var workersDone sync.WaitGroup
	var managers []*Manager
	for range 2 {
		rdb := servers.Client(t)
		m := newManager(t, rdb, steady)
		managers = append(managers, m)
		for range workers / 2 {
			workersDone.Go(func() {
				for working.Err() == nil {
					if err := holdAndWrite(ctx, t, w, m, rdb, name); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	long := mustAcquire(t, managers[0], prefix+"long")
	rdb := servers.Client(t)
	for range moves {
		n := w.count()
		await.True(t, "they work", func() bool { return w.count() >= n+workers || t.Failed() })
		if err := servers.MoveSlot(ctx, slot, func() {
			n, until := w.count(), time.Now().Add(100*time.Millisecond)
			await.True(t, "they work, or wait", func() bool { return w.count() > n || time.Now().After(until) })
			valid := long.ValidUntil()
			await.True(t, "the lock is renewed", func() bool { renewNow(long); return long.ValidUntil().After(valid) })
		}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	workersDone.Wait()
	w.check(t)
	if n := redirects(t, rdb); n < moves {
		t.Errorf("the masters turned %d calls away, in %d moves", n, moves)
	}
	if got, want := rdb.LLen(ctx, name+":entries").Val(), 2*w.count(); got != int64(want) {
		t.Errorf("%d writes, want %d", got, want)
	}
	mustRelease(t, long)
	awaitNoTrace(t, rdb, name)
}

// moveSlotSlowly: a slot has so much data that its move takes longer than the TTL. A lock
// in it is still renewed. Scripts that need keys which do not exist have to wait for the
// end of the move, and then succeed.
func moveSlotSlowly(t *testing.T, servers *redistest.ClusterServers) {
	t.Helper()
	ctx, prefix := await.Context(t), redistest.Prefix(t)
	rdb := servers.Client(t)
	slot, err := servers.SlotOf(ctx, prefix)
	must(t, err)
	m := newManager(t, rdb, Config{TTL: 5 * time.Second, CallTimeout: patience})
	long, short := mustAcquire(t, m, prefix+"long"), mustAcquire(t, m, prefix+"short")
	released := make(chan error, 1)
	var acquired <-chan result
	if err := servers.MoveSlot(ctx, slot, func() {
		await.True(t, "the lock is renewed during the move, for longer than its TTL", func() bool {
			return long.Context().Err() != nil || time.Since(long.h.since) > 6*time.Second
		})
		n := redirects(t, rdb)
		go func() { released <- short.Release(ctx) }()
		acquired = acquireAsync(ctx, m, prefix+"new")
		// More often than the client's own four tries.
		await.True(t, "they retry", func() bool { return redirects(t, rdb) >= n+12 })
	}); err != nil {
		t.Fatal(err)
	}
	for what, l := range map[string]*Lock{"long": long, "short": short} {
		if cause := context.Cause(l.Context()); errors.Is(cause, ErrLost) {
			t.Errorf("%s: %v", what, cause)
		}
	}
	check(t, <-released)
	mustRelease(t, awaitLock(t, acquired))
	mustRelease(t, long)
}

// redirects counts how often the masters of a cluster redirected a client or asked it to
// try again.
func redirects(t *testing.T, rdb *redis.ClusterClient) int {
	t.Helper()
	var mu sync.Mutex
	all := 0
	err := rdb.ForEachMaster(t.Context(), func(ctx context.Context, c *redis.Client) error {
		stats, err := c.Info(ctx, "errorstats").Result()
		mu.Lock()
		defer mu.Unlock()
		for line := range strings.Lines(stats) {
			for _, kind := range []string{"MOVED", "ASK", "TRYAGAIN"} {
				if n, ok := strings.CutPrefix(strings.TrimSpace(line), "errorstat_"+kind+":count="); ok {
					count, convErr := strconv.Atoi(n)
					all += count
					err = errors.Join(err, convErr)
				}
			}
		}
		return err
	})
	must(t, err)
	return all
}

// loseMaster: given a failed master without a replica, a lock on it ends at its deadline;
// locks on the other masters are still renewed, taken and waited for. This holds for a
// client that repeats calls to a node, which has to give up on the failed one, as well as
// for one that does not.
func loseMaster(t *testing.T, servers *redistest.ClusterServers, fail func() error) {
	t.Helper()
	ctx := await.Context(t)
	cfg := Config{TTL: 15 * time.Second, ClaimTTL: 15 * time.Second, CallTimeout: 5 * time.Second}
	// The deadline of a call must end it: a client of servers.Client would wait for the master that hangs.
	once := redis.NewClusterClient(redistest.ClusterOptions(servers.Addrs()...))
	defer once.Close()
	repeats := redis.NewClusterClient(&redis.ClusterOptions{Addrs: servers.Addrs(), ContextTimeoutEnabled: true})
	defer repeats.Close()
	m, plain := newManager(t, once, cfg), newManager(t, repeats, cfg)
	var locks, others []*Lock
	var direct []*redis.Client
	var names []string
	for _, node := range servers.Nodes() {
		name := resourceOn(t, servers, node)
		names, locks = append(names, name), append(locks, mustAcquire(t, m, name))
		others = append(others, mustAcquire(t, plain, name+":other"))
		direct = append(direct, clientOf(t, node))
	}
	awaitRenewals(t, 1, append(others, locks...)...)
	must(t, fail())
	failed := time.Now()
	wantCause(t, locks[0], ErrLost)
	if limit := failed.Add(cfg.TTL); !locks[0].ValidUntil().Before(limit) {
		t.Errorf("valid until %s after it could expire", locks[0].ValidUntil().Sub(limit))
	}
	wantCause(t, others[0], ErrLost)
	// By now each of the others has been renewed or has expired.
	awaitRenewals(t, 1, append(others[1:], locks[1:]...)...)
	for i, l := range locks[1:] {
		if got := direct[i+1].Get(ctx, mustKeys(t, names[i+1])[keyLock]).Val(); got != l.GuardValue() {
			t.Errorf("key holds %q, want %q", got, l.GuardValue())
		}
		next := acquireAsync(ctx, m, names[i+1])
		await.True(t, "a waiter", func() bool {
			return direct[i+1].ZCard(ctx, mustKeys(t, names[i+1])[keyWaiters]).Val() == 1
		})
		mustRelease(t, l)
		mustRelease(t, awaitLock(t, next))
	}
	for _, l := range others[1:] {
		mustRelease(t, l)
	}
	check(t, plain.Close(ctx))
	if err := locks[0].Release(ctx); err == nil || errors.Is(err, ErrNotHeld) {
		t.Errorf("release: err = %v, want the network's", err)
	}
}

// resourceOn returns a name whose lock is on this master.
func resourceOn(t *testing.T, servers *redistest.ClusterServers, node *redistest.Server) string {
	t.Helper()
	for range 100 {
		name := resource(t)
		slot, err := servers.SlotOf(t.Context(), name)
		must(t, err)
		if owner, err := servers.Owner(t.Context(), slot); err == nil && owner == node {
			return name
		}
	}
	t.Fatal("no name found")
	return ""
}
