package lock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/redistest"
)

// replicated is a Redis with one replica, and clients of both.
type replicated struct {
	master, copied *redis.Client
	replica        *redistest.Server
}

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	server := redistest.Real(t, "--appendonly", "no")
	replica := server.Replica(t)
	r := &replicated{clientOf(t, server), clientOf(t, replica), replica}
	// A replica that follows may not confirm yet.
	conn := r.master.Conn()
	eventually(t, "the replica confirms", func() bool {
		if err := conn.Incr(t.Context(), "confirmed").Err(); err != nil {
			t.Fatal(err)
		}
		return conn.Wait(t.Context(), 1, 100*time.Millisecond).Val() == 1
	})
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// confirmedConfig are slow's settings with a replica that has to confirm.
func confirmedConfig() Config {
	cfg := slow
	cfg.Replicas = 1 // which has half of CallTimeout for it
	return cfg
}

// onReplica wants that the replica has the lock already, without a wait.
func (r *replicated) onReplica(t *testing.T, l *Lock) {
	t.Helper()
	key, _ := l.h.m.GuardKeys(l.Resource())
	if got := r.copied.Get(t.Context(), key).Val(); got != l.GuardValue() {
		t.Errorf("the replica has %q, want %q", got, l.GuardValue())
	}
}

// TestManager_Replicas: given that a replica has to confirm a lock, it has it
// when an acquire returns, also after a wait; and an extension.
func TestManager_Replicas(t *testing.T) {
	t.Parallel()
	ctx, r := testContext(t), newReplicated(t)
	m, other := newManager(t, r.master, confirmedConfig()), newManager(t, r.master, confirmedConfig())
	for range 50 {
		name := resource(t)
		l := mustAcquire(t, m, name)
		r.onReplica(t, l)
		if err := l.Extend(ctx, 3*slow.TTL); err != nil {
			t.Fatal(err)
		}
		if left := r.copied.PTTL(ctx, mustKeys(t, name)[keyLock]).Val(); left <= 2*slow.TTL {
			t.Errorf("on the replica the lock lasts %s", left)
		}
		next := acquireAsync(ctx, other, name)
		awaitWaiters(t, r.master, name, 1)
		mustRelease(t, l)
		l = awaitLock(t, next)
		r.onReplica(t, l)
		mustRelease(t, l)
		if n := traces(t, r.master, name); n != 0 {
			t.Errorf("%d keys left", n)
		}
	}
}

// TestManager_Replicas_Missing: given a replica that hangs, an acquire fails
// with ErrNoQuorum and leaves nothing on the master, and an extension does not
// count; one that lacks from the start likewise.
func TestManager_Replicas_Missing(t *testing.T) {
	t.Parallel()
	ctx, r, name := testContext(t), newReplicated(t), resource(t)
	impatient := confirmedConfig()
	impatient.CallTimeout = 2 * time.Second
	m := newManager(t, r.master, impatient)
	held := mustAcquire(t, m, name+":held")
	refuses := func(m *Manager) {
		t.Helper()
		for what, acquire := range map[string]func(context.Context, string, ...Option) (*Lock, error){"acquire": m.Acquire, "try": m.TryAcquire} {
			l, err := acquire(ctx, name)
			if !errors.Is(err, ErrNoQuorum) || l != nil {
				t.Errorf("%s: %v, err = %v, want ErrNoQuorum", what, l, err)
			}
			awaitNoTrace(t, r.master, name)
		}
	}
	if err := r.replica.Pause(); err != nil {
		t.Fatal(err)
	}
	refuses(m)
	until := held.ValidUntil()
	if err := held.Extend(ctx, 3*slow.TTL); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("extend: err = %v, want ErrNoQuorum", err)
	}
	if !held.ValidUntil().Equal(until) || held.Context().Err() != nil {
		t.Errorf("an extension that was not confirmed moved the deadline by %s", held.ValidUntil().Sub(until))
	}
	if err := r.replica.Continue(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica confirms again", func() bool { return held.Extend(ctx, 3*slow.TTL) == nil })
	r.onReplica(t, held)
	mustRelease(t, held)

	two := impatient
	two.Replicas = 2
	refuses(newManager(t, r.master, two))
}

// TestManager_Replicas_Handover: a handover while the replica hangs does not
// count until the replica has it.
func TestManager_Replicas_Handover(t *testing.T) {
	t.Parallel()
	ctx, r, name := testContext(t), newReplicated(t), resource(t)
	cfg := confirmedConfig()
	cfg.Liveness, cfg.CallTimeout = time.Second, 4*time.Second
	rdb := redistest.Second(t, r.master)
	var unconfirmed atomic.Int64
	rdb.AddHook(hook(func(next redis.ProcessHook) redis.ProcessHook {
		return func(ctx context.Context, cmd redis.Cmder) error {
			err := next(ctx, cmd)
			if n, ok := cmd.(*redis.IntCmd); ok && cmd.Name() == "wait" && err == nil && n.Val() < 1 {
				unconfirmed.Add(1)
			}
			return err
		}
	}))
	m := newManager(t, r.master, cfg)
	l := mustAcquire(t, m, name)
	next := acquireAsync(ctx, newManager(t, rdb, cfg), name)
	awaitWaiters(t, r.master, name, 1)
	if err := r.replica.Pause(); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, l)
	eventually(t, "the waiter has tried", func() bool { return unconfirmed.Load() >= 2 })
	select {
	case got := <-next:
		t.Fatalf("%+v, though no replica has it", got)
	default:
	}
	if err := r.replica.Continue(); err != nil {
		t.Fatal(err)
	}
	after := awaitLock(t, next)
	r.onReplica(t, after)
	if after.Fence() <= l.Fence() {
		t.Errorf("fence %d after %d", after.Fence(), l.Fence())
	}
	mustRelease(t, after)
	awaitNoTrace(t, r.master, name)
}

// TestManager_Replicas_Renewal: renewals that no replica confirms do not keep
// the lock: it ends by its deadline, although the master has it still.
func TestManager_Replicas_Renewal(t *testing.T) {
	t.Parallel()
	r, name := newReplicated(t), resource(t)
	cfg := Config{TTL: 4500 * time.Millisecond, Replicas: 1, CallTimeout: 2 * time.Second}
	m := newManager(t, r.master, cfg)
	l := mustAcquire(t, m, name)
	awaitRenewals(t, 1, l)
	r.onReplica(t, l)
	if err := r.replica.Kill(); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	ends(t, l)
	if limit := gone.Add(cfg.TTL); !l.ValidUntil().Before(limit) {
		t.Errorf("valid until %s after the last confirmed renewal could lapse", l.ValidUntil().Sub(limit))
	}
	if got := r.master.Get(t.Context(), mustKeys(t, name)[keyLock]).Val(); got != l.GuardValue() {
		t.Errorf("the master has %q, want %q: the renewals did not arrive at all", got, l.GuardValue())
	}
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	awaitNoTrace(t, r.master, name)
}

// renewals is a go-redis hook before the pipelines by which the watchdog renews.
type renewals func(cmds []redis.Cmder) error

func (r renewals) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (r renewals) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r renewals) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !runs(cmds[0], extendScript) {
			return next(ctx, cmds)
		}
		if err := r(cmds); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// TestLock_RenewalsRefused: given a Redis that refuses renewals at once, as one
// does that is read-only or out of memory, the watchdog tries again at times,
// not in a loop, until the lock is lost.
func TestLock_RenewalsRefused(t *testing.T) {
	t.Parallel()
	inOwnTime(t, redistest.Embedded(t), Config{TTL: time.Minute}, func(t *testing.T, m *Manager, f *failing) {
		var refused atomic.Int64
		f.set(seldom(t, func(_ context.Context, cmds []redis.Cmder) error {
			if !runs(cmds[0], extendScript) {
				return nil
			}
			refused.Add(1)
			return errors.New("refused")
		}))
		ends(t, mustAcquire(t, m, resource(t)))
		// It tries at a third of the TTL, and then after each twentieth.
		if n := refused.Load(); n < 2 || n > 20 {
			t.Errorf("%d renewals were tried within one TTL", n)
		}
	})
}

// TestManager_Acquire_ShortAfterHandover: locks that are handed over and held
// for a moment cost no renewal, though they are held for the claim's time only.
func TestManager_Acquire_ShortAfterHandover(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		const rounds = 30
		ctx, name := testContext(t), resource(t)
		w := newWitness()
		// A renewal is due for each time that a lock is held for so long, as it may
		// be on a busy machine.
		var renewed, handed, due atomic.Int64
		cfg := slow
		cfg.ClaimTTL = patience
		cfg.Observer.HandedOver = func(string) { handed.Add(1) }
		cfg.Observer.Released = func(_ string, held time.Duration) { due.Add(int64(held / settleMax)) }
		var working sync.WaitGroup
		for range 2 {
			c := redistest.Second(t, rdb)
			c.AddHook(renewals(func(cmds []redis.Cmder) error {
				renewed.Add(int64(len(cmds)))
				return nil
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
			t.Errorf("%d renewals for %d locks that were handed over, want %d at most", renewed.Load(), handed.Load(), due.Load())
		}
	})
}
