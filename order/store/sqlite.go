package store

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

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

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

func openFile(ctx context.Context, s *Store, path string) (err error) {
	if err := createFile(ctx, path); err != nil {
		return err
	}
	s.file, s.prepared = path, make(prepared, len(preparedTexts))
	if s.writeDB, err = OpenSQLite(path, WriteParams(), 1); err != nil {
		return err
	}
	if err := tryWrite(ctx, s.writeDB); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if err := s.wal.measure(ctx, s.writeDB); err != nil {
		return fmt.Errorf("database %s: %w", path, err)
	}
	if s.wal.copyDB, err = openReader(path, 1); err != nil {
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
