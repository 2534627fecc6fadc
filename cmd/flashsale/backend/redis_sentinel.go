package backend

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
)

// sentinelScheme precedes redis:// or rediss:// in the URL of a master that Sentinels monitor.
const sentinelScheme = "sentinel+"

// sentinelDial bounds finding the master and connecting to it. It leaves time for a Sentinel
// that is silent (redisRead), for a second attempt to reach it and for the master (redisDial
// each): a shorter bound may end every search before another Sentinel is asked.
const sentinelDial = redisRead + 3*redisDial

// sentinelOptions reads the URL of a setting. Its user and password are those of the Sentinels,
// and its parameters username and password those of Redis.
func sentinelOptions(setting string, connected Connected) (*redis.FailoverOptions, error) {
	o, err := redis.ParseFailoverURL(strings.TrimPrefix(setting, sentinelScheme))
	switch {
	case err != nil:
		return nil, config.BadSetting("redis", setting, "it cannot be read as a URL",
			"write sentinel+redis://host:26379?addr=host:26379&master_name=NAME, with % codes in a password where it holds any of /#%@&+")
	case o.MasterName == "":
		return nil, config.BadSetting("redis", setting, "it has no master_name", "add master_name=NAME, the name in the Sentinels' line \"sentinel monitor NAME …\"")
	case o.ReplicaOnly, o.RouteByLatency, o.RouteRandomly:
		return nil, config.BadSetting("redis", setting, "it sends commands to replicas, which lack the last purchases",
			"remove replica_only, route_by_latency and route_randomly")
	}
	if o.TLSConfig != nil {
		// Each certificate is checked against the address that is dialled, not against the first
		// Sentinel's.
		o.TLSConfig.ServerName = ""
	}
	limits{
		&o.MaxRetries, &o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout,
		&o.PoolSize, &o.PoolTimeout, &o.DialerRetries, &o.OnConnect,
	}.set(connected)
	o.DialTimeout = sentinelDial
	o.Dialer = redis.NewDialer(&redis.Options{DialTimeout: redisDial, TLSConfig: o.TLSConfig})
	return o, nil
}

// oneMaster is a hook that closes the connections to the former master once the client has
// connected to another one. The client itself closes those of its pool, and no subscriptions: after a
// failover that leaves the former master running, they would be connected, and receive nothing,
// until the Sentinels have made it a replica, ten seconds later.
// A name that the Sentinels announce instead of an address must have one address only.
type oneMaster struct {
	mu    sync.Mutex
	dials int64
	open  map[*masterConn]struct{}
}

var errFormerMaster = errors.New("the connection was made to the former master")

// masterConn is a connection to a server that was the master when it was made.
type masterConn struct {
	net.Conn
	hook *oneMaster
	dial int64 // rises with each dial; the Sentinels are asked for the master before it
}

// DialHook keeps the new connection, and closes those to other servers.
func (m *oneMaster) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		m.mu.Lock()
		m.dials++
		dial := m.dials
		m.mu.Unlock()
		conn, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &masterConn{conn, m, dial}
		former, current := m.add(c)
		for _, f := range former {
			_ = f.Close() //nolint:errcheck // it is not used again
		}
		if !current {
			return nil, errors.Join(errFormerMaster, c.Close())
		}
		// The client's pool checks idle connections through this interface, which TLS does not have.
		if sys, ok := conn.(syscall.Conn); ok {
			return struct {
				*masterConn
				syscall.Conn
			}{c, sys}, nil
		}
		return c, nil
	}
}

// add keeps a connection, and returns the earlier ones to other servers. current is false if a later one
// leads to another server: this one took longer, and leads to the former master.
func (m *oneMaster) add(c *masterConn) (former []*masterConn, current bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := range m.open {
		if other.RemoteAddr().String() == c.RemoteAddr().String() {
			continue
		}
		if other.dial > c.dial {
			return nil, false
		}
		former = append(former, other)
	}
	m.open[c] = struct{}{}
	return former, true
}

// Close closes the connection.
func (c *masterConn) Close() error {
	c.hook.mu.Lock()
	delete(c.hook.open, c)
	c.hook.mu.Unlock()
	return c.Conn.Close()
}

// ProcessHook does nothing.
func (m *oneMaster) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook does nothing.
func (m *oneMaster) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// sentinelLimit bounds the diagnosis of the Sentinels.
const sentinelLimit = 2 * time.Second

// explainSentinel returns why the Sentinels do not lead to a master, and the fix. If they do, it
// returns the master's address instead.
func explainSentinel(ctx context.Context, setting string) (master, cause, fix string) {
	o, err := sentinelOptions(setting, nil)
	if err != nil {
		return "", err.Error(), "correct the URL"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sentinelLimit)
	defer cancel()
	unknown := false
	for _, addr := range o.SentinelAddrs {
		at, err := askSentinel(ctx, o, addr)
		switch {
		case err == nil:
			return at, "", ""
		case errors.Is(err, redis.Nil):
			unknown = true
		case cause == "":
			cause, fix = explainReply(ctx, sentinelReplies, o.TLSConfig != nil, addr, err)
			cause = "the Sentinel at " + addr + ": " + cause
		}
	}
	if unknown {
		return "", "the Sentinels monitor no master named " + o.MasterName, "correct master_name; SENTINEL MASTERS, sent to a Sentinel, lists the names"
	}
	return "", "no Sentinel names the master; " + cause, fix
}

// askSentinel returns the address of the master according to one Sentinel.
func askSentinel(ctx context.Context, o *redis.FailoverOptions, addr string) (master string, err error) {
	asking := &redis.Options{Addr: addr, Dialer: o.Dialer, Username: o.SentinelUsername, Password: o.SentinelPassword}
	limitServer(asking, nil)
	c := redis.NewSentinelClient(asking)
	defer func() { err = errors.Join(err, c.Close()) }()
	at, err := c.GetMasterAddrByName(ctx, o.MasterName).Result()
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(at[0], at[1]), nil
}

// sentinelReplies are the refusals of a Sentinel.
var sentinelReplies = []refusal{
	{"WRONGPASS", "wrong password or unknown user", "correct the user and the password before the @, which are those of the Sentinels"},
	{"AUTH <password> called without any password", "it has no password", "remove the user and the password before the @; those of Redis are the parameters username and password"},
	{"NOAUTH", "it wants a password", "write sentinel+redis://user:password@host:26379, with the Sentinels' user and password"},
	{"NOPERM", "its user lacks a permission", "grant the user +auth +hello +ping +subscribe +sentinel|get-master-addr-by-name +sentinel|sentinels and the channels * on every Sentinel"},
	{"unknown command", "it is a Redis server and no Sentinel", "name the port of the Sentinels (26379), or write redis:// instead of sentinel+redis://"},
	{"DENIED", "its protected mode refuses other hosts", "set a password for it, or protected-mode no and a firewall"},
}

// masterReplies replace redisReplies for a master that a Sentinel has named.
var masterReplies = []refusal{
	{"WRONGPASS", "wrong password or unknown user", "correct the parameters username and password, which are those of Redis; the ones before the @ are those of the Sentinels"},
	{"AUTH <password> called without any password", "the server has no password for the default user", "name a user (&username=NAME&password=…), or set a password on the server"},
	{"NOAUTH", "the server wants a password, and the URL has none", "add the parameters username and password (&username=NAME&password=…)"},
	{"READONLY", "it is a replica, and refuses writes", failoverFix},
	{"MASTERDOWN", "it is a replica, and has lost its primary", failoverFix},
}

// deadMasterFix is for a master that does not answer: the Sentinels may be replacing it.
const deadMasterFix = "wait until the Sentinels have promoted a replica, or start it; SENTINEL MASTERS shows their state"

const failoverFix = "start again when the failover has finished; SENTINEL MASTERS shows its state"
