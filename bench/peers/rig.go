package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"flashsale/bench/internal/process"
	"flashsale/bench/internal/server"
	"flashsale/internal/testing/postgresserver"
	"flashsale/internal/testing/redisserver"
)

// rig is one contender with servers, a database and a folder of its own. Each measurement has
// a new one, so that none inherits the data or the background work of another.
type rig struct {
	contender contender
	dir       string
	service   string // path of the service's program

	// Set by contender.prepare; redis and postgres only if the contender needs them.
	redis    *redisserver.Server
	postgres *postgresserver.Server
	db       *sql.DB // to read the orders
	stock    stock
	programs []program
	addr     string // host and port of the API

	running []*process.Process
	closers []func() error
}

// stock is where a contender keeps the units of its items.
type stock interface {
	// put puts an item with so many units on sale.
	put(ctx context.Context, item string, total int64) error
	// left is how many units of the item can still be sold.
	left(ctx context.Context, item string) (int64, error)
}

// program is one process of a contender.
type program struct {
	name, path string
	addr       string // of its API; empty: it has none
	args       []string
}

// newRig starts a contender and returns when it is ready.
func newRig(ctx context.Context, c contender, service string) (s *rig, err error) {
	dir, err := os.MkdirTemp("", "peers-")
	if err != nil {
		return nil, err
	}
	s = &rig{contender: c, dir: dir, service: service}
	if err := c.prepare(ctx, s); err != nil {
		return nil, errors.Join(err, s.close())
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *rig) startRedis(ctx context.Context) (err error) {
	s.redis, err = server.Start(ctx, s.dir, "everysec")
	return err
}

// prepareSQLite sets up a contender that keeps stock and orders in SQLite.
func prepareSQLite(ctx context.Context, s *rig) error {
	path, err := s.createOrders(ctx)
	if err != nil {
		return err
	}
	writer, err := openSQLite(path)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, writer.Close)
	s.stock = sqlStock{writer}
	return s.serveSelf("", path)
}

// prepareRedisAndSQLite sets up a contender that keeps its stock in Redis.
func prepareRedisAndSQLite(ctx context.Context, s *rig) error {
	path, err := s.createOrders(ctx)
	if err != nil {
		return err
	}
	if err := s.startRedis(ctx); err != nil {
		return err
	}
	rdb := openRedis(s.redis.Addr())
	s.closers = append(s.closers, rdb.Close)
	s.stock = redisStock{rdb}
	return s.serveSelf(s.redis.Addr(), path)
}

// createOrders creates the SQLite file of a peer and opens it for reading.
func (s *rig) createOrders(ctx context.Context) (path string, err error) {
	path = filepath.Join(s.dir, "orders.db")
	db, err := openSQLite(path)
	if err != nil {
		return "", err
	}
	_, err = db.ExecContext(ctx, schema)
	if err := errors.Join(err, db.Close()); err != nil {
		return "", err
	}
	s.db, err = openReader(path)
	return path, err
}

// serveSelf makes this program, with the command serve, the contender's process.
func (s *rig) serveSelf(redis, db string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.addr = process.FreeAddr()
	args := []string{serveCommand, "-contender", s.contender.name, "-addr", s.addr, "-redis", redis, "-db", db}
	s.programs = []program{{name: s.contender.name, path: self, addr: s.addr, args: args}}
	return nil
}

// start starts the processes and waits until the API is ready.
func (s *rig) start(ctx context.Context) error {
	s.running = nil
	for _, p := range s.programs {
		started, err := s.launch(ctx, p)
		if err != nil {
			return err
		}
		s.running = append(s.running, started)
	}
	for i, p := range s.programs {
		if p.addr == "" {
			continue
		}
		if err := s.running[i].Ready(ctx); err != nil {
			text, rerr := os.ReadFile(s.log(p))
			return errors.Join(fmt.Errorf("%w; its log:\n%s", err, text), rerr)
		}
	}
	return nil
}

func (s *rig) log(p program) string { return filepath.Join(s.dir, p.name+".log") }

func (s *rig) launch(ctx context.Context, p program) (*process.Process, error) {
	log, err := os.OpenFile(s.log(p), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	// Not bound to ctx: kill and close end it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.path, p.args...)
	cmd.Env = append(os.Environ(), secret)
	cmd.Stdout, cmd.Stderr = log, log
	started, err := process.Launch(p.name, cmd, p.addr, "")
	// The process has its own descriptor by now.
	return started, errors.Join(err, log.Close())
}

// kill ends the contender's processes with SIGKILL. Its Redis and its database keep running.
func (s *rig) kill() error {
	var errs []error
	for _, p := range s.running {
		errs = append(errs, p.Kill())
	}
	return errors.Join(errs...)
}

// close ends everything by its process id and removes the folder.
func (s *rig) close() error {
	var errs []error
	for _, p := range s.running {
		errs = append(errs, p.Stop())
	}
	for _, fn := range s.closers {
		errs = append(errs, fn())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(append(errs, s.redis.Stop(), s.postgres.Close(), os.RemoveAll(s.dir))...)
}
