package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"flashsale/cmd/flashsale/config"
	"flashsale/order/backup"
)

// LockDataDir ensures that only one process runs the embedded engine with a data directory.
func LockDataDir(s *config.Settings) (func() error, error) {
	if err := config.MakeDataDir(s.DataDir); err != nil {
		return nil, err
	}
	unlock, err := lockFile(filepath.Join(s.DataDir, "serve.lock"), true)
	switch {
	case errors.Is(err, ErrServed):
		return nil, config.FailedSetting("data-dir", s.DataDir, "another flashsale serve is using it", "stop that one, or name another")
	case err != nil:
		return nil, lockFault("data-dir", s.DataDir, err)
	}
	return unlock, nil
}

// LockSQLite locks the file beside a SQLite database that says which processes use it. A process with the
// embedded engine holds it exclusively, because that engine has its own stock. All others share
// it; see PostgresLock. It belongs to the owner of the database, because a file owned by root would
// prevent the service from starting afterwards. Errors: ErrServed.
func LockSQLite(s *config.Settings, exclusive bool) (func() error, error) {
	if err := needFolder(s); err != nil {
		return nil, err
	}
	path := strings.TrimPrefix(s.DB, "sqlite:")
	lock := path + backup.LockSuffix
	unlock, err := lockFile(lock, exclusive)
	switch {
	case errors.Is(err, ErrServed):
		return nil, err
	case err != nil:
		return nil, lockFault("db", s.DB, err)
	}
	if err := backup.GiveToOwner(lock, path); err != nil {
		return nil, errors.Join(fmt.Errorf("set the owner of %s (user id %d): %w", lock, os.Geteuid(), err), unlock())
	}
	return unlock, nil
}

// errLink says that a lock file is a symbolic link, which could name any file of root's.
var errLink = errors.New("is a symbolic link")

// lockFault is the error for a lock file that cannot be opened.
func lockFault(setting, value string, err error) error {
	fix := config.WritableFolder
	if errors.Is(err, errLink) {
		fix = "remove the link"
	}
	return config.FailedSetting(setting, value, err.Error(), fix)
}

// ErrServed says that a process that excludes this one has the lock.
var ErrServed = errors.New("another process serves this database")

// Served is the error for a database that another process serves.
func Served(s *config.Settings, exclusive bool) error {
	if exclusive {
		return config.FailedSetting("db", s.DB, ErrServed.Error(), "stop that one, name another database, or give all of them one Redis (--redis)")
	}
	return config.FailedSetting("db", s.DB, ErrServed.Error()+", with the embedded Redis, which no other process can share", "stop that one, or name another database")
}
