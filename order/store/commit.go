package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/internal/faultpoint"
	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/store/postgres"
)

// errNotWhole says that a batch cannot be committed whole: an order exists already, or a
// condition refused one. Each order of the batch is then checked.
var errNotWhole = errors.New("order: an order of the batch exists or is refused")

// Commit inserts the rows of the tasks in one transaction. It first assumes that all are
// new and allowed, and the constraints of the database check that. If one fails, a second
// transaction excludes all other writes, checks each task, and commits those that are new and
// allowed. Both take a handful of statements for any number of tasks.
//
// It is not cancelled with ctx: the outcome of a transaction that was cut off is unknown.
// The database's lock timeout bounds it.
func (s *Store) Commit(ctx context.Context, tasks []order.Task) (out []order.Outcome, err error) {
	err = s.batch(ctx, false, tasks, func(ctx context.Context, tx *database.Tx, box *Outbox) (err error) {
		out, err = commitWhole(ctx, tx, tasks, box)
		return err
	})
	if errors.Is(err, errNotWhole) && !database.IsLost(err) {
		err = s.batch(ctx, true, tasks, func(ctx context.Context, tx *database.Tx, box *Outbox) (err error) {
			out, err = commitChecked(ctx, tx, tasks, box)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", plural.Count(len(tasks), "order"), err)
	}
	return out, nil
}

// batch runs fn in a batch of orders, for these tasks. On Postgres, batches of several processes run concurrently,
// unless one is sole.
func (s *Store) batch(ctx context.Context, sole bool, tasks []order.Task, fn func(ctx context.Context, tx *database.Tx, box *Outbox) error) error {
	_, err := s.Do(ctx, &database.Write{Batch: true, Sole: sole, Value: boughtItems(tasks), Run: func(ctx context.Context, tx *database.Tx) error {
		return transactionOf(tx).withOutbox(ctx, func(box *Outbox) error { return fn(ctx, tx, box) })
	}})
	return err
}

// buyerKey is the key of a row of buyers: a buyer of an item.
type buyerKey struct{ item, user string }

func (k buyerKey) compare(other buyerKey) int {
	return cmp.Or(cmp.Compare(k.item, other.item), cmp.Compare(k.user, other.user))
}

// commitWhole commits all tasks or none. Errors: errNotWhole.
func commitWhole(ctx context.Context, tx *database.Tx, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	for i := range tasks {
		if tasks[i].Quantity <= 0 {
			return nil, errNotWhole
		}
	}
	n := newOrdersOf(tasks)
	err := n.commit(ctx, tx, addToBuyers, box)
	if err == nil && n.exceeded() {
		err = errNotWhole
	}
	return n.outcomes, err
}

// newOrders are orders that a transaction inserts, and what they take from each buyer's limit and each item.
type newOrders struct {
	tasks    []order.Task
	perBuyer map[buyerKey]int64 // units
	perItem  map[string]soldUnits

	// Set by commit.
	outcomes []order.Outcome     // by task
	items    map[string]soldItem // by item
}

func newOrdersOf(tasks []order.Task) *newOrders {
	n := &newOrders{tasks: tasks, perBuyer: make(map[buyerKey]int64, len(tasks)), perItem: make(map[string]soldUnits, 4), outcomes: make([]order.Outcome, len(tasks))}
	for i := range tasks {
		t := &tasks[i]
		n.perBuyer[buyerKey{t.ItemID, t.UserID}] += t.Quantity
		n.perItem[t.ItemID] = n.perItem[t.ItemID].plus(t)
	}
	n.items = make(map[string]soldItem, len(n.perItem))
	return n
}

// commit counts the units, with the statement add for those of the buyers, inserts the rows of the
// orders, and adds the events. Errors: errNotWhole.
//
// On Postgres several workers run it concurrently. Each locks the rows of buyers, then of
// items, then of orders, and those of a table in one order, so that no two wait for each
// other. The items come late because all buyers of an item share its row.
func (n *newOrders) commit(ctx context.Context, tx *database.Tx, add *database.RowsStatement, box *Outbox) error {
	var err error
	if tx.Postgres() {
		err = n.insertPostgres(ctx, tx, add, box.Now)
	} else {
		err = n.insert(ctx, tx, add, box.Now)
	}
	if err != nil {
		return err
	}
	for id, item := range n.items {
		box.revised(id, item.Revision)
	}
	if err := box.tasks(ctx, tx, n.tasks, n.outcomes, n.items); err != nil {
		return err
	}
	faultpoint.Reach("order.committing")
	return nil
}

// orderRows returns the values of insertConfirmed, by the ids of the orders.
func orderRows(tasks []order.Task, out []order.Outcome) []any {
	args := make([]any, 0, len(tasks)*orderColumns)
	for _, i := range byID(tasks) {
		t := &tasks[i]
		args = append(args, t.ID, t.ItemID, t.UserID, t.Quantity, t.UnitPriceMinor, t.Currency,
			t.IdempotencyKey, t.CreatedAt, out[i].ConfirmedAt, out[i].ExpiresAt)
	}
	return args
}

// insert counts the units of the buyers and the items, and inserts the rows. Errors: errNotWhole.
func (n *newOrders) insert(ctx context.Context, c database.Conn, add *database.RowsStatement, now int64) error {
	written, err := add.Exec(ctx, c, buyerRows(n.perBuyer))
	if err != nil {
		return fmt.Errorf("count buyers: %w", err)
	}
	if err := n.checkBuyers(written); err != nil {
		return err
	}
	for _, item := range slices.Sorted(maps.Keys(n.perItem)) {
		if n.items[item], err = sell(ctx, c, item, n.perItem[item]); err != nil {
			return err
		}
	}
	for i := range n.tasks {
		n.outcomes[i] = confirmedOutcome(now, n.items[n.tasks[i].ItemID].PaymentWindowSeconds)
	}
	_, err = insertConfirmed.Exec(ctx, c, orderRows(n.tasks, n.outcomes))
	switch {
	case database.Duplicate(err):
		return errNotWhole
	case err != nil:
		return fmt.Errorf("insert orders: %w", err)
	}
	return nil
}

// insertPostgres is insert in one round trip.
func (n *newOrders) insertPostgres(ctx context.Context, tx *database.Tx, add *database.RowsStatement, now int64) error {
	windows := transactionOf(tx).windows
	for i := range n.tasks {
		window, known := windows[n.tasks[i].ItemID]
		if !known {
			return errNotWhole
		}
		n.outcomes[i] = confirmedOutcome(now, window)
	}
	// pgx takes an error of these functions for one of the statements, and forgets them.
	var notWhole error
	err := tx.Pipeline(ctx, func(b *pgx.Batch) {
		add.Queue(b, buyerRows(n.perBuyer)).Exec(func(tag pgconn.CommandTag) error {
			notWhole = n.checkBuyers(tag.RowsAffected())
			return nil
		})
		for _, item := range slices.Sorted(maps.Keys(n.perItem)) {
			sold := n.perItem[item]
			b.Queue(postgres.Translate(sellUnits), sold.quantity, item, sold.sequence).QueryRow(func(row pgx.Row) (err error) {
				if n.items[item], err = scanSoldItem(item, sold, row); errors.Is(err, errNotWhole) {
					notWhole, err = err, nil
				}
				return err
			})
		}
		insertConfirmed.Queue(b, orderRows(n.tasks, n.outcomes))
	})
	switch {
	case database.Duplicate(err):
		return errNotWhole
	case err != nil:
		return fmt.Errorf("count buyers and items, and insert orders: %w", err)
	}
	return notWhole
}

// checkBuyers checks the number of rows of buyers that were written. Errors: errNotWhole.
func (n *newOrders) checkBuyers(written int64) error {
	if written != int64(len(n.perBuyer)) {
		return errNotWhole
	}
	return nil
}

// exceeded reports whether a buyer gets more than the limit at once. A buyer's first row
// conflicts with no other, so the statement addToBuyers does not see that.
func (n *newOrders) exceeded() bool {
	for k, units := range n.perBuyer {
		if units > n.items[k.item].PerUserLimit {
			return true
		}
	}
	return false
}

// boughtItems returns the items of tasks.
func boughtItems(tasks []order.Task) (items []string) {
	for i := range tasks {
		if !slices.Contains(items, tasks[i].ItemID) {
			items = append(items, tasks[i].ItemID)
		}
	}
	return items
}

// byID returns the indexes of tasks in the order of their ids.
func byID(tasks []order.Task) []int {
	indexes := make([]int, len(tasks))
	for i := range indexes {
		indexes[i] = i
	}
	slices.SortFunc(indexes, func(a, b int) int { return cmp.Compare(tasks[a].ID, tasks[b].ID) })
	return indexes
}

// soldItem has the columns of an item's row, after a sale, that apply to the orders of that sale.
type soldItem struct {
	PerUserLimit         int64
	PaymentWindowSeconds int64
	Total                int64
	SoldOut              bool  // this sale took the last unit
	Revision             int64 // after this sale; see HighWater
}

// confirmedOutcome is the outcome of an order of an item with this payment window, in seconds.
func confirmedOutcome(now, window int64) order.Outcome {
	o := order.Outcome{Status: order.StatusConfirmed, ConfirmedAt: now}
	if window > 0 {
		o.ExpiresAt = now + window*1000
	}
	return o
}

// soldUnits is what a batch sells of one item.
type soldUnits struct {
	quantity int64
	sequence int64 // the highest of its tasks
}

func (s soldUnits) plus(t *order.Task) soldUnits {
	return soldUnits{s.quantity + t.Quantity, max(s.sequence, t.Sequence)}
}

// sell counts units as sold, if the total allows it (P1).
func sell(ctx context.Context, c database.Conn, item string, sold soldUnits) (soldItem, error) {
	return scanSoldItem(item, sold, c.QueryRowContext(ctx, sellUnits, sold.quantity, item, sold.sequence))
}

// scanSoldItem reads the row that sellUnits returns.
func scanSoldItem(item string, sold soldUnits, row interface{ Scan(dest ...any) error }) (soldItem, error) {
	var i soldItem
	err := row.Scan(&i.PerUserLimit, &i.PaymentWindowSeconds, &i.Total, &i.SoldOut, &i.Revision)
	if errors.Is(err, sql.ErrNoRows) {
		return soldItem{}, errNotWhole
	}
	if err != nil {
		return soldItem{}, fmt.Errorf("sell %d of %s: %w", sold.quantity, item, err)
	}
	return i, nil
}

// buyerRows returns the values of addToBuyers, addAllowed and takeFromBuyers, in the order in which every
// transaction locks the rows.
func buyerRows(held map[buyerKey]int64) []any {
	args := make([]any, 0, len(held)*buyerColumns)
	for _, k := range slices.SortedFunc(maps.Keys(held), buyerKey.compare) {
		args = append(args, k.item, k.user, held[k])
	}
	return args
}

// commitChecked commits tasks of which some may exist or be refused. An order that exists already
// is reported in its present state; an order that is refused is inserted as rejected, with the
// reason. No other transaction writes meanwhile, so what it reads stays true.
func commitChecked(ctx context.Context, tx *database.Tx, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	known, err := outcomes(ctx, tx, tasks)
	if err != nil {
		return nil, err
	}
	missing := make([]order.Task, 0, len(tasks))
	for i := range tasks {
		// Also for orders that had rows before: their commit may not be recorded yet.
		box.Touch(tasks[i].ItemID)
		if _, ok := known[tasks[i].ID]; !ok {
			known[tasks[i].ID] = order.Outcome{} // a task may be given twice
			missing = append(missing, tasks[i])
		}
	}
	allowed, refusals, err := checkEach(ctx, tx, missing)
	if err != nil {
		return nil, err
	}
	if len(allowed) > 0 {
		n := newOrdersOf(allowed)
		if err := n.commit(ctx, tx, addAllowed, box); err != nil {
			return nil, err
		}
		for i := range allowed {
			known[allowed[i].ID] = n.outcomes[i]
		}
	}
	args := make([]any, 0, len(refusals)*insertRejected.Columns())
	for i := range refusals {
		r := &refusals[i]
		o := order.Outcome{Status: order.StatusRejected, Reason: r.reason, ClosedAt: box.Now}
		known[r.task.ID] = o
		box.Task(r.task, o)
		args = append(args, rejectedRow(r.task, o, r.key)...)
	}
	if _, err := insertRejected.Exec(ctx, tx, args); err != nil {
		return nil, fmt.Errorf("insert rejected orders: %w", err)
	}
	out := make([]order.Outcome, len(tasks))
	for i := range tasks {
		out[i] = known[tasks[i].ID]
	}
	return out, nil
}

// outcomes reads the outcomes of the tasks that have rows, by their ids.
func outcomes(ctx context.Context, c database.Conn, tasks []order.Task) (map[string]order.Outcome, error) {
	found := make(map[string]order.Outcome)
	err := database.Each(ctx, c, selectOutcomes, []any{database.JSONList(order.TaskIDs(tasks)...)}, func(rows *sql.Rows) error {
		var id string
		var o order.Outcome
		if err := rows.Scan(&id, &o.Status, &o.Reason, &o.ConfirmedAt, &o.ExpiresAt, &o.ClosedAt); err != nil {
			return err
		}
		found[id] = o
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find orders: %w", err)
	}
	return found, nil
}

// InsertRejection inserts the row of a rejected order.
func InsertRejection(ctx context.Context, c database.Conn, t *order.Task, o order.Outcome) error {
	key := t.IdempotencyKey
	taken, err := keyTaken(ctx, c, t)
	if err != nil {
		return err
	}
	if taken {
		key = replacementKey(t)
	}
	if _, err = insertRejected.Exec(ctx, c, rejectedRow(t, o, key)); err != nil {
		return fmt.Errorf("insert order: %w", err)
	}
	return nil
}

// rejectedRow returns the values of insertRejected for one order.
func rejectedRow(t *order.Task, o order.Outcome, key string) []any {
	return []any{t.ID, t.ItemID, t.UserID, t.Quantity, t.UnitPriceMinor, t.Currency, o.Reason, key, t.CreatedAt, o.ClosedAt}
}

// keyTaken reports whether another order has the same idempotency key.
func keyTaken(ctx context.Context, c database.Conn, t *order.Task) (taken bool, err error) {
	if err := c.QueryRowContext(ctx, selectKeyTaken, t.UserID, t.ItemID, t.IdempotencyKey).Scan(&taken); err != nil {
		return false, fmt.Errorf("find key: %w", err)
	}
	return taken, nil
}

// replacementKey is the key stored for an order whose key another order has: it contains a
// space, which no client's key can contain.
func replacementKey(t *order.Task) string { return t.IdempotencyKey + " " + t.ID }
