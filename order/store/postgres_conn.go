package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

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

// commit runs a statement that commits. Errors: errWarned.
func (c *pgConn) commit(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	c.warned = false
	tag, err := c.Conn.Conn().Exec(ctx, text, args...)
	if err == nil && c.warned {
		err = errWarned
	}
	return tag, err
}

// errWarned says that the server has committed, and warned: an operator has cancelled the wait for
// a standby.
var errWarned = errors.New("order: the server may have committed without its standby")

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

// PGX returns the connection of pgx below one of the driver that OpenPostgres uses, for COPY.
func PGX(driver any) (*pgx.Conn, error) {
	c, ok := driver.(*pgConn)
	if !ok {
		return nil, fmt.Errorf("order: unexpected driver connection %T", driver)
	}
	return c.Conn.Conn(), nil
}

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
	share bool     // the lock is shared with batches and payments
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

// pipeline runs statements in one round trip, inside the transaction.
func (g *group) pipeline(ctx context.Context, queue func(b *pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return g.conn.Raw(func(conn any) error {
		return conn.(*pgConn).Conn.Conn().SendBatch(ctx, &b).Close()
	})
}
