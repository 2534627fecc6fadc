package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/redisserver"
)

var errNoRedis = errors.New("loadtest: --split needs redis-server, which is not in the PATH; " +
	"`make deps` installs it, or your system does: apt-get install redis-server, dnf install redis, brew install redis")

// perRole is how many API processes a deployment has, and how many workers.
const perRole = 2

// deployment is the service as it is deployed: a redis-server that keeps what it has
// acknowledged, API processes and workers, all on one database.
type deployment struct {
	dir    string
	bin    string
	db     string // as for --db, with an absolute path
	secret string

	redis    *redisserver.Server
	redisURL string
	apis     []*instance
	urls     []string // of the apis
	workers  []*instance
	timeout  time.Duration // for a process to become ready
	version  string        // of the program; empty: unknown
}

// instance is one API or worker of a deployment. After a restart its program is the new one.
type instance struct {
	*program
	args  []string // of the command line
	ready string   // URL that answers 200 once it is ready
	route string
}

// startDeployment builds the service and starts a deployment in a fresh
// directory. The caller stops it; on an error nothing is left behind.
func startDeployment(ctx context.Context, o *options, say func(string, ...any)) (*deployment, error) {
	// Checked before the build, which takes longer.
	if _, err := exec.LookPath(redisserver.Program()); err != nil {
		return nil, fmt.Errorf("%w (%w)", errNoRedis, err)
	}
	dir, err := os.MkdirTemp("", "flashsale-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	bin, err := buildService(ctx, dir, say)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	d := &deployment{dir: dir, bin: bin, secret: newSecret()}
	if d.version, err = versionOf(ctx, bin); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	say("starting redis-server, %d APIs and %d workers", perRole, perRole)
	if err := d.start(ctx, o); err != nil {
		return nil, abandon(err, d.end, dir)
	}
	return d, nil
}

// start starts everything and returns once all of it is ready. The caller ends it,
// also after an error.
func (d *deployment) start(ctx context.Context, o *options) (err error) {
	if d.db, err = absoluteDB(o.DB, d.dir); err != nil {
		return err
	}
	d.timeout = o.Timeout
	if err := d.startRedis(ctx); err != nil {
		return err
	}
	if err := d.migrate(ctx); err != nil {
		return err
	}
	return d.startInstances(ctx)
}

// startRedis starts a redis-server on a free port, with the settings on which an
// acknowledged order depends, and returns once it answers.
func (d *deployment) startRedis(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if d.redis, err = redisserver.Start(ctx, redisserver.Config{Dir: d.dir}); err != nil {
		return err
	}
	d.redisURL = "redis://" + d.redis.Addr() + "/0"
	return nil
}

func (d *deployment) migrate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.bin, append([]string{"migrate", "up", "--data-dir", d.dir}, databaseArgs(d.db)...)...)
	cmd.Dir, cmd.Env = d.dir, serviceEnv(d.secret, d.db)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate the database: %w\n%s", errors.Join(err, context.Cause(ctx)), out)
	}
	return nil
}

// startInstances starts the APIs and the workers, and returns once all are ready.
func (d *deployment) startInstances(ctx context.Context) error {
	for i := range perRole {
		addr, err := freeport.Addr()
		if err != nil {
			return err
		}
		api, err := d.startInstance("api", i, "--addr", addr, "--rate-buyer", rateBuyer)
		if err != nil {
			return err
		}
		api.ready, api.route = "http://"+addr, "/readyz"
		d.apis, d.urls = append(d.apis, api), append(d.urls, api.ready)
		worker, err := d.startInstance("worker", i)
		if err != nil {
			return err
		}
		d.workers = append(d.workers, worker)
	}
	return d.awaitInstances(ctx, slices.Concat(d.apis, d.workers))
}

// startInstance starts one API or worker. A worker is ready once it serves its metrics: it has
// no other address.
func (d *deployment) startInstance(command string, i int, args ...string) (*instance, error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, err
	}
	h := &instance{
		program: newProgram(fmt.Sprintf("%s %d", command, i+1), d.dir),
		args:    slices.Concat([]string{command, "--ops-addr", addr}, databaseArgs(d.db), []string{"--data-dir", d.dir, "--redis", d.redisURL}, args),
		ready:   "http://" + addr, route: "/metrics",
	}
	return h, d.startProgram(h)
}

func (d *deployment) startProgram(h *instance) error {
	cmd := exec.Command(d.bin, h.args...) //nolint:noctx // it must outlive an interrupt: it is ended by SIGTERM in end
	cmd.Dir, cmd.Env = d.dir, serviceEnv(d.secret, d.db)
	return h.start(cmd)
}

func (d *deployment) awaitInstances(ctx context.Context, all []*instance) error {
	for _, h := range all {
		if err := h.awaitReady(ctx, h.ready, h.route, d.timeout); err != nil {
			return err
		}
	}
	return nil
}

// again starts killed processes again, with their command lines, and returns once they are
// ready.
func (d *deployment) again(ctx context.Context, all []*instance) error {
	for _, h := range all {
		<-h.exited // it was killed
		log := h.log + ".again"
		h.program = newProgram(h.name, d.dir)
		h.log = log
		if err := d.startProgram(h); err != nil {
			return err
		}
	}
	return d.awaitInstances(ctx, all)
}

// place is the target of the load, and the processes that are killed during it. The sale is
// opened and checked through the last API.
func (d *deployment) place(o *options) place {
	at := place{urls: d.urls, db: d.db, secret: d.secret, version: d.version}
	if len(o.kills) == 0 {
		// Nothing is started again: the other API and the other worker take over.
		api, worker := d.apis[0], d.workers[0]
		at.victims = []victim{{name: api.name, target: 0, kill: api.kill}, {name: worker.name, target: anyTarget, kill: worker.kill}}
	}
	for _, h := range o.kills {
		at.victims = append(at.victims, d.victim(h, o.Down))
	}
	return at
}

// victim finds the processes of a --kill.
func (d *deployment) victim(h killSpec, down time.Duration) victim {
	v := victim{target: anyTarget, share: h.at, down: down}
	var all []*instance
	switch h.what {
	case "worker":
		all = d.workers
		v.name = "all workers"
	case "worker1":
		all = d.workers[:1]
	case "worker2":
		all = d.workers[1:2]
	case "api1":
		all, v.target = d.apis[:1], 0
	}
	v.name = cmp.Or(v.name, all[0].name)
	v.kill = func() error {
		var errs []error
		for _, p := range all {
			errs = append(errs, p.kill())
		}
		return errors.Join(errs...)
	}
	v.again = func(ctx context.Context) error { return d.again(ctx, all) }
	return v
}

// end ends every process that was started: the APIs, then the workers, which commit the
// orders that the APIs accepted, then Redis.
func (d *deployment) end() error {
	var errs []error
	for _, p := range slices.Concat(d.apis, d.workers) {
		errs = append(errs, p.end())
	}
	return errors.Join(append(errs, d.redis.Stop())...)
}

// stop ends every process and removes the directory, also when the run was interrupted.
func (d *deployment) stop() error { return errors.Join(d.end(), os.RemoveAll(d.dir)) }
