package lock

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// Given a data key without TTL and a lock with the same name, when the lock is taken, waited
// for, inspected and released, then the data and its TTL are unchanged, as is data under
// names that begin with it.
func TestManager_ResourceNamedLikeData(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		ctx, name := await.Context(t), resource(t)
		m := newManager(t, rdb, slow)
		data := []string{name, name + ":waiters", name + ":seen", name + ":fence"}
		for _, key := range data {
			must(t, rdb.Set(ctx, key, "42", 0).Err())
		}
		var next <-chan result
		err := m.Do(ctx, name, func(context.Context, *Lock) error {
			wantTaken(t, m, name)
			info, err := m.Inspect(ctx, name)
			if !info.Held {
				t.Errorf("the lock is not seen: %+v", info)
			}
			next = acquireAsync(await.Context(t), m, name)
			awaitWaiters(t, rdb, name, 1)
			return err
		})
		if err != nil {
			t.Error(err)
		}
		mustRelease(t, awaitLock(t, next))
		awaitNoTrace(t, rdb, name)
		for _, key := range data {
			if v, ttl := rdb.Get(ctx, key).Val(), rdb.PTTL(ctx, key).Val(); v != "42" || ttl != -1 {
				t.Errorf("%s holds %q with a TTL of %s, want 42 without one", key, v, ttl)
			}
		}
	})
}
