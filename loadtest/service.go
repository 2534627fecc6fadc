package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"flashsale/internal/postgresurl"
	"flashsale/internal/testing/freeport"
	"flashsale/internal/testing/repo"
)

var errModule = errors.New("loadtest: the flashsale module was not found; run this inside its tree, or use --target")

// service is one process of the service started here, with its directory.
type service struct {
	*program
	url    string
	db     string // as for --db, with an absolute path
	secret string
	dir    string
	// version of the program; empty: unknown
	version string
}

// startService builds the service and starts it in a fresh directory. The
// caller stops it; on an error nothing is left behind.
func startService(ctx context.Context, o *options, say func(string, ...any)) (s *service, err error) {
	dir, err := os.MkdirTemp("", "flashsale-loadtest-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	started := newService(dir)
	defer func() {
		if err != nil {
			err = abandon(err, started.end, dir)
		}
	}()
	bin, err := buildService(ctx, dir, say)
	if err != nil {
		return nil, err
	}
	if started.version, err = versionOf(ctx, bin); err != nil {
		return nil, err
	}
	if err := started.start(bin, o); err != nil {
		return nil, err
	}
	say("starting the service at %s", started.url)
	if err := started.awaitReady(ctx, started.url, "/readyz", o.Timeout); err != nil {
		return nil, err
	}
	return started, nil
}

func newService(dir string) *service {
	return &service{program: newProgram("the service", dir), dir: dir, secret: newSecret()}
}

// abandon ends what was started and removes its directory after a failed start.
func abandon(cause error, end func() error, dir string) error {
	ended := end()
	if errors.Is(cause, errEarly) {
		ended = nil // the cause reports it already
	}
	return errors.Join(cause, ended, os.RemoveAll(dir))
}

// buildService builds the service into dir and returns the program's path.
func buildService(ctx context.Context, dir string, say func(string, ...any)) (string, error) {
	say("building the service")
	bin := filepath.Join(dir, "flashsale")
	err := repo.Build(ctx, bin)
	if errors.Is(err, repo.ErrNotFound) {
		return "", errModule
	}
	return bin, err
}

// rateBuyer is --rate-buyer of a service started here. A buyer of the crowd may send many
// requests, and the limit that protects the shop from them is not measured.
const rateBuyer = "1000000"

// start runs the binary.
func (s *service) start(bin string, o *options) error {
	addr, err := freeport.Addr()
	if err != nil {
		return err
	}
	ops, err := freeport.Addr()
	if err != nil {
		return err
	}
	s.url = "http://" + addr
	if s.db, err = absoluteDB(o.DB, s.dir); err != nil {
		return err
	}
	args := append([]string{"serve", "--addr", addr, "--ops-addr", ops}, databaseArgs(s.db)...)
	args = append(args, "--data-dir", s.dir, "--rate-buyer", rateBuyer)
	if o.Redis != "" {
		args = append(args, "--redis", o.Redis)
	}
	cmd := exec.Command(bin, args...) //nolint:noctx // it must outlive an interrupt: it is ended by SIGTERM in end
	cmd.Dir, cmd.Env = s.dir, serviceEnv(s.secret, s.db)
	return s.program.start(cmd)
}

// serviceEnv is the environment of a service started here. It leaves out the settings of
// our own environment, which may be meant for another service.
func serviceEnv(secret, db string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "FLASHSALE_") {
			env = append(env, kv)
		}
	}
	if postgresurl.Is(db) {
		env = append(env, "FLASHSALE_DB="+db)
	}
	return append(env, secretEnv+"="+secret)
}

// databaseArgs are the arguments that name the database. A URL may have a password, which
// every user of the machine could read on the command line: serviceEnv passes it.
func databaseArgs(db string) []string {
	if postgresurl.Is(db) {
		return nil
	}
	return []string{"--db", db}
}

// absoluteDB is the --db of the child, which runs in another directory.
func absoluteDB(db, dir string) (string, error) {
	if db == "" {
		return "sqlite:" + filepath.Join(dir, "flashsale.db"), nil
	}
	path, ok := strings.CutPrefix(db, "sqlite:")
	if !ok {
		return db, nil
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("database path %s: %w", path, err)
	}
	return "sqlite:" + abs, nil
}

// stop ends the process and removes its directory, also when the run was interrupted.
func (s *service) stop() error {
	return errors.Join(s.end(), os.RemoveAll(s.dir))
}

// place is the target of the load.
func (s *service) place() place {
	return place{urls: []string{s.url}, db: s.db, secret: s.secret, version: s.version}
}

// versionOf asks a program for its version: the first line, without the program's name.
func versionOf(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, bin, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask the service for its version: %w", err)
	}
	line, _, found := strings.Cut(string(out), "\n")
	if !found {
		return "", nil
	}
	return strings.TrimPrefix(line, "flashsale "), nil
}
