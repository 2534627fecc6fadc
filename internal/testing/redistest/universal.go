package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// Universal runs fn once per engine, as the parallel subtests "embedded", "redis" and
// "cluster". If redis-server is not installed, the last two are skipped, or fail with CI=true.
func Universal(t *testing.T, fn func(t *testing.T, rdb redis.UniversalClient)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		fn(t, Embedded(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		fn(t, Redis(t))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		fn(t, Cluster(t))
	})
}

// Second returns another client of rdb's servers, with its own connections and hooks, like a
// second process. It has the settings of Options or ClusterOptions with a longer reply timeout,
// whatever the options of rdb, except that the deadlines of calls count if they count for rdb. It is closed at the end
// of the test.
func Second(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
	t.Helper()
	switch rdb := rdb.(type) {
	case *redis.Client:
		return clientWith(t, rdb.Options().Addr, rdb.Options().ContextTimeoutEnabled)
	case *redis.ClusterClient:
		return clusterClient(t, rdb.Options().Addrs, rdb.Options().TLSConfig, rdb.Options().ContextTimeoutEnabled)
	default:
		t.Fatalf("redistest: no second client for a %T", rdb)
		return nil
	}
}
