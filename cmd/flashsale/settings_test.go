//go:build unix

package main_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"flashsale/handler/auth"
	"flashsale/internal/testing/process"
)

// effective parses what `flashsale config` prints: value and origin by setting.
func effective(t *testing.T, r process.Result) (values, origins map[string]string) {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("flashsale config: exit code %d\n%s", r.Code, r.Output)
	}
	values, origins = make(map[string]string), make(map[string]string)
	for line := range strings.Lines(r.Output) {
		f := strings.Fields(line)
		if len(f) < 3 {
			t.Fatalf("flashsale config printed %q", line)
		}
		values[f[0]], origins[f[0]] = f[1], strings.Join(f[2:], " ")
	}
	return values, origins
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSettings_FlagBeforeEnvironmentBeforeFile sets a setting in four places and removes them
// one by one: flag, environment, file, default.
func TestSettings_FlagBeforeEnvironmentBeforeFile(t *testing.T) {
	needProcesses(t)
	file := writeFile(t, "shop.yaml", "addr: 127.0.0.1:8003\nbatch: 33\ndemo: false\nlease: 3s\nrate-buyer: 3.5\ntrusted-proxies: [10.0.0.0/8, 192.0.2.1]\n")
	fromEnv := []string{
		"FLASHSALE_ADDR=127.0.0.1:8002", "FLASHSALE_BATCH=22", "FLASHSALE_LEASE=2s",
		"FLASHSALE_RATE_BUYER=2.5", "FLASHSALE_TRUSTED_PROXIES=10.0.0.2,10.0.0.3",
		// An unknown and an empty variable must be ignored.
		"FLASHSALE_PORT=tcp://10.0.0.1:80", "FLASHSALE_LOG_LEVEL=",
	}
	flags := []string{"--addr", "127.0.0.1:8001", "--batch=11", "--lease=1s", "--rate-buyer=1.5", "--trusted-proxies=10.0.0.1"}
	type want struct{ value, origin string }
	for _, q := range []struct {
		name string
		args []string
		env  []string
		want map[string]want
	}{
		{"all", append([]string{"--config", file}, flags...), fromEnv, map[string]want{
			"addr": {"127.0.0.1:8001", "flag"}, "batch": {"11", "flag"}, "lease": {"1s", "flag"},
			"rate-buyer": {"1.5", "flag"}, "trusted-proxies": {"10.0.0.1", "flag"},
			"demo": {"false", "file " + file}, "log-level": {"info", "default"},
		}},
		{"no flags", []string{"--config", file}, fromEnv, map[string]want{
			"addr": {"127.0.0.1:8002", "environment FLASHSALE_ADDR"}, "batch": {"22", "environment FLASHSALE_BATCH"},
			"lease": {"2s", "environment FLASHSALE_LEASE"}, "rate-buyer": {"2.5", "environment FLASHSALE_RATE_BUYER"},
			"trusted-proxies": {"10.0.0.2,10.0.0.3", "environment FLASHSALE_TRUSTED_PROXIES"},
			"demo":            {"false", "file " + file}, "config": {file, "flag"},
		}},
		{"file", nil, []string{"FLASHSALE_CONFIG=" + file}, map[string]want{
			"addr": {"127.0.0.1:8003", "file " + file}, "batch": {"33", "file " + file}, "lease": {"3s", "file " + file},
			"rate-buyer": {"3.5", "file " + file}, "trusted-proxies": {"10.0.0.0/8,192.0.2.1", "file " + file},
			"demo": {"false", "file " + file}, "config": {file, "environment FLASHSALE_CONFIG"},
		}},
		{"nothing", nil, nil, map[string]want{
			"addr": {"127.0.0.1:8080", "default"}, "ops-addr": {"127.0.0.1:9090", "default"}, "redis": {"embedded", "default"},
			"db": {"sqlite:flashsale-data/flashsale.db", "default"}, "data-dir": {"flashsale-data", "default"},
			"token-leeway": {"30s", "default"}, "mock-payments-addr": {"127.0.0.1:0", "default"}, "trace-endpoint": {`""`, "default"}, "trace-sample": {"0.01", "default"},
			"rate-buyer": {"20", "default"}, "rate-address": {"0", "default"}, "batch": {"512", "default"},
			"lease": {"5s", "default"}, "demo": {"true", "default"}, "jwt-secret": {`""`, "default"}, "trusted-proxies": {`""`, "default"},
		}},
		{"the database follows the data directory", []string{"--data-dir", "elsewhere"}, nil, map[string]want{
			"data-dir": {"elsewhere", "flag"}, "db": {"sqlite:elsewhere/flashsale.db", "default"},
		}},
	} {
		t.Run(q.name, func(t *testing.T) {
			values, origins := effective(t, process.Run(t, process.Spec{Command: "config", Args: q.args, Env: q.env}))
			for name, w := range q.want {
				if values[name] != w.value || origins[name] != w.origin {
					t.Errorf("%s is %s from %s; want %s from %s", name, values[name], origins[name], w.value, w.origin)
				}
			}
		})
	}
}

// TestSettings_TokenLeeway starts an API without leeway for expired tokens, and one with five
// minutes.
func TestSettings_TokenLeeway(t *testing.T) {
	needProcesses(t)
	for _, q := range []struct {
		leeway  string
		expired time.Duration // how long ago
		want    string
	}{
		{"0", 10 * time.Second, "401 token_expired"},
		{"5m", time.Minute, "200"},
	} {
		t.Run(q.leeway, func(t *testing.T) {
			t.Parallel()
			c := dial(t, newShop(t).serve("--token-leeway", q.leeway))
			token, err := auth.SignToken([]byte(secret), "alice", auth.RoleBuyer, time.Second, time.Now().Add(-q.expired-time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if a, err := c.do("GET", "/v1/orders", token, ""); err != nil || a.verdict() != q.want {
				t.Errorf("a token that expired %s ago: %s, error %v; want %s", q.expired, a.verdict(), err, q.want)
			}
		})
	}
}

// TestSettings_SecretsAreNeverPrinted sets secrets in every possible way; none is printed.
func TestSettings_SecretsAreNeverPrinted(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	const hidden = "hunter2-hunter2-hunter2-hunter2-hunter2"
	file := writeFile(t, "shop.yaml", "jwt-secret: "+hidden+"\nredis: redis://user:"+hidden+"@127.0.0.1:1/0\n")
	closed := process.FreeAddr(t)
	for _, q := range []struct {
		name, command string
		args, env     []string
		code          int
	}{
		{"flag", "config", []string{"--jwt-secret", hidden}, nil, 0},
		{"environment", "config", nil, []string{"FLASHSALE_JWT_SECRET=" + hidden}, 0},
		{"file", "config", []string{"--config", file}, nil, 0},
		{"passwords in URLs", "config", []string{"--redis", "rediss://:" + hidden + "@127.0.0.1:1/0", "--jwks", "https://u:" + hidden + "@127.0.0.1/keys"}, nil, 0},
		{"password of a cluster", "config", []string{"--redis", "cluster+redis://u:" + hidden + "@127.0.0.1:1"}, nil, 0},
		{"passwords of Sentinels and Redis", "config", []string{"--redis", "sentinel+redis://u:" + hidden + "@127.0.0.1:1?master_name=m&username=s&password=" + hidden}, nil, 0},
		{"secret too short", "serve", []string{"--jwt-secret", hidden[:20]}, nil, 2},
		{"secret and key set", "serve", []string{"--jwt-secret", hidden, "--jwks", "keys.json"}, nil, 2},
		{"Redis that does not answer", "serve", []string{"--jwt-secret", hidden, "--redis", "redis://:" + hidden + "@" + closed + "/0"}, nil, 1},
		{"Redis of no known kind", "serve", []string{"--redis", "mysql://u:" + hidden + "@127.0.0.1:1"}, nil, 2},
		{"database of no known kind", "serve", []string{"--db", "mysql://u:" + hidden + "@127.0.0.1:1/shop"}, nil, 2},
		{"Postgres in settings", "config", []string{"--db", "postgres://shop:" + hidden + "@127.0.0.1:1/shop?sslpassword=" + hidden}, nil, 0},
		{"Postgres in the environment", "config", nil, []string{"FLASHSALE_DB=postgresql://shop:" + hidden + "@127.0.0.1:1/shop", "PGPASSWORD=" + hidden}, 0},
		{"Postgres with an ambiguous password", "serve", []string{"--db", "postgres://shop:" + hidden + "/x@127.0.0.1:1/shop"}, nil, 2},
		{"Postgres without a host", "serve", []string{"--db", "postgres://shop:" + hidden}, nil, 2},
		{"Postgres that does not answer", "serve", []string{"--db", "postgres://shop:" + hidden + "@" + closed + "/shop"}, nil, 1},
		{"Postgres that does not answer the doctor", "doctor", []string{"--db", "postgres://shop:" + hidden + "@" + closed + "/shop"}, nil, 1},
		{"Postgres that does not answer a migration", "migrate", []string{"up", "--db", "postgres://shop:" + hidden + "@" + closed + "/shop"}, nil, 1},
		{"Postgres and backup", "backup", []string{"copy.db", "--db", "postgres://shop:" + hidden + "@" + closed + "/shop"}, nil, 2},
		{"key set that does not answer", "serve", []string{"--addr", "127.0.0.1:0", "--ops-addr", "", "--jwks", "http://u:" + hidden + "@" + closed + "/keys"}, nil, 1},
	} {
		t.Run(q.name, func(t *testing.T) {
			r := process.Run(t, process.Spec{Command: q.command, Args: q.args, Env: q.env})
			if r.Code != q.code {
				t.Errorf("exit code %d, want %d:\n%s", r.Code, q.code, r.Output)
			}
			if strings.Contains(r.Output, hidden[:8]) {
				t.Errorf("a secret is printed:\n%s", r.Output)
			}
			if q.command == "serve" && (strings.Count(r.Output, "\n") != 1 || strings.Count(r.Output, "connection refused") > 1) {
				t.Errorf("the message is not one line that says each thing once:\n%s", r.Output)
			}
		})
	}
}

// bad is an invalid value of a setting.
type bad struct{ setting, value string }

var badSettings = []bad{
	{"addr", "nonsense"}, {"addr", "127.0.0.1"}, {"addr", "127.0.0.1:http2"}, {"addr", "127.0.0.1:65536"},
	{"ops-addr", "nonsense"}, {"ops-addr", "127.0.0.1:-1"},
	{"redis", "127.0.0.1:6379"}, {"redis", "mysql://127.0.0.1:1"}, {"redis", "redis://"},
	{"db", "shop.db"}, {"db", "sqlite:"}, {"db", "sqlite::memory:"}, {"db", "sqlite://shop.db"}, {"db", "mysql://127.0.0.1:1/shop"},
	{"db", "postgres://"}, {"db", "postgres://shop@127.0.0.1"}, {"db", "postgres://shop@127.0.0.1/shop?sslmode=maybe"},
	{"db", "postgres://shop@127.0.0.1/shop?pool_max_conns=9"},
	{"jwt-secret", "short"},
	{"issuer", " https://id.example"}, {"subject-claim", "exp"}, {"role-claim", "a..b"}, {"role-claim", "aud"},
	{"role-map", "admin"}, {"role-map", "king=x"}, {"role-map", "service=*"}, {"service-key", "both"},
	{"admin-issuer", "https://id.example"}, {"admin-audience", "back-office"},
	{"token-leeway", "-1s"}, {"token-leeway", "5m1s"}, {"token-leeway", "30"},
	{"partitions", "0"}, {"partitions", "-1"}, {"partitions", "1025"}, {"partitions", "1.5"}, {"partitions", "many"},
	{"confirm-replicas", "-1"}, {"confirm-replicas", "101"}, {"confirm-replicas", "some"}, {"confirm-replicas", "1"},
	{"rate-buyer", "0"}, {"rate-buyer", "fast"}, {"rate-buyer", "NaN"}, {"rate-buyer", "Inf"},
	{"rate-address", "-1"}, {"rate-address", "fast"}, {"rate-address", "NaN"}, {"rate-address", "Inf"},
	{"trusted-proxies", "nonsense"}, {"trusted-proxies", "10.0.0.0/33"}, {"trusted-proxies", "10.0.0.1,example.org"},
	{"log-level", "loud"}, {"log-level", "42"},
	{"log-format", "xml"},
	{"demo", "perhaps"},
	{"queue-limit", "0"}, {"queue-limit", "-5"}, {"queue-limit", "lots"},
	{"queue-age", "0"}, {"queue-age", "-1s"}, {"queue-age", "2h"}, {"queue-age", "old"},
	{"in-flight", "0"}, {"in-flight", "-1"}, {"in-flight", "many"},
	{"max-streams", "0"}, {"max-streams", "-1"}, {"max-streams", "1000001"}, {"max-streams", "1e4"},
	{"lease", "10"}, {"lease", "10ms"}, {"lease", "2h"}, {"lease", "-1s"},
	{"batch", "0"}, {"batch", "513"}, {"batch", "x"},
	{"linger", "-1ms"}, {"linger", "2s"},
	{"drain", "0"}, {"drain", "-1s"}, {"drain", "1h"},
	{"reconcile-every", "-1s"}, {"reconcile-every", "10ms"}, {"reconcile-every", "48h"}, {"reconcile-every", "often"},
	{"keep-ended", "0"}, {"keep-ended", "59s"}, {"keep-ended", "8761h"}, {"keep-ended", "always"},
	{"webhook-allow", "nonsense"}, {"webhook-allow", "10.0.0.0/33"},
	{"webhook-workers", "0"}, {"webhook-workers", "1025"}, {"webhook-workers", "many"},
	{"mock-payments-addr", "on"}, {"mock-payments-addr", "0.0.0.0:8090"}, {"mock-payments-addr", "shop.example:8090"}, {"mock-payments-addr", "127.0.0.1:65536"},
	{"trace-endpoint", "localhost:4318"}, {"trace-endpoint", "grpc://localhost:4317"}, {"trace-endpoint", "http://"},
	{"trace-endpoint", "http://localhost:4318/?x=1"},
	{"trace-sample", "-0.1"}, {"trace-sample", "1.1"}, {"trace-sample", "NaN"}, {"trace-sample", "some"},
	{"config", "missing.yaml"},
}

// TestSettings_InvalidValuesAreExplained passes every invalid value as a flag, in the
// environment and, where a file can contain it, in a file. Nothing starts, and the message
// names the setting, the value and the fix.
func TestSettings_InvalidValuesAreExplained(t *testing.T) {
	needProcesses(t)
	check := func(t *testing.T, b bad, how string, r process.Result) {
		t.Helper()
		if r.Code != 2 {
			t.Errorf("%s %q as %s: exit code %d, want 2: %s", b.setting, b.value, how, r.Code, grep(r.Output, b.setting))
			return
		}
		value := b.value
		if b.setting == "jwt-secret" {
			value = "secret"
		}
		if b.setting == "trusted-proxies" {
			value = strings.TrimPrefix(value, "10.0.0.1,")
		}
		if !strings.Contains(r.Output, b.setting) || !strings.Contains(r.Output, value) {
			t.Errorf("%s %q as %s: the message does not name both:\n%s", b.setting, b.value, how, r.Output)
		}
		if n := strings.Count(r.Output, "setting "+b.setting+" ("); n > 1 {
			t.Errorf("%s %q as %s: the message has %d errors:\n%s", b.setting, b.value, how, n, r.Output)
		}
		// The cause, then the fix.
		if _, mend, found := strings.Cut(r.Output, "; "); !found || len(strings.TrimSpace(mend)) < 8 {
			t.Errorf("%s %q as %s: the message does not say what to do:\n%s", b.setting, b.value, how, r.Output)
		}
		if strings.Contains(r.Output, "goroutine") || strings.Contains(r.Output, "Usage:") {
			t.Errorf("%s %q as %s: more is printed than an error:\n%s", b.setting, b.value, how, r.Output)
		}
	}
	for _, b := range badSettings {
		check(t, b, "a flag", process.Run(t, process.Spec{Command: "config", Args: []string{"--" + b.setting + "=" + b.value}}))
		env := "FLASHSALE_" + strings.ToUpper(strings.ReplaceAll(b.setting, "-", "_")) + "=" + b.value
		check(t, b, "an environment variable", process.Run(t, process.Spec{Command: "config", Env: []string{env}}))
		if b.setting != "config" {
			file := writeFile(t, "bad.yaml", b.setting+": \""+b.value+"\"\n")
			check(t, b, "a line of the file", process.Run(t, process.Spec{Command: "config", Args: []string{"--config", file}}))
		}
	}
	for text, names := range map[string]string{
		"addr: [": "config", "- addr": "config", "adr: 127.0.0.1:1\n": "adr", "addr: {a: b}\n": "addr", "batch: [1]\n": "batch",
		"data-dir: {a: b}\n": "data-dir", "data-dir: [a, b]\n": "data-dir", "data-dir: 2020-01-01\n": "data-dir", "data-dir:\n": "data-dir",
	} {
		file := writeFile(t, "bad.yaml", text)
		r := process.Run(t, process.Spec{Command: "config", Args: []string{"--config", file}})
		if r.Code != 2 || !strings.Contains(r.Output, names) {
			t.Errorf("a file with %q: exit code %d:\n%s", text, r.Code, r.Output)
		}
	}
}

// refused starts a process with a usage error.
func refused(t *testing.T, spec process.Spec, words ...string) {
	t.Helper()
	mustEnd(t, 2, spec, words...)
}

// failed starts a process that cannot run in its environment.
func failed(t *testing.T, spec process.Spec, words ...string) {
	t.Helper()
	mustEnd(t, 1, spec, words...)
}

// mustEnd starts a process that must not start, and checks the exit code and that the message
// contains all the words.
func mustEnd(t *testing.T, want int, spec process.Spec, words ...string) {
	t.Helper()
	p, err := process.TryStart(t, spec)
	if !errors.Is(err, process.ErrExited) {
		t.Errorf("%s %v was not refused: %v", spec.Command, spec.Args, err)
		if p != nil {
			p.Kill()
		}
		return
	}
	code, err := p.Wait(t.Context())
	if err != nil || code != want {
		t.Errorf("%s %v: exit code %d, want %d, error %v:\n%s", spec.Command, spec.Args, code, want, err, p.Log())
		return
	}
	for _, w := range words {
		if !strings.Contains(p.Log(), w) {
			t.Errorf("%s %v: the message lacks %q:\n%s", spec.Command, spec.Args, w, p.Log())
		}
	}
}

// TestStart_InvalidSettingsAreRefused starts processes with invalid settings.
func TestStart_InvalidSettingsAreRefused(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	empty := "sqlite:" + filepath.Join(t.TempDir(), "empty.db")
	redis := "redis://" + s.server.Addr() + "/0"
	with := func(args ...string) []string { return append([]string{"--data-dir", s.dir}, args...) }
	key := []string{"FLASHSALE_JWT_SECRET=" + secret}
	for _, command := range []string{"api", "worker"} {
		refused(t, process.Spec{Command: command, Env: key, Args: with("--db", "sqlite:"+s.dbPath)},
			"redis", "FLASHSALE_REDIS", "embedded", command, "flashsale serve")
		failed(t, process.Spec{Command: command, Env: key, Args: with("--db", empty, "--redis", redis)},
			"db", empty, "flashsale migrate up")
		failed(t, process.Spec{Command: command, Env: key, Args: with("--db", "sqlite:"+s.dbPath, "--redis", "redis://"+process.FreeAddr(t)+"/0")},
			"redis", "FLASHSALE_REDIS")
	}
	refused(t, process.Spec{Command: "serve", Env: key, Args: with("--redis", "redis://127.0.0.1:6379/nonsense")}, "redis", "FLASHSALE_REDIS", "nonsense")
	refused(t, process.Spec{Command: "api", Args: with("--db", "sqlite:"+s.dbPath, "--redis", redis)}, "FLASHSALE_JWT_SECRET", "FLASHSALE_JWKS")
	_, port, err := net.SplitHostPort(process.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"0.0.0.0:" + port, ":" + port, "[::]:" + port} {
		refused(t, process.Spec{Command: "serve", Args: with("--addr", addr)}, "FLASHSALE_JWT_SECRET")
	}
}

// The doctor and a starting process warn about a variable that is not a setting, without its value.
func TestSettings_UnknownVariable(t *testing.T) {
	needProcesses(t)
	needSynced(t)
	s := newShop(t)
	env := []string{"FLASHSALE_JWT_SECERT=" + secret}
	wantCode(t, 0, squeezed(s.runWith(env, "doctor")), "warn settings the environment variable FLASHSALE_JWT_SECERT is not a setting")
	r := s.runWith(env, "api", "--redis", "embedded")
	wantCode(t, 2, r, "unknown environment variable ignored", "FLASHSALE_JWT_SECERT")
	if strings.Contains(r.Output, secret) {
		t.Errorf("the value was printed:\n%s", r.Output)
	}
}

// The service can start while Redis loads its data, as after a restart of both.
func TestStart_WaitsWhileRedisLoads(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				for b := make([]byte, 4096); ; {
					n, err := conn.Read(b)
					if err != nil {
						return
					}
					// Each command of a pipeline begins with its number of arguments.
					loading := "-LOADING Redis is loading the dataset in memory\r\n"
					if _, err := io.WriteString(conn, strings.Repeat(loading, strings.Count(string(b[:n]), "*"))); err != nil {
						return
					}
				}
			})
		}
	})
	defer serving.Wait()
	defer ln.Close()
	failed(t, process.Spec{Command: "worker", Args: []string{"--data-dir", s.dir, "--db", "sqlite:" + s.dbPath, "--redis", "redis://" + ln.Addr().String() + "/0"}},
		"redis", "loading its data", "start again when it has finished")
}

// TestStart_OtherPartitionsAreRefused starts processes with different numbers of partitions.
func TestStart_OtherPartitionsAreRefused(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	s.worker("--partitions", "3")
	s.api("--partitions", "3")
	for _, command := range []string{"api", "worker", "serve"} {
		refused(t, s.spec(command, []string{"--partitions", "2"}), "partitions", "FLASHSALE_PARTITIONS", `"2"`, "3")
	}
}

// TestStart_KeysOfAnEarlierLayoutAreRefused starts processes on a Redis whose keys have the hash
// tags p0, p1 and p2.
func TestStart_KeysOfAnEarlierLayoutAreRefused(t *testing.T) {
	needProcesses(t)
	s := newRedisShop(t)
	if err := s.rdb.Set(t.Context(), "fs:{p0}:partitions", 3, 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"api", "worker", "serve"} {
		refused(t, s.spec(command, []string{"--partitions", "3"}), "partitions", "earlier version", "docs/deployment.md")
	}
	wantCode(t, 1, squeezed(s.run("doctor", "--partitions", "3")), "fix partitions", "earlier version", "docs/deployment.md")
}

// TestStart_PlacesInUseAreRefused starts a second service with addresses or files that are in
// use.
func TestStart_PlacesInUseAreRefused(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	first := s.serve()
	second := func(args ...string) process.Spec { return s.spec("serve", args) }
	failed(t, second(), "data-dir", "FLASHSALE_DATA_DIR", s.dir)
	other := []string{"--data-dir", t.TempDir()}
	addr := strings.TrimPrefix(first.URL(), "http://")
	failed(t, second(append(other, "--db", "sqlite:"+filepath.Join(t.TempDir(), "a.db"), "--addr", addr)...), "addr", "FLASHSALE_ADDR", addr)
	ops := strings.TrimPrefix(first.OpsURL(), "http://")
	failed(t, second(append(other, "--db", "sqlite:"+filepath.Join(t.TempDir(), "b.db"), "--ops-addr", ops)...), "ops-addr", "FLASHSALE_OPS_ADDR", ops, "or off")
	// A separate embedded engine over a database that another process uses.
	failed(t, second(other...), s.dbPath)
	// The files are free again as soon as their owner has ended, for any reason.
	first.Kill()
	term(t, s.serve())
}

// TestStart_OneEmbeddedEngine starts an embedded engine beside processes with a Redis, on one SQLite
// database, and the other way round: the two would sell the same units.
func TestStart_OneEmbeddedEngine(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newRedisShop(t)
	api, worker := s.api(), s.worker()
	embedded := newShop(t)
	alone := embedded.spec("serve", []string{"--db", "sqlite:" + s.dbPath})
	failed(t, alone, "another process serves this database", "FLASHSALE_DB", s.dbPath, "--redis")
	term(t, api)
	failed(t, alone, "another process serves this database")
	worker.Kill()
	only := embedded.serve("--db", "sqlite:"+s.dbPath)
	for _, command := range []string{"api", "worker", "serve"} {
		failed(t, s.spec(command, nil), "another process serves this database", "FLASHSALE_DB", s.dbPath, "embedded Redis")
	}
	term(t, only)
	term(t, s.api())
}

// TestStart_MissingFoldersAreNotCreated names folders that do not exist. The error names the setting,
// the folder and the fix; only the data directory itself is created.
func TestStart_MissingFoldersAreNotCreated(t *testing.T) {
	needProcesses(t)
	needSQLite(t)
	s := newShop(t)
	wantCode(t, 0, s.run("migrate", "up"))
	copied := filepath.Join(t.TempDir(), "copy.db")
	wantCode(t, 0, s.run("backup", copied))
	for _, q := range []struct {
		args []string
		word string
	}{
		{[]string{"serve"}, "FLASHSALE_DB"}, {[]string{"migrate", "up"}, "FLASHSALE_DB"}, {[]string{"restore", copied}, "FLASHSALE_DB"},
	} {
		dir := t.TempDir()
		missing := filepath.Join(dir, "typo")
		r := process.Run(t, process.Spec{Args: append(q.args, "--db", "sqlite:"+filepath.Join(missing, "shop.db"), "--data-dir", filepath.Join(dir, "data"))})
		wantCode(t, 1, r, q.word, "the folder "+missing+" does not exist", "mkdir -p "+missing, "correct the path")
		if _, err := os.Stat(missing); err == nil {
			t.Errorf("%v has created the folder", q.args)
		}
		r = process.Run(t, process.Spec{Args: append(q.args, "--data-dir", filepath.Join(missing, "data"))})
		wantCode(t, 1, r, "FLASHSALE_DATA_DIR", "the folder "+missing+" does not exist", "mkdir -p "+missing)
		if _, err := os.Stat(missing); err == nil {
			t.Errorf("%v has created the folder above the data directory", q.args)
		}
	}
	missing := filepath.Join(t.TempDir(), "typo")
	wantCode(t, 1, s.run("migrate", "copy", "--from", s.database(), "--to", "sqlite:"+filepath.Join(missing, "shop.db")),
		"--to sqlite:"+missing, "the folder "+missing+" does not exist", "mkdir -p "+missing)
	if _, err := os.Stat(missing); err == nil {
		t.Error("migrate copy has created the folder")
	}
	// A database in the data directory, whichever way it is named.
	for _, db := range []string{"sqlite:data/flashsale.db", "sqlite:./data/shop.db"} {
		dir := t.TempDir()
		wantCode(t, 0, process.Run(t, process.Spec{Dir: dir, Args: []string{"migrate", "up", "--db", db, "--data-dir", filepath.Join(dir, "data")}}), "applied")
		if _, err := os.Stat(filepath.Join(dir, strings.TrimPrefix(db, "sqlite:"))); err != nil {
			t.Error(err)
		}
	}
}

// TestStart_UnusablePlacesAreRefused uses addresses and files that cannot be used.
func TestStart_UnusablePlacesAreRefused(t *testing.T) {
	needProcesses(t)
	file := writeFile(t, "file", "no folder, no database; long enough not to be taken for an empty one")
	key := []string{"FLASHSALE_JWT_SECRET=" + secret}
	for _, q := range []struct {
		env, args []string
		words     []string
	}{
		{key, []string{"--data-dir", file}, []string{"data-dir", "FLASHSALE_DATA_DIR", file}},
		{nil, []string{"--data-dir", file}, []string{"data-dir", "FLASHSALE_DATA_DIR", file}},
		{key, []string{"--db", "sqlite:" + file}, []string{"db", "FLASHSALE_DB", file}},
		{key, []string{"--db", "sqlite:" + filepath.Join(file, "shop.db")}, []string{"db", "FLASHSALE_DB", file}},
		{nil, []string{"--jwks", filepath.Join(filepath.Dir(file), "none.json")}, []string{"jwks", "FLASHSALE_JWKS", "none.json"}},
		{nil, []string{"--jwks", file}, []string{"jwks", "FLASHSALE_JWKS", file}},
	} {
		failed(t, process.Spec{Command: "serve", Env: q.env, Args: q.args}, q.words...)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "jwt.key"), []byte("too short"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := process.Run(t, process.Spec{Command: "serve", Args: []string{"--data-dir", dir}})
	if r.Code == 0 || !strings.Contains(r.Output, filepath.Join(dir, "jwt.key")) {
		t.Errorf("a damaged key file: exit code %d:\n%s", r.Code, r.Output)
	}
}
