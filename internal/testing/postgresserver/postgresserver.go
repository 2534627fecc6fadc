// Package postgresserver starts Postgres servers for tests and benchmarks, and PgBouncer in front
// of them. A server listens on a free loopback port only. It ends with the program that started
// it, also when that crashes or is killed, and then its folder is removed.
package postgresserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

const (
	// Superuser is the user of all connections. It needs no password.
	Superuser = "postgres"
	// tries bounds the number of ports that a start may lose to other processes.
	tries = 3
	// pollEvery is the interval between two attempts to reach a new server.
	pollEvery = 10 * time.Millisecond
	// stopWithin is how long a server may take to end after a signal.
	stopWithin = time.Minute
	// logTail is how many bytes of a server's log an error shows.
	logTail = 4 << 10
)

// errEnded means that a server ended before it answered, as it does when another process has
// taken its port.
var errEnded = errors.New("postgres ended before it answered")

// Config configures a server. The zero value is a server in a folder where temporary files are,
// whose commits survive only the end of its processes.
type Config struct {
	// Sync makes commits survive a loss of power, and slow.
	Sync bool
	// Settings are further settings of the server, each as "name=value". They override the
	// settings of this package, and a later one overrides an earlier one.
	Settings []string
	// Folder is where the server's folder is created. Empty: where temporary files are. The
	// user postgres must be able to enter it if this program runs as root.
	Folder string
	// Primary is the running server that this one follows, as a hot standby, until it is promoted;
	// nil: none.
	Primary *Server
}

// Server is a Postgres server. Its methods are safe for concurrent use.
type Server struct {
	folder *folder
	port   int
	config Config

	mu    sync.Mutex
	cmd   *exec.Cmd     // nil when the server is not running
	ended chan struct{} // closed when the process has ended
	exit  error         // how it ended; valid once ended is closed
}

// Start creates a server's files, starts it on a free port and returns once it answers. ctx
// bounds the wait; it does not end the server.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	f, err := openFolder(ctx, cfg.Folder, "postgres-server-")
	if err != nil {
		return nil, err
	}
	s := &Server{folder: f, config: cfg}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, f.close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range tries {
		if s.port, err = freeport.Port(); err != nil {
			break
		}
		if err = s.run(ctx); !errors.Is(err, errEnded) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return s, nil
}

func (s *Server) data() string { return filepath.Join(s.folder.path, "data") }

// create creates the files of the server.
func (s *Server) create(ctx context.Context) error {
	name, args := "initdb", []string{"--encoding=UTF8", "--locale=C.UTF-8", "-A", "trust", "-U", Superuser}
	if p := s.config.Primary; p != nil {
		name, args = "pg_basebackup", []string{"--write-recovery-conf", "--checkpoint=fast", "--dbname", p.URL(Superuser)}
	}
	path, err := Program(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, append(args, "-D", s.data(), "--no-sync")...)
	if err := asOwner(cmd, s.folder.path); err != nil {
		return err
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, text)
	}
	return nil
}

// settings are the arguments of the server.
func (s *Server) settings() []string {
	all := []string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "port=" + strconv.Itoa(s.port),
		"max_connections=300", "shared_buffers=64MB", "autovacuum=on",
		// Files in the server's folder, so that a killed server leaves nothing elsewhere.
		"dynamic_shared_memory_type=mmap",
	}
	if !s.config.Sync {
		all = append(all, "fsync=off", "full_page_writes=off")
	}
	args := []string{"-D", s.data()}
	for _, setting := range append(all, s.config.Settings...) {
		args = append(args, "-c", setting)
	}
	return args
}

// run starts the server on its port, and returns once it answers. The caller holds the lock.
func (s *Server) run(ctx context.Context) error {
	path, err := Program("postgres")
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Not bound to ctx: other methods end it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path, s.settings()...)
	cmd.Stdout, cmd.Stderr = log, log
	ended := make(chan struct{})
	if err = asOwner(cmd, s.folder.path); err == nil {
		// An immediate shutdown ends all of the server's processes.
		err = child.StartEnding(cmd, syscall.SIGQUIT, func(err error) {
			s.exit = err
			close(ended)
		})
	}
	// The process has its own descriptor by now.
	if err = errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.cmd, s.ended = cmd, ended
	if err := s.answers(ctx); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

// answers waits until the server answers. It fails if the server ends first.
func (s *Server) answers(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := s.isOurs(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return fmt.Errorf("%w (%w): %w; the end of its log:\n%s", errEnded, s.exitErr(), err, s.LogEnd())
		case <-ctx.Done():
			return fmt.Errorf("postgres did not answer: %w: %w; the end of its log:\n%s", context.Cause(ctx), err, s.LogEnd())
		}
	}
}

// isOurs fails if no process or another process answers on the port. In the second case this
// server is about to fail because its port is taken.
func (s *Server) isOurs(ctx context.Context) error {
	var dir string
	err := s.Do(ctx, Superuser, func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT current_setting('data_directory')").Scan(&dir)
	})
	if err == nil && dir != s.data() {
		err = fmt.Errorf("the server of %s answers on port %d", dir, s.port)
	}
	return err
}

// Do calls fn with a pool of connections to a database of the server.
func (s *Server) Do(ctx context.Context, database string, fn func(*sql.DB) error) (err error) {
	db, err := sql.Open("pgx", s.URL(database))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.PingContext(ctx); err != nil {
		return err
	}
	return fn(db)
}

// URL returns the URL of a database on the server. It does not change on a restart.
func (s *Server) URL(database string) string { return urlOn(s.port, database) }

func urlOn(port int, database string) string {
	return "postgres://" + Superuser + "@" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/" + database + "?sslmode=disable"
}

// Promote makes a standby a primary, and returns once it accepts writes.
func (s *Server) Promote(ctx context.Context) error {
	return s.Do(ctx, Superuser, func(db *sql.DB) error {
		var done bool
		err := db.QueryRowContext(ctx, "SELECT pg_promote()").Scan(&done)
		if err == nil && !done {
			err = errors.New("the standby was not promoted in time")
		}
		return err
	})
}

// Pid is the process id of the server's first process, or 0 while it is not running.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Pids are the process ids of the server's first process and of those that it has forked; nil
// while it is not running. On systems other than Linux only that of the first.
func (s *Server) Pids() ([]int, error) {
	pid := s.Pid()
	if pid == 0 {
		return nil, nil
	}
	forked, err := children(pid)
	return append([]int{pid}, forked...), err
}

// Restart starts the server again on its port, and returns once it answers. A running server is
// stopped first: it ends all sessions and writes everything to its files. ctx bounds the wait for
// an answer.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stop(syscall.SIGINT); err != nil {
		return err
	}
	return s.rerun(ctx)
}

// stillMapped is the server's complaint that killed processes of its predecessor have not ended
// yet, for example because they wait for the disk.
const stillMapped = "pre-existing shared memory block"

// rerun is run after a kill. The caller holds the lock.
func (s *Server) rerun(ctx context.Context) error {
	tick := time.NewTicker(10 * pollEvery)
	defer tick.Stop()
	for {
		err := s.run(ctx)
		if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), stillMapped) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// Kill kills the server's processes with SIGKILL. On Linux it reaches all of them at once;
// elsewhere only the first, and the others end when they notice. Restart starts the server
// again with everything that was committed.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill()
}

// StopImmediate ends the server as `pg_ctl stop -m immediate` does: it ends all sessions without
// waiting for them, and recovers at the next start.
func (s *Server) StopImmediate() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stop(syscall.SIGQUIT)
}

// kill kills the server. The caller holds the lock.
func (s *Server) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := killAll(s.cmd.Process, s.ended)
	<-s.ended
	s.cmd = nil
	return err
}

// stop ends the server with a signal of its own. The caller holds the lock.
func (s *Server) stop(sig syscall.Signal) error {
	if s.cmd == nil {
		return nil
	}
	if err := ignoreDone(s.cmd.Process.Signal(sig)); err != nil {
		return errors.Join(err, s.kill())
	}
	bound := time.NewTimer(stopWithin)
	defer bound.Stop()
	select {
	case <-s.ended:
		s.cmd = nil
		return nil
	case <-bound.C:
		return errors.Join(fmt.Errorf("postgres did not end within %v of signal %v and was killed; the end of its log:\n%s", stopWithin, sig, s.LogEnd()), s.kill())
	}
}

// Close ends the server and removes its files. A nil server has ended.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.stop(syscall.SIGQUIT), s.folder.close())
}

// exitErr returns how the process ended; ended must be closed.
func (s *Server) exitErr() error {
	if s.exit == nil {
		return errors.New("exit status 0")
	}
	return s.exit
}

// Log returns what the server has logged so far.
func (s *Server) Log() (string, error) {
	text, err := os.ReadFile(s.log())
	return string(text), err
}

func (s *Server) log() string { return filepath.Join(s.folder.path, "log") }

// LogEnd returns the end of the server's log, or why it cannot be read.
func (s *Server) LogEnd() string { return endOf(s.log()) }

func endOf(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTail):])
}

// ignoreDone drops the error of a signal to a process that has ended.
func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
