package main

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

	"flashsale/internal/child"
)

// server is a redis-server of the benchmark's own: on loopback, writing nothing
// to disk, so that the locks are measured and not the disk.
type server struct {
	addr  string
	dir   string
	cmd   *exec.Cmd
	ended chan struct{}
}

// startServer returns once the server answers.
func startServer(ctx context.Context) (*server, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bench-lock-")
	if err != nil {
		return nil, err
	}
	// stop ends it, after the clients were closed.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "redis-server",
		"--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no")
	s := &server{addr: addr, dir: dir, cmd: cmd, ended: make(chan struct{})}
	if err := child.Start(cmd, func(error) { close(s.ended) }); err != nil {
		return nil, errors.Join(fmt.Errorf("start redis-server: %w", err), os.RemoveAll(dir))
	}
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
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

func (s *server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1, ContextTimeoutEnabled: true})
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
		if pause(ctx, 10*time.Millisecond) != nil {
			return errors.Join(fmt.Errorf("redis-server did not answer: %w", err), rdb.Close())
		}
	}
}

// stop ends the server by its process id.
func (s *server) stop() error {
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
