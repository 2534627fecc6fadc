package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/order"
	"flashsale/order/store/postgres"
	"flashsale/order/store/sqlite"
)

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
	for _, outcome := range []error{ErrServerChanged, errRolledBack, errUnknown, errMoved} {
		if errors.Is(err, outcome) {
			return true // whatever Redis or the server answered
		}
	}
	if transient, known := postgres.Transient(err); known {
		return transient
	}
	if transient, known := sqlite.Transient(err); known {
		return transient
	}
	var network net.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errQueueFull) ||
		errors.Is(err, sql.ErrConnDone) || errors.Is(err, sql.ErrTxDone) || errors.Is(err, driver.ErrBadConn) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network) || pgconn.SafeToRetry(err)
}
