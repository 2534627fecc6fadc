package admission

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"
	"gorm.io/gorm"

	"flashsale/order/store"
	"flashsale/order/store/sqlite"
)

// writeTime records the time of a write.
const writeTime = `INSERT INTO meta (key, value) VALUES ('write_probe', ?1)
	ON CONFLICT (key) DO UPDATE SET value = excluded.value`

// connection is the only connection of a target.
type connection struct {
	db   *sql.DB
	conn *sql.Conn // nil: not open
}

func newConnection(db *gorm.DB, err error) (connection, error) {
	if err != nil {
		return connection{}, err
	}
	pool, err := db.DB()
	return connection{db: pool}, err
}

// open opens the connection if it is not open, and reports whether it is new.
func (c *connection) open(ctx context.Context) (fresh bool, err error) {
	if c.conn != nil {
		return false, nil
	}
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	c.conn = conn
	return true, nil
}

func (c *connection) release() {
	if c.conn == nil {
		return
	}
	// The pool discards a connection that is reported as bad. Its error adds nothing.
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn }) //nolint:errcheck // see above
	_ = c.conn.Close()                                           //nolint:errcheck // it has been closed by then
	c.conn = nil
}

func (c *connection) close() error {
	c.release()
	return c.db.Close()
}

// sqliteTarget is a file of SQLite.
type sqliteTarget struct {
	connection
	version int64 // the connection's data version at the last call
}

func newSQLiteTarget(s *store.Store) (target, error) {
	c, err := newConnection(sqlite.OpenWriter(s.Path()))
	return &sqliteTarget{connection: c}, err
}

func (t *sqliteTarget) committed(ctx context.Context) (bool, error) {
	fresh, err := t.open(ctx)
	if err != nil {
		return false, err
	}
	if fresh {
		if _, err := t.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", probeWait)); err != nil {
			return false, err
		}
	}
	before := t.version
	err = t.conn.QueryRowContext(context.WithoutCancel(ctx), "PRAGMA data_version").Scan(&t.version)
	return !fresh && t.version != before, err
}

// write is not cancelled, because the outcome of a cancelled write is unknown.
func (t *sqliteTarget) write(ctx context.Context, value string) error {
	_, err := t.conn.ExecContext(context.WithoutCancel(ctx), writeTime, value)
	return err
}

func (*sqliteTarget) busy(err error) bool {
	var se sqlite3.Error
	return errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked)
}
