//go:build unix

package main_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

const sentinelPassword = "hunter2-of-sentinel/#%@&+"

// sentinelUser has the permissions of docs/hardening.md for the Sentinels.
const sentinelUser = "allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname +client|kill +script|kill"

// watcherUser has the permissions of docs/hardening.md for the service on a Sentinel.
const watcherUser = "allchannels +auth +hello +ping +subscribe +sentinel|get-master-addr-by-name +sentinel|sentinels"

// addUsers adds the users of the service and of the Sentinels to a server.
func addUsers(t *testing.T, server *redistest.Server) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(redistest.Options(server.Addr()))
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	for user, rules := range map[string]string{"seller": "~* &* +@all", "guard": sentinelUser} {
		args := []any{"acl", "setuser", user, "on", ">" + redisPassword}
		for rule := range strings.FieldsSeq(rules) {
			args = append(args, rule)
		}
		if err := rdb.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return rdb
}

// sentinelURL is a setting with every user and password.
func sentinelURL(scheme string, addrs []string, master, user, password string) string {
	u := url.URL{Scheme: scheme, Host: addrs[0], User: url.UserPassword("watcher", sentinelPassword)}
	if user == "" {
		u.User = nil
	}
	q := url.Values{"master_name": {master}, "addr": addrs[1:]}
	if password != "" {
		q["username"], q["password"] = []string{"seller"}, []string{password}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// TestRedis_SentinelFailover kills the master during a sale. The Sentinels promote its replica,
// and the processes follow without a restart: purchases succeed again, nothing is sold twice,
// and no order that was answered with 201 is lost.
func TestRedis_SentinelFailover(t *testing.T) {
	needProcesses(t)
	const stock, buyers, answered = 300, 600, 100
	master := redistest.Real(t, "--appendfsync", "everysec")
	replica := master.Replica(t)
	addUsers(t, master)
	promoted := addUsers(t, replica)
	sentinels := redistest.Sentinels(t, master, 1, redistest.SentinelConfig{
		User: "watcher", Password: sentinelPassword, Rules: watcherUser, MasterUser: "guard", MasterPassword: redisPassword,
	})
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	setting := sentinelURL("sentinel+redis", sentinels.Addrs(), redistest.SentinelMaster, "watcher", redisPassword)
	args := append([]string{"--redis", setting}, noLimit...)
	worker, api := s.worker(args...), s.api(args...)
	c := dial(t, api)
	item := s.newItem(c, stock, 1)

	killed := make(chan struct{})
	got := burst(buyers, 50, answered, func(i int) purchase {
		if i >= stock-50 {
			<-killed // there is stock left then; nothing is refused if the replica is promoted quickly
		}
		headers := untilCommitted
		if i%3 == 0 {
			headers = []string{"Prefer", "respond-async"}
		}
		return c.buy(item, fmt.Sprint("u", i), "k", headers...)
	}, func() {
		if err := master.Kill(); err != nil {
			t.Errorf("kill the master: %v", err)
		}
		close(killed)
	})
	only(t, got, "201", "202", "409 sold_out", "503 unavailable", "503 overloaded", "503 rebuilding")
	if n := len(accepted(got)); n < answered/2 {
		t.Errorf("%d purchases were accepted before and after the kill: the fault struck too early", n)
	}
	eventually(t, "the replica is promoted", soon, func() (bool, any) {
		addr, err := sentinels.Master(t.Context())
		role, failed := promoted.InfoMap(t.Context(), "replication").Result()
		return addr == replica.Addr() && role["Replication"]["role"] == "master", fmt.Sprint(addr, err, failed)
	})

	settled := stream(buyers, 50, func(i int) purchase { return c.settle(item, c.buy(item, got[i].user, "k", untilCommitted...)) })
	only(t, settled, "200", "201", "202", "409 sold_out")
	for i, p := range got {
		if p.err == nil && p.Status == 201 && p.Order.ID != settled[i].Order.ID {
			t.Errorf("buyer %s got 201 with order %s before, and now %s with %q", p.user, p.Order.ID, settled[i].verdict(), settled[i].Order.ID)
		}
	}
	if rows := s.audit(c, item, 1, accepted(settled)); len(rows) != stock {
		t.Errorf("%d units were sold, want %d", len(rows), stock)
	}
	for _, p := range []*process.P{worker, api} {
		if strings.Contains(p.Log(), "hunter2") {
			t.Errorf("a password is in the log:\n%s", p.Log())
		}
	}
}

// TestRedis_SentinelSilent stops the only Sentinel in the setting of the processes, and kills the
// master. They ask the other Sentinels, which they know from the first.
func TestRedis_SentinelSilent(t *testing.T) {
	needProcesses(t)
	master := redistest.Real(t, "--appendfsync", "everysec")
	master.Replica(t)
	sentinels := redistest.Sentinels(t, master, 1, redistest.SentinelConfig{})
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	args := append([]string{"--redis", sentinelURL("sentinel+redis", sentinels.Addrs()[:1], redistest.SentinelMaster, "", "")}, noLimit...)
	s.worker(args...)
	c := dial(t, s.api(args...))
	item := s.newItem(c, 10, 1)
	before := c.buy(item, "alice", "k", untilCommitted...)
	only(t, []purchase{before}, "201")
	if err := errors.Join(sentinels.Servers[0].Pause(), master.Kill()); err != nil {
		t.Fatal(err)
	}
	after := c.settle(item, c.buy(item, "bob", "k", untilCommitted...))
	only(t, []purchase{after}, "201")
	s.audit(c, item, 1, []purchase{before, after})
}

// TestRedis_SentinelTLS: API and worker use Sentinels and a master that only speak TLS.
func TestRedis_SentinelTLS(t *testing.T) {
	needProcesses(t)
	authority := redistest.NewAuthority(t, "127.0.0.1")
	master := redistest.RealTLS(t, authority)
	sentinels := redistest.Sentinels(t, master, 0, redistest.SentinelConfig{Authority: authority})
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	start := func(command string) *process.P {
		spec := s.spec(command, []string{"--redis", sentinelURL("sentinel+rediss", sentinels.Addrs(), redistest.SentinelMaster, "", "")})
		spec.Env = append(spec.Env, "SSL_CERT_FILE="+authority.File)
		return process.Start(t, spec)
	}
	start("worker")
	c := dial(t, start("api"))
	item := s.newItem(c, 10, 1)
	bought := c.buy(item, "alice", "k", untilCommitted...)
	only(t, []purchase{bought}, "201")
	s.audit(c, item, 1, []purchase{bought})
}

// TestRedis_SentinelFailedStart: each reason for which Sentinels do not lead to a usable master is
// named with its fix, by a start and by the doctor, without a password.
func TestRedis_SentinelFailedStart(t *testing.T) {
	needProcesses(t)
	dir := t.TempDir()
	base := []string{"--db", "sqlite:" + dir + "/shop.db", "--data-dir", dir}
	wantCode(t, 0, process.Run(t, process.Spec{Command: "migrate", Args: append([]string{"up"}, base...)}))
	master := redistest.Real(t)
	rdb := addUsers(t, master)
	guarded := redistest.Sentinels(t, master, 0, redistest.SentinelConfig{
		User: "watcher", Password: sentinelPassword, Rules: watcherUser, MasterUser: "guard", MasterPassword: redisPassword,
	})
	dead, hung, other := redistest.Real(t), redistest.Real(t), redistest.Real(t)
	orphans := redistest.Sentinels(t, dead, 0, redistest.SentinelConfig{})
	waiting := redistest.Sentinels(t, hung, 0, redistest.SentinelConfig{})
	if err := errors.Join(dead.Kill(), hung.Pause(), rdb.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">"+redisPassword).Err()); err != nil {
		t.Fatal(err)
	}
	unused := []string{process.FreeAddr(t), process.FreeAddr(t)}
	const name = redistest.SentinelMaster
	plain := func(addr string) string { return sentinelURL("sentinel+redis", []string{addr}, name, "", "") }
	for _, q := range []struct {
		name, url, cause, fix string
		code                  int
	}{
		{"no name", "sentinel+redis://127.0.0.1:1", "it has no master_name", "add master_name=NAME", 2},
		{"replicas", plain("127.0.0.1:1") + "&route_randomly=true", "it sends commands to replicas", "remove", 2},
		{"no URL", plain("127.0.0.1:1") + "&colour=blue", "cannot be read", "write sentinel+redis://", 2},
		{"unknown name", sentinelURL("sentinel+redis", guarded.Addrs(), "store", "watcher", redisPassword), "no master named store", "correct master_name", 1},
		{"no Sentinel", sentinelURL("sentinel+redis", unused, name, "watcher", redisPassword), "no Sentinel names the master; the Sentinel at " + unused[0] + ": it does not answer: connection refused", "start it", 1},
		{"Redis instead", plain(other.Addr()), "it is a Redis server and no Sentinel", "name the port of the Sentinels", 1},
		{"no Sentinel's password", sentinelURL("sentinel+redis", guarded.Addrs(), name, "", redisPassword), "it wants a password", "write sentinel+redis://user:password@", 1},
		{"wrong Sentinel's password", strings.Replace(sentinelURL("sentinel+redis", guarded.Addrs(), name, "watcher", redisPassword), "hunter2-of-sentinel", "hunter2-of-others", 1), "wrong password or unknown user", "before the @", 1},
		{"no password", sentinelURL("sentinel+redis", guarded.Addrs(), name, "watcher", ""), "the master at " + master.Addr() + ": the server wants a password", "add the parameters username and password", 1},
		{"wrong password", sentinelURL("sentinel+redis", guarded.Addrs(), name, "watcher", redisPassword+"x"), "the master at " + master.Addr() + ": wrong password", "correct the parameters", 1},
		{"dead master", sentinelURL("sentinel+redis", orphans.Addrs(), name, "", ""), "the master at " + dead.Addr() + ": it does not answer: connection refused", "wait until the Sentinels have promoted a replica, or start it", 1},
		{"hung master", sentinelURL("sentinel+redis", waiting.Addrs(), name, "", ""), "the master at " + hung.Addr() + ": it does not answer: timeout", "wait until the Sentinels have promoted a replica, or start it", 1},
		{"TLS unknown", sentinelURL("sentinel+rediss", orphans.Addrs(), name, "", ""), "does not use TLS", "write redis://", 1},
		{"Sentinel as a server", "redis://" + orphans.Addrs()[0], "the server is a Sentinel", "write sentinel+redis://", 1},
	} {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			spec := process.Spec{Args: append([]string{"--redis", q.url}, base...), Env: []string{"FLASHSALE_JWT_SECRET=" + secret}}
			for _, spec.Command = range []string{"worker", "doctor"} {
				r := process.Run(t, spec)
				if spec.Command == "worker" {
					wantCode(t, q.code, r, q.cause, q.fix, "setting redis (FLASHSALE_REDIS)")
				} else {
					wantCode(t, 1, r, q.cause, q.fix)
				}
				if strings.Contains(r.Output, "hunter2") {
					t.Errorf("%s prints a password:\n%s", spec.Command, r.Output)
				}
			}
		})
	}
}
