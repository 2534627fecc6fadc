// Package backend opens the database and Redis, and reads the limits of the host. The service,
// the checks and the commands share it.
package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"flashsale/cmd/flashsale/config"
	"flashsale/migrations"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/store/sqlite"
	"flashsale/order/transfer"
)

// NeedDatabase refuses a SQLite database that does not exist, except for commands that create
// one: a mistyped path would leave an empty database behind. Nothing here creates a database of
// Postgres, so opening one that does not exist fails anyway.
func NeedDatabase(s *config.Settings) error {
	if s.Postgres() {
		return nil
	}
	path := strings.TrimPrefix(s.DB, "sqlite:")
	if err := sqlite.CheckLog(path); err != nil {
		return config.FailedSetting("db", s.DB, err.Error(), sqlite.StrayLogFix)
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return config.FailedSetting("db", s.DB, "the database does not exist", "run flashsale migrate up to create it, or correct the path")
	}
	return nil
}

// MissingFolder returns the folder of a SQLite database if it does not exist and is not the data
// directory, which the program creates; otherwise "".
func MissingFolder(s *config.Settings) string {
	if s.Postgres() {
		return ""
	}
	folder := databaseFolder(s)
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) && !isDataDir(s, folder) {
		return folder
	}
	return ""
}

func databaseFolder(s *config.Settings) string {
	return filepath.Dir(strings.TrimPrefix(s.DB, "sqlite:"))
}

// isDataDir reports whether a folder is the data directory.
func isDataDir(s *config.Settings, folder string) bool {
	a, err := filepath.Abs(folder)
	b, errB := filepath.Abs(s.DataDir)
	return err == nil && errB == nil && a == b
}

// needFolder refuses a new SQLite database in a folder that does not exist: a mistyped path would
// start a shop without its orders. It creates only the data directory.
func needFolder(s *config.Settings) error {
	if folder := MissingFolder(s); folder != "" {
		cause, fix := config.MissingFolder(folder)
		return config.FailedSetting("db", s.DB, cause, fix)
	}
	if !s.Postgres() && isDataDir(s, databaseFolder(s)) {
		return config.MakeDataDir(s.DataDir)
	}
	return nil
}

// OpenDatabase opens the database of the settings, which must accept writes. create allows a new
// SQLite database, in a folder that exists or is the data directory.
func OpenDatabase(ctx context.Context, s *config.Settings, create bool, options ...store.Option) (*store.Store, error) {
	need := NeedDatabase
	if create {
		need = needFolder
	}
	if err := need(s); err != nil {
		return nil, err
	}
	if err := RefuseForeign(ctx, s); err != nil {
		return nil, SchemaError(s, err)
	}
	db, err := store.Open(ctx, s.DB, options...)
	if err != nil {
		return nil, config.FailedSetting("db", s.DB, Cause(err), DatabaseFix(s, err))
	}
	if s.Postgres() {
		if err := checkWritable(ctx, s, db); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}

// RefuseForeign refuses a SQLite file of another application before it is opened for writing, which
// would change its journal mode. Errors: migrations.ErrForeign.
func RefuseForeign(ctx context.Context, s *config.Settings) (err error) {
	if s.Postgres() {
		return nil
	}
	err = sqlite.Peek(strings.TrimPrefix(s.DB, "sqlite:"), func(db *sql.DB) error {
		_, err := migrations.Version(ctx, db, "sqlite")
		return err
	})
	if errors.Is(err, migrations.ErrForeign) {
		return err
	}
	return nil // opening it for writing creates it, or reports other errors
}

// Migrator returns the database's migrator.
func Migrator(store *store.Store) (*migrations.Migrator, error) {
	db, err := store.Writer().DB()
	if err != nil {
		return nil, err
	}
	return migrations.New(db, store.Dialect())
}

// DatabaseFix returns the fix for a database that could not be opened.
func DatabaseFix(s *config.Settings, err error) string {
	switch {
	case s.Postgres():
		return postgresFix(err)
	case errors.Is(err, sqlite.ErrNotWritable):
		return fmt.Sprintf("give the user of this process (uid %d) write access to the file, the -wal and -shm files beside it, and its folder; the file system must not be mounted read-only", os.Getuid())
	case errors.Is(err, sqlite.ErrStrayLog):
		return sqlite.StrayLogFix
	case sqlite.Full(err):
		return "free disk space"
	case errors.Is(err, database.ErrURL):
		return "write sqlite: and a path, for example sqlite:/var/lib/flashsale/shop.db"
	default:
		return "name a SQLite database, or a new file in a folder that exists"
	}
}

// MigrationWaits is the text for migrations.Migrator.Waiting.
const MigrationWaits = "another session, such as pg_dump, uses a table that a migration has to lock; retrying every ten seconds, for ten minutes"

// SchemaFault returns the cause and the fix of an error of CheckSchema or of a migration, for the
// operator; "" if another error is the cause.
func SchemaFault(err error) (cause, fix string) {
	var marked *transfer.Unusable
	switch {
	case errors.Is(err, migrations.ErrPending):
		return "its schema is older than this program, or it is empty", "run flashsale migrate up"
	case errors.Is(err, migrations.ErrNewer):
		return "its schema is newer than this program",
			"use the version of flashsale that has migrated it, or undo its migrations with that version (flashsale migrate down)"
	case errors.Is(err, migrations.ErrForeign):
		return "it has tables of another application and no shop", "use a database of its own for the shop, or correct the setting"
	case errors.Is(err, migrations.ErrInUse):
		return "another session, such as pg_dump, has used a table for ten minutes, and a migration has to lock it",
			"wait until that session's transaction has ended, or end it (pg_stat_activity), then run flashsale migrate up"
	case sqlite.Full(err):
		return err.Error(), "free disk space"
	case errors.As(err, &marked):
		return marked.Cause, marked.Fix
	}
	return "", ""
}

// CheckSchema fails if the database lacks a migration, or has the mark of an unfinished copy or of
// a shop that was moved. Errors: migrations.ErrPending, migrations.ErrNewer,
// migrations.ErrForeign, *transfer.Unusable.
func CheckSchema(ctx context.Context, store *store.Store) error {
	m, err := Migrator(store)
	if err != nil {
		return err
	}
	if err := m.Check(ctx); err != nil {
		return err
	}
	return checkUsable(ctx, store)
}

// checkUsable fails if the database has the mark of an unfinished copy or of a shop that was
// moved. It must have the service's tables. Errors: *transfer.Unusable.
func checkUsable(ctx context.Context, store *store.Store) error {
	db, err := store.Reader().DB()
	if err != nil {
		return err
	}
	return transfer.CheckUsable(ctx, db)
}

// DatabaseDurability describes in one sentence what survives a crash of the database, and returns
// the changes that an operator should make.
func DatabaseDurability(ctx context.Context, s *store.Store) (says string, change []Advice, err error) {
	if !s.Postgres() {
		return "a 201 is synced to its disk", nil, nil
	}
	d, err := s.Describe(ctx)
	if err != nil {
		return "", nil, err
	}
	says, change = PostgresDurability(&d)
	return says, change, nil
}

// PostgresDurability is DatabaseDurability for a description of Postgres.
func PostgresDurability(d *database.Description) (says string, change []Advice) {
	const early = "Postgres answers before it syncs (synchronous_commit off): a crash of the server loses the last 201s"
	commit := d.Setting("synchronous_commit")
	switch {
	case d.Setting("fsync") == "off":
		says = "Postgres syncs nothing (fsync off): a crash of its machine may lose every order"
		change = append(change, Advice{says, "set fsync = on, because a crash of the server's machine may destroy the database", true})
	case commit == "off":
		says = early
	case d.Setting("synchronous_standby_names") != "" && commit != "local":
		says = "a 201 is synced to its disk and sent to its synchronous standbys (synchronous_commit " + commit + ")"
	default:
		says = "a 201 is synced to its disk"
	}
	if commit == "off" {
		change = append(change, Advice{Says: early,
			Fix: "set synchronous_commit to on (ALTER DATABASE name SET synchronous_commit = on), because a 201 promises that the order is on disk"})
	}
	if d.Setting("full_page_writes") == "off" {
		change = append(change, Advice{Says: "Postgres: full_page_writes is off",
			Fix: "set full_page_writes = on, unless the file system never writes a part of a page"})
	}
	return says, change
}
