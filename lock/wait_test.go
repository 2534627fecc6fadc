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
	"flashsale/internal/testing/redistest"
)

// TestManager_claim_LateNews: a message that leaves less than half of ClaimTTL, or is older than the last
// reply, is not used without a call.
func TestManager_claim_LateNews(t *testing.T) {
	t.Parallel()
	rdb := redistest.Embedded(t)
	m := newManager(t, rdb, slow)
	now := time.Now()
	for _, tc := range []struct {
		name    string
		sent    time.Duration // of the last reply, before now
		set     time.Duration // of the handover, after the last reply
		claimed bool
	}{
		{"fresh", time.Second, 999 * time.Millisecond, true},
		{"clock set forward", time.Second, time.Hour, true},
		{"late", slow.ClaimTTL * 2 / 3, time.Second, false},
		{"before the last reply", time.Second, -time.Millisecond, false},
		{"with the last reply", time.Second, 0, false},
	} {
		a := &attempt{caller: t.Context(), resource: tc.name, keys: *mustKeys(t, resource(t)), settings: m.defaults, token: m.newToken(), sent: now.Add(-tc.sent), nowUS: 1e15}
		n := news{fence: 7, setUS: 1e15 + tc.set.Microseconds(), claimMS: slow.ClaimTTL.Milliseconds()}
		must(t, rdb.Set(t.Context(), a.keys[0], a.token+":7", slow.ClaimTTL).Err())
		l, err := m.claim(t.Context(), a, n)
		if err != nil || (l != nil) != tc.claimed {
			t.Errorf("%s: claimed = %v, err = %v; want %v", tc.name, l != nil, err, tc.claimed)
		}
		if l == nil {
			continue
		}
		mustRelease(t, l)
	}
	// A lock without watchdog needs its full TTL at once.
	fresh := &attempt{settings: m.defaults, sent: now, nowUS: 1e15}
	fresh.settings.unwatched = true
	if l, err := m.claim(t.Context(), fresh, news{fence: 7, setUS: 1e15 + 1, claimMS: slow.ClaimTTL.Milliseconds()}); l != nil || err != nil {
		t.Errorf("without watchdog: claimed %v, %v", l, err)
	}
	if l, err := m.claim(t.Context(), &attempt{}, news{}); l != nil || err != nil {
		t.Errorf("a zero message counted as a handover: %v, %v", l, err)
	}
}

// TestManager_Acquire_ReleasedBeforeSubscription: the holder releases between the first try and the
// subscription, so no message arrives.
func TestManager_Acquire_ReleasedBeforeSubscription(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		waiter := redistest.Second(t, rdb)
		m, other := newManager(t, rdb, slow), newManager(t, waiter, slow)
		l := mustAcquire(t, m, name)
		var once atomic.Bool
		waiter.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			err := next()
			if err == nil && acquires(cmds[0]) && !once.Swap(true) {
				mustRelease(t, l)
			}
			return err
		}))
		must(t, acquireScript.Load(ctx, rdb).Err())
		mustRelease(t, mustAcquire(t, other, name))
		if !once.Load() {
			t.Fatal("the lock was never contended")
		}
	})
}

// alwaysSoon has a near deadline at which it does not end: the test ends the context. On a busy machine a
// real deadline could pass before the call.
type alwaysSoon struct{ context.Context }

func (alwaysSoon) Deadline() (time.Time, bool) { return time.Now().Add(inlineLeft / 5), true }

// TestManager_Acquire_EndsDuringCall: the context ends during the call, which still takes the lock or joins the queue;
// that is undone.
func TestManager_Acquire_EndsDuringCall(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		soon bool // a deadline is near, so the caller returns during the call
		far  bool // a deadline is far
		try  bool
		held bool // by another holder, so that the call only joins the queue
	}{
		"Cancelled": {far: true}, "CancelledWithoutDeadline": {}, "Deadline": {soon: true},
		"TryCancelled": {far: true, try: true}, "TryCancelledWithoutDeadline": {try: true}, "TryDeadline": {soon: true, try: true},
		"JoinedAndCancelled": {held: true}, "JoinedDeadline": {soon: true, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
				name := resource(t)
				late := redistest.Second(t, rdb)
				cfg := slow
				cfg.CallTimeout = patience
				m := inline(newManager(t, late, cfg))
				var other *Lock
				if tc.held {
					listen(t, m) // then the first call joins the queue
					other = mustAcquire(t, newManager(t, rdb, slow), name)
				}
				entered, gate, took := make(chan struct{}, 4), make(chan struct{}), make(chan bool, 4)
				late.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
					if !acquires(cmds[0]) {
						return next()
					}
					entered <- struct{}{}
					<-gate
					err := next()
					if err == nil {
						r, convErr := granted(cmds[0].(*redis.Cmd))
						if convErr != nil {
							return convErr
						}
						took <- r.held
					}
					return err
				}))
				must(t, acquireScript.Load(t.Context(), rdb).Err())
				ends, cancel := context.WithCancel(t.Context())
				defer cancel()
				ctx := ends
				switch {
				case tc.far:
					var stop context.CancelFunc
					ctx, stop = context.WithTimeout(ends, patience)
					defer stop()
				case tc.soon:
					ctx = alwaysSoon{ends}
				}
				done := make(chan result, 1)
				go func() {
					l, err := m.acquire(ctx, name, !tc.try, nil)
					done <- result{l, err}
				}()
				<-entered
				cancel()
				var r result
				if tc.soon {
					r = awaitResult(t, done)
				}
				close(gate)
				if <-took == tc.held {
					t.Fatalf("the script took the lock: %v", !tc.held)
				}
				if !tc.soon {
					r = awaitResult(t, done)
				}
				if !errors.Is(r.err, context.Canceled) || errors.Is(r.err, ErrWaitTimeout) == tc.try {
					t.Fatalf("%+v, want Canceled, in a wait ErrWaitTimeout too", r)
				}
				if tc.held {
					awaitWaiters(t, rdb, name, 0)
					mustRelease(t, other)
				}
				awaitNoTrace(t, rdb, name)
				// Nothing arrives after it either.
				check(t, m.Close(t.Context()))
				wantNoTrace(t, rdb, name)
			})
		})
	}
}

// Given an acquire without a reply, when its script runs after the clean-up, then a second clean-up
// releases the lock.
func TestManager_Acquire_ScriptAfterCleanUp(t *testing.T) {
	t.Parallel()
	ownEngines(t, func(t *testing.T, rdb *redis.Client) {
		must(t, releaseScript.Load(t.Context(), rdb).Err())
		for name, tc := range map[string]struct {
			wait  bool
			limit time.Duration
			fault func(context.Context, []redis.Cmder) error
			want  error
		}{
			"TryRefused":     {false, time.Hour, refuse, errRefused},
			"AcquireRefused": {true, time.Hour, refuse, errRefused},
			"TryHangs":       {false, 2 * inlineLeft, hang, context.DeadlineExceeded},
			"AcquireHangs":   {true, 2 * inlineLeft, hang, ErrWaitTimeout},
		} {
			t.Run(name, func(t *testing.T) {
				name := resource(t)
				inOwnTime(t, rdb, Config{TTL: time.Hour, CallTimeout: time.Second}, func(t *testing.T, m *Manager, f *failing) {
					var late []any // the arguments of the script
					f.set(func(ctx context.Context, cmds []redis.Cmder) error {
						if !acquires(cmds[0]) {
							return nil
						}
						late = cmds[0].Args()[7:]
						return tc.fault(ctx, cmds)
					})
					ran := make(chan error, 1)
					cleaned := func(cmds []redis.Cmder) {
						if releases(cmds[0]) && cmds[0].Err() == nil && late != nil {
							ran <- acquireScript.Run(t.Context(), rdb, mustKeys(t, name)[:], late...).Err()
							late = nil
						}
					}
					f.after.Store(&cleaned)
					ctx, cancel := context.WithTimeout(t.Context(), tc.limit)
					defer cancel()
					_, err := m.acquire(ctx, name, tc.wait, nil)
					wantErr(t, err, tc.want)
					if err := <-ran; err != nil || traces(t, rdb, name) == 0 {
						t.Errorf("the late script: %v, %d keys", err, traces(t, rdb, name))
					}
					awaitNoTrace(t, rdb, name)
				})
			})
		}
	})
}

// Given a waiter whose calls fail, when its wait ends, then the error has the last failure too.
func TestManager_Acquire_EndsDuringOutage(t *testing.T) {
	t.Parallel()
	rdb, name := redistest.Embedded(t), resource(t)
	inOwnTime(t, rdb, Config{TTL: time.Hour}, func(t *testing.T, m *Manager, f *failing) {
		l := mustAcquire(t, m, name)
		time.AfterFunc(50*time.Millisecond, func() { f.set(refuse) })
		_, err := m.Acquire(t.Context(), name, WithWaitLimit(100*time.Millisecond))
		wantErr(t, err, ErrWaitTimeout, context.DeadlineExceeded, errRefused)
		f.how.Store(nil)
		mustRelease(t, l)
	})
}

// TestManager_Acquire_Silence: a waiter whose keep-alive is overdue loses its place to the next, and one
// with keep-alives keeps it.
func TestManager_Acquire_Silence(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		cfg := slow
		cfg.Liveness = 20 * time.Millisecond
		m, k := newManager(t, rdb, cfg), mustKeys(t, name)
		l := mustAcquire(t, m, name)
		silent := ghosts(t, m, name, 1)[0]
		next := acquireAsync(ctx, m, name)
		awaitWaiters(t, rdb, name, 2)
		until, err := rdb.HGet(ctx, k[keySeen], silent).Int64()
		must(t, err)
		await.True(t, "the silent waiter's keep-alive is overdue", func() bool { return rdb.Time(ctx).Val().UnixMilli() > until })
		mustRelease(t, l)
		l = awaitLock(t, next)
		if n := rdb.Exists(ctx, k[keyWaiters], k[keySeen]).Val(); n != 0 {
			t.Errorf("the silent waiter left %d keys", n)
		}
		mustRelease(t, l)
	})
}

// TestManager_Acquire_RedisRestarts: a waiter survives a restart of Redis.
func TestManager_Acquire_RedisRestarts(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	rdb := clientOf(t, server)
	ctx, name := await.Context(t), resource(t)
	cfg := steady
	cfg.Liveness = 100 * time.Millisecond
	waits := redistest.Second(t, rdb)
	var failed atomic.Int64
	waits.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
		err := next()
		if err != nil && acquires(cmds[0]) {
			failed.Add(1)
		}
		return err
	}))
	must(t, acquireScript.Load(ctx, rdb).Err())
	holder, m := newManager(t, rdb, cfg), newManager(t, waits, cfg)
	l := mustAcquire(t, holder, name)
	next := acquireAsync(ctx, m, name)
	awaitWaiters(t, rdb, name, 1)
	must(t, server.Kill())
	await.True(t, "a call of the waiter fails", func() bool { return failed.Load() > 0 })
	// While Redis is down an acquire fails with the network's error.
	if _, err := holder.TryAcquire(ctx, resource(t)); err == nil || !unknown(errors.Unwrap(err)) {
		t.Errorf("err = %v, want the network's", err)
	}
	must(t, server.Start())
	mustRelease(t, l)
	mustRelease(t, awaitLock(t, next))
}

func TestManager_deliver(t *testing.T) {
	t.Parallel()
	m := newManager(t, redistest.Embedded(t), slow)
	a := &attempt{caller: t.Context(), token: "T"}
	m.join(a)
	for _, payload := range []string{"", "T", "T 1 2", "T 1 2 x", "T 1 2 3 4", "U 1 2 3"} {
		m.deliver(payload)
		if len(a.messages) != 0 {
			t.Fatalf("%q was delivered", payload)
		}
	}
	m.deliver("T 1 2 3")
	m.deliver("T 4 5 6") // dropped, because the first is still unread
	if got := <-a.messages; got != (news{1, 2, 3}) || len(a.messages) != 0 {
		t.Fatalf("got %+v and %d more", got, len(a.messages))
	}
}

// TestManager_Acquire_OneCallPerInterval: a waiter sends only its keep-alive, once per Liveness interval.
func TestManager_Acquire_OneCallPerInterval(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const calls = 6
		ctx, name := await.Context(t), resource(t)
		l := mustAcquire(t, newManager(t, rdb, slow), name)
		cfg := slow
		cfg.Liveness = 100 * time.Millisecond
		own := redistest.Second(t, rdb)
		m := newManager(t, own, cfg)
		var mu sync.Mutex
		var sent []time.Time
		var others []string
		own.AddHook(around(func(_ context.Context, cmds []redis.Cmder, next func() error) error {
			mu.Lock()
			switch {
			case acquires(cmds[0]):
				sent = append(sent, time.Now())
			case len(sent) > 2 && len(sent) < calls: // past the start, before the release
				others = append(others, cmds[0].Name())
			}
			mu.Unlock()
			return next()
		}))
		next := acquireAsync(ctx, m, name)
		await.True(t, "the waiter has sent a keep-alive", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(sent) >= calls
		})
		mu.Lock()
		// The first two are the try before the subscription and the joining call.
		for i := 3; i < calls; i++ {
			if gap := sent[i].Sub(sent[i-1]); gap < cfg.Liveness {
				t.Errorf("call %d came %s after the one before, want at least %s", i, gap, cfg.Liveness)
			}
		}
		if len(others) > 0 {
			t.Errorf("it also sent %q", others)
		}
		mu.Unlock()
		mustRelease(t, l)
		mustRelease(t, awaitLock(t, next))
	})
}

// TestManager_Acquire_ShortAfterHandover: locks that are handed over and held briefly need no renewal,
// although their key has only ClaimTTL.
func TestManager_Acquire_ShortAfterHandover(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const rounds = 30
		ctx, name := await.Context(t), resource(t)
		w := newWitness()
		// On a busy machine some locks may be held long enough for a renewal.
		var renewed, handed, due atomic.Int64
		cfg := slow
		cfg.ClaimTTL = patience
		cfg.Observer.HandedOver = func(string) { handed.Add(1) }
		cfg.Observer.Released = func(_ string, held time.Duration) { due.Add(int64(held / settleMax)) }
		var working sync.WaitGroup
		for range 2 {
			c := redistest.Second(t, rdb)
			c.AddHook(before(func(cmds []redis.Cmder) {
				if runs(cmds[0], extendScript) {
					renewed.Add(int64(len(cmds)))
				}
			}))
			m := newManager(t, c, cfg)
			for range 2 {
				working.Go(func() {
					for range rounds {
						if err := holdAndWrite(ctx, t, w, m, c, name); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		working.Wait()
		if handed.Load() < rounds || renewed.Load() > due.Load() {
			t.Errorf("%d renewals for %d locks that were handed over, want at most %d", renewed.Load(), handed.Load(), due.Load())
		}
	})
}

// Given a queue of two, when the waiter mark is lost together with the holder, and the
// second sends its keep-alive first, then the first is served first, and the lock is not
// handed to an entry without a waiter.
func TestManager_Acquire_MarkLost(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		holder, m1, m2 := newManager(t, rdb, slow), newManager(t, rdb, slow), newManager(t, rdb, slow)
		k := mustKeys(t, name)
		mustAcquire(t, holder, name)
		first := acquireAsync(ctx, m1, name)
		awaitWaiters(t, rdb, name, 1)
		second := acquireAsync(ctx, m2, name)
		awaitWaiters(t, rdb, name, 2)
		if n, err := rdb.Del(ctx, k[keyFence], k[keyLock]).Result(); err != nil || n != 2 {
			t.Fatalf("%d keys deleted, err = %v", n, err)
		}
		m2.wakeWaiters() // as after a reconnection, it runs the script itself
		select {
		case r := <-second:
			t.Fatalf("the second was served before the first: %v, %v", r.lock, r.err)
		case r := <-first:
			if r.err != nil {
				t.Fatal(r.err)
			}
			awaitWaiters(t, rdb, name, 1)
			mustRelease(t, r.lock)
		case <-ctx.Done():
			t.Fatal("no waiter was served")
		}
		mustRelease(t, awaitLock(t, second))
		awaitNoTrace(t, rdb, name)
	})
}
