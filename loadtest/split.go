package main

import (
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

// halves is how many API processes a deployment has, and how many workers.
const halves = 2

// deployment is the service as it is deployed: a redis-server that keeps what it has
// acknowledged,
// API processes and workers, all on one database.
type deployment struct {
	dir    string
	bin    string
	db     string // as for --db, with an absolute path
	secret string

	redis    *redisserver.Server
	redisURL string
	apis     []*program
	urls     []string // of the apis
	workers  []*program
}

// startDeployment builds the service and starts a deployment in a fresh
// directory. The caller stops it; on an error nothing is left behind.
func startDeployment(ctx context.Context, o *options, say func(string, ...any)) (*deployment, error) {
	// Checked before the build, which takes longer.
	if _, err := exec.LookPath("redis-server"); err != nil {
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
	say("starting redis-server, %d APIs and %d workers", halves, halves)
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
	if err := d.startRedis(ctx, o.Timeout); err != nil {
		return err
	}
	if err := d.migrate(ctx); err != nil {
		return err
	}
	return d.startHalves(ctx, o.Timeout)
}

// startRedis starts a redis-server on a free port, with the settings on which an
// acknowledged order depends, and returns once it answers.
func (d *deployment) startRedis(ctx context.Context, timeout time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if d.redis, err = redisserver.Start(ctx, redisserver.Config{Dir: d.dir}); err != nil {
		return err
	}
	d.redisURL = "redis://" + d.redis.Addr() + "/0"
	return nil
}

func (d *deployment) migrate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, d.bin, "migrate", "up", "--db", d.db, "--data-dir", d.dir)
	cmd.Dir, cmd.Env = d.dir, serviceEnv(d.secret)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate the database: %w\n%s", errors.Join(err, context.Cause(ctx)), out)
	}
	return nil
}

// startHalves starts the APIs and the workers, and returns once all are ready.
func (d *deployment) startHalves(ctx context.Context, timeout time.Duration) error {
	var waits []func() error
	for i := range halves {
		addr, err := freeport.Addr()
		if err != nil {
			return err
		}
		url := "http://" + addr
		api, _, err := d.startHalf("api", i, "--addr", addr, "--rate-buyer", rateBuyer)
		if err != nil {
			return err
		}
		d.apis, d.urls = append(d.apis, api), append(d.urls, url)
		waits = append(waits, func() error { return api.awaitReady(ctx, url, "/readyz", timeout) })
		worker, ops, err := d.startHalf("worker", i)
		if err != nil {
			return err
		}
		d.workers = append(d.workers, worker)
		// A worker has no other address.
		waits = append(waits, func() error { return worker.awaitReady(ctx, ops, "/metrics", timeout) })
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// startHalf starts one API or worker and returns it with the URL of its metrics.
func (d *deployment) startHalf(command string, i int, args ...string) (p *program, ops string, err error) {
	addr, err := freeport.Addr()
	if err != nil {
		return nil, "", err
	}
	args = append([]string{command, "--ops-addr", addr, "--db", d.db, "--data-dir", d.dir, "--redis", d.redisURL}, args...)
	p = newProgram(fmt.Sprintf("%s %d", command, i+1), d.dir)
	cmd := exec.Command(d.bin, args...) //nolint:noctx // it must outlive an interrupt: it is ended by SIGTERM in end
	cmd.Dir, cmd.Env = d.dir, serviceEnv(d.secret)
	if err := p.start(cmd); err != nil {
		return nil, "", err
	}
	return p, "http://" + addr, nil
}

// place is the target of the load, and the processes that are killed during it: the first
// API and the first worker. The sale is opened and checked through the last API.
func (d *deployment) place() place {
	return place{
		urls: d.urls, db: d.db, secret: d.secret,
		victims: []victim{{name: d.apis[0].name, target: 0, kill: d.apis[0].kill}, {name: d.workers[0].name, target: anyTarget, kill: d.workers[0].kill}},
	}
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
