package redistest

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

// incrTwice increments a key in two commands, so it must run on the node that holds the key.
var incrTwice = redis.NewScript(`redis.call('INCR', KEYS[1]) return redis.call('INCR', KEYS[1])`)

func TestUniversal(t *testing.T) {
	t.Parallel()
	Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, prefix := await.Context(t), Prefix(t)
		// Keys with different tags are on different masters of a cluster.
		for i := range 30 {
			key := fmt.Sprintf("%s{%d}", prefix[:2], i) + prefix
			got, err := incrTwice.Run(ctx, rdb, []string{key}).Int()
			if err != nil {
				t.Fatal(err)
			}
			if got != 2 {
				t.Errorf("the script returned %d, want 2", got)
			}
			if err := rdb.Del(ctx, key).Err(); err != nil {
				t.Error(err)
			}
		}
	})
}

// counter counts the SET and GET commands of a client; a client also sends commands of its own
// when it connects.
type counter struct{ set, get atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		switch cmd.Name() {
		case "set":
			c.set.Add(1)
		case "get":
			c.get.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestSecond(t *testing.T) {
	t.Parallel()
	Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, key := await.Context(t), Prefix(t)+"k"
		second := Second(t, rdb)
		var mine, its counter
		rdb.AddHook(&mine)
		second.AddHook(&its)
		if err := rdb.Set(ctx, key, "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
		got, err := second.Get(ctx, key).Result()
		if err != nil || got != "v" {
			t.Errorf("the second client reads %q, %v; want the value of the first", got, err)
		}
		if mine.set.Load() != 1 || mine.get.Load() != 0 || its.set.Load() != 0 || its.get.Load() != 1 {
			t.Errorf("the first client's hook saw %d SET and %d GET, the second's %d and %d; want each its own",
				mine.set.Load(), mine.get.Load(), its.set.Load(), its.get.Load())
		}
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.Del(ctx, key).Err(); err != nil {
			t.Errorf("after the second client was closed: %v", err)
		}
	})
}
