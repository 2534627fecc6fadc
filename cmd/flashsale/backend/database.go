// Package backend opens the database and Redis, and reads the limits of the host. The service,
// the checks and the commands share it.
package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"flashsale/cmd/flashsale/config"
	"flashsale/migrations"
	"flashsale/order/store"
)

// ServeLock is the suffix of the file beside a database that serve with the embedded engine
// keeps locked.
const ServeLock = ".serve.lock"

// NeedDatabase refuses a database that does not exist, except for commands that create one: a
// mistyped path would leave an empty database behind.
func NeedDatabase(s *config.Settings) error {
	if _, err := os.Stat(strings.TrimPrefix(s.DB, "sqlite:")); errors.Is(err, fs.ErrNotExist) {
		return config.FailedSetting("db", s.DB, "the database does not exist", "run flashsale migrate up to create it, or correct the path")
	}
	return nil
}

// OpenDatabase opens the database of the settings. create allows a new one.
func OpenDatabase(ctx context.Context, s *config.Settings, create bool, options ...store.Option) (*store.Store, error) {
	if !create {
		if err := NeedDatabase(s); err != nil {
			return nil, err
		}
	}
	store, err := store.Open(ctx, s.DB, options...)
	if err != nil {
		return nil, config.FailedSetting("db", s.DB, err.Error(), DatabaseFix(err))
	}
	return store, nil
}

// Migrator returns the database's migrator.
func Migrator(store *store.Store) (*migrations.Migrator, error) {
	db, err := store.Writer().DB()
	if err != nil {
		return nil, err
	}
	return migrations.New(db, "sqlite")
}

// DatabaseFix returns the fix for a database that could not be opened.
func DatabaseFix(err error) string {
	switch {
	case errors.Is(err, store.ErrNotWritable):
		return fmt.Sprintf("give the user of this process (uid %d) write access to the file, the -wal and -shm files beside it, and its folder; the file system must not be mounted read-only", os.Getuid())
	case errors.Is(err, store.ErrDatabaseURL):
		return "write sqlite: and a path, for example sqlite:/var/lib/flashsale/shop.db"
	default:
		return "name a SQLite database, or a new file in a folder that exists or can be created"
	}
}

// CheckSchema fails if the database lacks a migration. Errors: migrations.ErrPending.
func CheckSchema(ctx context.Context, store *store.Store) error {
	m, err := Migrator(store)
	if err != nil {
		return err
	}
	return m.Check(ctx)
}
