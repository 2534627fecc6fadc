// Package sqlite opens SQLite files for the store: connections with the settings that it needs,
// whose write transactions take turns with those of other processes and respect their deadlines.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	gormsqlite "gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// PageSize is the size in bytes of the pages of a new database. An order changes a few
// entries in each of six trees, and each changed page is written whole: twice, to the log
// and to the file. Smaller pages than these cost more processor time, and a long index entry
// no longer fits on a page. A database keeps the size that it was created with.
const PageSize = 2048

// Synchronous is how the connections that write sync: each commit is on the disk when it returns.
const Synchronous = "FULL"

// LockWait is how long a connection waits for another process's lock, in milliseconds.
const LockWait = 5000

// openWait is how long opening a database waits for another process's lock.
const openWait = 100 * time.Millisecond

// OpenWriter opens a pool of one connection that writes. BEGIN IMMEDIATE takes the write
// lock first, so that a transaction never fails midway because it read before it wrote.
// SQLite zeroes deleted and overwritten data, so that no erased data of a buyer stays in
// the file. A sale only adds rows, so it has almost nothing to zero.
func OpenWriter(path string) (*gorm.DB, error) {
	return open(path, url.Values{"_txlock": {"immediate"}, "_synchronous": {Synchronous}, "_secure_delete": {"on"}}, 1)
}

// OpenReader opens a pool of at most conns connections that only read.
func OpenReader(path string, conns int) (*gorm.DB, error) {
	return open(path, url.Values{"_query_only": {"true"}}, conns)
}

// open opens a pool of at most conns connections with further parameters.
func open(path string, params url.Values, conns int) (*gorm.DB, error) {
	params.Set("_journal_mode", "WAL")
	params.Set("_busy_timeout", strconv.Itoa(LockWait))
	// database/sql gives a connection to one goroutine at a time, so SQLite need not take
	// its own mutex for every bound value.
	params.Set("_mutex", "no")
	registerDriver()
	db, err := gorm.Open(gormsqlite.New(gormsqlite.Config{DriverName: driverName, DSN: URI(path, params.Encode())}), &gorm.Config{
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

// Create makes sure that the file exists and can be opened for writing. SQLite opens a
// file that refuses writes read-only, without an error. SQLite creates the files beside the
// database with the mode of the database.
//
// Errors: ErrStrayLog.
func Create(ctx context.Context, path string) error {
	if err := CheckLog(path); err != nil {
		return err
	}
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

// format writes the first page of an empty database, which fixes its page size: a connection
// in WAL mode can no longer change it. If another process holds the lock, that process
// formats the file.
func format(ctx context.Context, path string) error {
	registerDriver()
	db, err := sql.Open(driverName, URI(path, fmt.Sprintf("_busy_timeout=%d", LockWait)))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, fmt.Sprintf("PRAGMA page_size = %d; PRAGMA journal_mode = WAL", PageSize))
	if err = notWritable(err); passing(err) {
		err = nil
	}
	if err = errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("create database %s: %w", path, err)
	}
	return nil
}

// TryWrite begins a transaction and rolls it back, which fails if the folder or a file
// beside the database refuses writes. It is not an error if another process holds the lock.
func TryWrite(ctx context.Context, db *gorm.DB) error {
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
	if err = notWritable(err); passing(err) {
		return nil
	}
	return err
}

// Peek runs fn with a SQLite file whose content and journal mode must stay as they are. This process must
// not have the file open: closing it ends the locks that SQLite holds on it. Peek
// returns an error if this process may not write to the file: beside such a file SQLite would leave
// others that its owner cannot write to either.
func Peek(path string, fn func(*sql.DB) error) error {
	if err := CheckLog(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	db, err := sql.Open("sqlite3", URI(path, fmt.Sprintf("mode=rw&_query_only=true&_busy_timeout=%d", LockWait)))
	if err != nil {
		return err
	}
	return errors.Join(fn(db), db.Close())
}

// URI returns the name under which the driver opens a file with encoded parameters. '?', '#' and '%' in the
// path are not parsed as parts of it.
func URI(path, params string) string {
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	return (&url.URL{Scheme: "file", Opaque: escaped, RawQuery: params}).String()
}
