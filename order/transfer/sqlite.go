package transfer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// sqlite is the dialect of SQLite.
type sqlite struct{}

// openSQLite opens a file, and keeps all other processes out of it. In WAL mode every open
// connection, also an idle one, holds a lock that conflicts with the exclusive one. Deleted
// data is overwritten, as the service does it.
func openSQLite(ctx context.Context, path string) (*database, error) {
	escaped := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(path)
	pool, err := sql.Open("sqlite3", "file:"+escaped+"?mode=rw&_locking_mode=EXCLUSIVE&_busy_timeout=1000&_synchronous=FULL&_secure_delete=on&_cache_size=-65536")
	if err != nil {
		return nil, err
	}
	d, err := newDatabase(ctx, pool, sqlite{})
	if err != nil {
		return nil, sqliteError(err)
	}
	for _, statement := range []string{"BEGIN EXCLUSIVE", "COMMIT"} {
		if _, err := d.conn.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(sqliteError(err), d.close())
		}
	}
	return d, nil
}

// sqliteError marks a lock of another process.
func sqliteError(err error) error {
	var se sqlite3.Error
	if errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked) {
		return fmt.Errorf("%w: %w", errInUse, err)
	}
	return err
}

func (sqlite) begin(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, "BEGIN IMMEDIATE")
	return sqliteError(err)
}

func (sqlite) schema() string { return sqliteTables }

func (sqlite) truncate(ctx context.Context, c *sql.Conn, tables []table) error {
	for i := range tables {
		if _, err := c.ExecContext(ctx, "DELETE FROM "+tables[i].quoted()); err != nil {
			return err
		}
	}
	return nil
}

// hurry keeps the file consistent after a loss of power.
func (sqlite) hurry() string { return "PRAGMA synchronous = NORMAL" }

// insertRows is the number of rows in one statement.
const insertRows = 100

func (sqlite) insert(ctx context.Context, c *sql.Conn, t *table, page [][]any) (err error) {
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for len(page) > 0 && err == nil {
		// All full statements of a page are one, which is prepared once.
		n := min(insertRows, len(page))
		whole := len(page) / n * n
		err = insertChunks(ctx, c, t, page[:whole], n)
		page = page[whole:]
	}
	if err != nil {
		_, rollback := c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		return errors.Join(err, rollback)
	}
	_, err = c.ExecContext(ctx, "COMMIT")
	return err
}

// insertChunks inserts rows, n with each statement.
func insertChunks(ctx context.Context, c *sql.Conn, t *table, rows [][]any, n int) (err error) {
	row := "(?" + strings.Repeat(", ?", len(t.columns)-1) + ")"
	statement, err := c.PrepareContext(ctx, "INSERT INTO "+t.quoted()+" ("+list(t.names())+") VALUES "+row+strings.Repeat(", "+row, n-1))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, statement.Close()) }()
	args := make([]any, 0, n*len(t.columns))
	for ; len(rows) > 0; rows = rows[n:] {
		args = args[:0]
		for _, r := range rows[:n] {
			args = append(args, r...)
		}
		if _, err := statement.ExecContext(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// counter reads the number of a table with AUTOINCREMENT.
func (sqlite) counter(ctx context.Context, c *sql.Conn, t *table) (n int64, err error) {
	err = c.QueryRowContext(ctx, "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = ?1", t.name).Scan(&n)
	return n, err
}

// count sets the number of a table with AUTOINCREMENT. Other tables continue after their
// highest row.
func (sqlite) count(ctx context.Context, c *sql.Conn, t *table, n int64) error {
	if _, err := c.ExecContext(ctx, "DELETE FROM sqlite_sequence WHERE name = ?1", t.name); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, `INSERT INTO sqlite_sequence (name, seq)
		SELECT name, ?2 FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND sql LIKE '%AUTOINCREMENT%'`, t.name, n)
	return err
}

// settle moves the log into the file.
func (sqlite) settle(ctx context.Context, c *sql.Conn, _ []table) error {
	if _, err := c.ExecContext(ctx, "PRAGMA synchronous = FULL"); err != nil {
		return err
	}
	var busy, pages, moved int
	return c.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &moved)
}
