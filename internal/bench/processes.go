package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// world is everything a run starts, in one temporary folder.
type world struct {
	dir    string
	redis  *child
	api    *child
	worker *child
	empty  *child
	poll   *child
}

// child is one process; it is ended by its own process id.
type child struct {
	name string
	cmd  *exec.Cmd
	addr string
	ops  string
}

const secret = "benchmark-secret-of-more-than-32-bytes"

func startWorld(ctx context.Context, o options) (w *world, err error) {
	dir, err := os.MkdirTemp("", "flashsale-bench-")
	if err != nil {
		return nil, err
	}
	started := &world{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, started.close())
		}
	}()
	w = started
	binary := filepath.Join(dir, "flashsale")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/flashsale")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the service: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if w.redis, err = startRedis(ctx, dir, o.fsync); err != nil {
		return nil, err
	}
	db := "sqlite:" + filepath.Join(dir, "bench.db")
	common := []string{"--db", db, "--data-dir", dir, "--redis", "redis://" + w.redis.addr + "/0", "--log-level", "warn"}
	if err := w.once(binary, append([]string{"migrate", "up"}, common...)...); err != nil {
		return nil, err
	}
	addr, ops, workOps := freeAddr(), freeAddr(), freeAddr()
	if w.api, err = w.start("api", binary, addr, ops, append([]string{"api", "--addr", addr, "--ops-addr", ops}, common...)...); err != nil {
		return nil, err
	}
	if w.worker, err = w.start("worker", binary, "", workOps, append([]string{"worker", "--ops-addr", workOps}, common...)...); err != nil {
		return nil, err
	}
	addr = freeAddr()
	if w.empty, err = w.start("empty", self, addr, "", "empty", addr); err != nil {
		return nil, err
	}
	addr = freeAddr()
	if w.poll, err = w.start("polling", self, addr, "", "polling", addr, w.redis.addr); err != nil {
		return nil, err
	}
	for _, c := range []*child{w.api, w.empty, w.poll} {
		if err := c.ready(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func startRedis(ctx context.Context, dir, fsync string) (*child, error) {
	addr := freeAddr()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", fsync, "--maxmemory-policy", "noeviction", "--logfile", filepath.Join(dir, "redis.log"))
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server (make deps installs it): %w", err)
	}
	c := &child{name: "redis", cmd: cmd, addr: addr}
	for range 200 {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return c, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("redis-server did not start"), c.stop())
}

func (w *world) once(binary string, args ...string) error {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (w *world) start(name, binary, addr, ops string, args ...string) (*child, error) {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret)
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &child{name: name, cmd: cmd, addr: addr, ops: ops}, nil
}

func (c *child) ready(ctx context.Context) error {
	for range 500 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			err = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return err
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s was not ready within 10 s", c.name)
}

func (c *child) stop() error {
	if c == nil || c.cmd.ProcessState != nil {
		return nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() }) //nolint:errcheck // it may have ended just now
	defer timer.Stop()
	_ = c.cmd.Wait() //nolint:errcheck // the exit code of a stopped process says nothing here
	return nil
}

func (w *world) close() error {
	var errs []error
	for _, c := range []*child{w.poll, w.empty, w.api, w.worker, w.redis} {
		errs = append(errs, c.stop())
	}
	return errors.Join(append(errs, os.RemoveAll(w.dir))...)
}

// cpu is the processor time the process has used so far; 0 where the system
// does not tell.
func (c *child) cpu() time.Duration {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0
	}
	// The command's name, in parentheses, may contain spaces.
	_, rest, ok := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 13 {
		return 0
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

// profile writes a CPU profile of the process to a file, while the load runs.
func (c *child) profile(ctx context.Context, path string, d time.Duration) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", c.ops, max(1, int(d.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // read to its end or failed
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	return errors.Join(err, f.Close())
}

func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0"
	}
	defer l.Close() //nolint:errcheck // only its number was wanted
	return l.Addr().String()
}
