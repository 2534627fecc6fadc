package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// maxLinks is how many links Resolve follows, as many as Linux does.
const maxLinks = 40

// Resolve follows the links of a database's name, as SQLite does: the files beside a database are beside
// the file itself. The database need not exist.
func Resolve(path string) (string, error) {
	for range maxLinks {
		target, err := filepath.EvalSymlinks(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return target, err
		}
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", err
		}
		path = filepath.Join(folder, filepath.Base(path))
		link, err := os.Readlink(path)
		if err != nil {
			return path, nil //nolint:nilerr // it is no link
		}
		if !filepath.IsAbs(link) {
			link = filepath.Join(folder, link)
		}
		path = link
	}
	return "", fmt.Errorf("%s is a link to a link, %d times", path, maxLinks)
}

// ErrStrayLog means that the file with the last transactions of a database exists, but not the database.
var ErrStrayLog = errors.New("sqlite: log without its database")

// StrayLogFix tells an operator what to do about ErrStrayLog.
const StrayLogFix = "put the database back beside its -wal file, which holds its last orders; remove that file only to give them up"

// CheckLog returns ErrStrayLog if a database is missing or empty, but its log is not: the database was moved
// without its log, or truncated. SQLite would delete the log, and with it committed transactions. Without the
// permission to look, it returns nil, because opening the database will fail.
func CheckLog(path string) error {
	path, err := Resolve(path)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	// The log is read first, because another process may be creating the database.
	log, err := os.Stat(path + "-wal")
	if err != nil || log.Size() == 0 {
		return nil //nolint:nilerr // without a log there is nothing to lose
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s does not exist, %s-wal does", ErrStrayLog, path, path)
	case err == nil && info.Size() == 0:
		return fmt.Errorf("%w: %s is empty, %s-wal is not", ErrStrayLog, path, path)
	}
	return nil
}
