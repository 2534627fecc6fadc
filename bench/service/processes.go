package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"flashsale/bench/internal/server"
	"flashsale/internal/pause"
	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/redisserver"
	"flashsale/internal/testing/repo"
)

// world is everything a run starts, in one temporary folder.
type world struct {
	dir    string
	redis  *process // of server
	server *redisserver.Server
	api    *process
	worker *process
	empty  *process
	poll   map[string]*process // the polling lock, by interval

	binary string   // the service
	common []string // settings of its processes
}

// process is one process of the run; it is ended by its own process id.
type process struct {
	name  string
	pid   int
	addr  string
	ops   string
	ended <-chan struct{} // closed when it has ended
}

// launch starts a command as a process that does not outlive this one.
func launch(name string, cmd *exec.Cmd, addr, ops string) (*process, error) {
	ended := make(chan struct{})
	p := &process{name: name, addr: addr, ops: ops, ended: ended}
	// How it ended says nothing: it is stopped by a signal.
	if err := child.Start(cmd, func(error) { close(ended) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

const secret = "benchmark-secret-of-more-than-32-bytes"

func startWorld(ctx context.Context, o options) (w *world, err error) {
	dir, err := os.MkdirTemp("", "flashsale-bench-")
	if err != nil {
		return nil, err
	}
	started := &world{dir: dir, poll: make(map[string]*process)}
	defer func() {
		if err != nil {
			err = errors.Join(err, started.close())
		}
	}()
	w = started
	binary := filepath.Join(dir, "flashsale")
	if err := repo.Build(ctx, binary); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := w.startRedis(ctx, o.fsync); err != nil {
		return nil, err
	}
	db := "sqlite:" + filepath.Join(dir, "bench.db")
	common := []string{"--db", db, "--data-dir", dir, "--redis", "redis://" + w.redis.addr + "/0", "--log-level", "warn"}
	if err := w.once(ctx, binary, append([]string{"migrate", "up"}, common...)...); err != nil {
		return nil, err
	}
	w.binary, w.common = binary, common
	addr, ops, workOps := freeAddr(), freeAddr(), freeAddr()
	if w.api, err = w.start(ctx, "api", binary, addr, ops, append([]string{"api", "--addr", addr, "--ops-addr", ops}, common...)...); err != nil {
		return nil, err
	}
	if w.worker, err = w.start(ctx, "worker", binary, "", workOps, append([]string{"worker", "--ops-addr", workOps}, common...)...); err != nil {
		return nil, err
	}
	addr = freeAddr()
	if w.empty, err = w.start(ctx, "empty", self, addr, "", "empty", addr); err != nil {
		return nil, err
	}
	waited := []*process{w.api, w.empty}
	for interval := range pollIntervals {
		addr = freeAddr()
		p, err := w.start(ctx, "polling-"+interval, self, addr, "", "polling", addr, w.redis.addr, interval)
		if err != nil {
			return nil, err
		}
		w.poll[interval] = p
		waited = append(waited, p)
	}
	for _, c := range waited {
		if err := c.ready(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// another starts one more API process, which limits no buyer's rate.
func (w *world) another(ctx context.Context, settings ...string) (*process, error) {
	addr, ops := freeAddr(), freeAddr()
	settings = append(settings, "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1")
	p, err := w.start(ctx, "api-2", w.binary, addr, ops, append(append([]string{"api"}, settings...), w.common...)...)
	if err != nil {
		return nil, err
	}
	if err := p.ready(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// startRedis starts the redis-server of the run, which keeps its data in w.dir.
func (w *world) startRedis(ctx context.Context, fsync string) (err error) {
	if w.server, err = server.Start(ctx, w.dir, fsync); err != nil {
		return err
	}
	w.redis = &process{name: "redis", pid: w.server.Pid(), addr: w.server.Addr(), ended: w.server.Done()}
	return nil
}

func (w *world) once(ctx context.Context, binary string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (w *world) start(ctx context.Context, name, binary, addr, ops string, args ...string) (*process, error) {
	// Not bound to ctx: it is stopped in order, by stop.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+secret)
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	return launch(name, cmd, addr, ops)
}

func (c *process) ready(ctx context.Context) error {
	var last string
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.addr+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			body, rerr := io.ReadAll(res.Body)
			err = errors.Join(rerr, res.Body.Close())
			if res.StatusCode == http.StatusOK {
				return err
			}
			last = string(body)
		} else {
			last = err.Error()
		}
		if err := pause.OrCause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s was not ready within 10 s: %s", c.name, last)
}

// gone reports whether the process has ended.
func (c *process) gone() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// stopWithin is how long a process may take to end after SIGTERM.
const stopWithin = 20 * time.Second

func (c *process) stop() error {
	if c == nil {
		return nil
	}
	if c.gone() {
		return nil // its id may be another process's by now
	}
	p, err := os.FindProcess(c.pid)
	if err != nil {
		return err
	}
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(stopWithin)
	defer timer.Stop()
	select {
	case <-c.ended:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s did not stop within %v", c.name, stopWithin), p.Kill())
	}
}

func (w *world) close() error {
	var errs []error
	for _, c := range append(slices.Collect(maps.Values(w.poll)), w.empty, w.api, w.worker) {
		errs = append(errs, c.stop())
	}
	return errors.Join(append(errs, w.server.Stop(), os.RemoveAll(w.dir))...)
}

// cpu is the processor time the process has used so far; 0 where the system
// does not tell.
func (c *process) cpu() time.Duration {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(c.pid) + "/stat")
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
func (c *process) profile(ctx context.Context, path string, d time.Duration) error {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", c.ops, max(1, int(d.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return errors.Join(err, res.Body.Close())
	}
	_, err = io.Copy(f, res.Body)
	return errors.Join(err, f.Close(), res.Body.Close())
}

// freeAddr is a loopback address that nothing listens on. Without a free port it
// names port 0, on which no process becomes ready.
func freeAddr() string {
	addr, err := freeport.Addr()
	if err != nil {
		return "127.0.0.1:0"
	}
	return addr
}
