package lock

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

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
