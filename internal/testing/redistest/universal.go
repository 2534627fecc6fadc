package redistest

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// Universal runs fn once per engine, as the parallel subtests "embedded",
// "redis" and "cluster". Where no redis-server is installed the last two are
// skipped, and with CI=true they fail instead.
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

// Second returns another client of the servers that rdb talks to, with
// connections and hooks of its own: a second process, as it were. It has the
// settings of Options or ClusterOptions and more time for a reply, whatever rdb was made with, and is
// closed when the test ends.
func Second(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
	t.Helper()
	switch rdb := rdb.(type) {
	case *redis.Client:
		return client(t, rdb.Options().Addr)
	case *redis.ClusterClient:
		return clusterClient(t, rdb.Options().Addrs)
	default:
		t.Fatalf("redistest: no second client for a %T", rdb)
		return nil
	}
}
