package ordertest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"flashsale/internal/testing/postgrestest"
	"flashsale/migrations"
)

// NewDatabase returns the setting of the test's own migrated database: a file of SQLite, or a
// database on Postgres where [postgrestest.Variable] says so.
func NewDatabase(t testing.TB) string {
	t.Helper()
	if postgrestest.Chosen(t) {
		url := NewPostgres(t)
		ownLineage(t, "pgx", url)
		return url
	}
	path := filepath.Join(t.TempDir(), "shop.db")
	NewFile(t, path)
	ownLineage(t, "sqlite3", path)
	return "sqlite:" + path
}

// ownLineage gives a copy of a migrated database a lineage of its own. Tests share a Redis, and an
// item that Redis knows of a lineage is missing from every other database of that lineage.
func ownLineage(t testing.TB, driver, source string) {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "UPDATE meta SET value = '"+rand.Text()+"' WHERE key = 'lineage'")
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// NewPostgres returns the URL of the test's own migrated database on Postgres.
func NewPostgres(t testing.TB) string {
	t.Helper()
	return postgrestest.Migrated(t, migratePostgres)
}

// NewPostgresOn returns the URL of an empty, migrated database on a server of the test's own.
func NewPostgresOn(t testing.TB, server *postgrestest.Instance) string {
	t.Helper()
	return server.Migrated(t, migratePostgres)
}

// SettingOf returns the setting with which another process opens a store's database.
func SettingOf(s Database) string {
	if s.Postgres() {
		return s.URL()
	}
	return "sqlite:" + s.Path()
}

// NeedSQLite skips a test of what only SQLite has, such as its files, its settings and its plans
// of statements, if the tests use Postgres.
func NeedSQLite(t testing.TB) {
	t.Helper()
	if postgrestest.Chosen(t) {
		t.Skip("tests SQLite's file")
	}
}

func migratePostgres(url string) (err error) {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	m, err := migrations.New(db, "postgres")
	if err != nil {
		return err
	}
	// Not bound to a test: all use the result.
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	_, err = m.Up(ctx)
	return err
}
