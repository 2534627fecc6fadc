package backend

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/internal/embedded"
)

// Limits of one exchange with Redis. With them an outage causes a prompt 503 instead of a pile
// of waiting requests.
const (
	redisDial  = 500 * time.Millisecond
	redisRead  = time.Second
	redisWrite = time.Second
	redisPool  = 64
	// redisTurn bounds the wait for a connection of the pool. It is longer than an exchange, so
	// that a full pool has a free connection by then.
	redisTurn = 1500 * time.Millisecond
	// embeddedLimit replaces redisDial, redisRead and redisWrite for the embedded engine.
	embeddedLimit = 10 * time.Second
)

// OpenRedis connects to the engine named by the setting: a server, behind the breakers, or the
// embedded engine, which it starts. connected is called for every new connection before its first
// use, and must be quick; an error closes the connection. The closers must be called in order.
func OpenRedis(setting string, guard *breaker.Breakers, connected Connected) (rdb redis.UniversalClient, closers []func() error, err error) {
	switch {
	case setting == config.EmbeddedRedis:
		s, err := embedded.Start()
		if err != nil {
			return nil, nil, err
		}
		// No breakers, and long limits: an engine in the same process is never unavailable,
		// only slow when the process gets too little processor time.
		o := &redis.Options{Addr: s.Addr()}
		limitServer(o, connected)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = embeddedLimit, embeddedLimit, embeddedLimit
		c := redis.NewClient(o)
		return c, []func() error{c.Close, func() error { s.Close(); return nil }}, nil
	case strings.HasPrefix(setting, clusterScheme):
		o, err := redis.ParseClusterURL(strings.TrimPrefix(setting, clusterScheme))
		if err != nil {
			return nil, nil, config.BadSetting("redis", setting, "it cannot be read as a URL", "write cluster+redis://host:port?addr=host:port, with % codes in the password where it holds any of /#%@")
		}
		// The cluster client still retries after a network error, which it counts as a redirect.
		// It needs redirects to follow a moved slot, so every script must tolerate a repeat.
		limits{
			&o.MaxRetries, &o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
			&o.PoolSize, &o.PoolTimeout, &o.DialerRetries, &o.OnConnect,
		}.set(connected)
		// A dead master does not redirect, so only this shows its replacement.
		o.ClusterStateReloadInterval = time.Second
		c := redis.NewClusterClient(o)
		guard.GuardCluster(c)
		return c, []func() error{c.Close}, nil
	case strings.HasPrefix(setting, sentinelScheme):
		o, err := sentinelOptions(setting, connected)
		if err != nil {
			return nil, nil, err
		}
		c := redis.NewFailoverClient(o)
		c.AddHook(&oneMaster{open: make(map[*masterConn]struct{})})
		guard.Guard(c)
		return c, []func() error{c.Close}, nil
	default:
		o, err := redis.ParseURL(setting)
		if err != nil {
			return nil, nil, config.BadSetting("redis", setting, "it cannot be read as a URL", "write redis://host:port/0, with % codes in the password where it holds any of /#%@")
		}
		limitServer(o, connected)
		c := redis.NewClient(o)
		guard.Guard(c)
		return c, []func() error{c.Close}, nil
	}
}

// limits are the fields by which the options of a client limit it. Those of a server, of a cluster
// and of Sentinels have different types with the same fields.
type limits struct {
	maxRetries     *int
	contextTimeout *bool
	dial           *time.Duration
	read           *time.Duration
	write          *time.Duration
	poolSize       *int
	poolTimeout    *time.Duration
	dialerRetries  *int
	onConnect      *func(ctx context.Context, c *redis.Conn) error
}

// set gives the fields the values that every client needs. The pool size is that of the URL
// (pool_size), if it has one.
//
// The client must not retry a script whose reply was lost: the packages retry the scripts for which
// that is safe. dialerRetries counts the attempts of one dial: with the default of five, an
// unavailable Redis is detected half a second later.
func (l limits) set(connected Connected) {
	*l.maxRetries, *l.contextTimeout = -1, true
	*l.dial, *l.read, *l.write = redisDial, redisRead, redisWrite
	*l.poolSize, *l.poolTimeout = cmp.Or(*l.poolSize, redisPool), redisTurn
	*l.dialerRetries, *l.onConnect = 1, connected
}

// limitServer sets the limits of a client of one server.
func limitServer(o *redis.Options, connected Connected) {
	limits{
		&o.MaxRetries, &o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
		&o.PoolSize, &o.PoolTimeout, &o.DialerRetries, &o.OnConnect,
	}.set(connected)
}

// Connected receives new connections to Redis; see OpenRedis. It may be nil.
type Connected = func(ctx context.Context, c *redis.Conn) error

// Advice is a recommended change of an engine.
type Advice struct {
	Says string // the problem
	Fix  string // the fix
	Must bool   // a promise of the service does not hold until it is fixed
}

// Durability describes in one sentence which data the engine keeps, and returns the changes
// that an operator should make. A change that concerns the sentence has it as Says. On a cluster it
// names each master that needs a change.
func Durability(ctx context.Context, rdb redis.UniversalClient, setting string) (says string, change []Advice) {
	if setting == config.EmbeddedRedis {
		return "embedded Redis keeps no data across a restart: every purchase waits for its commit, and stock is rebuilt from the database", nil
	}
	masters, err := Masters(ctx, rdb)
	if err != nil || len(masters) == 0 {
		masters = []Master{{Cmdable: rdb}} // it gets the same error, and its durability is unknown
	}
	weak := false // says is the sentence of a master that needs a change for it
	for _, m := range masters {
		kept, advised := durability(ctx, m)
		concerns := slices.ContainsFunc(advised, func(a Advice) bool { return a.Says == kept })
		if says == "" || concerns && !weak {
			says, weak = kept, concerns
		}
		change = append(change, advised...)
	}
	return says, change
}

// durability describes one server.
func durability(ctx context.Context, m Master) (says string, change []Advice) {
	get := func(name string) string {
		v, err := m.ConfigGet(ctx, name).Result()
		if err != nil {
			return "" // a managed Redis may forbid CONFIG; then its durability is unknown
		}
		return v[name]
	}
	aof, fsync, policy := get("appendonly"), get("appendfsync"), get("maxmemory-policy")
	switch {
	case aof == "":
		says = m.Name() + " refuses CONFIG GET: it is unknown whether a 202 survives its restart"
		change = append(change, Advice{Says: says, Fix: "make sure that appendonly is yes, appendfsync is always, and maxmemory-policy is noeviction"})
	case aof != "yes":
		says = m.Name() + " keeps no data across a restart (appendonly no): a 202 does not survive it; a 201 does"
		change = append(change, Advice{says, "set appendonly yes and appendfsync always, so that a 202 survives a restart of Redis", true})
	case fsync != "always":
		says = fmt.Sprintf("%s writes its log, synced %s: a 202 survives a killed process, but not always a power loss", m.Name(), fsync)
		change = append(change, Advice{Says: says, Fix: "set appendfsync always, so that a 202 survives a power loss; batches share each sync"})
	default:
		says = "Redis syncs every write: a 202 survives process kills and power loss of its node"
	}
	if policy != "" && policy != "noeviction" {
		change = append(change, Advice{m.Name() + " has maxmemory-policy " + policy, "set noeviction, or Redis may drop stock and orders when memory is short", true})
	}
	return says, change
}

// Master is a server that stores data of the service.
type Master struct {
	redis.Cmdable
	addr string // of a master of a cluster; "" for the only server
}

// Name names the server in a message.
func (m *Master) Name() string {
	if m.addr == "" {
		return "Redis"
	}
	return "the Redis master " + m.addr
}

// Masters returns the server, or the masters of a cluster in the order of their addresses.
func Masters(ctx context.Context, rdb redis.UniversalClient) (all []Master, err error) {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return []Master{{Cmdable: rdb}}, nil
	}
	var mu sync.Mutex // the function runs concurrently
	err = cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, Master{c, c.Options().Addr})
		return nil
	})
	slices.SortFunc(all, func(a, b Master) int { return strings.Compare(a.addr, b.addr) })
	return all, err
}

// LogRedis sets the log of the Redis client.
func LogRedis(log zerolog.Logger) { redis.SetLogger(redisLogger{log}) }

// redisLogger writes the client's messages to the service's log at a low level, because the
// packages report the same errors with more context.
type redisLogger struct{ log zerolog.Logger }

// Printf logs a message of the client.
func (l redisLogger) Printf(_ context.Context, format string, v ...any) {
	l.log.Debug().Str("component", "redis client").Msgf(format, v...)
}
