package admission

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/order/store"
	"flashsale/order/store/postgres"
)

// probeLimit bounds a check of Postgres, because a server that does not answer gives no
// error. It is shorter than the limit of /readyz.
const probeLimit = (probeWait + 200) * time.Millisecond

// postgresTarget is a database on Postgres.
type postgresTarget struct{ connection }

func newPostgresTarget(s *store.Store) (target, error) {
	c, err := newConnection(postgres.Open(s.URL(), 1))
	return &postgresTarget{c}, err
}

// committed is always false: the server's counters do not tell commits that were synced to
// the disk from reads, and from those of its other databases. A write costs little there.
func (*postgresTarget) committed(context.Context) (bool, error) { return false, nil }

// write makes the write in a transaction without the lock of the store's writes: only its own
// row can make it wait. It tries once more if the server has closed a connection that was open
// before: it may have restarted.
func (t *postgresTarget) write(ctx context.Context, value string) error {
	// It ends even if the caller has gone: a check that its caller cancelled has no result.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeLimit)
	defer cancel()
	fresh, err := t.open(ctx)
	if err != nil {
		return err
	}
	if err = t.transact(ctx, value); err == nil || fresh || !disconnected(err) {
		return err
	}
	t.release()
	if _, err := t.open(ctx); err != nil {
		return err
	}
	return t.transact(ctx, value)
}

// probeLimits bounds the transaction. Every process writes the same row: one that stops before
// its COMMIT must not make the checks of the others fail.
const probeLimits = `SELECT set_config('lock_timeout', ?1, true), set_config('statement_timeout', ?1, true),
	set_config('idle_in_transaction_session_timeout', ?1, true)`

func (t *postgresTarget) transact(ctx context.Context, value string) error {
	tx, err := t.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it fails after a commit, and a connection that is lost has rolled back
	if _, err := tx.ExecContext(ctx, probeLimits, strconv.Itoa(probeWait)); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, writeTime, value); err != nil {
		return err
	}
	return tx.Commit()
}

// Codes of the errors of Postgres, and the class of those by which it ends connections; see
// its documentation, appendix A.
const (
	lockNotAvailable  = "55P03"
	queryCanceled     = "57014" // by statement_timeout
	serverEnds        = "57P"   // it shuts down, has crashed, or cannot accept connections yet
	deadlockDetected  = "40P01"
	serializationFail = "40001"
)

// busy reports whether the write had to wait too long. Everything else is a state that refuses
// orders, too: a full disk, a read-only server, too many connections, a server that is down.
func (*postgresTarget) busy(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		switch pe.Code {
		case lockNotAvailable, queryCanceled, deadlockDetected, serializationFail:
			return true
		}
		return false
	}
	return errors.Is(err, context.DeadlineExceeded)
}

// disconnected reports whether an error ended its connection.
func disconnected(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return strings.HasPrefix(pe.Code, serverEnds)
	}
	return !errors.Is(err, context.DeadlineExceeded)
}
