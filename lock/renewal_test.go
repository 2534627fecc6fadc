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

// TestLock_RenewalsRefused: given a Redis that refuses renewals at once, for example because it is
// read-only or out of memory, the watchdog retries at intervals, not in a busy loop, until the lock is
// lost.
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
		wantCause(t, mustAcquire(t, m, resource(t)), ErrLost)
		// It tries at a third of the TTL, and then after each twentieth.
		if n := refused.Load(); n < 2 || n > 20 {
			t.Errorf("%d renewals were tried within one TTL", n)
		}
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
