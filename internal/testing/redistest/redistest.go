// Package redistest gives tests the Redis engines on which the service runs: the embedded one,
// a real redis-server and a Redis Cluster, shared by the tests of a binary or exclusive to one
// test. It also has the tools of fault tests: replicas, servers that tests kill or pause, a
// proxy that disturbs connections, and further processes of the test binary.
package redistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"flashsale/internal/embedded"
	"flashsale/internal/testing/atend"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redisserver"
)

// Engines runs fn once per engine, as the subtests "embedded" and "redis". If redis-server is
// not installed, the second is skipped, or fails with CI=true.
func Engines(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		fn(t, Embedded(t))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		fn(t, Redis(t))
	})
}

// AnyEngine runs fn on one engine: the shared redis-server, or the embedded one if redis-server
// is not installed (with CI=true the test fails instead). It is for behaviour of the Go code
// that does not depend on scripts and so is the same on every engine.
func AnyEngine(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	if _, err := exec.LookPath(redisserver.Program()); err != nil && os.Getenv("CI") != "true" {
		fn(t, Embedded(t))
		return
	}
	fn(t, Redis(t))
}

// Embedded starts an embedded engine for this test and returns a client of it.
func Embedded(t testing.TB) *redis.Client {
	t.Helper()
	s, err := embedded.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return client(t, s.Addr())
}

// Redis returns a client of the redis-server that this test binary shares. Its tests use
// separate key prefixes.
func Redis(t testing.TB) *redis.Client {
	t.Helper()
	needServer(t)
	shared.once.Do(func() { shared.server, shared.err = start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return client(t, shared.server.Addr())
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests of a binary, stops the shared servers, and checks for leaked goroutines;
// ignore names those that live as long as the process:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	Shutdown()
	if code == 0 {
		if err := leaked(ignore); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaked is an error if goroutines do not end. It looks for a few seconds: a client that could not connect has one that
// sleeps for a second at a time, and notices only then that the client is closed.
func leaked(ignore []goleak.Option) error {
	err := goleak.Find(ignore...)
	for range 9 {
		if err == nil {
			return nil
		}
		err = goleak.Find(ignore...)
	}
	return err
}

// Shutdown stops the shared server and the shared cluster, and what else the tests share (see
// package atend), for a TestMain that does more afterwards.
func Shutdown() {
	atend.Run()
	if shared.server != nil {
		shared.server.stop()
	}
	if sharedCluster.servers != nil {
		sharedCluster.servers.stop()
	}
}

// Prefix returns a random key prefix with a hash tag, so that parallel tests can share a
// server.
func Prefix(t testing.TB) string {
	t.Helper()
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return "t:{" + hex.EncodeToString(b[:]) + "}:"
}

// Options are the client settings on which every package relies: no automatic retries (a script
// must not run twice) and contexts that bound I/O.
func Options(addr string) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		DialTimeout:           5 * time.Second, // long, for a busy machine; a refusal is immediate
		ReadTimeout:           3 * time.Second,
		WriteTimeout:          3 * time.Second,
		PoolSize:              64,
	}
}

// replyWithin bounds the wait for a connection and for a reply of a server without faults, which may be long on a
// busy machine. The deadlines of calls do not: a reply that is lost because it was slow leaves tasks leased and locks
// held. Options has the service's settings.
const replyWithin = await.Limit

func client(t testing.TB, addr string) *redis.Client {
	t.Helper()
	return clientWith(t, addr, false)
}

// clientWith returns a client for which the deadlines of calls may count.
func clientWith(t testing.TB, addr string, deadlines bool) *redis.Client {
	t.Helper()
	o := Options(addr)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = replyWithin, replyWithin, replyWithin, deadlines
	rdb := redis.NewClient(o)
	closeAtEnd(t, rdb)
	return rdb
}

// closeAtEnd closes a client at the end of the test, if the test has not done so.
func closeAtEnd(t testing.TB, rdb redis.UniversalClient) {
	t.Helper()
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			t.Errorf("close redis client: %v", err)
		}
	})
}

func needServer(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath(redisserver.Program()); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("redis-server is not installed, and with CI=true no engine may be skipped; `make deps` installs it")
	}
	t.Skip("skipped: redis-server is not installed; `make deps` installs it")
}

// Server is a redis-server process. AOF is on with appendfsync always.
type Server struct {
	*redisserver.Server

	bus int // the cluster bus's port, 0 outside a cluster
}

// Real starts a redis-server for this test, which may kill and restart it. args are appended to
// its command line.
func Real(t testing.TB, args ...string) *Server {
	t.Helper()
	needServer(t)
	s, err := start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// Volatile starts a redis-server for this benchmark that writes nothing to disk, and returns a
// client of it.
func Volatile(t testing.TB) *redis.Client {
	t.Helper()
	return client(t, Real(t, "--appendonly", "no").Addr())
}

// startWithin bounds the wait for a server's first answer.
const startWithin = 20 * time.Second

func start(args ...string) (*Server, error) { return startTLS(nil, args...) }

// startTLS starts a server that only takes connections with TLS; with nil, only those without.
func startTLS(a *Authority, args ...string) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	cfg := config(args)
	if a != nil {
		cfg.TLS, cfg.Args = a.Config, append(a.args(), cfg.Args...)
	}
	s, err := redisserver.Start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	return &Server{Server: s}, nil
}

func config(args []string) redisserver.Config {
	// Otherwise the first replica waits five seconds for others to share the copy.
	return redisserver.Config{Args: append([]string{"--repl-diskless-sync-delay", "0"}, args...)}
}

// Start restarts the server on its port after Kill, and returns once it answers.
func (s *Server) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	return s.Server.Start(ctx)
}

func (s *Server) stop() {
	if err := s.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest: stop:", err)
	}
}

// infoField returns the value of a field of INFO or CLUSTER INFO, or "".
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
