package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// connector opens connections of pgx that take the statements and values of SQLite: see
// [Translate].
type connector struct {
	driver.Connector
	first string // the text that a new connection runs
	met   func(life string)
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	own := new(connection)
	conn, err := c.Connector.Connect(context.WithValue(ctx, connKey{}, own))
	if err != nil {
		return nil, err
	}
	own.Conn = conn.(*stdlib.Conn)
	results, err := own.Conn.Conn().PgConn().Exec(ctx, c.first+"SELECT "+ServerLife).ReadAll()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("begin a session: %w", err), own.Close())
	}
	c.met(string(results[len(results)-1].Rows[0][0]))
	return own, nil
}

type connection struct {
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
	own := ctx.Value(connKey{}).(*connection)
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
var errCommitting = errors.New("postgres: a commit is not cancelled")

// commit runs a statement that commits. Errors: ErrWarned.
func (c *connection) commit(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error) {
	c.warned = false
	tag, err := c.Conn.Conn().Exec(ctx, text, args...)
	if err == nil && c.warned {
		err = ErrWarned
	}
	return tag, err
}

// ErrWarned says that the server has committed, and warned: an operator has cancelled the wait for
// a standby.
var ErrWarned = errors.New("postgres: the server may have committed without its standby")

// ResetSession checks a connection before it is used again.
func (c *connection) ResetSession(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if c.Conn.ResetSession(ctx) != nil {
		return driver.ErrBadConn // database/sql closes it and tries another one
	}
	return nil
}

// CheckNamedValue sends flags as the integers that both databases keep.
func (c *connection) CheckNamedValue(v *driver.NamedValue) error {
	if flag, ok := v.Value.(bool); ok {
		v.Value = int64(0)
		if flag {
			v.Value = int64(1)
		}
		return nil
	}
	return c.Conn.CheckNamedValue(v)
}

func (c *connection) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	return c.Conn.PrepareContext(ctx, Translate(query))
}

func (c *connection) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.ExecContext(ctx, Translate(query), args)
}

func (c *connection) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(ctx, Translate(query), args)
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

// Translate returns the text of a statement for Postgres.
func Translate(query string) string {
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

// PGX returns the connection of pgx below one of this package's driver, for what database/sql lacks:
// COPY, and several statements in one round trip.
func PGX(driver any) (*pgx.Conn, error) {
	c, ok := driver.(*connection)
	if !ok {
		return nil, fmt.Errorf("order: unexpected driver connection %T", driver)
	}
	return c.Conn.Conn(), nil
}

// Exec runs a statement that commits on its own, on a connection of this package's driver. Errors:
// ErrWarned.
func Exec(ctx context.Context, driver any, text string, args ...any) error {
	c, ok := driver.(*connection)
	if !ok {
		return fmt.Errorf("order: unexpected driver connection %T", driver)
	}
	_, err := c.commit(ctx, text, args...)
	return err
}
