package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"flashsale/order/store/database"
)

// transaction is what the members of a transaction share. It implements [database.Hooks].
type transaction struct {
	tx    *database.Tx
	store *Store
	box   *Outbox   // the events of all members; nil: none has opened it
	noted sync.Once // for the revisions, once it is committed

	// What a transaction on Postgres reads when it begins. No other one changes it meanwhile.
	wanted  string           // the events that webhook endpoints subscribe to, separated by spaces
	moved   bool             // the shop was moved, or this is an unfinished copy
	windows map[string]int64 // the payment windows of those items of a batch that exist, in seconds
}

func (s *Store) newTransaction(tx *database.Tx) database.Hooks { return &transaction{tx: tx, store: s} }

// transactionOf returns the transaction with its hooks.
func transactionOf(tx *database.Tx) *transaction { return tx.Hooks().(*transaction) }

const (
	readLocked = `SELECT EXISTS (SELECT 1 FROM meta WHERE key IN ('` + MarkMoved + `', '` + MarkUnfinished + `')),
		COALESCE((SELECT string_agg(events, ' ') FROM webhook_endpoints WHERE enabled = 1), '')`
	readWindows = `SELECT id, payment_window_seconds FROM items WHERE id = ANY ($1)`
	// writeProbe writes a row of which only the time is of interest.
	writeProbe = `INSERT INTO meta (key, value) VALUES ('write_probe', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value`
)

// preparedTexts are the statements that the writer keeps prepared.
var preparedTexts = slices.Concat([]string{
	sellUnits, selectOrder, selectKeyTaken,
	SelectPayment, CountPayments, insertPayment, correctPayment, payUnpaid, payUnpaidOf, insertPaymentsOf, RefundPaid, RefundAccepted, cancelConfirmed, expireDue, selectExpiries,
	unsellUnits, selectOrders, SelectReleasesOfOrders, DeleteReleases, NoteSequence, bumpRevisions,
	selectWanted, insertDeliveries,
}, insertConfirmed.Texts(), addToBuyers.Texts(), addAllowed.Texts(), insertRejected.Texts(), takeFromBuyers.Texts(), InsertReleases.Texts(), insertEvents.Texts(), insertAudit.Texts())

// Opening reads what the transaction has to know. The value of a batch is the list of its items.
func (t *transaction) Opening(b *pgx.Batch, first *database.Write) {
	b.Queue(readLocked).QueryRow(func(row pgx.Row) error { return row.Scan(&t.moved, &t.wanted) })
	items, _ := first.Value.([]string)
	if len(items) == 0 {
		return
	}
	t.windows = make(map[string]int64, len(items))
	b.Queue(readWindows, items).Query(func(rows pgx.Rows) error {
		var item string
		var window int64
		_, err := pgx.ForEachRow(rows, []any{&item, &window}, func() error {
			t.windows[item] = window
			return nil
		})
		return err
	})
}

// errMoved says that the shop was moved to another database while this process was running, or
// that this database is an unfinished copy.
var errMoved = errors.New("order: the shop was moved to another database, or its copy is not finished: stop this process")

// Begun refuses to write into a database that was left, or has lost commits. Errors: errMoved,
// ErrServerChanged, and database.ErrRunAgain for changes, which check themselves which sales are stopped.
func (t *transaction) Begun(ctx context.Context, batch bool) error {
	if t.moved {
		return errors.Join(errMoved, t.tx.End(false))
	}
	return t.compareServer(ctx, batch)
}

// Committing writes the revisions and the events of all members.
func (t *transaction) Committing(ctx context.Context) error {
	if t.box == nil {
		return nil
	}
	t.box.Now = t.store.now().UnixMilli()
	if err := t.box.raiseTouched(ctx, t.tx); err != nil {
		return err
	}
	return t.box.write(ctx, t.tx)
}

// Committed announces the events.
func (t *transaction) Committed() { t.store.Announce(t.box) }

// withOutbox runs fn with its own outbox, whose events move to the transaction's outbox once fn has
// succeeded.
func (t *transaction) withOutbox(ctx context.Context, fn func(box *Outbox) error) error {
	now := t.store.now().UnixMilli()
	if t.box == nil {
		box := &Outbox{Now: now}
		if err := t.readWanted(ctx, box); err != nil {
			return err
		}
		t.box = box
	}
	own := &Outbox{Now: now, wanted: t.box.wanted}
	if err := fn(own); err != nil {
		return err
	}
	t.box.add(own)
	return nil
}

// readWanted reads which events the endpoints subscribe to. Without endpoints, that query is the
// only cost of the outbox. A transaction on Postgres has read them when it began: an endpoint that
// it adds itself gets none of its events.
func (t *transaction) readWanted(ctx context.Context, box *Outbox) error {
	if t.tx.Postgres() {
		box.want(t.wanted)
		return nil
	}
	err := database.Each(ctx, t.tx, selectWanted, nil, func(rows *sql.Rows) error {
		var events string
		if err := rows.Scan(&events); err != nil {
			return err
		}
		box.want(events)
		return nil
	})
	if err != nil {
		return fmt.Errorf("find webhooks: %w", err)
	}
	return nil
}
