package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/pause"
)

const (
	// AutoCheckpoint is the length in bytes of the write-ahead log at which SQLite itself makes a
	// checkpoint within a commit. The store makes its checkpoints earlier, beside the commits.
	AutoCheckpoint = 47 << 20
	// journalLimit is the size in bytes to which a longer log is truncated.
	journalLimit = 64 << 20
)

// driverName is the SQLite driver with settings that the connection string does not
// support.
const driverName = "sqlite3-flashsale"

// registerDriver registers the driver once in a process. An INSERT of many rows that may
// violate a constraint keeps its own journal. In a file, that journal took a tenth of the
// time of a commit, and it is never needed after the statement.
var registerDriver = sync.OnceFunc(func() {
	sql.Register(driverName, fileDriver{&sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		size, err := settingOf(c, "page_size")
		if err != nil {
			return err
		}
		_, err = c.Exec(fmt.Sprintf("PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = %d; PRAGMA journal_size_limit = %d", AutoCheckpoint/size, journalLimit), nil)
		return err
	}}})
})

// settingOf returns the value of a numeric setting of a connection.
func settingOf(c *sqlite3.SQLiteConn, name string) (value int64, err error) {
	rows, err := c.Query("PRAGMA "+name, nil)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	row := make([]driver.Value, 1)
	err = errors.Join(rows.Next(row), rows.Close())
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return row[0].(int64), nil
}

// fileDriver opens connections whose transactions respect their deadline while they
// begin, and which are closed after an error that would persist.
type fileDriver struct{ *sqlite3.SQLiteDriver }

func (d fileDriver) Open(name string) (driver.Conn, error) {
	c, err := d.SQLiteDriver.Open(name)
	if err != nil {
		return nil, err
	}
	own := &connection{SQLiteConn: c.(*sqlite3.SQLiteConn)}
	if strings.Contains(name, "_txlock=immediate") {
		if err := own.writable(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		own.writes, own.turn = true, openTurn(own.GetFilename("main"))
	}
	return own, nil
}

// connection is one to the database's file.
type connection struct {
	*sqlite3.SQLiteConn
	writes bool  // its transactions begin with the write lock
	turn   *turn // nil: it has none
	waited bool  // its last transaction waited for that of another connection
	// unusable makes database/sql close the connection and open another one. A connection
	// belongs to one goroutine at a time, so the field needs no lock.
	unusable bool
}

// writable returns an error if SQLite has opened the file read-only, which it does silently
// if the file refuses writes. Transactions of such a connection begin without an error, but
// each of their writes fails. It does not wait for other processes, and changes nothing.
func (c *connection) writable() error {
	if err := c.wait(0); err != nil {
		return err
	}
	_, err := c.Exec("BEGIN IMMEDIATE", nil)
	if err == nil {
		_, err = c.Exec("PRAGMA user_version = 0", nil)
		if _, rerr := c.Exec("ROLLBACK", nil); rerr != nil {
			return errors.Join(err, rerr)
		}
	}
	var se sqlite3.Error
	if errors.As(err, &se) && se.Code != sqlite3.ErrReadonly {
		err = nil // another process has the lock, or the next transaction fails with the same error
	}
	return errors.Join(err, c.wait(LockWait))
}

// IsValid reports whether the connection may serve another caller. A connection that was
// opened while its file refused writes stays read-only, even after the permissions were
// corrected.
func (c *connection) IsValid() bool { return !c.unusable }

// note inspects an error of a transaction.
func (c *connection) note(err error) {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return
	}
	switch se.Code {
	case sqlite3.ErrReadonly, sqlite3.ErrCantOpen, sqlite3.ErrIoErr, sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		c.unusable = true
	}
}

// BeginTx waits for the write lock at most until ctx ends. SQLite's own wait cannot be
// interrupted, would add to the wait for the connection, and is not fair; see turn.
func (c *connection) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.begin(ctx, opts)
	if err != nil {
		c.note(err)
		return nil, err
	}
	return transaction{tx, c}, nil
}

func (c *connection) begin(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	if !c.writes {
		return c.SQLiteConn.BeginTx(ctx, opts)
	}
	ms, err := settingOf(c.SQLiteConn, "busy_timeout")
	if err == nil {
		err = c.wait(0)
	}
	if err != nil {
		return nil, err
	}
	tx, err := c.lock(ctx, opts, time.Duration(ms)*time.Millisecond)
	if werr := c.wait(ms); werr != nil {
		err = errors.Join(err, werr)
		if tx != nil {
			err = errors.Join(err, tx.Rollback())
		}
		return nil, err
	}
	return tx, err
}

// lock begins a transaction that has the write lock, for which it waits at most for limit.
func (c *connection) lock(ctx context.Context, opts driver.TxOptions, limit time.Duration) (driver.Tx, error) {
	until := time.Now().Add(limit)
	if c.turn.take(ctx) {
		defer c.turn.giveBack()
	}
	for c.waited = false; ; c.waited = true {
		tx, err := c.SQLiteConn.BeginTx(ctx, opts)
		var se sqlite3.Error
		if !errors.As(err, &se) || se.Code != sqlite3.ErrBusy || !time.Now().Before(until) || !pause.For(ctx, turnEvery) {
			return tx, err
		}
	}
}

// Waited reports whether the last transaction on a connection of [OpenWriter] waited for that of another connection,
// usually of another process. The connection of another driver, as in tests of failing commits, has not waited: a
// panic here would block it forever.
func Waited(conn *sql.Conn) (waited bool, err error) {
	err = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*connection)
		waited = ok && c.waited
		return nil
	})
	return waited, err
}

// wait sets how long the connection waits for another process's lock.
func (c *connection) wait(ms int64) error {
	if _, err := c.Exec(fmt.Sprintf("PRAGMA busy_timeout = %d", ms), nil); err != nil {
		return fmt.Errorf("set busy timeout: %w", err)
	}
	return nil
}

// Close closes the connection.
func (c *connection) Close() error { return errors.Join(c.SQLiteConn.Close(), c.turn.close()) }

// transaction reports its last error to its connection.
type transaction struct {
	driver.Tx
	c *connection
}

// Commit commits.
func (t transaction) Commit() error {
	err := t.Tx.Commit()
	t.c.note(err)
	return err
}

// Rollback rolls back.
func (t transaction) Rollback() error {
	err := t.Tx.Rollback()
	t.c.note(err)
	return err
}
