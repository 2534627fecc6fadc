package redisserver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
)

func needServer(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath(Program()); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("redis-server is not installed; make deps installs it")
		}
		t.Skip("skipped: redis-server is not installed; make deps installs it")
	}
}

func started(t *testing.T, cfg Config) *Server {
	t.Helper()
	needServer(t)
	s, err := Start(await.Context(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func client(t *testing.T, s *Server) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1})
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	return rdb
}

// The last value of a setting wins, so that callers can override the defaults.
func TestStart_Args(t *testing.T) {
	t.Parallel()
	s := started(t, Config{Args: []string{"--appendfsync", "no"}})
	for setting, want := range map[string]string{"appendfsync": "no", "appendonly": "yes", "maxmemory-policy": "noeviction", "save": ""} {
		got, err := client(t, s).ConfigGet(await.Context(t), setting).Result()
		if err != nil || got[setting] != want {
			t.Errorf("%s is %q, %v; want %q", setting, got[setting], err, want)
		}
	}
}

// The environment can name another program.
func TestStart_Program(t *testing.T) { //nolint:paralleltest // it changes the environment
	needServer(t)
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("skipped: redis-server is not installed")
	}
	dir := t.TempDir()
	other := filepath.Join(dir, "other-server")
	script := "#!/bin/sh\ntouch '" + dir + "/used'\nexec '" + path + "' \"$@\"\n"
	if err := os.WriteFile(other, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(other, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FLASHSALE_TEST_REDIS_SERVER", other)
	if err := client(t, started(t, Config{})).Ping(await.Context(t)).Err(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "used")); err != nil {
		t.Errorf("the program was not used: %v", err)
	}
}

// Data that a killed server had acknowledged is there after its restart.
func TestServer_Kill_Start(t *testing.T) {
	t.Parallel()
	s := started(t, Config{})
	ctx, rdb := await.Context(t), client(t, s)
	if err := rdb.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := client(t, s).Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	if err := s.Start(ctx); err == nil {
		t.Error("a running server was started twice")
	}
}

// Stop removes the folder that the server created, but not the caller's.
func TestServer_Stop(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"own": "", "caller's": t.TempDir()} {
		s := started(t, Config{Dir: dir})
		done := s.Done()
		if err := s.Stop(); err != nil {
			t.Errorf("%s folder: %v", name, err)
		}
		select {
		case <-done:
		default:
			t.Errorf("%s folder: the process has not ended", name)
		}
		if s.Pid() != 0 {
			t.Errorf("%s folder: a stopped server has process id %d", name, s.Pid())
		}
		if _, err := os.Stat(s.dir); errors.Is(err, os.ErrNotExist) != (dir == "") {
			t.Errorf("%s folder after Stop: %v", name, err)
		}
		if err := s.Stop(); err != nil {
			t.Errorf("%s folder, second Stop: %v", name, err)
		}
	}
	if err := (*Server)(nil).Stop(); err != nil {
		t.Error(err)
	}
}

// Stop reports a server that crashed, with the end of its log.
func TestServer_Stop_ReportsACrash(t *testing.T) {
	t.Parallel()
	s := started(t, Config{})
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "killed") || !strings.Contains(err.Error(), "Ready to accept connections") {
		t.Errorf("Stop returned %v", err)
	}
}

// A server whose port is taken must not mistake the other process for itself.
func TestServer_Start_ErrPortTaken(t *testing.T) {
	t.Parallel()
	taken := started(t, Config{})
	s := &Server{port: taken.port, dir: t.TempDir()}
	if err := s.Start(await.Context(t)); !errors.Is(err, ErrEnded) || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("on a port that is taken: %v", err)
	}
	if s.Pid() != 0 {
		t.Error("a process is left of it")
	}
	if err := client(t, taken).Ping(await.Context(t)).Err(); err != nil {
		t.Errorf("the server that holds the port: %v", err)
	}
}

// A cancelled start leaves no process behind.
func TestStart_ErrContext(t *testing.T) {
	t.Parallel()
	needServer(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	cancel(cause)
	// It does not listen on its port. Without any address it would end on its own.
	s := &Server{port: 1, dir: t.TempDir(), args: []string{"--port", "0", "--unixsocket", "redis.sock"}}
	if err := s.Start(ctx); !errors.Is(err, cause) {
		t.Errorf("Start returned %v, want %v", err, cause)
	}
	if s.Pid() != 0 {
		t.Error("a process is left of it")
	}
}
