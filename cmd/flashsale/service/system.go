package service

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/handler"
	"flashsale/order/store"
)

const (
	// systemFor is how long a description of the engines is reused, so that pages cannot keep
	// Redis busy with INFO.
	systemFor = 10 * time.Second
	// systemTimeout bounds the questions to the engines.
	systemTimeout = 2 * time.Second
)

// system describes the program, the database and Redis. Only GET /v1/admin/system asks for it.
type system struct {
	build    Build
	embedded bool
	store    *store.Store
	rdb      redis.UniversalClient
	now      func() time.Time

	mu   sync.Mutex
	last handler.System
}

func newSystem(sh *shared) *system {
	return &system{build: sh.build, embedded: sh.embedded(), store: sh.eng.store, rdb: sh.eng.rdb, now: sh.now}
}

// System describes the system. Concurrent callers share a result, which therefore does not depend
// on the request of one of them.
func (s *system) System(ctx context.Context) handler.System {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if since := now.Sub(s.last.CheckedAt); since >= 0 && since < systemFor {
		return s.last
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), systemTimeout)
	defer cancel()
	s.last = handler.System{Version: s.build.Version, Revision: s.build.Revision, GoVersion: s.build.GoVersion, CheckedAt: now}
	s.last.Database = s.database(ctx)
	s.describeRedis(ctx, &s.last)
	return s.last
}

func (s *system) database(ctx context.Context) handler.Engine {
	d, err := s.store.Describe(ctx)
	if err != nil {
		return handler.Engine{Name: s.store.Dialect(), Version: handler.Unknown}
	}
	e := handler.Engine{Name: d.Engine, Version: first(d.Version)}
	for _, one := range d.Settings {
		e.Settings = append(e.Settings, handler.Setting{Name: one.Name, Value: first(one.Value)})
	}
	return e
}

// describeRedis asks every master.
func (s *system) describeRedis(ctx context.Context, to *handler.System) {
	if s.embedded {
		to.RedisMode, to.RedisNodes = "embedded", 1
		to.Redis = handler.Engine{Name: "embedded", Version: s.build.Version, Settings: []handler.Setting{
			{Name: "appendonly", Value: "no"}, {Name: "maxmemory-policy", Value: "noeviction"},
		}}
		return
	}
	var nodes []redisNode
	if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
		var mu sync.Mutex // the nodes are asked concurrently
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			n := askRedis(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, n)
			return nil
		})
		if err != nil {
			nodes = nil // the masters are not known
		}
		to.RedisNodes = len(nodes)
	} else {
		nodes = []redisNode{askRedis(ctx, s.rdb)}
		to.RedisNodes = 1
	}
	to.Redis, to.RedisMode, to.RedisMemory = summary(nodes)
}

// redisNode has the answers of one node, or Unknown.
type redisNode struct {
	engine, version, mode string
	settings              []handler.Setting
	memory                *handler.Memory
}

// askRedis asks one node. A managed Redis may forbid INFO and CONFIG; HELLO belongs to every
// connection. A refusal of one leaves the others' answers.
func askRedis(ctx context.Context, rdb redis.UniversalClient) redisNode {
	hello := helloOf(ctx, rdb)
	info := infoOf(ctx, rdb)
	n := redisNode{
		engine:  first(info["server_name"], hello["server"]),
		version: first(info["valkey_version"], info["redis_version"], hello["version"]),
		mode:    first(info["redis_mode"], hello["mode"]),
	}
	if n.engine == handler.Unknown && info["redis_version"] != "" {
		n.engine = "redis"
	}
	from := map[string]string{"maxmemory-policy": info["maxmemory_policy"]}
	if on, known := info["aof_enabled"]; known {
		from["appendonly"] = map[string]string{"0": "no", "1": "yes"}[on]
	}
	for _, name := range []string{"appendonly", "appendfsync", "maxmemory-policy"} {
		value := from[name]
		if got, err := rdb.ConfigGet(ctx, name).Result(); err == nil {
			value = first(got[name], value)
		}
		n.settings = append(n.settings, handler.Setting{Name: name, Value: first(value)})
	}
	if used, err := strconv.ParseInt(info["used_memory"], 10, 64); err == nil {
		n.memory = &handler.Memory{Used: used}
		if limit, err := strconv.ParseInt(info["maxmemory"], 10, 64); err == nil {
			n.memory.Limit = limit
		}
	}
	return n
}

// helloOf returns the texts in the answer to HELLO.
func helloOf(ctx context.Context, rdb redis.UniversalClient) map[string]string {
	texts := make(map[string]string)
	answer, err := rdb.Do(ctx, "HELLO").Result()
	if err != nil {
		return texts
	}
	switch pairs := answer.(type) {
	case map[any]any:
		for name, value := range pairs {
			addText(texts, name, value)
		}
	case []any: // RESP2
		for i := 0; i+1 < len(pairs); i += 2 {
			addText(texts, pairs[i], pairs[i+1])
		}
	}
	return texts
}

func addText(to map[string]string, name, value any) {
	n, isName := name.(string)
	v, isText := value.(string)
	if isName && isText {
		to[n] = v
	}
}

// infoOf returns the fields of INFO; none if it is forbidden.
func infoOf(ctx context.Context, rdb redis.UniversalClient) map[string]string {
	fields := make(map[string]string)
	text, err := rdb.Info(ctx).Result() // one section, because Redis 6 does not take several
	if err != nil {
		return fields
	}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// first returns the first text that is not empty, or Unknown.
func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return handler.Unknown
}

// mixed says that nodes differ.
const mixed = "mixed"

// summary returns what the nodes have in common, and the memory of the fullest.
func summary(nodes []redisNode) (e handler.Engine, mode string, memory *handler.Memory) {
	if len(nodes) == 0 {
		return handler.Engine{Name: handler.Unknown, Version: handler.Unknown}, handler.Unknown, nil
	}
	all := nodes[0]
	join := func(to *string, value string) {
		if *to != value {
			*to = mixed
		}
	}
	for _, n := range nodes {
		join(&all.engine, n.engine)
		join(&all.version, n.version)
		join(&all.mode, n.mode)
		for i := range n.settings {
			join(&all.settings[i].Value, n.settings[i].Value)
		}
		if n.memory != nil && (memory == nil || bytesOf(n.memory).fuller(bytesOf(memory))) {
			memory = n.memory
		}
	}
	return handler.Engine{Name: all.engine, Version: all.version, Settings: all.settings}, all.mode, memory
}

func bytesOf(m *handler.Memory) nodeMemory {
	return nodeMemory{used: float64(m.Used), limit: float64(m.Limit)}
}
