package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"flashsale/cmd/flashsale/config"
	"flashsale/order/backup"
	"flashsale/order/store/sqlite"
)

// LockDataDir ensures that only one process runs the embedded engine with a data directory.
func LockDataDir(s *config.Settings) (func() error, error) {
	if err := config.MakeDataDir(s.DataDir); err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(s.DataDir, "serve.lock"), true)
	switch {
	case errors.Is(err, ErrServed):
		return nil, config.FailedSetting("data-dir", s.DataDir, "another flashsale serve is using it", "stop that one, or name another")
	case err != nil:
		return nil, lockFault("data-dir", s.DataDir, err)
	}
	return lock.Close, nil
}

// FileLock is a lock on a file.
type FileLock struct {
	f       *os.File // nil: this system has no such lock
	created bool     // for this lock, which excludes all others
	folder  string   // was created for this lock; empty: none
}

// Close releases the lock. The file stays: another process may have opened it.
func (l *FileLock) Close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}

// Abandon releases the lock, and removes the file and the folder if they were created for it. A
// process that has opened the file meanwhile notices that it was removed.
func (l *FileLock) Abandon() error {
	var errs []error
	if l.created {
		errs = append(errs, os.Remove(l.f.Name()))
	}
	errs = append(errs, l.Close())
	if l.folder != "" && l.created {
		// The system refuses to remove it if another process has put a file there.
		_ = os.Remove(l.folder) //nolint:errcheck // see above
	}
	return errors.Join(errs...)
}

// LockSQLite locks the file that says which processes use a SQLite database. It is beside the database itself:
// links are followed. A process with the embedded engine holds it exclusively, because that engine has its own
// stock. All others share it; see PostgresLock. It belongs to the owner of the database, because a file owned by root would
// prevent the service from starting afterwards. Errors: ErrServed.
func LockSQLite(s *config.Settings, exclusive bool) (*FileLock, error) {
	path := strings.TrimPrefix(s.DB, "sqlite:")
	_, err := os.Stat(filepath.Dir(path))
	newFolder := errors.Is(err, fs.ErrNotExist)
	if err := needFolder(s); err != nil {
		return nil, err
	}
	target, err := sqlite.Resolve(path)
	if err == nil {
		err = sqlite.CheckLog(target)
	}
	switch {
	case errors.Is(err, sqlite.ErrStrayLog):
		return nil, config.FailedSetting("db", s.DB, err.Error(), sqlite.StrayLogFix)
	case err != nil:
		return nil, lockFault("db", s.DB, err)
	}
	file := target + backup.LockSuffix
	lock, err := lockFile(file, exclusive)
	switch {
	case errors.Is(err, ErrServed):
		return nil, err
	case err != nil:
		return nil, lockFault("db", s.DB, err)
	}
	if newFolder {
		lock.folder = filepath.Dir(path)
	}
	if err := backup.GiveToOwner(file, path); err != nil {
		return nil, errors.Join(fmt.Errorf("set the owner of %s (user id %d): %w", file, os.Geteuid(), err), lock.Abandon())
	}
	return lock, nil
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
