package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"flashsale/bench/internal/process"
	"flashsale/internal/pause"
	"flashsale/internal/testing/freeport"
)

const (
	postgresTries = 3 // ports that a start may lose to other processes
	postgresReady = 30 * time.Second
	postgresUser  = "peers"
)

// postgresServer is a server on a loopback port, with a data directory of its own.
type postgresServer struct {
	dir     string
	port    int
	process *process.Process
}

// missingPostgres is why no server can be started; nil if it can.
func missingPostgres() error {
	if _, err := postgresProgram("initdb"); err != nil {
		return err
	}
	_, err := postgresOwner()
	return err
}

// postgresProgram finds one of the server's programs. Debian keeps them out of PATH.
func postgresProgram(name string) (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		return slices.Max(found), nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("no %s in PATH or /usr/lib/postgresql; `apt-get install postgresql` installs it", name)
	}
	return path, nil
}

// postgresOwner is the user that the server runs as: nil for this process's own, and the user
// postgres for root, as which the server refuses to run.
func postgresOwner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no credential means this process's own
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("postgres does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// startPostgres creates a cluster and starts its server with the default settings, which sync
// every commit.
func startPostgres(ctx context.Context) (p *postgresServer, err error) {
	owner, err := postgresOwner()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "peers-postgres-")
	if err != nil {
		return nil, err
	}
	p = &postgresServer{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, err
		}
	}
	initdb, err := p.command(ctx, owner, "initdb", "-U", postgresUser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return nil, err
	}
	if text, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, text)
	}
	for range postgresTries {
		if err = p.tryStart(ctx, owner); err == nil {
			return p, nil
		}
	}
	return nil, err
}

// command is one of the server's programs on the data directory.
func (p *postgresServer) command(ctx context.Context, owner *syscall.Credential, name string, args ...string) (*exec.Cmd, error) {
	path, err := postgresProgram(name)
	if err != nil {
		return nil, err
	}
	// The server is ended by close and not by ctx.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path, append([]string{"-D", filepath.Join(p.dir, "data")}, args...)...)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	return cmd, nil
}

// tryStart starts the server on a free port and waits until it answers.
func (p *postgresServer) tryStart(ctx context.Context, owner *syscall.Credential) (err error) {
	if p.port, err = freeport.Port(); err != nil {
		return err
	}
	cmd, err := p.command(ctx, owner, "postgres", "-p", strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=")
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	p.process, err = process.Launch("postgres", cmd, "", "")
	// The process has its own descriptor by now.
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	db, err := sql.Open("pgx", p.url())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var last error
	for began := time.Now(); time.Since(began) < postgresReady && !p.process.Gone(); {
		if last = db.PingContext(ctx); last == nil {
			return nil
		}
		if err := pause.OrCause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	text, rerr := os.ReadFile(log.Name())
	return errors.Join(fmt.Errorf("postgres did not answer; its log:\n%s", text), last, rerr, p.process.Stop())
}

func (p *postgresServer) url() string {
	return "postgres://" + postgresUser + "@" + net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) + "/postgres?sslmode=disable"
}

// close ends the server and removes its data.
func (p *postgresServer) close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.process.Stop(), os.RemoveAll(p.dir))
}
