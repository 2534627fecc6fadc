package postgresserver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"flashsale/internal/testing/child"
	"flashsale/internal/testing/freeport"
)

// The modes of a Bouncer.
const (
	// Transaction gives each transaction of a client another session of the server. A client must
	// not rely on prepared statements, on SET without LOCAL, on advisory locks of a session, or on
	// LISTEN. For pgx that means default_query_exec_mode=simple_protocol in the URL.
	Transaction = "transaction"
	// Session gives each client a session until it disconnects.
	Session = "session"
)

// bouncerConfig is the configuration of PgBouncer: its port, that of the server, and the mode.
// Every client is the server's Superuser.
const bouncerConfig = `[databases]
* = host=127.0.0.1 port=%[2]d user=` + Superuser + `
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %[1]d
unix_socket_dir =
auth_type = any
pool_mode = %[3]s
max_client_conn = 1000
default_pool_size = 40
ignore_startup_parameters = extra_float_digits
`

// Bouncer is a PgBouncer process in front of a server. One goroutine at a time may kill and
// restart it.
type Bouncer struct {
	path         string // of the program
	folder       *folder
	port, server int
	mode         string
	cmd          *exec.Cmd
	ended        chan struct{} // closed when the process has ended; nil before a start
}

// StartBouncer starts a PgBouncer in front of a server, in the mode Transaction or Session, and
// returns once it answers. ctx bounds the wait; it does not end the process.
func StartBouncer(ctx context.Context, s *Server, mode string) (*Bouncer, error) {
	path, err := bouncerProgram()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, "", "pgbouncer-")
	if err != nil {
		return nil, err
	}
	b := &Bouncer{path: path, folder: f, server: s.port, mode: mode}
	for range tries {
		if b.port, err = freeport.Port(); err != nil {
			break
		}
		if err = b.Restart(ctx); !errors.Is(err, errEnded) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// MissingBouncer returns why no PgBouncer can be started here, or nil.
func MissingBouncer() error {
	_, err := bouncerProgram()
	return err
}

// bouncerProgram finds PgBouncer, which Debian installs where not every user's PATH leads.
func bouncerProgram() (string, error) {
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		return "", errors.New("no pgbouncer in PATH or /usr/sbin")
	}
	return path, Missing()
}

// URL returns the URL of a database behind it. It does not change on a restart.
func (b *Bouncer) URL(database string) string { return urlOn(b.port, database) }

// Restart starts the process on its port, before which it must not be running, and returns once it
// answers. ctx bounds the wait; it does not end the process.
func (b *Bouncer) Restart(ctx context.Context) error {
	if err := b.start(ctx); err != nil {
		return fmt.Errorf("start PgBouncer: %w; the end of its log:\n%s", err, b.LogEnd())
	}
	return nil
}

// LogEnd returns the end of the log, or why it cannot be read.
func (b *Bouncer) LogEnd() string { return endOf(b.log()) }

func (b *Bouncer) log() string { return filepath.Join(b.folder.path, "log") }

// start starts the process on its port and waits until it answers.
func (b *Bouncer) start(ctx context.Context) (err error) {
	config := filepath.Join(b.folder.path, "pgbouncer.ini")
	if err := os.WriteFile(config, fmt.Appendf(nil, bouncerConfig, b.port, b.server, b.mode), 0o644); err != nil { //nolint:gosec // it holds no secret, and another user reads it
		return err
	}
	log, err := os.OpenFile(b.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Not bound to ctx: Kill and Close end it.
	b.cmd = exec.CommandContext(context.WithoutCancel(ctx), b.path, config)
	b.cmd.Stdout, b.cmd.Stderr = log, log
	ended := make(chan struct{})
	if err = asOwner(b.cmd, b.folder.path); err == nil {
		err = child.Start(b.cmd, func(error) { close(ended) })
	}
	// The process has its own descriptor by now.
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	b.ended = ended
	return b.answers(ctx)
}

func (b *Bouncer) answers(ctx context.Context) (err error) {
	db, err := sql.Open("pgx", urlOn(b.port, Superuser)+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-b.ended:
			return fmt.Errorf("%w: %w", errEnded, err)
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// Kill kills the process, and with it all its connections.
func (b *Bouncer) Kill() error {
	if b.ended == nil {
		return nil
	}
	// The signals for an orderly end differ among its versions, and it keeps nothing.
	err := ignoreDone(b.cmd.Process.Kill())
	if err == nil {
		<-b.ended
		b.ended = nil
	}
	return err
}

// Close kills the process and removes its folder.
func (b *Bouncer) Close() error { return errors.Join(b.Kill(), b.folder.close()) }
