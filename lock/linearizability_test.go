package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// linConfig has short times, so that locks are renewed, expire and are claimed often within
// seconds.
var linConfig = Config{
	TTL: 2 * time.Second, ClaimTTL: 750 * time.Millisecond,
	Liveness: 250 * time.Millisecond, CallTimeout: time.Second,
}

const (
	linResources = 2
	linManagers  = 3
	linWorkers   = 3 // of each manager
	linRounds    = 2 // how often each fault strikes
	// linStall is the TTL of a holder that stalls until another took its lock.
	linStall = 100 * time.Millisecond
)

// linTouch reads or writes the register if the caller holds the lock.
var linTouch = redis.NewScript(GuardLua + `
if lock_guard(KEYS[1], KEYS[2], ARGV[1]) < 0 then return {0, 0} end
if ARGV[2] ~= '' then redis.call('SET', KEYS[3], ARGV[2]) end
return {1, tonumber(redis.call('GET', KEYS[3]) or '0')}
`)

// linRun is one run: clients take locks, access the registers under them and release them,
// while faults occur.
type linRun struct {
	t       *testing.T
	seed    uint64
	server  *redistest.Server // nil on the embedded engine
	direct  *redis.Client     // not through the proxies
	forcer  *Manager          // releases locks by force
	clients []*linClient
	names   []string
	history *history
	values  atomic.Int64
	taken   [linResources]atomic.Int64 // acquires
	latest  [linResources]atomic.Int64 // fence of the last one

	// Effects of the faults.
	refused, unknown, stalled atomic.Int64
}

// linClient is a process: a manager behind its own proxy, with counters of its connection's
// faults.
type linClient struct {
	m     *Manager
	rdb   *redis.Client
	proxy *redistest.Proxy

	calls, failed, noScript, lost atomic.Int64
	unanswered                    sync.Map // tokens of calls without a reply
}

// hook counts the outcomes of the client's calls.
func (c *linClient) hook(_ context.Context, cmds []redis.Cmder, next func() error) error {
	c.calls.Add(int64(len(cmds)))
	err := next()
	if len(cmds) == 1 { // it gets its error only after the hooks
		c.note(cmds[0], err)
		return err
	}
	for _, cmd := range cmds {
		c.note(cmd, cmd.Err())
	}
	return err
}

func (c *linClient) note(cmd redis.Cmder, err error) {
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		c.noScript.Add(1)
	case unknown(err):
		c.failed.Add(1)
		for _, arg := range cmd.Args() {
			if token, ok := arg.(string); ok {
				c.unanswered.Store(token, true)
			}
		}
	}
}

func newLinRun(t *testing.T, seed uint64, server *redistest.Server, addr string) *linRun {
	t.Helper()
	r := &linRun{t: t, seed: seed, server: server, direct: redis.NewClient(redistest.Options(addr)), history: newHistory()}
	closeAtEnd(t, r.direct)
	r.forcer = newManager(t, r.direct, linConfig)
	for range linResources {
		r.names = append(r.names, resource(t))
	}
	for i := range linManagers {
		c := &linClient{proxy: redistest.NewProxy(t, addr)}
		c.rdb = redis.NewClient(redistest.Options(c.proxy.Addr()))
		closeAtEnd(t, c.rdb)
		c.rdb.AddHook(around(c.hook))
		cfg := linConfig
		if i == linManagers-1 {
			cfg.Poll = 5 * time.Millisecond // it shares the locks with those that listen
		}
		cfg.Observer.Lost = func(string, error) { c.lost.Add(1) }
		c.m = newManager(t, c.rdb, cfg)
		r.clients = append(r.clients, c)
	}
	return r
}

// work takes locks until ctx ends. The seed determines the operations but not their times.
func (r *linRun) work(ctx context.Context, worker int, c *linClient) {
	rng := rand.New(rand.NewPCG(r.seed, uint64(worker)))
	for ctx.Err() == nil {
		if !r.hold(ctx, worker, c, rng) {
			wait(ctx, time.Millisecond) // no busy loop while Redis is down
		}
	}
}

// hold is one holding from acquire to release, followed by the accesses of a holder that has not
// noticed the end of its lock.
func (r *linRun) hold(ctx context.Context, worker int, c *linClient, rng *rand.Rand) bool {
	i := rng.IntN(linResources)
	opts := []Option{WithWaitLimit(20*time.Millisecond + time.Duration(rng.Int64N(int64(time.Second))))}
	stalls := rng.IntN(24) == 0
	if stalls {
		opts = append(opts, WithTTL(linStall), WithoutWatchdog())
	}
	call := r.history.now()
	l, err := c.m.Acquire(ctx, r.names[i], opts...)
	if err != nil {
		return false // a lock that it may have held only made others wait
	}
	from := r.history.now()
	r.history.add(worker, call, from, histInput{kind: histAcquire, resource: i, fence: l.Fence()}, histOutput{})
	r.latest[i].Store(l.Fence())
	r.taken[i].Add(1)

	for range 1 + rng.IntN(3) {
		r.touch(ctx, worker, c.rdb, i, l, rng)
		wait(l.Context(), time.Duration(rng.Int64N(int64(4*time.Millisecond)))) // its work
	}
	if stalls && r.stall(ctx, i, l) {
		// It wakes up and continues as if nothing had happened.
		r.touch(ctx, worker, r.direct, i, l, rng)
	}
	r.release(ctx, worker, c, i, l, call, from)
	if rng.IntN(3) == 0 {
		r.touch(ctx, worker, r.direct, i, l, rng)
	}
	return true
}

// stall waits until the lock was lost and another client has it. It returns false if the run
// ended first.
func (r *linRun) stall(ctx context.Context, i int, l *Lock) bool {
	<-l.Context().Done()
	for r.latest[i].Load() == l.Fence() {
		if !wait(ctx, time.Millisecond) {
			return false
		}
	}
	r.stalled.Add(1)
	return true
}

// touch reads or writes a register under l.
func (r *linRun) touch(ctx context.Context, worker int, rdb *redis.Client, i int, l *Lock, rng *rand.Rand) {
	in := histInput{kind: histRead, resource: i, fence: l.Fence()}
	value := ""
	if rng.IntN(2) == 0 {
		in.kind, in.value = histWrite, r.values.Add(1)
		value = strconv.FormatInt(in.value, 10)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), linConfig.CallTimeout)
	defer cancel()
	lockKey, waitersKey := r.forcer.GuardKeys(r.names[i])
	call := r.history.now()
	got, err := linTouch.Run(ctx, rdb, []string{lockKey, waitersKey, r.names[i] + ":register"}, l.GuardValue(), value).Int64Slice()
	ret := r.history.now()
	switch {
	case err != nil:
		r.unknown.Add(1)
		r.history.add(worker, call, histOpen, in, histOutput{outcome: histUnknown})
	case got[0] == 0:
		r.refused.Add(1)
		r.history.add(worker, call, ret, in, histOutput{outcome: histRefused})
	default:
		r.history.add(worker, call, ret, in, histOutput{value: got[1]})
	}
}

// release ends a holding and records how it ended.
func (r *linRun) release(ctx context.Context, worker int, c *linClient, i int, l *Lock, asked, from time.Duration) {
	expiry := r.history.at(l.ValidUntil())
	call := r.history.now()
	err := l.Release(ctx)
	ret := r.history.now()

	_, repeated := c.unanswered.Load(l.Token())
	out := histOutput{}
	switch {
	case errors.Is(err, ErrNotHeld):
		out.outcome = histRefused
	case err != nil:
		out.outcome, ret = histUnknown, histOpen
	case repeated:
		// A call without a reply may have released the lock, or there was nothing to
		// release; the reply to its repeat does not show which.
		out.outcome = histUnknown
	}
	r.history.add(worker, call, ret, histInput{kind: histRelease, resource: i, fence: l.Fence()}, out)

	// The validity of an ended lock is the time of its end.
	ended := r.history.at(l.ValidUntil())
	r.history.believe(histView{resource: i, fence: l.Fence(), asked: asked, from: from, to: min(call, ended)})
	if errors.Is(context.Cause(l.Context()), ErrLost) {
		expiry = min(expiry, ended)
	}
	// From then on the key may be gone, also while the release is on its way to a
	// stopped Redis.
	if ret == histOpen || expiry <= ret {
		r.history.add(worker, expiry, ret, histInput{kind: histLose, resource: i, fence: l.Fence()}, histOutput{})
	}
}

// await waits for the effect of a fault. A fault without an effect makes the run void.
func (r *linRun) await(fault, what string, cond func() bool) {
	r.t.Helper()
	await.True(r.t, fmt.Sprintf("%s: %s; the run is void", fault, what), cond)
}

// progress waits until every resource has been taken again.
func (r *linRun) progress(after string) {
	r.t.Helper()
	var before [linResources]int64
	for i := range r.taken {
		before[i] = r.taken[i].Load()
	}
	r.await(after, "both resources are taken again afterwards", func() bool {
		for i := range r.taken {
			// One may have begun before.
			if r.taken[i].Load() < before[i]+2 {
				return false
			}
		}
		return true
	})
}

// linFault is one kind of fault; strike returns when the fault has had its effect and has ended.
type linFault struct {
	name   string
	strike func(r *linRun, rng *rand.Rand)
}

var linFaults = []linFault{
	{"replies lost", (*linRun).loseReplies},
	{"connections severed", (*linRun).sever},
	{"client cut off beyond its TTL", (*linRun).cutOff},
	{"scripts flushed", (*linRun).flushScripts},
	{"key deleted", (*linRun).deleteKey},
}

// linProcessFaults need a server that is a process.
var linProcessFaults = []linFault{
	{"Redis killed and started", (*linRun).restart},
	{"Redis stopped for a moment", (*linRun).pause},
	{"subscriptions killed", (*linRun).killSubscriptions},
}

func (r *linRun) anyClient(rng *rand.Rand) *linClient { return r.clients[rng.IntN(linManagers)] }

func (r *linRun) loseReplies(rng *rand.Rand) {
	c := r.anyClient(rng)
	lost := r.unknown.Load()
	r.await("replies lost", "an access without a reply", func() bool {
		r.awaitHolder("replies lost", c)
		c.proxy.DropReplies(true)
		defer c.proxy.DropReplies(false)
		defer c.proxy.Sever() // it has missed half of its exchanges
		r.await("replies lost", "what was held has ended", func() bool {
			return r.unknown.Load() > lost || len(c.m.Held()) == 0
		})
		return r.unknown.Load() > lost
	})
}

// awaitHolder waits until a client holds a lock. Faults that repeat before that would only keep
// it from getting one.
func (r *linRun) awaitHolder(fault string, c *linClient) {
	r.t.Helper()
	r.await(fault, "the client holds a lock", func() bool { return len(c.m.Held()) > 0 })
}

func (r *linRun) sever(rng *rand.Rand) {
	c := r.anyClient(rng)
	failed := c.failed.Load()
	r.await("connections severed", "a call without a reply", func() bool {
		c.proxy.Sever()
		return c.failed.Load() > failed
	})
}

func (r *linRun) cutOff(rng *rand.Rand) {
	c := r.anyClient(rng)
	lost := c.lost.Load()
	r.await("cut off", "a lock lost", func() bool {
		r.awaitHolder("cut off", c)
		c.proxy.Blackhole(true)
		defer c.proxy.Blackhole(false)
		r.await("cut off", "what was held has ended", func() bool { return len(c.m.Held()) == 0 })
		return c.lost.Load() > lost
	})
}

func (r *linRun) flushScripts(*rand.Rand) {
	var before int64
	for _, c := range r.clients {
		before += c.noScript.Load()
	}
	if err := r.direct.ScriptFlush(r.t.Context()).Err(); err != nil {
		r.t.Error(err)
	}
	r.await("scripts flushed", "a call that missed its script", func() bool {
		var now int64
		for _, c := range r.clients {
			now += c.noScript.Load()
		}
		return now > before
	})
}

func (r *linRun) deleteKey(rng *rand.Rand) {
	i := rng.IntN(linResources)
	key, _ := r.forcer.GuardKeys(r.names[i])
	r.await("key deleted", "a key to delete", func() bool {
		call := r.history.now()
		n, err := r.direct.Del(r.t.Context(), key).Result()
		return (n == 1 || err != nil) && r.forced(i, call, err)
	})
}

// forced records an outside command and reports whether its effect is certain.
func (r *linRun) forced(i int, call time.Duration, err error) bool {
	ret := r.history.now()
	if err != nil {
		ret = histOpen
	}
	r.history.add(-1, call, ret, histInput{kind: histForce, resource: i}, histOutput{})
	return err == nil
}

func (r *linRun) restart(*rand.Rand) {
	if err := r.server.Kill(); err != nil {
		r.t.Fatal(err)
	}
	r.awaitFailures("Redis killed")
	if err := r.server.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *linRun) pause(*rand.Rand) {
	if err := r.server.Pause(); err != nil {
		r.t.Fatal(err)
	}
	r.awaitFailures("Redis stopped")
	if err := r.server.Continue(); err != nil {
		r.t.Fatal(err)
	}
}

// awaitFailures waits until every client has had a call without a reply.
func (r *linRun) awaitFailures(fault string) {
	r.t.Helper()
	for i, c := range r.clients {
		failed := c.failed.Load()
		r.await(fault, fmt.Sprintf("a call of client %d without a reply", i), func() bool { return c.failed.Load() > failed })
	}
}

func (r *linRun) killSubscriptions(*rand.Rand) {
	r.await("subscriptions killed", "one there was", func() bool {
		n, err := r.direct.ClientKillByFilter(r.t.Context(), "TYPE", "pubsub").Result()
		if err != nil {
			r.t.Error(err)
		}
		return n > 0
	})
}

// run runs the clients, causes the faults, and checks the history.
func (r *linRun) run(faults []linFault) {
	rng := rand.New(rand.NewPCG(r.seed, 1<<32))
	ctx, stop := context.WithCancel(r.t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	for i, c := range r.clients {
		for k := range linWorkers {
			workers.Go(func() { r.work(ctx, i*linWorkers+k, c) })
		}
	}
	r.progress("the start")
	for range linRounds {
		for _, at := range rng.Perm(len(faults)) {
			faults[at].strike(r, rng)
			r.progress(faults[at].name)
		}
	}
	r.await("stalled holders", "one that woke up", func() bool { return r.stalled.Load() > 0 })
	stop()
	workers.Wait()

	r.t.Logf("%d operations, %d and %d acquires, %d accesses refused, %d without a reply, %d holders stalled",
		len(r.history.ops), r.taken[0].Load(), r.taken[1].Load(), r.refused.Load(), r.unknown.Load(), r.stalled.Load())
	if err := r.void(); err != nil {
		r.t.Error(err)
	}
	if err := r.history.check(); err != nil {
		r.t.Error(err)
	}
	// Locks of lost calls expire within their TTL.
	for _, name := range r.names {
		awaitNoTrace(r.t, r.direct, name)
	}
}

// void fails a run that proves nothing, because the events it is about did not occur.
func (r *linRun) void() error {
	var losses int64
	for _, c := range r.clients {
		losses += c.lost.Load()
	}
	for what, n := range map[string]int64{
		"lock lost": losses, "access refused": r.refused.Load(),
		"access without a reply": r.unknown.Load(), "stalled holder": r.stalled.Load(),
	} {
		if n == 0 {
			return fmt.Errorf("the run is void: no %s", what)
		}
	}
	return nil
}

// linSeed is the value of LOCK_SEED, which repeats a schedule, or a new seed.
func linSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("LOCK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOCK_SEED=%d repeats this schedule", seed)
	return seed
}

// TestLock_Linearizable: under faults of clients, connections and Redis, the history of the
// clients is linearizable, and no two clients believe at the same time that they hold a lock.
func TestLock_Linearizable(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		addr := redistest.Embedded(t).Options().Addr
		newLinRun(t, linSeed(t), nil, addr).run(linFaults)
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := redistest.Real(t)
		newLinRun(t, linSeed(t), server, server.Addr()).run(slices.Concat(linProcessFaults, linFaults))
	})
}
