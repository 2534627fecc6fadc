// Package server starts the redis-server that a benchmark measures on.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/bench/internal/crew"
	"flashsale/internal/testing/child"
)

// Config configures a server. The zero value of a field means its default.
type Config struct {
	// AppendFsync is Redis's own setting: "always", "everysec" or "no", with the
	// append-only file on. Default: nothing is written to disk, so that the
	// libraries are measured and not the disk.
	AppendFsync string
}

// Server is a redis-server of the benchmark's own, on a free port of loopback.
type Server struct {
	Addr  string
	dir   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start returns once the server answers.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	args := []string{"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", ""}
	// Stop ends it, after the clients were closed.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "redis-server", append(args, cfg.persistence()...)...)
	s := &Server{Addr: addr, dir: dir, cmd: cmd, ended: make(chan struct{})}
	if err := child.Start(cmd, func(error) { close(s.ended) }); err != nil {
		return nil, errors.Join(fmt.Errorf("start redis-server: %w", err), os.RemoveAll(dir))
	}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// persistence is the part of the command line that says what goes to disk. The
// file is never rewritten: a rewrite would fall into one phase and not another.
func (c Config) persistence() []string {
	if c.AppendFsync == "" {
		return []string{"--appendonly", "no"}
	}
	return []string{"--appendonly", "yes", "--appendfsync", c.AppendFsync, "--auto-aof-rewrite-percentage", "0"}
}

func freeAddr(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().(*net.TCPAddr)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(addr.Port)), l.Close()
}

func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true})
	for {
		err := rdb.Ping(ctx).Err()
		if err == nil {
			return rdb.Close()
		}
		select {
		case <-s.ended:
			return errors.Join(errors.New("redis-server ended at its start"), rdb.Close())
		default:
		}
		if crew.Pause(ctx, 10*time.Millisecond) != nil {
			return errors.Join(fmt.Errorf("redis-server did not answer: %w", err), rdb.Close())
		}
	}
}

// Stop ends the server by its process id.
func (s *Server) Stop() error {
	err := s.cmd.Process.Signal(syscall.SIGTERM)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	select {
	case <-s.ended:
	case <-time.After(5 * time.Second):
		err = errors.Join(err, s.cmd.Process.Kill())
		<-s.ended
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
