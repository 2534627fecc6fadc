package database

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"flashsale/order/store/postgres"
)

// txID identifies a write transaction on Postgres.
type txID struct {
	xid string
	// life identifies the time between two crashes or restarts of the server. A server that has
	// crashed may give a number again that had left no trace in its log.
	life string
}

// The statements with which a write transaction begins. The timeouts are set first: the columns of a row are
// evaluated in order. The server ends a transaction whose process has stopped, or has vanished from the
// network, and with it the locks for which all other processes wait. It does not end a
// statement: a batch that takes longer than allowed would begin again without end. The statements
// after the lock see what was committed while the transaction waited, whatever isolation level the
// database or the role has by default.
const (
	beginWrite = "BEGIN ISOLATION LEVEL READ COMMITTED"
	takeLock   = `SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true), set_config('statement_timeout', '0', true),
		pg_current_xact_id()::text, ` + postgres.ServerLife + `, pg_advisory_xact_lock%s($3) IS NULL`
)

var (
	takeSharedLock = fmt.Sprintf(takeLock, "_shared")
	takeSoleLock   = fmt.Sprintf(takeLock, "")
)

type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// beginLocked begins a write transaction, in one round trip once its statements are prepared: it takes the
// lock, and runs the statements that read queues.
func beginLocked(ctx context.Context, c beginner, share bool, read func(b *pgx.Batch)) (tx *sql.Tx, id txID, err error) {
	lock := takeSoleLock
	if share {
		lock = takeSharedLock
	}
	tx, err = c.BeginTx(postgres.WithBegin(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var b pgx.Batch
		b.Queue(beginWrite)
		b.Queue(lock, strconv.Itoa(lockTimeout), strconv.FormatInt(postgresTransaction.Milliseconds(), 10), postgres.WriteLock).QueryRow(func(row pgx.Row) error {
			var set [3]string
			var void bool
			return row.Scan(&set[0], &set[1], &set[2], &id.xid, &id.life, &void)
		})
		read(&b)
		return conn.SendBatch(ctx, &b).Close()
	}), nil)
	if err != nil {
		return nil, txID{}, fmt.Errorf("lock the database: %w", err)
	}
	return tx, id, nil
}

// Pipeline runs statements in one round trip, inside the transaction. It is for Postgres only.
func (tx *Tx) Pipeline(ctx context.Context, queue func(b *pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return tx.conn.Raw(func(driver any) error {
		conn, err := postgres.PGX(driver)
		if err != nil {
			return err
		}
		return conn.SendBatch(ctx, &b).Close()
	})
}
