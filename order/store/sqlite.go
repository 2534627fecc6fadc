package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"flashsale/internal/pause"
)

// driverName is the SQLite driver with settings that the connection string does not
// support.
const driverName = "sqlite3-flashsale"

// pageSize is the size in bytes of the pages of a new database. An order changes a few
// entries in each of six trees, and each changed page is written whole: twice, to the log
// and to the file. Smaller pages than these cost more processor time, and a long index entry
// no longer fits on a page. A database keeps the size that it was created with.
const pageSize = 2048

// openWait is how long opening a database waits for another process's lock.
const openWait = 100 * time.Millisecond

// format writes the first page of an empty database, which fixes its page size: a connection
// in WAL mode can no longer change it. If another process holds the lock, that process
// formats the file.
func format(ctx context.Context, path string) error {
	registerDriver()
	db, err := sql.Open(driverName, (&url.URL{Scheme: "file", Opaque: escapePath(path), RawQuery: fmt.Sprintf("_busy_timeout=%d", lockWait)}).String())
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fmt.Sprintf("PRAGMA page_size = %d; PRAGMA journal_mode = WAL", pageSize))
	if err = notWritable(err); Transient(err) && !errors.Is(err, ErrNotWritable) {
		err = nil
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("create database %s: %w", path, err)
	}
	return nil
}

// Peek runs fn with a SQLite file whose content and journal mode must stay as they are. This process must
// not have the file open: closing it ends the locks that SQLite holds on it. Peek
// returns an error if this process may not write to the file: beside such a file SQLite would leave
// others that its owner cannot write to either.
func Peek(path string, fn func(*sql.DB) error) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", (&url.URL{Scheme: "file", Opaque: escapePath(path), RawQuery: fmt.Sprintf("mode=rw&_query_only=true&_busy_timeout=%d", lockWait)}).String())
	if err != nil {
		return err
	}
	return errors.Join(fn(db), db.Close())
}

// registerDriver registers the driver once in a process. An INSERT of many rows that may
// violate a constraint keeps its own journal. In a file, that journal took a tenth of the
// time of a commit, and it is never needed after the statement.
var registerDriver = sync.OnceFunc(func() {
	sql.Register(driverName, sqliteDriver{&sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		size, err := settingOf(c, "page_size")
		if err != nil {
			return err
		}
		_, err = c.Exec(fmt.Sprintf("PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = %d; PRAGMA journal_size_limit = %d", logBytesMax/size, logLimit), nil)
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

// sqliteDriver opens connections whose transactions respect their deadline while they
// begin, and which are closed after an error that would persist.
type sqliteDriver struct{ *sqlite3.SQLiteDriver }

func (d sqliteDriver) Open(name string) (driver.Conn, error) {
	c, err := d.SQLiteDriver.Open(name)
	if err != nil {
		return nil, err
	}
	conn := &sqliteConn{SQLiteConn: c.(*sqlite3.SQLiteConn)}
	if strings.Contains(name, "_txlock=immediate") {
		if err := conn.writable(); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		conn.writes, conn.turn = true, openTurn(conn.GetFilename("main"))
	}
	return conn, nil
}

// writable returns an error if SQLite has opened the file read-only, which it does silently
// if the file refuses writes. Transactions of such a connection begin without an error, but
// each of their writes fails. It does not wait for other processes, and changes nothing.
func (c *sqliteConn) writable() error {
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
	return errors.Join(err, c.wait(lockWait))
}

type sqliteConn struct {
	*sqlite3.SQLiteConn
	writes bool  // its transactions begin with the write lock
	turn   *turn // nil: it has none
	// unusable makes database/sql close the connection and open another one. A connection
	// belongs to one goroutine at a time, so the field needs no lock.
	unusable bool
}

// IsValid reports whether the connection may serve another caller. A connection that was
// opened while its file refused writes stays read-only, even after the permissions were
// corrected.
func (c *sqliteConn) IsValid() bool { return !c.unusable }

// note inspects an error of a transaction.
func (c *sqliteConn) note(err error) {
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
func (c *sqliteConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	tx, err := c.begin(ctx, opts)
	if err != nil {
		c.note(err)
		return nil, err
	}
	return sqliteTx{tx, c}, nil
}

func (c *sqliteConn) begin(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
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
func (c *sqliteConn) lock(ctx context.Context, opts driver.TxOptions, limit time.Duration) (driver.Tx, error) {
	until := time.Now().Add(limit)
	if c.turn.take(ctx) {
		defer c.turn.giveBack()
	}
	for {
		tx, err := c.SQLiteConn.BeginTx(ctx, opts)
		var se sqlite3.Error
		if !errors.As(err, &se) || se.Code != sqlite3.ErrBusy || !time.Now().Before(until) || !pause.For(ctx, turnEvery) {
			return tx, err
		}
	}
}

// Close closes the connection.
func (c *sqliteConn) Close() error { return errors.Join(c.SQLiteConn.Close(), c.turn.close()) }

// wait sets how long the connection waits for another process's lock.
func (c *sqliteConn) wait(ms int64) error {
	if _, err := c.Exec(fmt.Sprintf("PRAGMA busy_timeout = %d", ms), nil); err != nil {
		return fmt.Errorf("set busy timeout: %w", err)
	}
	return nil
}

// sqliteTx reports its last error to its connection.
type sqliteTx struct {
	driver.Tx
	c *sqliteConn
}

// Commit commits.
func (t sqliteTx) Commit() error {
	err := t.Tx.Commit()
	t.c.note(err)
	return err
}

// Rollback rolls back.
func (t sqliteTx) Rollback() error {
	err := t.Tx.Rollback()
	t.c.note(err)
	return err
}

func openFile(ctx context.Context, s *Store, path string) (err error) {
	if err := createFile(ctx, path); err != nil {
		return err
	}
	s.file, s.hot = path, make(prepared, len(hotTexts))
	if s.write, err = OpenSQLite(path, WriteParams(), 1); err != nil {
		return err
	}
	if err := tryWrite(ctx, s.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := s.log.measure(ctx, s.write); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if s.log.copy, err = openReader(path, 1); err != nil {
		return err
	}
	return s.openReaders(func(conns int) (*gorm.DB, error) { return openReader(path, conns) })
}

func openReader(path string, conns int) (*gorm.DB, error) {
	return OpenSQLite(path, url.Values{"_query_only": {"true"}}, conns)
}

// createFile makes sure that the file exists and can be opened for writing. SQLite opens a
// file that refuses writes read-only, without an error. SQLite creates the files beside the
// database with the mode of the database.
func createFile(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open database: %w", notWritable(err))
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Close()); err != nil || info.Size() > 0 {
		return err
	}
	return format(ctx, path)
}

// WriteParams are the parameters of connections that write. BEGIN IMMEDIATE takes the write
// lock first, so that a transaction never fails midway because it read before it wrote.
// SQLite zeroes deleted and overwritten data, so that no erased data of a buyer stays in
// the file. A sale only adds rows, so it has almost nothing to zero.
func WriteParams() url.Values {
	return url.Values{"_txlock": {"immediate"}, "_synchronous": {"FULL"}, "_secure_delete": {"on"}}
}

// tryWrite begins a transaction and rolls it back, which fails if the folder or a file
// beside the database refuses writes. It is not an error if another process holds the lock.
func tryWrite(ctx context.Context, db *gorm.DB) error {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	pool, err := db.DB()
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err == nil {
		if err = tx.Rollback(); errors.Is(err, sql.ErrTxDone) {
			err = nil // ctx ended in between, and database/sql has rolled it back
		}
		return err
	}
	if err = notWritable(err); Transient(err) && !errors.Is(err, ErrNotWritable) {
		return nil // the database is busy or full, which is temporary
	}
	return err
}

// OpenSQLite opens a pool of at most conns connections with further parameters.
func OpenSQLite(path string, params url.Values, conns int) (*gorm.DB, error) {
	params.Set("_journal_mode", "WAL")
	params.Set("_busy_timeout", strconv.Itoa(lockWait))
	// database/sql gives a connection to one goroutine at a time, so SQLite need not take
	// its own mutex for every bound value.
	params.Set("_mutex", "no")
	dsn := (&url.URL{Scheme: "file", Opaque: escapePath(path), RawQuery: params.Encode()}).String()
	registerDriver()
	db, err := gorm.Open(sqlite.New(sqlite.Config{DriverName: driverName, DSN: dsn}), &gorm.Config{
		PrepareStmt:            true,
		SkipDefaultTransaction: true,
		TranslateError:         true,
		Logger:                 logger.Discard,
	})
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, notWritable(err))
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return db, nil
}

// escapePath prevents '?', '#' and '%' in a path from being parsed as parts of a URI.
func escapePath(path string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
}
