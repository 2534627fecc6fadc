package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
)

// ServerLife is an expression of SQL whose value is different after each start of the server and after each crash,
// which resets its statistics.
const ServerLife = `CONCAT(pg_postmaster_start_time(), ' ', (SELECT stats_reset FROM pg_stat_bgwriter))`

// WriteLock is the key of the advisory lock that every write transaction on Postgres takes: batches of
// orders and payments that are recorded together share it, all other changes exclude everything else. So a
// change sees what it sees on SQLite, which has one writer, and a process that holds the lock exclusively
// keeps all others from changing the database. The number only has to differ from those of other programs
// in the same database.
const WriteLock int64 = 0x666c617368

// beginKey is the context key under which WithBegin passes a function to the driver.
type beginKey struct{}

// WithBegin returns a context with which BeginTx calls begin, which sends BEGIN together with
// further statements, in one round trip.
func WithBegin(ctx context.Context, begin func(ctx context.Context, c *pgx.Conn) error) context.Context {
	return context.WithValue(ctx, beginKey{}, begin)
}

// BeginTx begins a transaction. If the context is from WithBegin, opts are ignored.
func (c *connection) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	begin, ok := ctx.Value(beginKey{}).(func(context.Context, *pgx.Conn) error)
	if !ok {
		return c.Conn.BeginTx(ctx, opts)
	}
	conn := c.Conn.Conn()
	if conn.IsClosed() {
		return nil, driver.ErrBadConn
	}
	tx := transaction{ctx, c}
	if err := begin(ctx, conn); err != nil {
		if conn.PgConn().TxStatus() != 'I' {
			err = errors.Join(err, tx.Rollback())
		}
		return nil, err
	}
	return tx, nil
}

// transaction is a transaction that began with WithBegin.
type transaction struct {
	ctx context.Context
	own *connection
}

// Commit commits, or returns pgx.ErrTxCommitRollback if a statement has failed before. When its
// time is over, it abandons the connection: the server goes on waiting for the standby, and until
// then no other session sees what was written. Errors: ErrWarned.
func (t transaction) Commit() error {
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
func (t transaction) Rollback() error {
	conn := t.own.Conn.Conn()
	_, err := conn.Exec(t.ctx, "ROLLBACK")
	if err != nil {
		err = errors.Join(err, conn.Close(t.ctx))
	}
	return err
}
