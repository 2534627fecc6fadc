package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/mattn/go-sqlite3"
)

func TestTransient(t *testing.T) {
	t.Parallel()
	code := func(c sqlite3.ErrNo) error { return fmt.Errorf("commit: %w", sqlite3.Error{Code: c}) }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{code(sqlite3.ErrBusy), true},
		{code(sqlite3.ErrLocked), true},
		{code(sqlite3.ErrFull), true},
		{code(sqlite3.ErrIoErr), true},
		{code(sqlite3.ErrReadonly), true},
		{code(sqlite3.ErrCantOpen), true},
		{code(sqlite3.ErrNomem), true},
		{code(sqlite3.ErrInterrupt), true},
		{code(sqlite3.ErrConstraint), false},
		{code(sqlite3.ErrMismatch), false},
		{code(sqlite3.ErrTooBig), false},
		{code(sqlite3.ErrError), false},
		{context.Canceled, true},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), true},
		{sql.ErrConnDone, true},
		{sql.ErrTxDone, true},
		{errTest, false},
		{fmt.Errorf("x: %w", &refusedError{errTest}), true},
		{sql.ErrNoRows, false},
		// A broken connection proves nothing about the rows.
		{io.EOF, true},
		{driver.ErrBadConn, true},
		{&net.OpError{Op: "read", Err: errors.New("reset")}, true},
	} {
		if got := Transient(c.err); got != c.want {
			t.Errorf("%v: transient %v, want %v", c.err, got, c.want)
		}
	}
}

// TestTransient_Postgres: a failed connection is never the fault of the rows.
func TestTransient_Postgres(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"no connection":       {&pgconn.ConnectError{}, true},
		"rolled back":         {fmt.Errorf("%w: %w", errRolledBack, errTest), true},
		"unknown outcome":     {fmt.Errorf("%w: %w", errUnknown, errTest), true},
		"server shuts down":   {&pgconn.PgError{Code: "57P01"}, true},
		"lock timeout":        {&pgconn.PgError{Code: "55P03"}, true},
		"disk full":           {&pgconn.PgError{Code: "53100"}, true},
		"read-only":           {&pgconn.PgError{Code: "25006"}, true},
		"no permission":       {&pgconn.PgError{Code: "42501"}, true},
		"statement of a pool": {&pgconn.PgError{Code: "42P05"}, true},
		"check":               {&pgconn.PgError{Code: "23514"}, false},
		"NUL in a text":       {&pgconn.PgError{Code: "22021"}, false},
		"no such column":      {&pgconn.PgError{Code: "42703"}, false},
	} {
		if got := Transient(c.err); got != c.want {
			t.Errorf("%s: transient %t, want %t", name, got, c.want)
		}
	}
}
