package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/order/store/postgres"
	"flashsale/order/store/sqlite"
)

// ErrUnavailable means that the database cannot answer at present: it is locked by another
// process, full, or failing. Nothing was changed; retry shortly.
var ErrUnavailable = errors.New("order: database unavailable")

// Wrap adds the operation that failed, and wraps ErrUnavailable if the cause is the database's
// present state.
func Wrap(operation string, err error) error {
	if Transient(err) && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w: %w", operation, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// Transient reports whether an error comes from the database's present state (busy, full,
// unreachable) and not from the rows sent. Such a batch must be retried whole, and not
// split.
func Transient(err error) bool {
	var refused *refusedError
	if errors.As(err, &refused) || errors.Is(err, errRolledBack) || errors.Is(err, errUnknown) {
		return true // whatever the cause
	}
	if transient, known := postgres.Transient(err); known {
		return transient
	}
	if transient, known := sqlite.Transient(err); known {
		return transient
	}
	var network net.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrQueueFull) ||
		errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || pgconn.SafeToRetry(err)
}

// Duplicate reports whether an insert failed because a row with the same key exists.
func Duplicate(err error) bool { return postgres.Duplicate(err) || sqlite.Duplicate(err) }
