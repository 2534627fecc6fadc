package backend

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/breaker"
	"flashsale/inventory"
)

const (
	// startLimit bounds the wait of a start. A cluster with the default timeouts replaces a
	// master within it, and Sentinels within 10 s of noticing that it is down.
	startLimit = 20 * time.Second
	startPoll  = 100 * time.Millisecond
)

// CheckRedis checks that the engine answers, that its user may do what the service does, and that
// it is no replica. An error names the setting, the cause and the fix.
//
// It waits up to 20 s for an engine that is about to serve: a cluster or Sentinels replace a
// master, or a server loads its data. waits is called once, with the cause, if it has to wait.
func CheckRedis(ctx context.Context, setting string, rdb redis.UniversalClient, waits func(cause string)) error {
	wait, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(startPoll)
	defer tick.Stop()
	var cause, fix string
	for {
		nowCause, nowFix, reply := redisProblem(ctx, setting, rdb)
		switch {
		case nowCause == "":
			return nil
		case cause != "" && (ctx.Err() != nil || errors.Is(reply, breaker.ErrOpen)):
			// The call was cut short, or not sent because the breaker has opened: the cause is the earlier one.
		case !passing(setting, nowFix, reply) && !othersAnswer(wait, rdb, reply):
			return config.FailedSetting("redis", setting, nowCause, nowFix)
		default:
			if cause == "" {
				waits(nowCause)
			}
			cause, fix = nowCause, nowFix
		}
		select {
		case <-tick.C:
		case <-wait.Done():
		}
		if wait.Err() != nil {
			return config.FailedSetting("redis", setting, cause, fix)
		}
	}
}

// passing reports whether an engine that gave this reply, or whose problem has this fix, is about to
// serve. The nodes of a cluster whose slots move may redirect a client more often than it follows.
func passing(setting, fix string, reply error) bool {
	begins := func(prefix string) bool { return redis.HasErrorPrefix(reply, prefix) }
	switch {
	case begins("CLUSTERDOWN"), begins("LOADING"):
		return true
	case strings.HasPrefix(setting, clusterScheme):
		return slices.ContainsFunc(movedReplies, func(r refusal) bool { return begins(r.reply) })
	default: // the Sentinels name a master that is down, or a replica
		return fix == failoverFix || strings.HasPrefix(fix, deadMasterFix)
	}
}

// othersAnswer reports whether a node of a cluster gave no reply and another one answers: the cluster is about to
// replace the first.
func othersAnswer(ctx context.Context, rdb redis.UniversalClient, reply error) bool {
	cluster, ok := rdb.(*redis.ClusterClient)
	var answered redis.Error
	if !ok || reply == nil || errors.As(reply, &answered) {
		return false
	}
	var one atomic.Bool
	err := cluster.ForEachShard(ctx, func(ctx context.Context, node *redis.Client) error {
		if node.Ping(ctx).Err() == nil {
			one.Store(true)
		}
		return nil
	})
	return err == nil && one.Load()
}

// clusterScheme begins the setting of a Redis Cluster.
const clusterScheme = "cluster+"

// movedReplies are the refusals of the nodes of a cluster that do not agree.
var movedReplies = []refusal{
	{"MOVED", "the nodes of the cluster disagree about the place of a slot", "see CLUSTER INFO and CLUSTER SLOTS of each node, and start again once its slots have been moved"},
	{"ASK", "a slot of the cluster is being moved", "start again once it has been moved"},
	{"TRYAGAIN", "a slot of the cluster is being moved", "start again once it has been moved"},
}

// RedisError adds the setting, the cause and the fix to an error of Redis that an operator can
// correct. Others, and nil, are returned unchanged.
func RedisError(ctx context.Context, setting string, err error) error {
	var answered redis.Error
	var network net.Error
	if !errors.As(err, &answered) && !errors.As(err, &network) {
		return err
	}
	cause, fix := explainRedis(ctx, setting, err)
	return config.FailedSetting("redis", setting, cause, fix)
}

// LineageError adds the settings and the fix to inventory.ErrLineage. Others are returned
// unchanged.
func LineageError(s *config.Settings, err error) error {
	if !errors.Is(err, inventory.ErrLineage) {
		return err
	}
	return config.FailedSetting("redis", s.Redis, fmt.Sprintf("%v; the setting db is %s", err, config.RedactURL(s.DB)),
		"name the Redis of this database, or the database of this Redis; docs/operating.md describes how to give a Redis to another shop")
}

// probeKeys is the number of keys, each of another slot, that probe reads. On a cluster
// of two masters, one of them has all of their slots once in 2^32 clusters.
const probeKeys = 32

// probeKey names a key that no process writes.
func probeKey(i int) string { return fmt.Sprintf("fs:{probe%d}", i) }

// RedisProblem returns what prevents the service from using the engine, and the fix; "" for
// nothing.
func RedisProblem(ctx context.Context, setting string, rdb redis.UniversalClient) (cause, fix string) {
	cause, fix, _ = redisProblem(ctx, setting, rdb) //nolint:errcheck // the cause explains it
	return cause, fix
}

// redisProblem also returns the error of the call that failed; nil if none did.
func redisProblem(ctx context.Context, setting string, rdb redis.UniversalClient) (cause, fix string, failed error) {
	if err := rdb.Ping(ctx).Err(); err != nil {
		cause, fix = explainCall(ctx, setting, rdb, err)
		return cause, fix, err
	}
	if _, cluster := rdb.(*redis.ClusterClient); !cluster && setting != config.EmbeddedRedis {
		if cause, fix := wrongServer(ctx, setting, rdb); cause != "" {
			return cause, fix, nil
		}
	}
	if err := probe(ctx, rdb); err != nil {
		cause, fix = explainCall(ctx, setting, rdb, err)
		return cause, fix, err
	}
	return "", "", nil
}

// explainCall explains the error of a call. If nodes of a cluster do not answer, it also names their masters.
func explainCall(ctx context.Context, setting string, rdb redis.UniversalClient, err error) (cause, fix string) {
	cause, fix = explainRedis(ctx, setting, err)
	if cause != silentNode {
		return cause, fix
	}
	masters, err := Masters(ctx, rdb)
	if err != nil {
		return cause, fix
	}
	var silent []string
	for _, m := range masters {
		var answered redis.Error
		if err := m.Ping(ctx).Err(); err != nil && !errors.As(err, &answered) {
			silent = append(silent, m.addr)
		}
	}
	if len(silent) > 0 {
		cause += " (" + strings.Join(silent, ", ") + ")"
	}
	return cause, fix
}

// silentNode is the cause if the circuit breaker of a node is open: the error does not name the node.
const silentNode = "a node of the cluster does not answer"

// probe reads keys on every master. They are like those of the service, so that a user without
// permission for them is refused.
func probe(ctx context.Context, rdb redis.UniversalClient) error {
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range probeKeys {
			p.Exists(ctx, probeKey(i))
		}
		p.Eval(ctx, "return redis.call('exists', KEYS[1])", []string{"fs:{probe}"})
		return nil
	})
	return err
}

// WritesRefused returns why a master that answers refuses writes, and the fix; "" if none does.
// The writes change nothing, because the keys do not exist.
func WritesRefused(ctx context.Context, setting string, rdb redis.UniversalClient) (cause, fix string) {
	pipe := rdb.Pipeline()
	for i := range probeKeys {
		pipe.SetXX(ctx, probeKey(i), "", time.Minute)
	}
	replies, _ := pipe.Exec(ctx) //nolint:errcheck // each command has its error
	for i, reply := range replies {
		err := reply.Err()
		if err == nil || errors.Is(err, redis.Nil) {
			continue
		}
		cause, fix = explainRedis(ctx, setting, err)
		if cluster, ok := rdb.(*redis.ClusterClient); ok {
			if master, err := cluster.MasterForKey(ctx, probeKey(i)); err == nil {
				cause = "the master " + master.Options().Addr + ": " + cause
			}
		}
		return cause, fix
	}
	return "", ""
}

// wrongServer reports a replica or a Sentinel in place of the primary; "" for neither. A managed
// Redis may forbid INFO. Then the first write of the start fails.
func wrongServer(ctx context.Context, setting string, rdb redis.UniversalClient) (cause, fix string) {
	info, err := rdb.InfoMap(ctx).Result()
	switch {
	case err != nil:
		return "", ""
	case info["Server"]["redis_mode"] == "sentinel":
		return "the server is a Sentinel", "write sentinel+redis://host:26379?master_name=NAME instead of redis:// (sentinel+rediss:// instead of rediss://)"
	case info["Replication"]["role"] != "slave":
		return "", ""
	case strings.HasPrefix(setting, sentinelScheme):
		return "the server that the Sentinels name is a replica, and refuses writes", failoverFix
	default:
		at := net.JoinHostPort(info["Replication"]["master_host"], info["Replication"]["master_port"])
		return "it is a replica, and refuses writes", "name the primary, at " + at
	}
}

// refusal is the beginning of an error reply, with its cause and the fix.
type refusal struct{ reply, cause, fix string }

// redisReplies are the refusals of a server.
var redisReplies = []refusal{
	{"WRONGPASS", "wrong password or unknown user", "correct the user and the password, with % codes for any of /#%@ in them"},
	{"AUTH <password> called without any password", "the server has no password for the default user", "name a user (user:password@ before the host), or set a password on the server"},
	{"NOAUTH", "the server wants a password, and the URL has none", "write user:password@ before the host, or :password@ for the default user"},
	{"NOPERM", "the user lacks a permission that the service needs", "grant the user what deploy/redis/users.acl grants; see docs/hardening.md"},
	{"This instance has cluster support disabled", "the server is no cluster", "write redis:// instead of cluster+redis:// (rediss:// instead of cluster+rediss://)"},
	{"MOVED", "the server is a node of a cluster", "write cluster+redis:// instead of redis:// (cluster+rediss:// instead of rediss://)"},
	{"SELECT is not allowed in cluster mode", "the server is a node of a cluster", "write cluster+redis:// instead of redis:// (cluster+rediss:// instead of rediss://), without a database number"},
	{"CLUSTERDOWN", "the cluster does not serve all of its slots", "repair the cluster; see CLUSTER INFO"},
	{"READONLY", "it is a replica, and refuses writes", "name the primary"},
	{"MASTERDOWN", "it is a replica, and has lost its primary", "name the primary"},
	{"DB index is out of range", "the server has no database of that number", "correct the number at the end of the URL, or raise the server's setting databases"},
	{"LOADING", "it is still loading its data", "start again when it has finished"},
	{"DENIED", "the server's protected mode refuses other hosts", "set a password for the default user, or use the users of deploy/redis/users.acl; see docs/hardening.md"},
	{"max number of clients reached", "the server has no connection left", "raise maxclients of the server, or set pool_size in the URL"},
	{"OOM", "its memory is full", "raise maxmemory of the server"},
	{"MISCONF", "it refuses writes because it cannot save its data", "see the log of the server: its disk may be full"},
	{"NOREPLICAS", "it refuses writes because it has fewer replicas than its min-replicas-to-write wants", "start the replicas, and restart those whose lag in INFO replication of the master exceeds min-replicas-max-lag"},
}

// explainRedis returns the cause of an error of Redis, and the fix.
func explainRedis(ctx context.Context, setting string, err error) (cause, fix string) {
	secure, addr := redisAddr(setting)
	if strings.HasPrefix(setting, clusterScheme) {
		// The URL names some of the nodes, and not necessarily this one.
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Addr != nil {
			addr = op.Addr.String()
		}
		if errors.Is(err, breaker.ErrOpen) || errors.Is(err, breaker.ErrSentBefore) {
			return silentNode, "start it, or let a replica take its place; see CLUSTER NODES"
		}
		return explainReply(ctx, slices.Concat(movedReplies, redisReplies), secure, addr, err)
	}
	if !strings.HasPrefix(setting, sentinelScheme) {
		return explainReply(ctx, redisReplies, secure, addr, err)
	}
	master, cause, fix := explainSentinel(ctx, setting)
	if master == "" {
		return cause, fix
	}
	cause, fix = explainReply(ctx, slices.Concat(masterReplies, redisReplies), secure, master, err)
	switch fix {
	case refusedFix, addressFix:
		fix = deadMasterFix
	case silentFix:
		fix = deadMasterFix + firewallFix
	}
	return "the master at " + master + ": " + cause, fix
}

// explainReply returns the cause of an error of the server at addr, and the fix. The first of
// the known refusals counts.
func explainReply(ctx context.Context, known []refusal, secure bool, addr string, err error) (cause, fix string) {
	var answered redis.Error
	if errors.As(err, &answered) {
		// DENIED explains itself in several sentences.
		reply, _, _ := strings.Cut(answered.Error(), ". ")
		for _, r := range known {
			if redis.HasErrorPrefix(err, r.reply) {
				return r.cause + " (" + reply + ")", r.fix
			}
		}
		return "the server refuses a command (" + reply + ")", "see the log of the server"
	}
	if cause, fix := explainCertificate(err); cause != "" {
		return cause, fix
	}
	return explainNetwork(ctx, secure, addr, err)
}

// explainCertificate returns what is wrong with the server's certificate, and the fix; "" for
// other errors.
func explainCertificate(err error) (cause, fix string) {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		alert     tls.AlertError
	)
	switch {
	case errors.As(err, &authority):
		return "the server's certificate is signed by an unknown authority (" + authority.Error() + ")",
			"add the authority's certificate to the certificates of this system, or name a file that has it in SSL_CERT_FILE"
	case errors.As(err, &host):
		return "the server's certificate is for another host (" + host.Error() + ")",
			"connect by a name that is in the certificate, or add this one to the certificate (subjectAltName)"
	case errors.As(err, &invalid):
		return "the server's certificate is invalid (" + invalid.Error() + ")", "renew the certificate, and check this machine's clock"
	case errors.As(err, &alert):
		return "the server refuses the TLS connection (" + alert.Error() + ")",
			"set tls-auth-clients no on the server if it wants a certificate of its clients, and check its tls-protocols"
	}
	return "", ""
}

// The fixes for a server that does not answer.
const (
	refusedFix  = "start it, or correct the host and port"
	addressFix  = "start it, or correct the address"
	firewallFix = "; check that the firewall allows the port"
	silentFix   = addressFix + firewallFix
)

// explainNetwork does the same for an error of the network.
func explainNetwork(ctx context.Context, secure bool, addr string, err error) (cause, fix string) {
	var (
		name   *net.DNSError
		plain  tls.RecordHeaderError
		silent net.Error
	)
	switch {
	case errors.As(err, &name):
		return "the host " + name.Name + " cannot be resolved (" + name.Err + ")", "correct the host, or check this machine's DNS"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "it does not answer: connection refused (" + addr + ")", refusedFix
	case errors.As(err, &plain), secure && speaksPlain(ctx, addr):
		return "the server does not use TLS", "write redis:// instead of rediss:// (or cluster+redis:// and so on), or set tls-port on the server"
	case !secure && speaksTLS(ctx, addr):
		return "the server expects TLS", "write rediss:// instead of redis:// (or cluster+rediss:// and so on)"
	case errors.As(err, &silent) && silent.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "it does not answer: timeout (" + err.Error() + ")", silentFix
	default:
		return "it does not answer (" + err.Error() + ")", addressFix
	}
}

// redisAddr returns whether a setting asks for TLS, and the first address in it.
func redisAddr(setting string) (secure bool, addr string) {
	u, err := url.Parse(setting)
	if err != nil {
		return false, ""
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	return strings.HasSuffix(u.Scheme, "rediss"), net.JoinHostPort(u.Hostname(), port)
}

// probeLimit bounds one probe of an address. A probe sends no password.
const probeLimit = time.Second

// speaksPlain reports whether a Redis without TLS answers at addr. It is needed because such a
// Redis leaves the beginning of a TLS handshake unanswered.
func speaksPlain(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() //nolint:errcheck // the answer has been read, or none came
	if err := conn.SetDeadline(time.Now().Add(probeLimit)); err != nil {
		return false
	}
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return false
	}
	first, err := bufio.NewReader(conn).ReadByte()
	return err == nil && slices.Contains([]byte("+-"), first)
}

// speaksTLS reports whether a server with TLS answers at addr, whatever its certificate.
func speaksTLS(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // it only shakes hands: nothing is sent, and nothing is believed
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close() //nolint:errcheck // the handshake was all that was needed
	return true
}
