package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"flashsale/internal/pause"
	"flashsale/order/timeouts"
)

// OpenPostgres opens a pool of at most conns connections.
func OpenPostgres(url string, conns int) (*gorm.DB, error) {
	return openPostgres(url, conns, planning, func(string) {})
}

// openPostgres opens a pool whose new connections run a text first. It is omitted behind a
// pooler that gives each transaction another session. met gets the mark.life of each
// connection's server before the connection is used.
func openPostgres(url string, conns int, first string, met func(life string)) (*gorm.DB, error) {
	cfg, err := PostgresConfig(url)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if cfg.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		first = ""
	}
	pool := sql.OpenDB(pgConnector{stdlib.GetConnector(*cfg, stdlib.OptionBeforeConnect(watchCommit)), first, met})
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	pool.SetConnMaxIdleTime(idleConnection)
	// pgx caches statements itself, or prepares none behind a connection pooler.
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{
		QueryFields:            true, // a migration may add columns meanwhile, and SELECT * would fail once
		SkipDefaultTransaction: true,
		TranslateError:         true,
		DisableAutomaticPing:   true,
		Logger:                 logger.Discard,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open database: %w", err), pool.Close())
	}
	return db, nil
}

// PostgresConfig reads the URL of a database. It bounds the attempt to connect to each host unless
// the URL does.
func PostgresConfig(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
		if n := hosts(cfg); n > 1 {
			cfg.ConnectTimeout = silentHosts / time.Duration(n-1)
		}
	}
	return cfg, nil
}

// hosts is the number of hosts in a URL. A host has a second fallback if it is also tried without
// TLS.
func hosts(cfg *pgx.ConnConfig) int {
	type host struct {
		name string
		port uint16
	}
	known := map[host]bool{{cfg.Host, cfg.Port}: true}
	for _, f := range cfg.Fallbacks {
		known[host{f.Host, f.Port}] = true
	}
	return len(known)
}

// planning sets the parameters of connections that cache plans. A plan that is made when a new
// shop is almost empty is kept until the server has analyzed the table, and would read all
// orders of the first minute's sale, over and over. Every statement that matters has an
// index. Behind a pooler no plan is cached.
const planning = "SET enable_seqscan = off; SET jit = off; "

// reading sets the parameters of connections that only read. They are set after the connection
// is made, because target_session_attrs=read-write refuses a session that only reads.
const reading = planning + "SET default_transaction_read_only = on; "

const (
	// idleConnection is after how long an unused connection is closed. A server has a
	// limited number of them.
	idleConnection = 5 * time.Minute
	// connectTimeout bounds the connection to one address, unless the URL has its own.
	connectTimeout = 5 * time.Second
	// silentHosts replaces connectTimeout if the URL has several hosts: it is the time for those
	// that accept a connection and do not answer, or drop it. It is shorter than the shortest bound
	// of a caller, the 800 ms of the write probe, so that the host that works is reached in time.
	silentHosts = 500 * time.Millisecond
	// pingTimeout bounds the check of a connection that was idle. One that a firewall has
	// dropped gives no answer.
	pingTimeout = time.Second
	// beginTimeout bounds the time to get a connection, and postgresTransaction the
	// transaction on it with its wait for locks, because a server that has vanished from the
	// network gives no error.
	beginTimeout        = 6 * time.Second
	postgresTransaction = 15 * time.Second
	// writeLock is the key of the advisory lock that every write transaction takes: batches
	// of orders share it, all other changes exclude everything else. So a change sees what
	// it sees on SQLite, which has one writer. The number only has to differ from those of
	// other programs in the same database.
	writeLock = 0x666c617368
)

// mark identifies a write transaction on Postgres.
type mark struct {
	xid string
	// life identifies the time between two crashes or restarts of the server. A server that has
	// crashed may give a number again that had left no trace in its log.
	life string
}

// serverLife is different after each start of the server and after each crash, which resets its
// statistics.
const serverLife = `CONCAT(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))`

// opening is what a write transaction does when it begins, in one round trip once its statements
// are prepared: it takes the lock, and reads what it has to know.
type opening struct {
	share bool     // the lock is shared with other batches
	items []string // of a batch of orders

	mark   mark
	wanted string // the events that webhook endpoints subscribe to, separated by spaces
	moved  bool   // the shop was moved, or this is an unfinished copy
	// windows are the payment windows of those of the items that exist, in seconds. No transaction
	// changes them while this one holds the lock.
	windows map[string]int64
}

// The statements of an opening. The timeouts are set first: the columns of a row are evaluated
// in order. The server ends a transaction whose process has stopped, or has vanished from the
// network, and with it the locks for which all other processes wait. It does not end a
// statement: a batch that takes longer than allowed would begin again without end. The statements
// after the lock see what was committed while the transaction waited.
const (
	takeLock = `SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true), set_config('statement_timeout', '0', true),
		pg_current_xact_id()::text, ` + serverLife + `, pg_advisory_xact_lock%s($3) IS NULL`
	readLocked = `SELECT EXISTS (SELECT 1 FROM meta WHERE key IN ('` + MarkMoved + `', '` + MarkUnfinished + `')),
		COALESCE((SELECT string_agg(events, ' ') FROM webhook_endpoints WHERE enabled = 1), '')`
	readWindows = `SELECT id, payment_window_seconds FROM items WHERE id = ANY ($1)`
)

var (
	takeSharedLock = fmt.Sprintf(takeLock, "_shared")
	takeSoleLock   = fmt.Sprintf(takeLock, "")
)

// openingKey is the context key under which beginLocked passes an opening to the driver.
type openingKey struct{}

// beginLocked begins a write transaction; items are those of a batch of orders. Errors: errMoved.
func beginLocked(ctx context.Context, c beginner, share bool, items ...string) (*sql.Tx, *opening, error) {
	o := &opening{share: share, items: items}
	tx, err := c.BeginTx(context.WithValue(ctx, openingKey{}, o), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("lock the database: %w", err)
	}
	if o.moved {
		return nil, nil, errors.Join(errMoved, tx.Rollback())
	}
	return tx, o, nil
}

type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// errMoved says that the shop was moved to another database while this process was running, or
// that this database is an unfinished copy.
var errMoved = errors.New("order: the shop was moved to another database, or its copy is not finished: stop this process")

// Codes and classes of the errors of Postgres; see its documentation, appendix A.
const (
	classConnection      = "08"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	uniqueViolation      = "23505"
	// numberUnused is the error of pg_xact_status for a number that no transaction has had yet. A
	// crash, or a failover to a standby that lagged, forgets the numbers of transactions that had
	// left no trace in the log. A server that replicates logically never knew them, and may have
	// the rows.
	numberUnused = "22023"
)

// errRolledBack says that a transaction was rolled back although its commit was requested:
// nothing was changed.
var errRolledBack = errors.New("order: the transaction was rolled back")

// errUnknown says that a transaction may have been committed.
var errUnknown = errors.New("order: the outcome of the transaction is unknown")

// errOtherLife says that the server has crashed or restarted since the transaction began, so that
// its number may be that of another one by now.
var errOtherLife = errors.New("order: the server has restarted since")

// committed returns nil if a transaction was committed, although its COMMIT failed, for example
// because the connection was lost. It asks the server, until it answers or the time is over.
// Errors: errRolledBack; any other says that the outcome is unknown.
func committed(s *Store, m mark, cause error) error {
	if m.xid == "" {
		return fmt.Errorf("%w: %w", errRolledBack, cause) // it had not begun to write
	}
	s.doubt.Add(1)
	// It outlives the change, whose callers wait for the answer.
	ctx, cancel := context.WithTimeout(context.Background(), outcomeWait) //nolint:forbidigo // see above
	defer cancel()
	for {
		status, life, err := transactionStatus(ctx, s, m.xid)
		var pe *pgconn.PgError
		switch {
		case err == nil && status == "aborted":
			return fmt.Errorf("%w: %w", errRolledBack, cause)
		case err == nil && status != "" && life != m.life, errors.As(err, &pe) && pe.Code == numberUnused:
			return fmt.Errorf("%w: %w", errUnknown, errors.Join(cause, errOtherLife))
		case err == nil && status == "committed":
			if err = s.Replicated(ctx); err == nil {
				return nil
			}
		}
		if !pause.For(ctx, outcomePause) {
			return fmt.Errorf("%w: %w", errUnknown, errors.Join(cause, err))
		}
	}
}

const (
	// outcomeWait is how long the outcome of a transaction is looked up, and outcomePause
	// the time between two attempts. A server that crashed recovers in this time, unless
	// its log is very long.
	outcomeWait  = 10 * time.Second
	outcomePause = 50 * time.Millisecond
)

// transactionStatus returns what the server knows about a transaction: "committed", "aborted" or "in
// progress". It returns "" for one that is too old, and on a standby, which may not have it yet. If
// the number is still unused, the error's code is numberUnused.
func transactionStatus(ctx context.Context, s *Store, xid string) (status, life string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.write.DB()
	if err != nil {
		return "", "", err
	}
	const text = `SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE COALESCE(pg_xact_status($1::text::xid8), '') END, ` + serverLife
	err = db.QueryRowContext(ctx, text, xid).Scan(&status, &life)
	return status, life, err
}

// passing reports whether an error has a cause that a repeated transaction may not meet: a
// concurrent transaction, or a lost connection.
func passing(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case serializationFailure, deadlockDetected, adminShutdown, crashShutdown:
			return true
		}
		return strings.HasPrefix(pe.Code, classConnection)
	}
	return lostConnection(err)
}

// lostConnection reports whether an error is that of a connection to Postgres that was
// closed.
func lostConnection(err error) bool {
	var operation *net.OpError
	return pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &operation)
}

// transientPostgres is Transient for an error that only a database on Postgres causes; known
// reports whether it is one.
func transientPostgres(err error) (transient, known bool) {
	var unreachable *pgconn.ConnectError
	if errors.As(err, &unreachable) || errors.Is(err, errRolledBack) || errors.Is(err, errUnknown) || errors.Is(err, errWarned) || errors.Is(err, errMoved) {
		return true, true
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false, false
	}
	class := pe.Code[:min(2, len(pe.Code))]
	return slices.Contains(transientClasses, class) || slices.Contains(transientCodes, pe.Code), true
}

// transientClasses and transientCodes are those of errors whose cause is not in the rows.
var (
	transientClasses = []string{
		classConnection, "25", // in a state of the transaction, such as read-only
		"26", "28", "3D", // a statement, a login or a database that does not exist
		"40", "53", "55", "57", "58", "XX", // rollback, resources, locks, shutdown, system, internal
	}
	transientCodes = []string{
		"42501",          // no permission
		"42P05", "0A000", // of statements that a pooler or a change of the schema has invalidated
	}
)

// openServer opens the pools of a store on Postgres.
func openServer(ctx context.Context, s *Store, url string) (err error) {
	s.url = url
	ctx, cancel := context.WithTimeout(ctx, timeouts.Write)
	defer cancel()
	// Before the pools, whose new connections set parameters of their sessions.
	if err := checkServer(ctx, url); err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	if s.write, err = OpenPostgres(url, 1); err != nil {
		return err
	}
	pool, err := s.write.DB()
	if err == nil {
		err = pool.PingContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	return s.openReaders(func(conns int) (*gorm.DB, error) { return openPostgres(url, conns, reading, s.meet) })
}

// checkServer connects once to check that the server answers and is not behind a pooler that the
// pools cannot use. Errors: ErrPooled.
func checkServer(ctx context.Context, url string) error {
	cfg, err := PostgresConfig(url)
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	return errors.Join(CheckPooler(ctx, conn), conn.Close(ctx))
}

// pgConnector opens connections of pgx that take the statements and values of SQLite: see
// translate.
type pgConnector struct {
	driver.Connector
	first string // the text that a new connection runs
	met   func(life string)
}

func (c pgConnector) Connect(ctx context.Context) (driver.Conn, error) {
	own := new(pgConn)
	conn, err := c.Connector.Connect(context.WithValue(ctx, connKey{}, own))
	if err != nil {
		return nil, err
	}
	own.Conn = conn.(*stdlib.Conn)
	results, err := own.Conn.Conn().PgConn().Exec(ctx, c.first+"SELECT "+serverLife).ReadAll()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin a session: %w", err), own.Close())
	}
	c.met(string(results[len(results)-1].Rows[0][0]))
	return own, nil
}

type pgConn struct {
	*stdlib.Conn
	committing atomic.Bool // it executes COMMIT, or has not got its answer
	warned     bool        // the server has sent a warning since it was false
}

// connKey is the context key under which Connect passes a connection to watchCommit.
type connKey struct{}

// watchCommit notices warnings, and keeps pgx from cancelling a COMMIT: it sends a cancel request
// if the time of a statement is over or its connection is lost. A COMMIT that waits for a standby
// would then take effect without it.
func watchCommit(ctx context.Context, cfg *pgx.ConnConfig) error {
	own := ctx.Value(connKey{}).(*pgConn)
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if own.committing.Load() {
			return nil, errCommitting
		}
		return dial(ctx, network, address)
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		own.warned = own.warned || n.SeverityUnlocalized == "WARNING"
	}
	return nil
}

// errCommitting says that a COMMIT is not cancelled.
var errCommitting = errors.New("order: a commit is not cancelled")

// errWarned says that the server has committed, and warned: an operator has cancelled the wait for
// a standby.
var errWarned = errors.New("order: the server may have committed without its standby")

// commit runs a statement that commits. Errors: errWarned.
func (c *pgConn) commit(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	c.warned = false
	tag, err := c.Conn.Conn().Exec(ctx, text, args...)
	if err == nil && c.warned {
		err = errWarned
	}
	return tag, err
}

// BeginTx begins a transaction. If the context has an opening, it runs it, and ignores opts.
func (c *pgConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	o, ok := ctx.Value(openingKey{}).(*opening)
	if !ok {
		return c.Conn.BeginTx(ctx, opts)
	}
	conn := c.Conn.Conn()
	if conn.IsClosed() {
		return nil, driver.ErrBadConn
	}
	tx := pgTx{ctx, c}
	if err := o.run(ctx, conn); err != nil {
		if conn.PgConn().TxStatus() != 'I' {
			err = errors.Join(err, tx.Rollback())
		}
		return nil, err
	}
	return tx, nil
}

// run begins the transaction.
func (o *opening) run(ctx context.Context, conn *pgx.Conn) error {
	text := takeSoleLock
	if o.share {
		text = takeSharedLock
	}
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue(text, strconv.Itoa(lockWait), strconv.FormatInt(postgresTransaction.Milliseconds(), 10), writeLock).QueryRow(func(row pgx.Row) error {
		var set [3]string
		var void bool
		return row.Scan(&set[0], &set[1], &set[2], &o.mark.xid, &o.mark.life, &void)
	})
	b.Queue(readLocked).QueryRow(func(row pgx.Row) error { return row.Scan(&o.moved, &o.wanted) })
	if len(o.items) > 0 {
		o.windows = make(map[string]int64, len(o.items))
		b.Queue(readWindows, o.items).Query(func(rows pgx.Rows) error {
			var item string
			var window int64
			_, err := pgx.ForEachRow(rows, []any{&item, &window}, func() error {
				o.windows[item] = window
				return nil
			})
			return err
		})
	}
	return conn.SendBatch(ctx, &b).Close()
}

// pipeline runs statements in one round trip, inside the transaction.
func (g *group) pipeline(ctx context.Context, queue func(b *pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return g.conn.Raw(func(conn any) error {
		return conn.(*pgConn).Conn.Conn().SendBatch(ctx, &b).Close()
	})
}

// pgTx is a transaction that began with an opening.
type pgTx struct {
	ctx context.Context
	own *pgConn
}

// Commit commits, or returns pgx.ErrTxCommitRollback if a statement has failed before. When its
// time is over, it abandons the connection: the server goes on waiting for the standby, and until
// then no other session sees what was written. Errors: errWarned.
func (t pgTx) Commit() error {
	t.own.committing.Store(true)
	tag, err := t.own.commit(t.ctx, "COMMIT")
	server := t.own.Conn.Conn().PgConn()
	if err != nil && server.TxStatus() != 'I' {
		return errors.Join(err, ignoreClosed(server.Conn().Close()))
	}
	t.own.committing.Store(false)
	if err == nil && tag.String() == "ROLLBACK" {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// ignoreClosed returns nil if a connection was closed before.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Rollback rolls back. If that fails, it closes the connection.
func (t pgTx) Rollback() error {
	conn := t.own.Conn.Conn()
	_, err := conn.Exec(t.ctx, "ROLLBACK")
	if err != nil {
		err = errors.Join(err, conn.Close(t.ctx))
	}
	return err
}

// ResetSession checks a connection before it is used again.
func (c *pgConn) ResetSession(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if c.Conn.ResetSession(ctx) != nil {
		return driver.ErrBadConn // database/sql closes it and tries another one
	}
	return nil
}

// CheckNamedValue sends flags as the integers that both databases keep.
func (c *pgConn) CheckNamedValue(v *driver.NamedValue) error {
	if flag, ok := v.Value.(bool); ok {
		v.Value = int64(0)
		if flag {
			v.Value = int64(1)
		}
		return nil
	}
	return c.Conn.CheckNamedValue(v)
}

func (c *pgConn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.PrepareContext(ctx, translate(query))
}

func (c *pgConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(ctx, translate(query), args)
}

func (c *pgConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, translate(query), args)
}

// The differences between the SQL of SQLite and that of Postgres in the statements of this
// service: placeholders, and what keeps SQLite's planner from a wrong index.
var (
	placeholder = regexp.MustCompile(`\?([0-9]+)`)
	indexHint   = regexp.MustCompile(` (INDEXED BY [a-z_]+|NOT INDEXED)`)
	unaryPlus   = regexp.MustCompile(`([ (,])\+([a-z])`)
)

// translated caches statements. Their number is that of the statements in the program, because
// gorm writes the placeholders of Postgres itself.
var translated sync.Map

// translate returns the text of a statement for Postgres.
func translate(query string) string {
	if text, ok := translated.Load(query); ok {
		return text.(string)
	}
	text := placeholder.ReplaceAllString(query, "$$$1")
	text = indexHint.ReplaceAllString(text, "")
	text = unaryPlus.ReplaceAllString(text, "$1$2")
	text = strings.ReplaceAll(text, "CROSS JOIN", "JOIN")
	if text != query {
		translated.Store(query, text)
	}
	return text
}
