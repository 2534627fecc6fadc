package postgres

import (
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Codes and classes of the errors of Postgres; see its documentation, appendix A.
const (
	classConnection      = "08"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	uniqueViolation      = "23505"
	// NumberUnused is the error of pg_xact_status for a number that no transaction has had yet. A
	// crash, or a failover to a standby that lagged, forgets the numbers of transactions that had
	// left no trace in the log. A server that replicates logically never knew them, and may have
	// the rows.
	NumberUnused = "22023"
)

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

// Transient reports whether an error of Postgres comes from the server's present state, and not
// from the rows sent; known reports whether it is an error of Postgres.
func Transient(err error) (transient, known bool) {
	var unreachable *pgconn.ConnectError
	if errors.As(err, &unreachable) || errors.Is(err, ErrWarned) {
		return true, true
	}
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false, false
	}
	class := pe.Code[:min(2, len(pe.Code))]
	return slices.Contains(transientClasses, class) || slices.Contains(transientCodes, pe.Code), true
}

// RetryNow reports whether an error has a cause that a repeated transaction may not meet: a
// concurrent transaction, or a lost connection.
func RetryNow(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case serializationFailure, deadlockDetected, adminShutdown, crashShutdown:
			return true
		}
		return strings.HasPrefix(pe.Code, classConnection)
	}
	var operation *net.OpError
	return pgconn.SafeToRetry(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &operation)
}

// Duplicate reports whether a statement failed because a row with the same key exists.
func Duplicate(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == uniqueViolation
}
