package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

// ErrNotWritable means that the database's file or folder refuses writes: its
// permissions deny them, or its file system is read-only.
var ErrNotWritable = errors.New("sqlite: database is not writable")

// notWritable wraps an error of the operating system or of SQLite with ErrNotWritable if it
// has that cause.
func notWritable(err error) error {
	var se sqlite3.Error
	refused := errors.As(err, &se) && (se.Code == sqlite3.ErrReadonly || se.Code == sqlite3.ErrCantOpen)
	if refused || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return err
}

// passing reports whether the cause of an error may pass, such as a busy or full database, or a wait
// that was cut short. It is no reason not to open the database.
func passing(err error) bool {
	transient, _ := Transient(err)
	ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return (transient || ended) && !errors.Is(err, ErrNotWritable)
}

// Transient reports whether an error of SQLite comes from the database's present state, and not
// from the rows sent; known reports whether it is an error of SQLite.
func Transient(err error) (transient, known bool) {
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return false, false
	}
	switch se.Code {
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrFull, sqlite3.ErrIoErr, sqlite3.ErrReadonly,
		sqlite3.ErrCantOpen, sqlite3.ErrNomem, sqlite3.ErrProtocol, sqlite3.ErrInterrupt,
		sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return true, true
	}
	return false, true
}

// Full reports whether the cause of an error is a disk without free space.
func Full(err error) bool {
	var se sqlite3.Error
	return errors.Is(err, syscall.ENOSPC) || errors.As(err, &se) && (se.Code == sqlite3.ErrFull || se.SystemErrno == syscall.ENOSPC)
}

// Duplicate reports whether a statement failed because a row with the same key exists.
func Duplicate(err error) bool {
	var se sqlite3.Error
	return errors.As(err, &se) && (se.ExtendedCode == sqlite3.ErrConstraintUnique || se.ExtendedCode == sqlite3.ErrConstraintPrimaryKey)
}
