package backend

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
)

// clientLimits are the limits of an open client.
type clientLimits struct {
	pool, maxRetries, dialerRetries int
	contextTimeout                  bool
	dial, read, write, turn         time.Duration
	told                            bool // new connections are reported
}

func limitsOf(rdb redis.UniversalClient) (l clientLimits) {
	switch c := rdb.(type) {
	case *redis.Client:
		o := c.Options()
		l = clientLimits{o.PoolSize, o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.OnConnect != nil}
	case *redis.ClusterClient:
		o := c.Options()
		l = clientLimits{o.PoolSize, o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled, o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout, o.OnConnect != nil}
	}
	return l
}

// Every kind of client has the same limits. The URL may contain the pool size, which operators know
// from other programs. The timeouts stay the service's own.
func TestOpenRedis_Limits(t *testing.T) {
	t.Parallel()
	connected := func(context.Context, *redis.Conn) error { return nil }
	for url, pool := range map[string]int{
		"redis://127.0.0.1:1/0":                                      redisPool,
		"redis://127.0.0.1:1/0?pool_size=4&read_timeout=9":           4,
		"cluster+redis://127.0.0.1:1":                                redisPool,
		"cluster+redis://127.0.0.1:1?pool_size=4":                    4,
		"sentinel+redis://127.0.0.1:1?master_name=shop":              redisPool,
		"sentinel+rediss://127.0.0.1:1?master_name=shop&pool_size=4": 4,
		"embedded": redisPool,
	} {
		rdb, closers, err := OpenRedis(url, breaker.New(breaker.Config{}), connected)
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		// The client reports a maximum of no retries as 0.
		want := clientLimits{pool, 0, 1, true, redisDial, redisRead, redisWrite, redisTurn, true}
		switch {
		case url == config.EmbeddedRedis:
			want.dial, want.read, want.write = embeddedLimit, embeddedLimit, embeddedLimit
		case strings.HasPrefix(url, clusterScheme):
			want.maxRetries = -1 // each node's client has 0
		case strings.HasPrefix(url, sentinelScheme):
			want.dial = sentinelDial
		}
		if got := limitsOf(rdb); got != want {
			t.Errorf("%s: %+v, want %+v", url, got, want)
		}
		for _, end := range closers {
			if err := end(); err != nil {
				t.Errorf("%s: close: %v", url, err)
			}
		}
	}
}
