package backend

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
)

// The URL may contain the pool size, which operators know from other programs. The timeouts
// stay the service's own.
func TestOpenRedis_PoolSize(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"redis://127.0.0.1:1/0":                                      redisPool,
		"redis://127.0.0.1:1/0?pool_size=4&read_timeout=9":           4,
		"cluster+redis://127.0.0.1:1":                                redisPool,
		"cluster+redis://127.0.0.1:1?pool_size=4":                    4,
		"sentinel+redis://127.0.0.1:1?master_name=shop":              redisPool,
		"sentinel+rediss://127.0.0.1:1?master_name=shop&pool_size=4": 4,
	} {
		rdb, closers, err := OpenRedis(url, breaker.New(breaker.Config{}), nil)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		size, read := 0, redisRead
		switch c := rdb.(type) {
		case *redis.Client:
			size, read = c.Options().PoolSize, c.Options().ReadTimeout
		case *redis.ClusterClient:
			size, read = c.Options().PoolSize, c.Options().ReadTimeout
		}
		if size != want || read != redisRead {
			t.Errorf("%s: a pool of %d with a bound of %v, want %d and %v", url, size, read, want, redisRead)
		}
		for _, end := range closers {
			if err := end(); err != nil {
				t.Errorf("%s: close: %v", url, err)
			}
		}
	}
}
