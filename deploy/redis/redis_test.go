//go:build unix

// The tests of this folder run the service with these users and settings of Redis.
package redis_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/process"
	"flashsale/internal/testing/redistest"
)

func TestMain(m *testing.M) { process.Main(m) }

const (
	// password is that of every user in the tests.
	password = "password-of-the-tests"
	// admin is a user of the tests that has all permissions.
	admin = "user test-admin on >" + password + " ~* &* +@all\n"
	// noLogin is the placeholder of a password's SHA-256.
	noLogin = "#0000000000000000000000000000000000000000000000000000000000000000"
)

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// newServer starts a server with redis.conf and users.acl. The passwords are replaced; the
// network, which the tests choose, is not that of the file.
func newServer(t *testing.T, more ...string) (*redistest.Server, *redis.Client) {
	t.Helper()
	dir := t.TempDir()
	users := write(t, filepath.Join(dir, "users.acl"), "user default on nopass ~* &* +@all\n")
	conf := strings.ReplaceAll(text(t, "redis.conf"), "/etc/redis/users.acl", users)
	conf = regexp.MustCompile(`(?m)^(port|bind) .*$`).ReplaceAllString(conf, "")
	args := append([]string{"--include", write(t, filepath.Join(dir, "redis.conf"), conf)}, more...)
	server := redistest.Real(t, args...)
	// The launcher of the tests logs in as the default user, so the users follow now.
	write(t, users, admin+strings.ReplaceAll(text(t, "users.acl"), noLogin, ">"+password))
	o := redistest.Options(server.Addr())
	first := redis.NewClient(o)
	if err := first.Do(t.Context(), "acl", "load").Err(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	return server, login(t, server, "test-admin")
}

func login(t *testing.T, server *redistest.Server, user string) *redis.Client {
	t.Helper()
	o := redistest.Options(server.Addr())
	o.Username, o.Password = user, password
	rdb := redis.NewClient(o)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

// refusal matches the errors of commands that a user may not run, also from a script.
var refusal = regexp.MustCompile("NOPERM|can't run this command|can't access at least one of the keys")

// Each user is limited to the service's keys and channels, and administers nothing.
func TestUsers_Limits(t *testing.T) {
	server, rdb := newServer(t)
	denied := []string{
		"FLUSHALL", "FLUSHDB", "CONFIG SET appendonly no", "CONFIG REWRITE", "KEYS *", "SCAN 0", "SHUTDOWN NOSAVE", "BGSAVE",
		"ACL LIST", "ACL SETUSER api on nopass", "MONITOR", "REPLICAOF NO ONE", "SAVE", "CLIENT LIST", "CLIENT KILL TYPE normal",
		"SCRIPT FLUSH", "FUNCTION FLUSH", "MODULE LIST", "SWAPDB 0 1", "MIGRATE h 1 k 0 1", "GET other", "SET other 1", "DEL session:1",
		"EVAL redis.call('SET','other','1') 0", "EVAL return(redis.call('FLUSHALL')) 0", "PUBLISH other x", "SUBSCRIBE other",
		"PSUBSCRIBE *", "SUBSCRIBE fs:other", "RENAME fs:a fs:b", "DUMP fs:a", "OBJECT FREQ fs:a",
		"CLUSTER RESET", "CLUSTER FAILOVER", "CLUSTER FORGET n", "CLUSTER NODES",
	}
	for _, user := range []string{"api", "worker", "operator"} {
		c := login(t, server, user)
		if err := c.Set(t.Context(), "fs:{p0}:probe", 1, time.Minute).Err(); err != nil {
			t.Errorf("%s: %v", user, err)
		}
		for _, command := range denied {
			var args []any
			for word := range strings.FieldsSeq(command) {
				args = append(args, word)
			}
			if err := c.Do(t.Context(), args...).Err(); err == nil || !refusal.MatchString(err.Error()) {
				t.Errorf("%s may run %s: %v", user, command, err)
			}
		}
	}
	if n := rdb.Exists(t.Context(), "other").Val(); n != 0 {
		t.Error("a script wrote a key of another service")
	}
	o := redistest.Options(server.Addr())
	anybody := redis.NewClient(o)
	defer anybody.Close()
	if err := anybody.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("without a user: %v", err)
	}
}

// No user of the delivered file can log in.
func TestUsers_NoPasswords(t *testing.T) {
	users := text(t, "users.acl")
	if n := strings.Count(users, noLogin); n != 3 {
		t.Errorf("%d placeholders", n)
	}
	if regexp.MustCompile(`(?m)nopass|[ ]>|^user default on`).MatchString(users) {
		t.Error("a user has a password or none is needed")
	}
}

// redis.conf has the settings that the service checks at its start, and they are in effect.
func TestConf(t *testing.T) {
	_, rdb := newServer(t)
	for name, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "tcp-keepalive": "60", "timeout": "0",
		"protected-mode": "yes", "no-appendfsync-on-rewrite": "no",
	} {
		if got := rdb.ConfigGet(t.Context(), name).Val()[name]; got != want || !strings.Contains(text(t, "redis.conf"), fmt.Sprintf("\n%s %s\n", name, want)) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}
