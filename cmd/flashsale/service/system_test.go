//go:build unix

package service

import (
	"maps"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/handler"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

func valuesOf(settings []handler.Setting) map[string]string {
	all := make(map[string]string)
	for _, s := range settings {
		all[s.Name] = s.Value
	}
	return all
}

// A user who may use INFO and CONFIG sees everything. Without CONFIG, INFO shows a part; without both, only
// the version is known, from HELLO.
func TestAskRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	admin := redis.NewClient(redistest.Options(server.Addr()))
	defer admin.Close()
	const unknown = handler.Unknown
	for user, c := range map[string]struct {
		denied []any
		want   map[string]string
		memory bool
	}{
		"all":    {nil, map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}, true},
		"config": {[]any{"-config"}, map[string]string{"appendonly": "yes", "appendfsync": unknown, "maxmemory-policy": "noeviction"}, true},
		"both":   {[]any{"-config", "-info"}, map[string]string{"appendonly": unknown, "appendfsync": unknown, "maxmemory-policy": unknown}, false},
	} {
		rules := append([]any{"acl", "setuser", user, "on", ">secret", "~*", "&*", "+@all"}, c.denied...)
		if err := admin.Do(await.Context(t), rules...).Err(); err != nil {
			t.Fatal(err)
		}
		o := redistest.Options(server.Addr())
		o.Username, o.Password = user, "secret"
		rdb := redis.NewClient(o)
		n := askRedis(await.Context(t), rdb)
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
		if n.engine != "redis" || n.version == unknown || n.mode != "standalone" {
			t.Errorf("%s: %+v", user, n)
		}
		if got := valuesOf(n.settings); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", user, got, c.want)
		}
		if (n.memory != nil) != c.memory {
			t.Errorf("%s: memory %v", user, n.memory)
		}
	}
}

// What the nodes of a cluster do not have in common is "mixed", and the fullest node's memory is shown. A Redis
// that does not answer is unknown.
func TestSummary(t *testing.T) {
	t.Parallel()
	node := func(version, fsync string, used int64) redisNode {
		return redisNode{"redis", version, "cluster", []handler.Setting{{Name: "appendfsync", Value: fsync}}, &handler.Memory{Used: used}}
	}
	e, mode, memory := summary([]redisNode{node("7.0", "always", 1), node("7.2", "always", 3), node("7.0", "no", 2)})
	if e.Name != "redis" || e.Version != mixed || mode != "cluster" || e.Settings[0].Value != mixed || memory.Used != 3 {
		t.Errorf("%+v %s %+v", e, mode, memory)
	}
	if e, mode, memory = summary(nil); e.Name != handler.Unknown || e.Version != handler.Unknown || mode != handler.Unknown || memory != nil {
		t.Errorf("no nodes: %+v %s %+v", e, mode, memory)
	}
}

// A cluster is asked at every master.
func TestSystem_Cluster(t *testing.T) {
	t.Parallel()
	s := &system{rdb: redistest.Cluster(t)}
	var got handler.System
	s.describeRedis(await.Context(t), &got)
	if got.RedisMode != "cluster" || got.RedisNodes < 2 || got.RedisMemory == nil || got.Redis.Name != "redis" {
		t.Errorf("%+v", got)
	}
}
