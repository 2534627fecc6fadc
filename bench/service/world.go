package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"flashsale/bench/internal/baseline"
	"flashsale/bench/internal/load"
	"flashsale/bench/internal/process"
	"flashsale/bench/internal/server"
	"flashsale/internal/testing/redisserver"
	"flashsale/internal/testing/repo"
)

// world is everything that a run starts, in one temporary folder.
type world struct {
	dir    string
	redis  *process.Process // of server
	server *redisserver.Server
	api    *process.Process
	also   []*process.Process // further API processes, in addition to api
	worker *process.Process
	empty  *process.Process
	poll   map[string]*process.Process // the polling lock, by interval

	binary string   // the service
	common []string // settings of its processes
	others int      // processes started by another
}

func startWorld(ctx context.Context, o options) (w *world, err error) {
	dir, err := os.MkdirTemp("", "flashsale-bench-")
	if err != nil {
		return nil, err
	}
	started := &world{dir: dir, poll: make(map[string]*process.Process)}
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
	common := []string{"--db", db, "--data-dir", dir, "--redis", "redis://" + w.redis.Addr + "/0", "--log-level", "warn"}
	if err := w.once(ctx, binary, append([]string{"migrate", "up"}, common...)...); err != nil {
		return nil, err
	}
	w.binary, w.common = binary, common
	addr, ops, workOps := process.FreeAddr(), process.FreeAddr(), process.FreeAddr()
	if w.api, err = w.start(ctx, "api", binary, addr, ops, append([]string{"api", "--addr", addr, "--ops-addr", ops}, common...)...); err != nil {
		return nil, err
	}
	if w.worker, err = w.start(ctx, "worker", binary, "", workOps, append([]string{"worker", "--ops-addr", workOps}, common...)...); err != nil {
		return nil, err
	}
	addr = process.FreeAddr()
	if w.empty, err = w.start(ctx, "empty", self, addr, "", "empty", addr); err != nil {
		return nil, err
	}
	waited := []*process.Process{w.api, w.empty}
	for interval := range baseline.PollIntervals {
		addr = process.FreeAddr()
		p, err := w.start(ctx, "polling-"+interval, self, addr, "", "polling", addr, w.redis.Addr, interval)
		if err != nil {
			return nil, err
		}
		w.poll[interval] = p
		waited = append(waited, p)
	}
	for _, c := range waited {
		if err := c.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// another starts one more API process, without a rate limit for buyers.
func (w *world) another(ctx context.Context, settings ...string) (*process.Process, error) {
	addr, ops := process.FreeAddr(), process.FreeAddr()
	settings = append(settings, "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1")
	w.others++
	p, err := w.start(ctx, fmt.Sprintf("api-%d", w.others+1), w.binary, addr, ops, append(append([]string{"api"}, settings...), w.common...)...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// startRedis starts the redis-server of the run, which keeps its data in w.dir.
func (w *world) startRedis(ctx context.Context, fsync string) (err error) {
	if w.server, err = server.Start(ctx, w.dir, fsync); err != nil {
		return err
	}
	w.redis = &process.Process{Name: "redis", PID: w.server.Pid(), Addr: w.server.Addr(), Ended: w.server.Done()}
	return nil
}

func (w *world) once(ctx context.Context, binary string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+load.Secret)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (w *world) start(ctx context.Context, name, binary, addr, ops string, args ...string) (*process.Process, error) {
	// Not bound to ctx: stop ends it, in order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+load.Secret)
	log, err := os.Create(filepath.Join(w.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	return process.Launch(name, cmd, addr, ops)
}

func (w *world) close() error {
	var errs []error
	for _, c := range append(append(slices.Collect(maps.Values(w.poll)), w.also...), w.empty, w.api, w.worker) {
		errs = append(errs, c.Stop())
	}
	return errors.Join(append(errs, w.server.Stop(), os.RemoveAll(w.dir))...)
}
