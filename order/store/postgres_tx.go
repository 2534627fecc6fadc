package store

import (
	"context"
	"database/sql"
	"errors"
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

// opening is what a write transaction does when it begins, in one round trip once its statements
// are prepared: it takes the lock, and reads what it has to know.
type opening struct {
	share bool     // the lock is shared with batches and payments
	items []string // of a batch of orders

	txID   txID
	wanted string // the events that webhook endpoints subscribe to, separated by spaces
	moved  bool   // the shop was moved, or this is an unfinished copy
	// windows are the payment windows of those of the items that exist, in seconds. No transaction
	// changes them while this one holds the lock.
	windows map[string]int64
}

// The statements of an opening. The timeouts are set first: the columns of a row are evaluated
// in order. The server ends a transaction whose process has stopped, or has vanished from the
// network, and with it the locks for which all other processes wait. It does not end a
// statement: a batch that takes longer than allowed would begin again without end. The statements
// after the lock see what was committed while the transaction waited, whatever isolation level the
// database or the role has by default.
const (
	beginWrite = "BEGIN ISOLATION LEVEL READ COMMITTED"
	takeLock   = `SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true), set_config('statement_timeout', '0', true),
		pg_current_xact_id()::text, ` + postgres.ServerLife + `, pg_advisory_xact_lock%s($3) IS NULL`
	readLocked = `SELECT EXISTS (SELECT 1 FROM meta WHERE key IN ('` + MarkMoved + `', '` + MarkUnfinished + `')),
		COALESCE((SELECT string_agg(events, ' ') FROM webhook_endpoints WHERE enabled = 1), '')`
	readWindows = `SELECT id, payment_window_seconds FROM items WHERE id = ANY ($1)`
)

var (
	takeSharedLock = fmt.Sprintf(takeLock, "_shared")
	takeSoleLock   = fmt.Sprintf(takeLock, "")
)

// beginLocked begins a write transaction; items are those of a batch of orders. Errors: errMoved.
func beginLocked(ctx context.Context, c beginner, share bool, items ...string) (*sql.Tx, *opening, error) {
	o := &opening{share: share, items: items}
	tx, err := c.BeginTx(postgres.WithBegin(ctx, o.run), nil)
	if err != nil {
		return nil, nil, fmt.Errorf("lock the database: %w", err)
	}
	if o.moved {
		return nil, nil, errors.Join(errMoved, tx.Rollback())
	}
	return tx, o, nil
}

type beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// errMoved says that the shop was moved to another database while this process was running, or
// that this database is an unfinished copy.
var errMoved = errors.New("order: the shop was moved to another database, or its copy is not finished: stop this process")

// run begins the transaction.
func (o *opening) run(ctx context.Context, conn *pgx.Conn) error {
	text := takeSoleLock
	if o.share {
		text = takeSharedLock
	}
	var b pgx.Batch
	b.Queue(beginWrite)
	b.Queue(text, strconv.Itoa(lockTimeout), strconv.FormatInt(postgresTransaction.Milliseconds(), 10), WriteLock).QueryRow(func(row pgx.Row) error {
		var set [3]string
		var void bool
		return row.Scan(&set[0], &set[1], &set[2], &o.txID.xid, &o.txID.life, &void)
	})
	b.Queue(readLocked).QueryRow(func(row pgx.Row) error { return row.Scan(&o.moved, &o.wanted) })
	if len(o.items) > 0 {
		o.windows = make(map[string]int64, len(o.items))
		b.Queue(readWindows, o.items).Query(func(rows pgx.Rows) error {
			var item string
			var window int64
			_, err := pgx.ForEachRow(rows, []any{&item, &window}, func() error {
				o.windows[item] = window
				return nil
			})
			return err
		})
	}
	return conn.SendBatch(ctx, &b).Close()
}

// pipeline runs statements in one round trip, inside the transaction.
func (g *group) pipeline(ctx context.Context, queue func(b *pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return g.conn.Raw(func(driver any) error {
		conn, err := postgres.PGX(driver)
		if err != nil {
			return err
		}
		return conn.SendBatch(ctx, &b).Close()
	})
}
