package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"

	"flashsale/order"
)

// ErrNotWritable means that the database's file or folder refuses writes: its
// permissions deny them, or its file system is read-only.
var ErrNotWritable = errors.New("order: database is not writable")

// Wrap adds the operation that failed, and wraps ErrDatabase if the cause is the database's
// present state.
func Wrap(operation string, err error) error {
	if Transient(err) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w: %w", operation, order.ErrDatabase, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// Transient reports whether an error comes from the database's present state (busy, full,
// unreachable) and not from the rows sent. Such a batch must be retried whole, and not
// split.
func Transient(err error) bool {
	if errors.Is(err, ErrServerChanged) {
		return true // whatever Redis or the server answered
	}
	if transient, known := transientPostgres(err); known {
		return transient
	}
	var se sqlite3.Error
	if !errors.As(err, &se) {
		var network net.Error
		return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errQueueFull) ||
			errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || pgconn.SafeToRetry(err)
	}
	switch se.Code {
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrFull, sqlite3.ErrIoErr, sqlite3.ErrReadonly,
		sqlite3.ErrCantOpen, sqlite3.ErrNomem, sqlite3.ErrProtocol, sqlite3.ErrInterrupt,
		sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return true
	}
	return false
}

// notWritable wraps an error of the operating system or of SQLite with ErrNotWritable if it
// has that cause.
func notWritable(err error) error {
	var se sqlite3.Error
	sqlite := errors.As(err, &se) && (se.Code == sqlite3.ErrReadonly || se.Code == sqlite3.ErrCantOpen)
	if sqlite || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	return err
}

// transientPostgres is Transient for an error that only a database on Postgres causes; known
// reports whether it is one.
func transientPostgres(err error) (transient, known bool) {
	var unreachable *pgconn.ConnectError
	if errors.As(err, &unreachable) || errors.Is(err, errRolledBack) || errors.Is(err, errUnknown) || errors.Is(err, errWarned) || errors.Is(err, errMoved) {
		return true, true
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false, false
	}
	class := pe.Code[:min(2, len(pe.Code))]
	return slices.Contains(transientClasses, class) || slices.Contains(transientCodes, pe.Code), true
}

// transientClasses and transientCodes are those of errors whose cause is not in the rows.
var (
	transientClasses = []string{
		classConnection, "25", // in a state of the transaction, such as read-only
		"26", "28", "3D", // a statement, a login or a database that does not exist
		"40", "53", "55", "57", "58", "XX", // rollback, resources, locks, shutdown, system, internal
	}
	transientCodes = []string{
		"42501",          // no permission
		"42P05", "0A000", // of statements that a pooler or a change of the schema has invalidated
	}
)

// retryNow reports whether an error has a cause that a repeated transaction may not meet: a
// concurrent transaction, or a lost connection.
func retryNow(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case serializationFailure, deadlockDetected, adminShutdown, crashShutdown:
			return true
		}
		return strings.HasPrefix(pe.Code, classConnection)
	}
	return lostConnection(err)
}

// lostConnection reports whether an error is that of a connection to Postgres that was
// closed.
func lostConnection(err error) bool {
	var operation *net.OpError
	return pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &operation)
}

// Codes and classes of the errors of Postgres; see its documentation, appendix A.
const (
	classConnection      = "08"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	uniqueViolation      = "23505"
	// numberUnused is the error of pg_xact_status for a number that no transaction has had yet. A
	// crash, or a failover to a standby that lagged, forgets the numbers of transactions that had
	// left no trace in the log. A server that replicates logically never knew them, and may have
	// the rows.
	numberUnused = "22023"
)
