// Package backup copies the database to a file while the service uses it, and
// replaces the database by such a copy.
//
// Take copies pages with SQLite's online backup interface, inside a read transaction. In
// WAL mode a reader blocks no writer, and its snapshot includes the write-ahead log.
// Without the transaction SQLite would restart the copy after each commit of another
// process, and never finish during a sale. VACUUM INTO gives the same guarantees, and its
// file was an eighth smaller, but it inserts every row into new tables: with 500,000 orders
// it took 1.6 times the processor time. The log cannot be reused while a snapshot is open,
// so with the faster copy it also grows less.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/faultpoint"
	"flashsale/order/store/sqlite"
)

// stepPages is how many pages are copied between two checks for cancellation:
// 2 MiB, or 4 MiB in a database of an earlier version.
const stepPages = 1024

// Take copies the database at path to file: one snapshot, including the write-ahead log.
// Other processes may read and write meanwhile. It does not change the database. The copy
// is verified and synced before it gets its name, and only its owner can read it. Unless
// force is set, an existing file is refused.
//
// Errors: a *Fault if one of the two files is the cause; that of ctx.
func Take(ctx context.Context, path, file string, force bool) (_ Summary, err error) {
	if target, err := sqlite.Resolve(path); err == nil {
		path = target // its files are beside it
	}
	if err := checkSource(path); err != nil {
		return Summary{}, err
	}
	if err := checkDestination(path, file, force); err != nil {
		return Summary{}, err
	}
	tmp, err := temporary(file, ".tmp-*")
	if err != nil {
		return Summary{}, fileFault(err, "name a file in a folder that exists and that this process may write to")
	}
	defer func() { err = errors.Join(err, removeIfThere(tmp)) }()
	if err := snapshot(ctx, path, tmp, stepPages, nil); err != nil {
		return Summary{}, err
	}
	faultpoint.Reach("backup.copied")
	made, err := inspect(ctx, tmp, anySchema)
	switch {
	case errors.Is(err, ErrDamaged):
		return Summary{}, databaseFault(err, "the copy has the same damage, so it was not kept; restore an earlier backup")
	case err != nil:
		return Summary{}, err
	}
	if err := syncFile(tmp); err != nil {
		return Summary{}, fileFault(err, "check the disk")
	}
	// It may have been created during the copy.
	if err := checkDestination(path, file, force); err != nil {
		return Summary{}, err
	}
	faultpoint.Reach("backup.verified")
	if err := errors.Join(os.Rename(tmp, file), syncFolder(filepath.Dir(file))); err != nil {
		return Summary{}, fileFault(err, "check its folder")
	}
	made.Path = file
	return made, nil
}

// checkSource refuses a database that does not exist or is empty: SQLite's own error does not name
// the cause.
func checkSource(path string) error {
	if err := sqlite.CheckLog(path); err != nil {
		return databaseFault(err, sqlite.StrayLogFix)
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return databaseFault(errors.New("the database does not exist"), "correct the path")
	case err != nil:
		return databaseFault(err, "name a database that this process may read")
	case !info.Mode().IsRegular():
		return databaseFault(errors.New("it is not a regular file"), "name a SQLite database")
	case info.Size() == 0:
		return databaseFault(errors.New("it is empty"), "run flashsale migrate up if it is new, or correct the path")
	}
	return nil
}

// checkDestination refuses a file that has another use.
func checkDestination(path, file string, force bool) error {
	info, err := os.Lstat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fileFault(err, "name a file in a folder that exists and that this process may write to")
	case !info.Mode().IsRegular():
		return fileFault(errors.New("it exists and is not a regular file"), "choose another name")
	case isDatabase(path, info):
		return fileFault(errors.New("it is a file of the database itself"), "choose another name")
	case !force:
		return fileFault(errors.New("the file exists"), "choose another name, or replace it with --force")
	}
	for _, side := range []string{"-wal", "-journal"} {
		if _, err := os.Lstat(file + side); err == nil {
			// SQLite would apply its contents to the new file.
			return fileFault(fmt.Errorf("%s exists and belongs to another database", file+side), "choose another name, or remove that file")
		}
	}
	return nil
}

// LockSuffix ends the name of the file beside a database that its processes lock. If it were
// replaced, further processes would lock another file and start beside them.
const LockSuffix = ".serve.lock"

// isDatabase reports whether a file is the database or one of the files that belong to it.
func isDatabase(path string, info fs.FileInfo) bool {
	for _, suffix := range []string{"", "-wal", "-shm", "-journal", "-turn", LockSuffix} {
		if used, err := os.Stat(path + suffix); err == nil && os.SameFile(used, info) {
			return true
		}
	}
	return false
}

// snapshot copies the database as it is at one moment. Between two steps it calls stepped,
// which may be nil.
func snapshot(ctx context.Context, path, to string, pages int, stepped func()) (err error) {
	source, err := open(ctx, path, "mode=ro&_busy_timeout=5000")
	if err != nil {
		return sourceFault(err)
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	// The snapshot begins with the first read of the transaction.
	if _, err := source.ExecContext(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("begin the snapshot: %w", err)
	}
	if _, err := identify(ctx, source); err != nil {
		return sourceFault(err)
	}
	// The copy needs no journal: it is deleted after a failure, and synced as a whole
	// before it gets its name.
	copied, err := open(ctx, to, "mode=rw&_journal_mode=OFF&_synchronous=OFF")
	if err != nil {
		return fileFault(err, "check the disk")
	}
	defer func() { err = errors.Join(err, copied.Close()) }()
	return source.raw(func(from *sqlite3.SQLiteConn) error {
		return copied.raw(func(into *sqlite3.SQLiteConn) error { return copyPages(ctx, from, into, pages, stepped) })
	})
}

// sourceFault explains why the database cannot be copied.
func sourceFault(err error) error {
	switch {
	case errors.Is(err, ErrForeign):
		return databaseFault(err, "run flashsale migrate up if it is new, or correct the path")
	case errors.Is(err, ErrDamaged):
		return databaseFault(err, "restore a backup")
	default:
		return databaseFault(err, "name a database that this process may read")
	}
}

func copyPages(ctx context.Context, from, into *sqlite3.SQLiteConn, pages int, stepped func()) (err error) {
	b, err := into.Backup("main", from, "main")
	if err != nil {
		return fileFault(err, "check the disk")
	}
	defer func() {
		// After a failed step it returns that step's error again.
		if cerr := b.Close(); err == nil && cerr != nil {
			err = fileFault(cerr, "check the disk")
		}
	}()
	for left := -1; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		done, err := b.Step(pages)
		switch {
		case errors.Is(marked(err), ErrDamaged):
			return sourceFault(marked(err))
		case err != nil:
			return fileFault(fmt.Errorf("copy the database: %w", err), "free space on the disk, or choose another folder")
		case done:
			return nil
		case b.Remaining() == left:
			// The driver reports a lock as a step without progress. No other process should
			// lock either file, so waiting would not help.
			return fileFault(errors.New("another process has locked the unfinished copy"), "choose a folder that no other program uses")
		}
		left = b.Remaining()
		faultpoint.Reach("backup.copying")
		if stepped != nil {
			stepped()
		}
	}
}
