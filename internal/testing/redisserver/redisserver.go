// Package redisserver starts redis-server processes for tests, benchmarks and the load test. A
// server listens on a free loopback port, keeps acknowledged data (append-only file, synced on
// every write) and does not outlive the program that started it.
package redisserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

const (
	// pollEvery is the interval between two attempts to reach a new server.
	pollEvery = 10 * time.Millisecond
	// stopWithin is how long a server may take to end after SIGTERM.
	stopWithin = 20 * time.Second
	// logTail is how many bytes of a server's log an error shows.
	logTail = 4 << 10
)

// Tries bounds the number of ports that a start may lose to other processes.
const Tries = 3

// ErrEnded means that a redis-server ended before it answered, as it does when another process
// has taken its port.
var ErrEnded = errors.New("redis-server ended before it answered")

// Config configures a server. The zero value is a server in a folder of its own
// with the default settings.
type Config struct {
	// Dir is the working folder, which holds the append-only file and the log; empty: a
	// temporary one, which Stop and Close remove.
	Dir string
	// Args follow the default settings on the command line. The last value of a setting wins.
	Args []string
	// File is a configuration file, which Args override. A Sentinel (--sentinel) needs one, and
	// writes to it. Empty: none.
	File string
	// User and Password are those of the wait for its first answer; empty: none.
	User, Password string
	// TLS makes the server listen with TLS only, and is how the wait for its first answer
	// trusts it. Args name the certificate. Nil: without TLS.
	TLS *tls.Config
}

// Server is a redis-server process on a loopback port. Its methods are safe for concurrent use.
type Server struct {
	port    int
	dir     string
	ownsDir bool
	args    []string
	file    string // a configuration file, or ""
	user    string
	secret  string      // the password
	tls     *tls.Config // nil: without TLS

	mu    sync.Mutex
	cmd   *exec.Cmd     // nil when the server is not running
	ended chan struct{} // closed when the process has ended
	exit  error         // how it ended; valid once ended is closed
}

// Program is the server's program: the one that the environment variable
// FLASHSALE_TEST_REDIS_SERVER names, for example a valkey-server, or redis-server.
func Program() string { return cmp.Or(os.Getenv("FLASHSALE_TEST_REDIS_SERVER"), "redis-server") }

// Start starts a server on a free port and returns once it answers. ctx bounds
// the wait; it does not end the server.
func Start(ctx context.Context, cfg Config) (s *Server, err error) {
	for range Tries {
		if s, err = tryStart(ctx, cfg); !errors.Is(err, ErrEnded) {
			break
		}
	}
	return s, err
}

func tryStart(ctx context.Context, cfg Config) (*Server, error) {
	port, err := freeport.Port()
	if err != nil {
		return nil, err
	}
	s := &Server{port: port, dir: cfg.Dir, args: cfg.Args, file: cfg.File, user: cfg.User, secret: cfg.Password, tls: cfg.TLS}
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "redis-server-")
		if err != nil {
			return nil, err
		}
		s.dir, s.ownsDir = dir, true
	}
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.removeDir())
	}
	return s, nil
}

// Port is the server's port; it does not change on a restart.
func (s *Server) Port() int { return s.port }

// Addr is the server's host:port; it does not change on a restart.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Pid is the server's process id, or 0 after Kill, Stop or Close.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Done returns a channel that is closed when the process has ended. A restart makes a new
// channel.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// Start starts the server again on its port, after Kill, and returns once it
// answers. ctx bounds the wait; it does not end the server.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return errors.New("redis-server is already running")
	}
	log, err := os.Create(s.log())
	if err != nil {
		return err
	}
	var args []string
	if s.file != "" {
		args = append(args, s.file) // it must come first
	}
	args = append(append(args, s.listen()...), []string{
		"--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction",
	}...)
	args = append(args, s.args...)
	// Not bound to ctx: Kill, Stop and Close end it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), Program(), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.SysProcAttr = ownGroup()
	ended := make(chan struct{})
	err = child.Start(cmd, func(err error) {
		s.exit = err
		close(ended)
	})
	// The process has its own descriptor by now.
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	s.cmd, s.ended = cmd, ended
	if err := s.answers(ctx); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

// listen returns the settings of the port.
func (s *Server) listen() []string {
	if s.tls != nil {
		return []string{"--port", "0", "--tls-port", strconv.Itoa(s.port)}
	}
	return []string{"--port", strconv.Itoa(s.port)}
}

// answers waits until the server answers. It fails if the server ends first.
func (s *Server) answers(ctx context.Context) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: s.user, Password: s.secret, TLSConfig: s.tls, MaxRetries: -1, ContextTimeoutEnabled: true})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := s.isOurs(ctx, rdb)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return fmt.Errorf("%w (%w): %w; the end of its log:\n%s", ErrEnded, s.exitErr(), err, s.logEnd())
		case <-ctx.Done():
			return fmt.Errorf("redis-server did not answer: %w: %w; the end of its log:\n%s", context.Cause(ctx), err, s.logEnd())
		}
	}
}

// isOurs fails if no process or another process answers on the port. In the second case this
// server is about to fail because its port is taken.
func (s *Server) isOurs(ctx context.Context, rdb *redis.Client) error {
	info, err := rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	if pid := info["Server"]["process_id"]; pid != strconv.Itoa(s.cmd.Process.Pid) {
		return fmt.Errorf("process %s answers on %s", pid, s.Addr())
	}
	return nil
}

// exitErr returns how the process ended; ended must be closed.
func (s *Server) exitErr() error {
	if s.exit == nil {
		return errors.New("exit status 0")
	}
	return s.exit
}

// Kill ends the server with SIGKILL, even while it is paused. Start restarts it with the data
// of its append-only file.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// kill is like Kill, for callers that hold the lock.
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

// Stop ends the server with SIGTERM, or with SIGKILL if it is still running 20 s later, and
// removes the folder that it created. It returns an error unless the server exits with status 0
// or is not running. A nil server is not running.
func (s *Server) Stop() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.terminate(), s.removeDir())
}

func (s *Server) terminate() error {
	if s.cmd == nil {
		return nil
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return errors.Join(fmt.Errorf("stop redis-server: %w", err), s.kill())
	}
	bound := time.NewTimer(stopWithin)
	defer bound.Stop()
	select {
	case <-s.ended:
		s.cmd = nil
		if s.exit != nil {
			return fmt.Errorf("redis-server did not end well: %w; the end of its log:\n%s", s.exit, s.logEnd())
		}
		return nil
	case <-bound.C:
		return errors.Join(fmt.Errorf("redis-server did not stop within %v of SIGTERM and was killed", stopWithin), s.kill())
	}
}

// Close ends the server with SIGKILL and removes the folder that it created.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.kill(), s.removeDir())
}

func (s *Server) removeDir() error {
	if !s.ownsDir {
		return nil
	}
	return os.RemoveAll(s.dir)
}

func (s *Server) log() string { return filepath.Join(s.dir, "redis-server.log") }

// logEnd returns the end of the server's log.
func (s *Server) logEnd() string {
	text, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTail):])
}
