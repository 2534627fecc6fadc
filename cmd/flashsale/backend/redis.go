package backend

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/internal/embedded"
)

// Bounds of one exchange with Redis. They are what turns an outage into a
// prompt 503 and not into a pile of waiting requests.
const (
	redisDial  = 500 * time.Millisecond
	redisRead  = time.Second
	redisWrite = time.Second
	redisPool  = 64
	// redisTurn bounds the wait for a connection of the pool. Longer than an
	// exchange: what holds up the connections of a full pool is over by then.
	redisTurn = 1500 * time.Millisecond
	// embeddedLimit takes the place of redisDial, redisRead and redisWrite for the
	// embedded engine.
	embeddedLimit = 10 * time.Second
)

// OpenRedis connects to the engine the setting names, a server behind the breakers. It
// starts the embedded one. connected hears of every new connection; it must be
// quick. The closers are in the order in which to call them.
func OpenRedis(setting string, guard *breaker.Breakers, connected func()) (rdb redis.UniversalClient, closers []func() error, err error) {
	switch {
	case setting == config.EmbeddedRedis:
		s, err := embedded.Start()
		if err != nil {
			return nil, nil, err
		}
		// Without breakers and with long limits: an engine in the same process is never
		// away, only slow when the process has too little of the processor.
		o := tune(&redis.Options{Addr: s.Addr()}, connected)
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = embeddedLimit, embeddedLimit, embeddedLimit
		c := redis.NewClient(o)
		return c, []func() error{c.Close, func() error { s.Close(); return nil }}, nil
	case strings.HasPrefix(setting, "cluster+"):
		o, err := redis.ParseClusterURL(strings.TrimPrefix(setting, "cluster+"))
		if err != nil {
			return nil, nil, config.BadSetting("redis", setting, "it cannot be read as a URL", "write cluster+redis://host:port?addr=host:port, with % codes in the password where it holds any of /#%@")
		}
		// A script whose reply was lost should not run again unasked: the rooms
		// decide that, knowing which of their scripts may. The client still
		// repeats after a network error, counting it as a redirect, and without
		// redirects it could not follow a slot; every script bears a repeat.
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout = redisDial, redisRead, redisWrite
		o.PoolSize, o.PoolTimeout = cmp.Or(o.PoolSize, redisPool), redisTurn
		o.DialerRetries, o.OnConnect = 1, onConnect(connected)
		c := redis.NewClusterClient(o)
		guard.GuardCluster(c)
		return c, []func() error{c.Close}, nil
	default:
		o, err := redis.ParseURL(setting)
		if err != nil {
			return nil, nil, config.BadSetting("redis", setting, "it cannot be read as a URL", "write redis://host:port/0, with % codes in the password where it holds any of /#%@")
		}
		c := redis.NewClient(tune(o, connected))
		guard.Guard(c)
		return c, []func() error{c.Close}, nil
	}
}

// tune sets what every client needs. The size of the pool is the URL's
// (pool_size) where it names one. DialerRetries counts the tries of one
// dial: with the usual five, a Redis that is away is noticed half a second late.
func tune(o *redis.Options, connected func()) *redis.Options {
	o.MaxRetries, o.ContextTimeoutEnabled = -1, true
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = redisDial, redisRead, redisWrite
	o.PoolSize, o.PoolTimeout = cmp.Or(o.PoolSize, redisPool), redisTurn
	o.DialerRetries, o.OnConnect = 1, onConnect(connected)
	return o
}

func onConnect(connected func()) func(context.Context, *redis.Conn) error {
	return func(context.Context, *redis.Conn) error {
		connected()
		return nil
	}
}

// Advice is what an operator should change about an engine.
type Advice struct {
	Says string // what is so
	Fix  string // what to do
	Must bool   // a promise does not hold as long as it is so
}

// Durability says in one sentence what the engine keeps, and what an operator
// should change about it.
func Durability(ctx context.Context, rdb redis.UniversalClient, setting string) (says string, change []Advice) {
	if setting == config.EmbeddedRedis {
		return "embedded Redis keeps no data across a restart: every purchase waits for its commit, and stock is rebuilt from the database", nil
	}
	get := func(name string) string {
		v, err := rdb.ConfigGet(ctx, name).Result()
		if err != nil {
			return "" // a managed Redis may forbid CONFIG; then nothing is claimed
		}
		return v[name]
	}
	aof, fsync, policy := get("appendonly"), get("appendfsync"), get("maxmemory-policy")
	switch {
	case aof == "":
		says = "Redis refuses CONFIG GET: it is unknown whether a 202 survives a Redis restart"
		change = append(change, Advice{Says: "CONFIG GET is refused", Fix: "make sure that appendonly is yes, appendfsync is always, and maxmemory-policy is noeviction"})
	case aof != "yes":
		says = "Redis keeps no data across a restart (appendonly no): a 202 does not survive it; a 201 does"
		change = append(change, Advice{"appendonly is " + aof, "set appendonly yes and appendfsync always, so that a 202 survives a restart of Redis", true})
	case fsync != "always":
		says = fmt.Sprintf("Redis writes its log, synced %s: a 202 survives a killed process, but not always a power loss", fsync)
		change = append(change, Advice{Says: "appendfsync is " + fsync, Fix: "set appendfsync always, so that a 202 survives a power loss; batches share each sync"})
	default:
		says = "Redis syncs every write: a 202 survives process kills and power loss of its node"
	}
	if policy != "" && policy != "noeviction" {
		change = append(change, Advice{"maxmemory-policy is " + policy, "set noeviction, or Redis may drop stock and orders when memory is short", true})
	}
	return says, change
}

// LogRedis makes log the log of the Redis client.
func LogRedis(log zerolog.Logger) { redis.SetLogger(redisLogger{log}) }

// redisLogger brings the client's own complaints into the service's log. They
// repeat what the rooms report with more context, hence the level.
type redisLogger struct{ log zerolog.Logger }

// Printf receives a line of the client.
func (l redisLogger) Printf(_ context.Context, format string, v ...any) {
	l.log.Debug().Str("component", "redis client").Msgf(format, v...)
}
