package backup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/migrations"
)

// The faults of a database file; compare with errors.Is.
var (
	// ErrForeign means that a database has none of the service's tables.
	ErrForeign = errors.New("it is not a database of flashsale")
	// ErrDamaged means that a file is not a SQLite database, is incomplete, or
	// violates a constraint.
	ErrDamaged = errors.New("the database is damaged")
	// ErrNewer means that a schema is newer than this program.
	ErrNewer = errors.New("its schema is newer than this program")
	// ErrInUse means that another process has the database open.
	ErrInUse = errors.New("another process has the database open")
)

// Fault is an error that one of the two files causes.
type Fault struct {
	// Database means that the database causes it; otherwise it is the backup file.
	Database bool
	Cause    error
	Fix      string // the fix for the operator
}

// Error returns the cause and the fix, but not the file: the caller knows in which setting
// or argument the operator gave it.
func (f *Fault) Error() string { return f.Cause.Error() + "; " + f.Fix }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

func fileFault(cause error, fix string) error { return &Fault{Cause: cause, Fix: fix} }

func databaseFault(cause error, fix string) error {
	return &Fault{Database: true, Cause: cause, Fix: fix}
}

// Summary describes a database file.
type Summary struct {
	Path   string
	Bytes  int64
	Schema int64     // the number of the newest migration applied to it
	Orders int64     // rows of any status
	Newest time.Time // when the newest order was created; zero: there is no order
}

// anySchema makes inspect accept every schema of the service.
const anySchema = 0

// connection is one connection to a SQLite file.
type connection struct {
	*sql.Conn
	pool *sql.DB
}

// open opens one connection to a file with parameters of the driver, and reads its
// header. Errors: ErrDamaged, and those of SQLite.
func open(ctx context.Context, path, params string) (*connection, error) {
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	pool, err := sql.Open("sqlite3", "file:"+escaped+"?"+params)
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(1)
	c, err := pool.Conn(ctx)
	if err != nil {
		return nil, errors.Join(marked(err), pool.Close())
	}
	return &connection{Conn: c, pool: pool}, nil
}

// Close closes the connection. An open transaction is rolled back.
func (c *connection) Close() error { return errors.Join(c.Conn.Close(), c.pool.Close()) }

// raw runs fn on the driver's connection.
func (c *connection) raw(fn func(*sqlite3.SQLiteConn) error) error {
	return c.Raw(func(driver any) error {
		conn, ok := driver.(*sqlite3.SQLiteConn)
		if !ok {
			return fmt.Errorf("backup: unexpected driver connection %T", driver)
		}
		return fn(conn)
	})
}

// marked adds ErrDamaged to an error of SQLite with that meaning.
func marked(err error) error {
	var se sqlite3.Error
	if errors.As(err, &se) && (se.Code == sqlite3.ErrCorrupt || se.Code == sqlite3.ErrNotADB) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// identify returns the schema version of a database of the service.
// Errors: ErrForeign, ErrDamaged.
func identify(ctx context.Context, c *connection) (schema int64, err error) {
	schema, err = migrations.Version(ctx, c, "sqlite")
	switch {
	case errors.Is(err, migrations.ErrForeign), err == nil && schema == 0:
		return 0, ErrForeign
	case err != nil:
		return 0, marked(err)
	}
	return schema, nil
}

// inspect verifies a file that no other process uses, and returns its summary. A schema
// above newest is refused. It changes nothing, but needs a writable connection, because
// SQLite ignores CHECK constraints on a read-only one. Errors: ErrForeign, ErrNewer,
// ErrDamaged.
func inspect(ctx context.Context, path string, newest int64) (s Summary, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return s, err
	}
	c, err := open(ctx, path, "mode=rw&_locking_mode=EXCLUSIVE&_query_only=true")
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s = Summary{Path: path, Bytes: info.Size()}
	if s.Schema, err = identify(ctx, c); err != nil {
		return s, err
	}
	if newest != anySchema && s.Schema > newest {
		return s, fmt.Errorf("%w: it is %d, and this program supports up to %d", ErrNewer, s.Schema, newest)
	}
	if err := quickCheck(ctx, c, info.Size()); err != nil {
		return s, err
	}
	if err := c.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders").Scan(&s.Orders); err != nil {
		return s, fmt.Errorf("count orders: %w", err)
	}
	// Ids begin with the time of creation.
	var created int64
	err = c.QueryRowContext(ctx, "SELECT created_at FROM orders ORDER BY id DESC LIMIT 1").Scan(&created)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s, nil
	case err != nil:
		return s, fmt.Errorf("read the newest order: %w", err)
	}
	s.Newest = time.UnixMilli(created).UTC()
	return s, nil
}

// quickCheck makes SQLite read every page of a file of that size in bytes. It returns
// ErrDamaged with the first fault.
func quickCheck(ctx context.Context, c *connection, size int64) error {
	var needs int64
	err := c.QueryRowContext(ctx, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").Scan(&needs)
	if err != nil {
		return fmt.Errorf("check the database: %w", marked(err))
	}
	// SQLite reads the missing end of the last page as zeros.
	if size < needs {
		return fmt.Errorf("%w: it has %d bytes and should have %d", ErrDamaged, size, needs)
	}
	var finding string
	err = c.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&finding)
	switch {
	case err != nil:
		return fmt.Errorf("check the database: %w", marked(err))
	case finding != "ok":
		return fmt.Errorf("%w: %s", ErrDamaged, strings.ReplaceAll(finding, "\n", " "))
	}
	return nil
}

// temporary creates an empty file beside path that only its owner can read.
func temporary(path, pattern string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+pattern)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// removeIfThere removes a file, unless it has been renamed.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncFile(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

// syncFolder makes the names in a folder durable.
func syncFolder(path string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}
