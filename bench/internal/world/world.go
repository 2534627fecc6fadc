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
	// Embedded is `flashsale serve` on the embedded engine, with an SQLite file of its own.
	Embedded *process.Process

	Binary string   // the service
	Common []string // settings of its processes
	others int      // processes started by Another

	sharesEmpty bool // Empty belongs to another world
}

// Config configures a world.
type Config struct {
	// Fsync is Redis's appendfsync.
	Fsync string
	// Database is the URL of an empty database. Empty: an SQLite file in the world's folder.
	Database string
	// Fill, if set, is called with the migrated database, before a process of the service starts.
	Fill func(ctx context.Context) error
	// Beside is a running world whose program and empty handler this one uses. This one then
	// has no polling locks, and must be closed first. Nil: it builds and starts its own.
	Beside *World
}

// Start builds the service and starts it in a temporary folder, with the empty handler and the
// polling locks, which are this program with other arguments.
func Start(ctx context.Context, cfg Config) (w *World, err error) {
	parent := ""
	if cfg.Beside != nil {
		parent = cfg.Beside.Dir
	}
	dir, err := os.MkdirTemp(parent, "flashsale-bench-")
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
	if cfg.Beside != nil {
		w.Binary, w.Empty, w.sharesEmpty = cfg.Beside.Binary, cfg.Beside.Empty, true
	} else {
		w.Binary = filepath.Join(dir, "flashsale")
		if err := repo.Build(ctx, w.Binary); err != nil {
			return nil, err
		}
	}
	if err := w.startService(ctx, cfg); err != nil {
		return nil, err
	}
	if cfg.Beside == nil {
		if err := w.startOthers(ctx); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// startService starts Redis, an API process and a worker on a migrated database.
func (w *World) startService(ctx context.Context, cfg Config) (err error) {
	if err := w.StartRedis(ctx, cfg.Fsync); err != nil {
		return err
	}
	db := cfg.Database
	if db == "" {
		db = "sqlite:" + filepath.Join(w.Dir, "bench.db")
	}
	w.Common = []string{"--db", db, "--data-dir", w.Dir, "--redis", "redis://" + w.Redis.Addr + "/0", "--log-level", "warn"}
	if err := w.Once(ctx, w.Binary, append([]string{"migrate", "up"}, w.Common...)...); err != nil {
		return err
	}
	if cfg.Fill != nil {
		if err := cfg.Fill(ctx); err != nil {
			return fmt.Errorf("fill the database: %w", err)
		}
	}
	addr, ops := process.FreeAddr(), process.FreeAddr()
	if w.API, err = w.Launch(ctx, "api", w.Binary, addr, ops, append([]string{"api", "--addr", addr, "--ops-addr", ops}, w.Common...)...); err != nil {
		return err
	}
	if w.Worker, err = w.AnotherWorker(ctx, "worker"); err != nil {
		return err
	}
	return w.API.Ready(ctx)
}

// startOthers starts what the service is compared with.
func (w *World) startOthers(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	addr := process.FreeAddr()
	if w.Empty, err = w.Launch(ctx, "empty", self, addr, "", "empty", addr); err != nil {
		return err
	}
	if w.Embedded, err = w.serve(ctx); err != nil {
		return err
	}
	waited := []*process.Process{w.Empty, w.Embedded}
	for interval := range baseline.PollIntervals {
		addr = process.FreeAddr()
		p, err := w.Launch(ctx, "polling-"+interval, self, addr, "", "polling", addr, w.Redis.Addr, interval)
		if err != nil {
			return err
		}
		w.Polling[interval] = p
		waited = append(waited, p)
	}
	for _, c := range waited {
		if err := c.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// serve starts API and worker in one process on the embedded engine.
func (w *World) serve(ctx context.Context) (*process.Process, error) {
	addr, ops, dir := process.FreeAddr(), process.FreeAddr(), filepath.Join(w.Dir, "embedded")
	return w.Launch(ctx, "embedded", w.Binary, addr, ops, "serve", "--addr", addr, "--ops-addr", ops, "--redis", "embedded",
		"--data-dir", dir, "--demo=false", "--mock-payments-addr", "off", "--log-level", "warn")
}

// AnotherWorker starts a worker process, whose log has that name. It does not wait until it works.
func (w *World) AnotherWorker(ctx context.Context, name string) (*process.Process, error) {
	ops := process.FreeAddr()
	return w.Launch(ctx, name, w.Binary, "", ops, append([]string{"worker", "--ops-addr", ops}, w.Common...)...)
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
	if !w.sharesEmpty {
		errs = append(errs, w.Empty.Stop())
	}
	for _, c := range append(append(slices.Collect(maps.Values(w.Polling)), w.Also...), w.Embedded, w.API, w.Worker) {
		errs = append(errs, c.Stop())
	}
	return errors.Join(append(errs, w.server.Stop(), os.RemoveAll(w.Dir))...)
}
