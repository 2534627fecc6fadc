package ordertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/disktest"
)

// BusyTimeout shortens the store's wait for a busy database of SQLite. On Postgres the wait is
// that of the service.
func BusyTimeout(t *testing.T, s Database, d time.Duration) {
	t.Helper()
	if !s.Postgres() {
		Pragma(t, s, fmt.Sprintf("busy_timeout = %d", d.Milliseconds()))
	}
}

// Occupy holds the database's write lock from another connection, as another
// process would, until release is called.
func Occupy(t *testing.T, s Database) (release func()) {
	t.Helper()
	driver, setting, locking := "sqlite3", "file:"+s.Path(), "BEGIN EXCLUSIVE"
	if s.Postgres() {
		driver, setting, locking = "pgx", s.URL(), fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d)", writeLock)
	}
	db, err := sql.Open(driver, setting)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(await.Context(t), locking); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if _, err := db.ExecContext(context.Background(), "ROLLBACK"); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(release)
	return release
}

// writeLock is the key of the store's write lock in Postgres; see order/store.
const writeLock = 0x666c617368

// DatabaseFaults make a database refuse writes, each by an error of SQLite. begin returns a
// function that ends the fault.
var DatabaseFaults = []struct {
	Name  string
	Codes []sqlite3.ErrNo
	Begin func(t *testing.T, s Database) (end func())
}{
	{"full", []sqlite3.ErrNo{sqlite3.ErrFull}, func(t *testing.T, s Database) func() {
		var pages int
		if err := s.Writer().Raw("PRAGMA page_count").Scan(&pages).Error; err != nil {
			t.Fatal(err)
		}
		Pragma(t, s, fmt.Sprintf("max_page_count = %d", pages))
		return func() { Pragma(t, s, "max_page_count = 1000000000") }
	}},
	// On an open connection, writes to its files fail; a connection opened meanwhile is
	// read-only.
	{"readonly", []sqlite3.ErrNo{sqlite3.ErrIoErr, sqlite3.ErrReadonly}, func(t *testing.T, s Database) func() {
		return disktest.Deny(t, s.Path(), s.Path()+"-wal")
	}},
	{"busy", []sqlite3.ErrNo{sqlite3.ErrBusy}, func(t *testing.T, s Database) func() {
		Pragma(t, s, "busy_timeout = 1") // so that the refusal comes soon
		db, err := sql.Open("sqlite3", "file:"+s.Path())
		if err != nil {
			t.Fatal(err)
		}
		c, err := db.Conn(await.Context(t))
		if err == nil {
			_, err = c.ExecContext(await.Context(t), "BEGIN EXCLUSIVE")
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() {
			_, err := c.ExecContext(context.Background(), "ROLLBACK")
			if err := errors.Join(err, c.Close(), db.Close()); err != nil {
				t.Error(err)
			}
		}
	}},
}

// NoSync makes commits fast that need not survive a loss of power. A Postgres of the tests never
// syncs.
func NoSync(t testing.TB, s Database) {
	t.Helper()
	if !s.Postgres() {
		Pragma(t, s, "synchronous = OFF")
	}
}

// Pragma runs a pragma on the writing connection of SQLite.
func Pragma(t testing.TB, s Database, text string) {
	t.Helper()
	// Many pragmas return a row. A prepared statement whose row is not read stays active,
	// and an interrupt then never ends.
	rows, err := s.Writer().Raw("PRAGMA " + text).Rows()
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close() //nolint:errcheck // what is only read loses nothing
	for rows.Next() {
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}
