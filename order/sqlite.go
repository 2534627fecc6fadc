package order

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"
)

// driverName is the SQLite driver with what its connection string has no word for.
const driverName = "sqlite3-flashsale"

// registerDriver registers it, once in a process. An INSERT of many rows that a
// constraint may end keeps a journal of its own; in a file, that journal was a
// tenth of the time of a commit, and it is never needed after the statement.
var registerDriver = sync.OnceFunc(func() {
	sql.Register(driverName, sqliteDriver{&sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		_, err := c.Exec("PRAGMA temp_store = MEMORY", nil)
		return err
	}}})
})

// sqliteDriver opens connections whose transactions begin within their deadline.
type sqliteDriver struct{ *sqlite3.SQLiteDriver }

func (d sqliteDriver) Open(name string) (driver.Conn, error) {
	c, err := d.SQLiteDriver.Open(name)
	if err != nil {
		return nil, err
	}
	return sqliteConn{c.(*sqlite3.SQLiteConn)}, nil
}

type sqliteConn struct{ *sqlite3.SQLiteConn }

// BeginTx waits for another process's lock no longer than ctx lasts. SQLite's own
// wait is not to be interrupted: who had waited for the connection before would
// wait its whole time once more.
func (c sqliteConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	deadline, ok := ctx.Deadline()
	left := time.Until(deadline).Milliseconds()
	if !ok || left >= lockWait {
		return c.SQLiteConn.BeginTx(ctx, opts)
	}
	if err := c.wait(max(left, 0)); err != nil {
		return nil, err
	}
	tx, err = c.SQLiteConn.BeginTx(ctx, opts)
	if werr := c.wait(lockWait); werr != nil {
		err = errors.Join(err, werr)
		if tx != nil {
			err = errors.Join(err, tx.Rollback())
		}
		return nil, err
	}
	return tx, err
}

// wait sets for how long the connection waits for another process's lock.
func (c sqliteConn) wait(ms int64) error {
	if _, err := c.Exec(fmt.Sprintf("PRAGMA busy_timeout = %d", ms), nil); err != nil {
		return fmt.Errorf("set busy timeout: %w", err)
	}
	return nil
}
