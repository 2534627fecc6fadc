// Package redistest gives tests the Redis engines the service runs on: the
// embedded one, a real redis-server, and a Redis Cluster, each shared by the
// tests of a binary or of a test's own. Beside them stands what fault tests
// need: replicas, servers that are killed or frozen, a proxy that disturbs a
// connection, and further processes of the test binary.
package redistest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"flashsale/internal/embedded"
	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

// Engines runs fn once per engine, as the subtests "embedded" and "redis".
// Where no redis-server is installed the second is skipped, and with CI=true
// it fails instead.
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

// AnyEngine runs fn on one engine: the shared redis-server, or the embedded one
// where none is installed (with CI=true the test fails instead). It is for what
// the Go code decides and no script does, which is the same on every engine.
func AnyEngine(t *testing.T, fn func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
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

// Redis returns a client of the redis-server that this test binary shares.
// Tests on it keep apart by key prefix.
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

// Main runs the tests of a binary, ends the servers it shared, and checks that
// no goroutine is left behind; ignore names those that live as long as a process:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	Shutdown()
	if code == 0 {
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left behind:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Shutdown ends the shared server and the shared cluster, for a TestMain that
// has more to do.
func Shutdown() {
	if shared.server != nil {
		shared.server.stop()
	}
	if sharedCluster.servers != nil {
		sharedCluster.servers.stop()
	}
}

// Prefix returns a random key prefix with a hash tag, so that parallel tests
// share a server without meeting.
func Prefix(t testing.TB) string {
	t.Helper()
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		t.Fatal(err)
	}
	return "t:{" + hex.EncodeToString(b[:]) + "}:"
}

// Options are the client settings every room relies on: no retries below it
// (a script must not run twice unasked) and contexts that bound I/O.
func Options(addr string) *redis.Options {
	return &redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true,
		DialTimeout:           5 * time.Second, // long, for a busy machine: who refuses does so at once
		ReadTimeout:           3 * time.Second,
		WriteTimeout:          3 * time.Second,
		PoolSize:              64,
	}
}

// replyWithin bounds the wait for a reply of a server that no fault is made on,
// which may be long on a busy machine. Options has what the service would have.
const replyWithin = time.Minute

func client(t testing.TB, addr string) *redis.Client {
	t.Helper()
	o := Options(addr)
	o.ReadTimeout, o.WriteTimeout = replyWithin, replyWithin
	rdb := redis.NewClient(o)
	closeAtEnd(t, rdb)
	return rdb
}

// closeAtEnd closes a client when the test ends, if the test has not done so.
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
	if _, err := exec.LookPath("redis-server"); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("redis-server is not installed, and with CI=true no engine may be skipped; `make deps` installs it")
	}
	t.Skip("skipped: redis-server is not installed; `make deps` installs it")
}

// Server is a redis-server process. AOF is on with appendfsync always.
type Server struct {
	port int
	bus  int // the cluster bus's port, 0 outside a cluster
	dir  string
	args []string

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// Real starts a redis-server of the test's own, which the test may kill and
// start again. Extra arguments are appended to its command line.
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

// errEnded says that a redis-server ended instead of answering, as it does when
// its port was taken in the meantime.
var errEnded = errors.New("redistest: the server ended before it answered")

// startTries bounds how many ports a start may lose to other processes.
const startTries = 3

func start(args ...string) (s *Server, err error) {
	for range startTries {
		if s, err = tryStart(args); !errors.Is(err, errEnded) {
			break
		}
	}
	return s, err
}

func tryStart(args []string) (*Server, error) {
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		return nil, err
	}
	port, err := freeport.Port()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s := &Server{port: port, dir: dir, args: args}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Addr is the host:port the server listens on; it stays the same over restarts.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid is the server's process id, or 0 when it is not running.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Start starts the server on its port and returns once it answers.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return errors.New("redistest: already running")
	}
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
		// Otherwise a first replica waits five seconds for others to share the copy.
		"--repl-diskless-sync-delay", "0",
	}, s.args...)
	cmd := exec.Command("redis-server", args...)
	ended := make(chan struct{})
	// How it ended says nothing: a test that kills it asked for that.
	if err := child.Start(cmd, func(error) { close(ended) }); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	s.cmd, s.ended = cmd, ended
	if err := s.answers(); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

// answers waits until the server answers, and fails when it ends first.
func (s *Server) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	rdb := redis.NewClient(Options(s.Addr()))
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := rdb.Ping(ctx).Err()
		if err == nil {
			err = s.isMine(ctx, rdb)
		}
		if err == nil {
			return rdb.Close()
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.Join(fmt.Errorf("%w: %w", errEnded, err), rdb.Close())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("redistest: server did not answer: %w", err), rdb.Close())
		}
	}
}

// isMine fails when another process answers on the port: then this one is about
// to find it taken, and the test would talk to a stranger.
func (s *Server) isMine(ctx context.Context, rdb *redis.Client) error {
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	if pid := infoField(info, "process_id"); pid != strconv.Itoa(s.cmd.Process.Pid) {
		return fmt.Errorf("redistest: process %s answers on %s", pid, s.Addr())
	}
	return nil
}

// infoField returns the value of a field of INFO or CLUSTER INFO, or nothing.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Kill ends the server with SIGKILL, frozen or not. Start brings it back with
// what its AOF kept.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// kill is Kill for who holds the lock.
func (s *Server) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-s.ended
	s.cmd = nil
	return err
}

func (s *Server) stop() {
	err := errors.Join(s.Kill(), os.RemoveAll(s.dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, "redistest: stop:", err)
	}
}
