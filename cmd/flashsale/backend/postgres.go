package backend

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/cmd/flashsale/config"
	"flashsale/internal/pause"
	"flashsale/order/store"
	"flashsale/order/store/postgres"
)

// postgresFix returns the fix for a Postgres database that could not be opened.
func postgresFix(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		if fix := stateFix(refused.Code); fix != "" {
			return fix
		}
	}
	var unreachable *pgconn.ConnectError
	switch {
	case errors.Is(err, postgres.ErrPooled):
		return "connect to the server itself, or add default_query_exec_mode=simple_protocol to the URL (not for migrations, copies and the embedded Redis); see docs/postgres.md"
	case refused == nil && errors.As(err, &unreachable):
		return "start the server, or correct the host and port; check that its listen_addresses, pg_hba.conf, TLS (sslmode) and the firewall allow this host"
	default:
		return "see the log of the Postgres server, and docs/postgres.md"
	}
}

// SchemaError adds the setting and the fix to an error of the schema, or of Postgres, that an
// operator can correct, such as a missing permission. Others are returned unchanged.
func SchemaError(s *config.Settings, err error) error {
	if cause, fix := SchemaFault(err); cause != "" {
		return config.FailedSetting("db", s.DB, cause, fix)
	}
	var refused *pgconn.PgError
	if !s.Postgres() || !errors.As(err, &refused) || stateFix(refused.Code) == "" {
		return err
	}
	return config.FailedSetting("db", s.DB, Cause(err), stateFix(refused.Code))
}

// checkWritable refuses a server that refuses writes. Without this, processes would start on it
// and every order would wait.
func checkWritable(ctx context.Context, s *config.Settings, db *store.Store) error {
	d, err := db.Describe(ctx)
	if err != nil {
		return config.FailedSetting("db", s.DB, Cause(err), postgresFix(err))
	}
	cause := ""
	switch {
	case d.Server.Standby:
		cause = "the server is a standby, and refuses writes"
	case d.Server.ReadOnly:
		cause = "its transactions are read-only by default"
	default:
		return nil
	}
	return config.FailedSetting("db", s.DB, cause, stateFix(readOnly))
}

// readOnly is the SQLSTATE of a write in a read-only transaction.
const readOnly = "25006"

// stateFix returns the fix for an error by its SQLSTATE; "" for an unexpected one.
func stateFix(state string) string {
	switch state {
	case "28P01", "28000":
		return "correct the user and password (in the URL, PGPASSWORD or PGPASSFILE), and the line of pg_hba.conf for this host"
	case "3D000":
		return "create it with createdb, which flashsale never does, and run flashsale migrate up; or correct the name"
	case "42501":
		return "grant the role the permissions that docs/postgres.md lists"
	case readOnly:
		return "name the primary that accepts writes (several hosts and target_session_attrs=read-write find it), and set default_transaction_read_only = off"
	case "42704", "22023":
		return "remove or correct the parameter in the URL; docs/postgres.md describes them"
	case "53300":
		return "raise max_connections or the limit of the role or database, or run fewer processes; docs/postgres.md lists the connections of each"
	case "42P05", "26000":
		return "behind a connection pooler, add default_query_exec_mode=simple_protocol to the URL; see docs/postgres.md"
	case "08P01":
		return "remove the parameter of the URL that the connection pooler refuses; see docs/postgres.md"
	case "57014":
		return "remove statement_timeout from the URL and from the role"
	case "57P03":
		return "wait until it accepts connections, or name the primary"
	}
	return ""
}

// Cause is the text of an error in one line. That of a connection that failed has a line for
// each attempt, also for those without TLS; the server's answer says enough.
func Cause(err error) string {
	var unreachable *pgconn.ConnectError
	var refused *pgconn.PgError
	if errors.As(err, &unreachable) && errors.As(err, &refused) {
		return refused.Error()
	}
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, " ")
}

const (
	// serveKey is the key of the advisory lock that processes hold on their Postgres database.
	serveKey int64 = 0x666c617368737276 // "flashsrv"
	// lockPatience bounds the wait for the lock: the server notices the end of a killed
	// process, or of this process's lost connection, within milliseconds.
	lockPatience = 2 * time.Second
	// lockRetry is the interval between attempts to get the lock.
	lockRetry = 50 * time.Millisecond
	// lockCheck is the interval between checks that the connection of the lock still exists.
	lockCheck = 5 * time.Second
	// lockTimeout bounds one exchange with the server.
	lockTimeout = 10 * time.Second
)

// PostgresLock is an advisory lock on a Postgres database, on a connection of its own. A process
// with the embedded engine holds it exclusively, because that engine has its own stock. All
// others share it. The server releases it when the connection ends.
type PostgresLock struct {
	settings  *config.Settings
	server    *pgx.ConnConfig
	exclusive bool
	pooled    bool // not taken; see LockPostgres

	mu   sync.Mutex
	conn *pgx.Conn // nil: lost
}

// errPooled says that the lock cannot be held through a pooler.
var errPooled = errors.New("a connection pooler that gives each transaction another session cannot keep the lock of this process")

// LockPostgres takes the lock. Errors: ErrServed if another process excludes this one.
// A URL for a pooler in transaction mode (default_query_exec_mode=simple_protocol) is refused for
// an exclusive lock. A shared one is not taken there: every write transaction checks that the shop
// was not moved, and an embedded engine needs a direct connection.
func LockPostgres(ctx context.Context, s *config.Settings, exclusive bool) (*PostgresLock, error) {
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	l := &PostgresLock{settings: s, exclusive: exclusive}
	var err error
	if l.server, err = postgres.Config(s.DB); err != nil {
		return nil, config.FailedSetting("db", s.DB, Cause(err), postgresFix(err))
	}
	if l.pooled = l.server.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol; l.pooled {
		if exclusive {
			return nil, config.FailedSetting("db", s.DB, errPooled.Error(), "name the server itself, without default_query_exec_mode")
		}
		return l, nil
	}
	conn, err := pgx.ConnectConfig(ctx, l.server)
	if err != nil {
		return nil, config.FailedSetting("db", s.DB, Cause(err), postgresFix(err))
	}
	held := false
	if err = postgres.CheckPooler(ctx, conn); err == nil {
		held, err = l.take(ctx, conn)
	}
	switch {
	case err != nil:
		return nil, errors.Join(config.FailedSetting("db", s.DB, Cause(err), postgresFix(err)), closeConn(ctx, conn))
	case !held:
		return nil, errors.Join(ErrServed, closeConn(ctx, conn))
	}
	l.conn = conn
	return l, nil
}

// take tries to take the lock for lockPatience.
func (l *PostgresLock) take(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	try := "SELECT pg_try_advisory_lock($1)"
	if !l.exclusive {
		try = "SELECT pg_try_advisory_lock_shared($1)"
	}
	for end := time.Now().Add(lockPatience); ; {
		if err = conn.QueryRow(ctx, try, serveKey).Scan(&held); held || err != nil || time.Now().After(end) {
			return held, err
		}
		pause.For(ctx, lockRetry)
	}
}

// Run checks the lock until ctx ends. If its connection is lost, for example because the server
// restarts, it takes the lock again on a new one. It fails if a process that excludes this one
// took it meanwhile.
func (l *PostgresLock) Run(ctx context.Context, report func(error)) error {
	tick := time.NewTicker(lockCheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch err := l.check(ctx); {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrServed):
			return Served(l.settings, l.exclusive)
		case err != nil:
			report(err)
		}
	}
}

// check restores a lost lock. Errors: ErrServed.
func (l *PostgresLock) check(ctx context.Context) error {
	if l.pooled {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if l.conn != nil {
		if l.conn.Ping(ctx) == nil {
			return nil
		}
		if err := closeConn(ctx, l.conn); err != nil {
			return err
		}
		l.conn = nil
	}
	conn, err := pgx.ConnectConfig(ctx, l.server)
	if err != nil {
		return err
	}
	held, err := l.take(ctx, conn)
	if err != nil || !held {
		if err == nil {
			err = ErrServed
		}
		return errors.Join(err, closeConn(ctx, conn))
	}
	l.conn = conn
	return nil
}

// Close releases the lock.
func (l *PostgresLock) Close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return nil
	}
	conn := l.conn
	l.conn = nil
	if conn.IsClosed() {
		return nil
	}
	return closeConn(ctx, conn)
}

// closeConn ends a connection. It is not an error if the server has ended it already.
func closeConn(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := conn.Close(ctx); err != nil && !conn.IsClosed() {
		return err
	}
	return nil
}
