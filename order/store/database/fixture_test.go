package database

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/postgrestest"
)

// errTest is an error that a test causes.
var errTest = errors.New("on purpose")

// tables are those of the tests.
const tables = `CREATE TABLE notes (id TEXT PRIMARY KEY, text TEXT NOT NULL); CREATE TABLE probes (at TEXT NOT NULL)`

// noHooks are Hooks that do nothing.
type noHooks struct{}

func (noHooks) Opening(*pgx.Batch, *Write)        {}
func (noHooks) Begun(context.Context, bool) error { return nil }
func (noHooks) Committing(context.Context) error  { return nil }
func (noHooks) Committed()                        {}

// newDB returns a database with tables: a file of SQLite, or a database on Postgres where
// [postgrestest.Variable] says so.
func newDB(t testing.TB) *DB {
	t.Helper()
	if postgrestest.Chosen(t) {
		return withTables(t, openDB(t, postgrestest.NewDatabase(t)))
	}
	return newFile(t)
}

// newFile returns a database on SQLite.
func newFile(t testing.TB) *DB {
	t.Helper()
	return withTables(t, openDB(t, "sqlite:"+filepath.Join(t.TempDir(), "notes.db")))
}

func withTables(t testing.TB, db *DB) *DB {
	t.Helper()
	if err := db.Writer().WithContext(await.Context(t)).Exec(tables).Error; err != nil {
		t.Fatal(err)
	}
	return db
}

func openDB(t testing.TB, setting string) *DB {
	t.Helper()
	db, err := open(t, setting)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
	})
	return db
}

func open(t testing.TB, setting string) (*DB, error) {
	return Open(await.Context(t), setting, Config{Probe: "INSERT INTO probes (at) VALUES ($1)", Hooks: func(*Tx) Hooks { return noHooks{} }})
}

// change makes one change.
func change(ctx context.Context, db *DB, run func(ctx context.Context, tx *Tx) error) error {
	_, err := db.Do(ctx, &Write{Run: run})
	return err
}

// nothing is a change that changes nothing.
func nothing(context.Context, *Tx) error { return nil }

var insertNotes = NewRowsStatement("INSERT INTO notes (id, text)", "text text", "")

// mustNote inserts n notes as one batch, with ids that begin with prefix.
func mustNote(t testing.TB, db *DB, prefix string, n int) {
	t.Helper()
	args := make([]any, 0, 2*n)
	for i := range n {
		args = append(args, fmt.Sprintf("%s%04d", prefix, i), "a text of some length, so that a page holds few of them")
	}
	_, err := db.Do(await.Context(t), &Write{Batch: true, Run: func(ctx context.Context, tx *Tx) error {
		_, err := insertNotes.Exec(ctx, tx, args)
		return err
	}})
	if err != nil {
		t.Fatal(err)
	}
}
