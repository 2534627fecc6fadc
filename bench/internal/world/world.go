// Package world starts the processes of a measurement: Redis, the service, and what it is
// compared with.
package world

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

// World is everything that a run starts, in one temporary folder.
type World struct {
	Dir     string
	Redis   *process.Process // of server
	server  *redisserver.Server
	API     *process.Process
	Also    []*process.Process // further API processes, in addition to API
	Worker  *process.Process
	Empty   *process.Process            // the empty handler
	Polling map[string]*process.Process // the polling lock, by interval

	Binary string   // the service
	Common []string // settings of its processes
	others int      // processes started by Another
}

// Start builds the service and starts it in a temporary folder, with the empty handler and the
// polling locks, which are this program with other arguments. fsync is Redis's appendfsync.
func Start(ctx context.Context, fsync string) (w *World, err error) {
	dir, err := os.MkdirTemp("", "flashsale-bench-")
	if err != nil {
		return nil, err
	}
	started := &World{Dir: dir, Polling: make(map[string]*process.Process)}
	defer func() {
		if err != nil {
			err = errors.Join(err, started.Close())
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
	if err := w.StartRedis(ctx, fsync); err != nil {
		return nil, err
	}
	db := "sqlite:" + filepath.Join(dir, "bench.db")
	common := []string{"--db", db, "--data-dir", dir, "--redis", "redis://" + w.Redis.Addr + "/0", "--log-level", "warn"}
	if err := w.Once(ctx, binary, append([]string{"migrate", "up"}, common...)...); err != nil {
		return nil, err
	}
	w.Binary, w.Common = binary, common
	addr, ops, workOps := process.FreeAddr(), process.FreeAddr(), process.FreeAddr()
	if w.API, err = w.Launch(ctx, "api", binary, addr, ops, append([]string{"api", "--addr", addr, "--ops-addr", ops}, common...)...); err != nil {
		return nil, err
	}
	if w.Worker, err = w.Launch(ctx, "worker", binary, "", workOps, append([]string{"worker", "--ops-addr", workOps}, common...)...); err != nil {
		return nil, err
	}
	addr = process.FreeAddr()
	if w.Empty, err = w.Launch(ctx, "empty", self, addr, "", "empty", addr); err != nil {
		return nil, err
	}
	waited := []*process.Process{w.API, w.Empty}
	for interval := range baseline.PollIntervals {
		addr = process.FreeAddr()
		p, err := w.Launch(ctx, "polling-"+interval, self, addr, "", "polling", addr, w.Redis.Addr, interval)
		if err != nil {
			return nil, err
		}
		w.Polling[interval] = p
		waited = append(waited, p)
	}
	for _, c := range waited {
		if err := c.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// Another starts one more API process, without a rate limit for buyers.
func (w *World) Another(ctx context.Context, settings ...string) (*process.Process, error) {
	addr, ops := process.FreeAddr(), process.FreeAddr()
	settings = append(settings, "--addr", addr, "--ops-addr", ops, "--rate-buyer", "-1")
	w.others++
	p, err := w.Launch(ctx, fmt.Sprintf("api-%d", w.others+1), w.Binary, addr, ops, append(append([]string{"api"}, settings...), w.Common...)...)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// StartRedis starts the redis-server of the run, which keeps its data in Dir.
func (w *World) StartRedis(ctx context.Context, fsync string) (err error) {
	if w.server, err = server.Start(ctx, w.Dir, fsync); err != nil {
		return err
	}
	w.Redis = &process.Process{Name: "redis", PID: w.server.Pid(), Addr: w.server.Addr(), Ended: w.server.Done()}
	return nil
}

// Once runs a command of the service to its end.
func (w *World) Once(ctx context.Context, binary string, args ...string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+load.Secret)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// Launch starts a process that writes its log into Dir. addr is its address, and ops that of its
// metrics; either may be empty.
func (w *World) Launch(ctx context.Context, name, binary, addr, ops string, args ...string) (*process.Process, error) {
	// Not bound to ctx: stop ends it, in order.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, args...)
	cmd.Env = append(os.Environ(), "FLASHSALE_JWT_SECRET="+load.Secret)
	log, err := os.Create(filepath.Join(w.Dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	return process.Launch(name, cmd, addr, ops)
}

// Close ends all processes and removes Dir.
func (w *World) Close() error {
	var errs []error
	for _, c := range append(append(slices.Collect(maps.Values(w.Polling)), w.Also...), w.Empty, w.API, w.Worker) {
		errs = append(errs, c.Stop())
	}
	return errors.Join(append(errs, w.server.Stop(), os.RemoveAll(w.Dir))...)
}
