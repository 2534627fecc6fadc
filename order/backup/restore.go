package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mattn/go-sqlite3"

	"flashsale/internal/faultpoint"
	"flashsale/migrations"
	"flashsale/order"
	"flashsale/order/store/sqlite"
)

// The names of files that restore leaves beside the database: unfinished copies of backups,
// and replaced databases.
const (
	unfinished = ".restore-tmp-"
	replaced   = ".before-restore-"
)

// maxSameName bounds the databases that are replaced in one second.
const maxSameName = 100

// copyChunk is how many bytes are copied between two checks for cancellation.
const copyChunk = 4 << 20

// Restored describes a database after a restore.
type Restored struct {
	Summary
	Kept string // the path of the database that was replaced; empty: there was none
	// Unpaid is the number of orders that await payment, which can all be paid until PayUntil.
	Unpaid   int64
	PayUntil time.Time
	Latest   int64 // the newest migration that this program knows
}

// Restore replaces the database at path with file, or creates it. The file is copied and
// verified first. It refuses while another process has the database open, and keeps the old
// database beside the new one, under a name that contains now. After a crash at any moment,
// either the old or the new database is complete. The folder must exist. The caller makes
// sure that no other restore of the same database runs.
//
// Orders that await payment get order.PayAgainWithin from now, because the payments since the backup
// are lost.
//
// Errors: a *Fault if one of the two files is the cause; that of ctx.
func Restore(ctx context.Context, file, path string, now time.Time) (_ Restored, err error) {
	r := restoration{file: file}
	if r.path, err = sqlite.Resolve(path); err != nil {
		return Restored{}, databaseFault(err, "name a file in a folder that exists")
	}
	if err := r.checkFiles(); err != nil {
		return Restored{}, err
	}
	if r.latest, err = migrations.Latest("sqlite"); err != nil {
		return Restored{}, err
	}
	if err := r.lock(ctx); err != nil {
		return Restored{}, err
	}
	defer func() { err = errors.Join(err, r.unlock()) }()
	if err := r.clear(); err != nil {
		return Restored{}, databaseFault(err, "check its folder")
	}
	if r.tmp, err = temporary(r.path, unfinished+"*"); err != nil {
		return Restored{}, databaseFault(err, "run this command as the user that owns the database's folder")
	}
	defer func() { err = errors.Join(err, removeIfThere(r.tmp)) }()
	made, err := r.stage(ctx)
	if err != nil {
		return Restored{}, err
	}
	restored := Restored{Latest: r.latest, PayUntil: now.Add(order.PayAgainWithin).UTC()}
	if restored.Unpaid, err = r.extend(ctx, restored.PayUntil); err != nil {
		return Restored{}, err
	}
	if err := r.swap(ctx, now); err != nil {
		return Restored{}, err
	}
	made.Path = path
	restored.Summary, restored.Kept = made, r.kept
	return restored, nil
}

// restoration is one restore.
type restoration struct {
	file, path string
	latest     int64
	held       *connection // locks out other processes; nil: there is no database yet
	tmp        string      // the copy of the file
	kept       string
}

// checkFiles refuses wrong files.
func (r *restoration) checkFiles() error {
	info, err := os.Stat(r.file)
	switch {
	case err != nil:
		return fileFault(err, "name a file that flashsale backup has written")
	case !info.Mode().IsRegular():
		return fileFault(errors.New("it is not a regular file"), "name a file that flashsale backup has written")
	}
	for _, side := range []string{"-wal", "-journal"} {
		if s, err := os.Stat(r.file + side); err == nil && s.Size() > 0 {
			return fileFault(fmt.Errorf("it is a database in use, or one left by a crash: %s holds changes to it", r.file+side),
				"copy it with flashsale backup --db sqlite:"+r.file+", and restore that copy")
		}
	}
	old, err := os.Stat(r.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && old.Size() == 0:
		// SQLite would apply their contents to the new file, or delete them.
		for _, side := range []string{"-wal", "-journal"} {
			if s, err := os.Stat(r.path + side); err == nil && s.Size() > 0 {
				return databaseFault(fmt.Errorf("the database does not exist or is empty, but %s exists and belongs to the one that was there", r.path+side),
					"move that file elsewhere")
			}
		}
	case err != nil:
		return databaseFault(err, "name a database that this process may write")
	case !old.Mode().IsRegular():
		return databaseFault(errors.New("it is not a regular file"), "name a SQLite database")
	case os.SameFile(old, info):
		return fileFault(errors.New("it is the database itself"), "name a backup of it")
	}
	return nil
}

// lock keeps other processes out of the old database until unlock. In WAL mode every open
// connection, also an idle one, holds a shared lock on the file, which conflicts with the
// exclusive lock.
func (r *restoration) lock(ctx context.Context) error {
	if _, err := os.Stat(r.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c, err := open(ctx, r.path, "mode=rw&_locking_mode=EXCLUSIVE&_busy_timeout=1000")
	if err != nil {
		return r.lockFault(err)
	}
	// A database in another journal mode is only locked for reading so far.
	for _, statement := range []string{"BEGIN EXCLUSIVE", "COMMIT"} {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return errors.Join(r.lockFault(err), c.Close())
		}
	}
	r.held = c
	return nil
}

func (r *restoration) lockFault(err error) error {
	var se sqlite3.Error
	switch {
	case errors.Is(err, ErrDamaged):
		return databaseFault(err,
			fmt.Sprintf("stop every process that uses it, move %s and the files beside it that end in -wal, -shm and -journal elsewhere, and run this command again", r.path))
	case errors.As(err, &se) && (se.Code == sqlite3.ErrBusy || se.Code == sqlite3.ErrLocked):
		return InUse(r.path)
	default:
		return databaseFault(fmt.Errorf("lock the database: %w", err), "run this command as the user that owns the database, on a file system that is not mounted read-only")
	}
}

// InUse is the fault of a database that another process has open.
func InUse(path string) error {
	return databaseFault(ErrInUse, "stop every flashsale api, worker, serve and backup of this database, then run this command again; fuser "+path+" lists the processes")
}

func (r *restoration) unlock() error {
	if r.held == nil {
		return nil
	}
	// SQLite does not remove the files beside a database whose file was replaced.
	return r.held.Close()
}

// clear removes the files of an interrupted restore: unfinished copies, and second names of
// the database that is still in use. Opening one file under two names would damage it.
func (r *restoration) clear() error {
	folder, name := filepath.Dir(r.path), filepath.Base(r.path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	old, err := os.Stat(r.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		left := strings.HasPrefix(e.Name(), name+unfinished)
		if old != nil && strings.HasPrefix(e.Name(), name+replaced) {
			info, err := e.Info()
			left = err == nil && os.SameFile(old, info)
		}
		if !left {
			continue
		}
		if err := removeIfThere(filepath.Join(folder, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// stage copies the file into the database's folder and verifies the copy, so that exactly
// the verified bytes are put in place.
func (r *restoration) stage(ctx context.Context) (Summary, error) {
	if err := r.copyFile(ctx); err != nil {
		return Summary{}, err
	}
	made, err := inspect(ctx, r.tmp, r.latest)
	switch {
	case errors.Is(err, ErrNewer):
		return Summary{}, fileFault(err, "use the release of flashsale that wrote the backup, or a later one")
	case errors.Is(err, ErrForeign), errors.Is(err, ErrDamaged):
		return Summary{}, fileFault(err, "use another backup")
	}
	return made, err
}

const (
	hasExpiry = `SELECT COUNT(*) FROM pragma_table_info('orders') WHERE name = 'expires_at'`
	unpaid    = `status = 'confirmed' AND expires_at > 0`
)

// extend lets unpaid orders of the verified copy be paid until a time at least, and returns their
// number.
func (r *restoration) extend(ctx context.Context, until time.Time) (n int64, err error) {
	c, err := open(ctx, r.tmp, "mode=rw&_locking_mode=EXCLUSIVE")
	if err != nil {
		return 0, err
	}
	defer func() {
		// The last connection moves the write-ahead log into the file.
		if err = errors.Join(err, c.Close()); err == nil && n > 0 {
			err = syncFile(r.tmp)
		}
	}()
	var known bool // the schema of the first version has no such orders
	if err := c.QueryRowContext(ctx, hasExpiry).Scan(&known); err != nil || !known {
		return 0, err
	}
	if err := c.QueryRowContext(ctx, "SELECT COUNT(*) FROM orders WHERE "+unpaid).Scan(&n); err != nil || n == 0 {
		return 0, err
	}
	if _, err := c.ExecContext(ctx, "UPDATE orders SET expires_at = MAX(expires_at, ?1) WHERE "+unpaid, until.UnixMilli()); err != nil {
		return 0, databaseFault(fmt.Errorf("extend the time to pay: %w", err), "free space in its folder: it must hold the old and the new database")
	}
	return n, nil
}

func (r *restoration) copyFile(ctx context.Context) (err error) {
	from, err := os.Open(r.file)
	if err != nil {
		return fileFault(err, "name a file that this process may read")
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := os.OpenFile(r.tmp, os.O_WRONLY, 0)
	if err != nil {
		return databaseFault(err, "check its folder")
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := io.CopyN(to, from, copyChunk)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return databaseFault(fmt.Errorf("copy the backup: %w", err), "free space in its folder: it must hold the old and the new database")
		}
		faultpoint.Reach("restore.copying")
	}
	if err := GiveToOwner(r.tmp, r.path); err != nil {
		return databaseFault(err, "run this command as the user that owns the database")
	}
	if err := to.Sync(); err != nil {
		return databaseFault(err, "check its disk")
	}
	return nil
}

// GiveToOwner gives a file to the owner of the database, or of its folder if there is no
// database. Only root can do that; for other users it does nothing.
func GiveToOwner(file, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	uid, gid, known := owner(info)
	if !known || os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(file, uid, gid)
}

// swap replaces the old database with the verified copy.
func (r *restoration) swap(ctx context.Context, now time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	folder := filepath.Dir(r.path)
	if r.held == nil {
		if err := errors.Join(os.Rename(r.tmp, r.path), syncFolder(folder)); err != nil {
			return databaseFault(err, "check its folder")
		}
		return nil
	}
	if err := r.detach(ctx); err != nil {
		return err
	}
	faultpoint.Reach("restore.detached")
	// A second name first, so that there is a database at every moment.
	name := r.path + replaced + now.UTC().Format("20060102T150405Z")
	kept := name
	err := os.Link(r.path, kept)
	for n := 2; errors.Is(err, fs.ErrExist) && n <= maxSameName; n++ { // another restore in the same second
		kept = fmt.Sprintf("%s-%d", name, n)
		err = os.Link(r.path, kept)
	}
	if err != nil {
		return databaseFault(fmt.Errorf("keep the old database: %w", err), "the file system must support hard links; otherwise move the old database elsewhere by hand")
	}
	faultpoint.Reach("restore.linked")
	if err := os.Rename(r.tmp, r.path); err != nil {
		return databaseFault(errors.Join(err, os.Remove(kept)), "check its folder")
	}
	faultpoint.Reach("restore.renamed")
	r.kept = kept
	if err := syncFolder(folder); err != nil {
		return databaseFault(err, "check its disk")
	}
	return nil
}

// detach makes the old database complete without the files beside it, and removes those
// files, which SQLite would otherwise apply to the new database. The lock on the old one
// keeps other processes from creating them again.
func (r *restoration) detach(ctx context.Context) error {
	var busy, pages, moved int
	row := r.held.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	err := row.Scan(&busy, &pages, &moved)
	if err = marked(err); errors.Is(err, ErrDamaged) {
		return r.lockFault(err)
	}
	if err != nil || busy != 0 {
		return databaseFault(errors.Join(errors.New("its write-ahead log could not be moved into the database"), err), "free space in its folder")
	}
	if info, err := os.Stat(r.path + "-wal"); err == nil && info.Size() > 0 {
		return databaseFault(fmt.Errorf("its write-ahead log still has %d bytes after a checkpoint", info.Size()), "check its disk")
	}
	for _, side := range []string{"-wal", "-shm", "-journal"} {
		if err := removeIfThere(r.path + side); err != nil {
			return databaseFault(err, "check its folder")
		}
	}
	if err := syncFolder(filepath.Dir(r.path)); err != nil {
		return databaseFault(err, "check its disk")
	}
	return nil
}
