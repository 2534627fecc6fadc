//go:build unix

package main_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

// redisPassword is the password of the tests' users. It must never be printed.
const redisPassword = "hunter2-of-redis"

// userServer starts a server whose default user has a password, and whose other users lack one
// permission each.
func userServer(t *testing.T) string {
	t.Helper()
	s := redistest.Real(t, "--databases", "4")
	rdb := redis.NewClient(redistest.Options(s.Addr()))
	for user, lacks := range map[string]string{"all": "+ping", "noping": "-ping", "noeval": "-eval", "nosetnx": "-setnx -set", "nokeys": "resetkeys ~other:*"} {
		args := []any{"acl", "setuser", user, "on", ">" + redisPassword, "~*", "&*", "+@all"}
		for rule := range strings.FieldsSeq(lacks) {
			args = append(args, rule)
		}
		if err := rdb.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(rdb.Do(t.Context(), "acl", "setuser", "default", "resetpass", ">"+redisPassword).Err(), rdb.Close()); err != nil {
		t.Fatal(err)
	}
	return s.Addr()
}

// fakeRedis answers every command with one reply, for the states that a real server has only
// for a moment or on another address than loopback; "" for no reply.
func fakeRedis(t *testing.T, reply string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for buffer := make([]byte, 4096); ; {
					n, err := conn.Read(buffer)
					if err != nil {
						return
					}
					// Each command begins with its number of words: *2.
					commands := strings.Count(string(buffer[:n]), "*")
					if _, err := io.WriteString(conn, strings.Repeat(reply, commands)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestRedis_FailedStart: each reason for which the service cannot use Redis is named with its fix, by a
// start and by the doctor, without the password.
func TestRedis_FailedStart(t *testing.T) {
	needProcesses(t)
	dir := t.TempDir()
	base := []string{"--db", "sqlite:" + dir + "/shop.db", "--data-dir", dir}
	wantCode(t, 0, process.Run(t, process.Spec{Command: "migrate", Args: append([]string{"up"}, base...)}))
	users, master := userServer(t), redistest.Real(t)
	replica := master.Replica(t)
	node := redistest.Cluster(t).Options().Addrs[0]
	here, elsewhere := redistest.NewAuthority(t, "127.0.0.1"), redistest.NewAuthority(t, "redis.example")
	elsewhere.Config.ServerName = "redis.example"
	secure, wrongName := redistest.RealTLS(t, here).Addr(), redistest.RealTLS(t, elsewhere).Addr()
	as := func(user string) string { return "redis://" + user + ":" + redisPassword + "@" }
	for _, q := range []struct{ name, url, trust, cause, fix string }{
		{"wrong password", "redis://all:" + redisPassword + "x@" + users, "", "wrong password or unknown user", "correct the user and the password"},
		{"unknown user", as("nobody") + users, "", "wrong password or unknown user", "correct the user and the password"},
		{"no password", "redis://" + users, "", "the server wants a password", "write user:password@ before the host"},
		{"no PING", as("noping") + users, "", "lacks a permission", "users.acl"},
		{"no EVAL", as("noeval") + users, "", "lacks a permission", "users.acl"},
		{"no keys", as("nokeys") + users, "", "lacks a permission", "users.acl"},
		{"no such database", as("all") + users + "/4", "", "no database of that number", "correct the number"},
		{"TLS expected", as("all") + secure, "", "the server expects TLS", "write rediss://"},
		{"TLS unknown", "rediss://" + master.Addr(), "", "does not use TLS", "write redis://"},
		{"unknown authority", "rediss://" + secure, "", "unknown authority", "SSL_CERT_FILE"},
		{"other host", "rediss://" + wrongName, elsewhere.File, "for another host", "subjectAltName"},
		{"no such host", as("all") + "redis.invalid:6379", "", "the host redis.invalid cannot be resolved", "DNS"},
		{"refused", as("all") + process.FreeAddr(t), "", "connection refused", "correct the host and port"},
		{"silent", as("all") + fakeRedis(t, ""), "", "timeout", "firewall"},
		{"no cluster", "cluster+redis://" + master.Addr(), "", "the server is no cluster", "write redis://"},
		{"node of a cluster", "redis://" + node, "", "a node of a cluster", "write cluster+redis://"},
		{"replica", "redis://" + replica.Addr(), "", "it is a replica", "name the primary, at " + master.Addr()},
		{"loading", "redis://" + fakeRedis(t, "-LOADING Redis is loading the dataset in memory\r\n"), "", "still loading its data", "start again"},
		{"protected mode", "redis://" + fakeRedis(t, "-DENIED Redis is running in protected mode. Further advice.\r\n"), "", "protected mode", "set a password"},
	} {
		t.Run(q.name, func(t *testing.T) {
			t.Parallel()
			spec := process.Spec{Args: append([]string{"--redis", q.url}, base...), Env: []string{"FLASHSALE_JWT_SECRET=" + secret}}
			if q.trust != "" {
				spec.Env = append(spec.Env, "SSL_CERT_FILE="+q.trust)
			}
			for _, spec.Command = range []string{"worker", "doctor"} {
				r := process.Run(t, spec)
				wantCode(t, 1, r, q.cause, q.fix)
				if spec.Command == "worker" {
					wantCode(t, 1, r, "setting redis (FLASHSALE_REDIS)")
				}
				if strings.Contains(r.Output, redisPassword) {
					t.Errorf("%s prints the password:\n%s", spec.Command, r.Output)
				}
			}
		})
	}
	// A permission that only the start needs.
	wantCode(t, 1, process.Run(t, process.Spec{Command: "worker", Args: append([]string{"--redis", as("nosetnx") + users}, base...),
		Env: []string{"FLASHSALE_JWT_SECRET=" + secret}}), "lacks a permission", "setnx")
}
