package database

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/internal/pause"
	"flashsale/order/store/postgres"
	"flashsale/order/timeouts"
)

// replication is what a process knows about the synchronous standbys of a Postgres server. A
// commit is visible before a standby has it if the server crashes while the commit waits for the
// standby, or if an operator cancels the wait. It could be lost in a failover.
type replication struct {
	life atomic.Pointer[string] // the txID.life of the last server that a connection was made to
	// doubt is raised when what this process reads from now on may be missing on a standby.
	// settled is the doubt up to which the standbys have everything.
	doubt, settled atomic.Int64
	asking         chan struct{} // has a slot for the one that asks
}

// noteServer records on which server this process reads or writes. A standby may lack rows that its
// primary has recovered after a crash.
func (db *DB) noteServer(life string) {
	if known := db.life.Load(); known == nil || *known != life {
		db.life.Store(&life)
		db.doubt.Add(1)
	}
}

// Replicated returns nil if all that this process has read from the database is on the
// synchronous standbys. If that is in doubt, it waits until it is. Call it before rows are passed
// to a client. It costs nothing on SQLite, without a standby, and as long as no server restarts
// and every commit is answered. Errors: ErrUnavailable.
func (db *DB) Replicated(ctx context.Context) error {
	if db.doubt.Load() == db.settled.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	select {
	case db.asking <- struct{}{}:
		defer func() { <-db.asking }()
	case <-ctx.Done():
		return Wrap("wait for a synchronous standby", context.Cause(ctx))
	}
	doubt := db.doubt.Load()
	if doubt == db.settled.Load() {
		return nil
	}
	err := commitLater(ctx, db)
	if err != nil && postgres.RetryNow(err) {
		err = commitLater(ctx, db) // the connection was that of the server before its restart
	}
	if err != nil {
		return Wrap("wait for a synchronous standby", err)
	}
	db.settled.Store(doubt)
	return nil
}

// commitLater returns once the synchronous standbys, if there are any, have every earlier commit:
// it commits something itself and waits.
func commitLater(ctx context.Context, db *DB) error {
	pool, err := db.write.DB()
	if err != nil {
		return err
	}
	var standbys string
	if err := pool.QueryRowContext(ctx, "SELECT current_setting('synchronous_standby_names')").Scan(&standbys); err != nil || standbys == "" {
		return err
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	err = conn.Raw(func(driver any) error {
		return postgres.Exec(ctx, driver, db.cfg.Probe, strconv.FormatInt(time.Now().UnixMilli(), 10))
	})
	return errors.Join(err, conn.Close())
}

// errRolledBack says that a transaction was rolled back although its commit was requested:
// nothing was changed.
var errRolledBack = errors.New("order: the transaction was rolled back")

// errUnknown says that a transaction may have been committed.
var errUnknown = errors.New("order: the outcome of the transaction is unknown")

// errOtherLife says that the server has crashed or restarted since the transaction began, so that
// its number may be that of another one by now.
var errOtherLife = errors.New("order: the server has restarted since")

// committed returns nil if a transaction was committed, although its COMMIT failed, for example
// because the connection was lost. It asks the server, until it answers or the time is over.
// Errors: errRolledBack; any other says that the outcome is unknown.
func committed(db *DB, id txID, cause error) error {
	if id.xid == "" {
		return fmt.Errorf("%w: %w", errRolledBack, cause) // it had not begun to write
	}
	db.doubt.Add(1)
	// It outlives the change, whose callers wait for the answer.
	ctx, cancel := context.WithTimeout(context.Background(), outcomeWait) //nolint:forbidigo // see above
	defer cancel()
	for {
		status, life, err := transactionStatus(ctx, db, id.xid)
		var pe *pgconn.PgError
		switch {
		case err == nil && status == "aborted":
			return fmt.Errorf("%w: %w", errRolledBack, cause)
		case err == nil && status != "" && life != id.life, errors.As(err, &pe) && pe.Code == postgres.NumberUnused:
			return fmt.Errorf("%w: %w", errUnknown, errors.Join(cause, errOtherLife))
		case err == nil && status == "committed":
			if err = db.Replicated(ctx); err == nil {
				return nil
			}
		}
		if !pause.For(ctx, outcomePause) {
			return fmt.Errorf("%w: %w", errUnknown, errors.Join(cause, err))
		}
	}
}

const (
	// outcomeWait is how long the outcome of a transaction is looked up, and outcomePause
	// the time between two attempts. A server that crashed recovers in this time, unless
	// its log is very long.
	outcomeWait  = 10 * time.Second
	outcomePause = 50 * time.Millisecond
)

// transactionStatus returns what the server knows about a transaction: "committed", "aborted" or "in
// progress". It returns "" for one that is too old, and on a standby, which may not have it yet. If
// the number is still unused, the error's code is postgres.NumberUnused.
func transactionStatus(ctx context.Context, db *DB, xid string) (status, life string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	pool, err := db.write.DB()
	if err != nil {
		return "", "", err
	}
	const text = `SELECT CASE WHEN pg_is_in_recovery() THEN '' ELSE COALESCE(pg_xact_status($1::text::xid8), '') END, ` + postgres.ServerLife
	err = pool.QueryRowContext(ctx, text, xid).Scan(&status, &life)
	return status, life, err
}

// ServerLife identifies the time between two crashes or restarts of the server of Postgres that the
// writers use at present. Errors: ErrUnavailable.
func (db *DB) ServerLife(ctx context.Context) (string, error) {
	_, life, err := transactionStatus(ctx, db, firstXID)
	if err != nil {
		return "", Wrap("identify the server", err)
	}
	return life, nil
}

// firstXID is the number of a transaction that every server knows.
const firstXID = "3"
