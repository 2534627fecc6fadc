package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"flashsale/internal/pause"
)

// patience is how a change of the schema in Postgres waits for transactions that use the same
// tables. A change of a table needs it exclusively, and while it waits, all later statements on
// the table wait behind it, purchases too. So it waits briefly, gives up, and tries again later.
type patience struct {
	wait  time.Duration // for a table; in this time, no other process can use it
	pause time.Duration // after a wait in vain
	tries int
}

// standard gives up after ten minutes. The wait is longer than deadlock_timeout, 1 s by default,
// after which Postgres cancels an autovacuum of the table.
var standard = patience{wait: 2 * time.Second, pause: 8 * time.Second, tries: 60}

// oneProcess makes processes that migrate the same database wait for each other: they try
// every second, for an hour.
func oneProcess(p *patience) ([]goose.ProviderOption, error) {
	const seconds, tries = 1, 3600
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(seconds, tries))
	if err != nil {
		return nil, err
	}
	return []goose.ProviderOption{goose.WithSessionLocker(brief{locker, p})}, nil
}

// brief is a session lock that bounds the session's waits for tables while it is held.
type brief struct {
	lock.SessionLocker
	patience *patience
}

// SessionLock takes the lock, and sets lock_timeout.
func (b brief) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if err := b.SessionLocker.SessionLock(ctx, conn); err != nil {
		return err
	}
	_, err := conn.ExecContext(ctx, fmt.Sprintf("SET lock_timeout = %d", b.patience.wait.Milliseconds()))
	if err != nil {
		return errors.Join(err, b.SessionLocker.SessionUnlock(context.WithoutCancel(ctx), conn))
	}
	return nil
}

// SessionUnlock restores lock_timeout, and releases the lock.
func (b brief) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "RESET lock_timeout")
	return errors.Join(err, b.SessionLocker.SessionUnlock(ctx, conn))
}

// whenFree repeats fn while another transaction uses a table that it changes.
func whenFree(ctx context.Context, m *Migrator, fn func() error) error {
	for try := 1; ; try++ {
		err := fn()
		if !inUse(err) {
			return err
		}
		if try == m.patience.tries {
			return fmt.Errorf("%w: %w", ErrInUse, err)
		}
		if m.Waiting != nil {
			m.Waiting()
		}
		if cause := pause.OrCause(ctx, m.patience.pause); cause != nil {
			return errors.Join(cause, err)
		}
	}
}

// inUse reports whether Postgres has ended a wait for a lock.
func inUse(err error) bool {
	const lockNotAvailable = "55P03"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == lockNotAvailable
}
