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
	"github.com/mattn/go-sqlite3"

	"flashsale/internal/faultpoint"
	"flashsale/order"
)

// errUneven says that a batch cannot be committed whole: an order exists already, or a
// condition refused one. Each order of the batch is then checked.
var errUneven = errors.New("order: an order of the batch exists or is refused")

// Commit inserts the rows of the tasks in one transaction. It first assumes that all are
// new and allowed, and the constraints of the database check that. If one fails, a second
// transaction excludes all other writes, checks each task, and commits those that are new and
// allowed. Both take a handful of statements for any number of tasks.
//
// It is not cancelled with ctx: the outcome of a transaction that was cut off is unknown.
// The database's lock timeout bounds it.
func (s *Store) Commit(ctx context.Context, tasks []order.Task) (out []order.Outcome, err error) {
	commit := func(sole bool, fn func(ctx context.Context, g *group, box *Outbox) error) error {
		return s.batchWriter.batch(ctx, sole, boughtItems(tasks), func(ctx context.Context, g *group) error {
			return g.withOutbox(ctx, func(box *Outbox) error { return fn(ctx, g, box) })
		})
	}
	err = commit(false, func(ctx context.Context, g *group, box *Outbox) (err error) {
		out, err = commitWhole(ctx, g, tasks, box)
		return err
	})
	if errors.Is(err, errUneven) && !isLost(err) {
		err = commit(true, func(ctx context.Context, g *group, box *Outbox) (err error) {
			out, err = commitUneven(ctx, g, tasks, box)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("commit %d orders: %w", len(tasks), err)
	}
	return out, nil
}

// buyerKey is the key of a row of buyers: a buyer of an item.
type buyerKey struct{ item, user string }

func (k buyerKey) compare(other buyerKey) int {
	return cmp.Or(cmp.Compare(k.item, other.item), cmp.Compare(k.user, other.user))
}

// commitWhole commits all tasks or none. Errors: errUneven.
func commitWhole(ctx context.Context, c Conn, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	for i := range tasks {
		if tasks[i].Quantity <= 0 {
			return nil, errUneven
		}
	}
	n := newOrdersOf(tasks)
	err := n.commit(ctx, c, addToBuyers, box)
	if err == nil && n.exceeded() {
		err = errUneven
	}
	return n.out, err
}

// newOrders are orders that a transaction inserts, and what they take.
type newOrders struct {
	tasks []order.Task
	held  map[buyerKey]int64 // units by buyer
	units map[string]sum     // by item

	// Set by commit.
	out []order.Outcome  // by task
	of  map[string]terms // by item
}

func newOrdersOf(tasks []order.Task) *newOrders {
	n := &newOrders{tasks: tasks, held: make(map[buyerKey]int64, len(tasks)), units: make(map[string]sum, 4), out: make([]order.Outcome, len(tasks))}
	for i := range tasks {
		t := &tasks[i]
		n.held[buyerKey{t.ItemID, t.UserID}] += t.Quantity
		n.units[t.ItemID] = n.units[t.ItemID].plus(t)
	}
	n.of = make(map[string]terms, len(n.units))
	return n
}

// commit counts the units, with the statement add for those of the buyers, inserts the rows of the
// orders, and adds the events. Errors: errUneven.
//
// On Postgres several workers run it concurrently. Each locks the rows of buyers, then of
// items, then of orders, and those of a table in one order, so that no two wait for each
// other. The items come late because all buyers of an item share its row.
func (n *newOrders) commit(ctx context.Context, c Conn, add *rowsStatement, box *Outbox) error {
	var err error
	if g, ok := c.(*group); ok && g.store.Postgres() {
		err = n.insertPostgres(ctx, g, add, box.Now)
	} else {
		err = n.insert(ctx, c, add, box.Now)
	}
	if err != nil {
		return err
	}
	for item, got := range n.of {
		box.revised(item, got.Revision)
	}
	if err := box.tasks(ctx, c, n.tasks, n.out, n.of); err != nil {
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

// insert counts the units of the buyers and the items, and inserts the rows. Errors: errUneven.
func (n *newOrders) insert(ctx context.Context, c Conn, add *rowsStatement, now int64) error {
	written, err := add.Exec(ctx, c, buyerRows(n.held))
	if err != nil {
		return fmt.Errorf("count buyers: %w", err)
	}
	if err := n.counted(written); err != nil {
		return err
	}
	for _, item := range slices.Sorted(maps.Keys(n.units)) {
		if n.of[item], err = sell(ctx, c, item, n.units[item]); err != nil {
			return err
		}
	}
	for i := range n.tasks {
		n.out[i] = confirmed(now, n.of[n.tasks[i].ItemID].PaymentWindowSeconds)
	}
	_, err = insertConfirmed.Exec(ctx, c, orderRows(n.tasks, n.out))
	switch {
	case existed(err):
		return errUneven
	case err != nil:
		return fmt.Errorf("insert orders: %w", err)
	}
	return nil
}

// insertPostgres is insert in one round trip.
func (n *newOrders) insertPostgres(ctx context.Context, g *group, add *rowsStatement, now int64) error {
	for i := range n.tasks {
		window, known := g.open.windows[n.tasks[i].ItemID]
		if !known {
			return errUneven
		}
		n.out[i] = confirmed(now, window)
	}
	// pgx takes an error of these functions for one of the statements, and forgets them.
	var uneven error
	err := g.pipeline(ctx, func(b *pgx.Batch) {
		b.Queue(add.postgres, add.arrays(buyerRows(n.held))...).Exec(func(tag pgconn.CommandTag) error {
			uneven = n.counted(tag.RowsAffected())
			return nil
		})
		for _, item := range slices.Sorted(maps.Keys(n.units)) {
			units := n.units[item]
			b.Queue(translate(sellUnits), units.units, item, units.sequence).QueryRow(func(row pgx.Row) (err error) {
				if n.of[item], err = sold(item, units, row); errors.Is(err, errUneven) {
					uneven, err = err, nil
				}
				return err
			})
		}
		b.Queue(insertConfirmed.postgres, insertConfirmed.arrays(orderRows(n.tasks, n.out))...)
	})
	switch {
	case existed(err):
		return errUneven
	case err != nil:
		return fmt.Errorf("count buyers and items, and insert orders: %w", err)
	}
	return uneven
}

// counted checks the number of rows of buyers that were written. Errors: errUneven.
func (n *newOrders) counted(written int64) error {
	if written != int64(len(n.held)) {
		return errUneven
	}
	return nil
}

// exceeded reports whether a buyer gets more than the limit at once. A buyer's first row
// conflicts with no other, so the statement addToBuyers does not see that.
func (n *newOrders) exceeded() bool {
	for k, units := range n.held {
		if units > n.of[k.item].PerUserLimit {
			return true
		}
	}
	return false
}

// existed reports whether an insert failed because a row with the same key exists.
func existed(err error) bool {
	var pe *pgconn.PgError
	var se sqlite3.Error
	return errors.As(err, &pe) && pe.Code == uniqueViolation ||
		errors.As(err, &se) && (se.ExtendedCode == sqlite3.ErrConstraintUnique || se.ExtendedCode == sqlite3.ErrConstraintPrimaryKey)
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

// terms are the columns of an item's row that apply to its orders.
type terms struct {
	PerUserLimit         int64
	PaymentWindowSeconds int64
	Total                int64
	SoldOut              bool  // this sale took the last unit
	Revision             int64 // after this sale; see HighWater
}

// confirmed is the outcome of an order of an item with this payment window, in seconds.
func confirmed(now, window int64) order.Outcome {
	o := order.Outcome{Status: order.StatusConfirmed, ConfirmedAt: now}
	if window > 0 {
		o.ExpiresAt = now + window*1000
	}
	return o
}

// sum is what a batch takes from one item.
type sum struct {
	units    int64
	sequence int64 // the highest of its tasks
}

func (s sum) plus(t *order.Task) sum { return sum{s.units + t.Quantity, max(s.sequence, t.Sequence)} }

// sell counts n units as sold, if the total allows it (P1).
func sell(ctx context.Context, c Conn, item string, n sum) (terms, error) {
	return sold(item, n, c.QueryRowContext(ctx, sellUnits, n.units, item, n.sequence))
}

// sold reads the row that sellUnits returns.
func sold(item string, n sum, row interface{ Scan(dest ...any) error }) (terms, error) {
	var t terms
	err := row.Scan(&t.PerUserLimit, &t.PaymentWindowSeconds, &t.Total, &t.SoldOut, &t.Revision)
	if errors.Is(err, sql.ErrNoRows) {
		return terms{}, errUneven
	}
	if err != nil {
		return terms{}, fmt.Errorf("sell %d of %s: %w", n.units, item, err)
	}
	return t, nil
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

// commitUneven commits tasks of which some exist or are refused. An order that exists already
// is reported in its present state; an order that is refused is inserted as rejected, with the
// reason. No other transaction writes meanwhile, so what it reads stays true.
func commitUneven(ctx context.Context, g *group, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	known, err := outcomes(ctx, g, tasks)
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
	allowed, refusals, err := checkEach(ctx, g, missing)
	if err != nil {
		return nil, err
	}
	if len(allowed) > 0 {
		n := newOrdersOf(allowed)
		if err := n.commit(ctx, g, addAllowed, box); err != nil {
			return nil, err
		}
		for i := range allowed {
			known[allowed[i].ID] = n.out[i]
		}
	}
	args := make([]any, 0, len(refusals)*insertRejected.columns)
	for i := range refusals {
		r := &refusals[i]
		o := order.Outcome{Status: order.StatusRejected, Reason: r.reason, ClosedAt: box.Now}
		known[r.task.ID] = o
		box.Task(r.task, o)
		args = append(args, rejectedRow(r.task, o, r.key)...)
	}
	if _, err := insertRejected.Exec(ctx, g, args); err != nil {
		return nil, fmt.Errorf("insert rejected orders: %w", err)
	}
	out := make([]order.Outcome, len(tasks))
	for i := range tasks {
		out[i] = known[tasks[i].ID]
	}
	return out, nil
}

// outcomes reads the outcomes of the tasks that have rows, by their ids.
func outcomes(ctx context.Context, c Conn, tasks []order.Task) (map[string]order.Outcome, error) {
	found := make(map[string]order.Outcome)
	err := Each(ctx, c, selectOutcomes, []any{JSONList(order.TaskIDs(tasks)...)}, func(rows *sql.Rows) error {
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
func InsertRejection(ctx context.Context, c Conn, t *order.Task, o order.Outcome) error {
	key := t.IdempotencyKey
	taken, err := keyTaken(ctx, c, t)
	if err != nil {
		return err
	}
	if taken {
		key = keptApart(t)
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
func keyTaken(ctx context.Context, c Conn, t *order.Task) (taken bool, err error) {
	if err := c.QueryRowContext(ctx, selectKeyTaken, t.UserID, t.ItemID, t.IdempotencyKey).Scan(&taken); err != nil {
		return false, fmt.Errorf("find key: %w", err)
	}
	return taken, nil
}

// keptApart is the key stored for an order whose key another order has: it contains a
// space, which no client's key can contain.
func keptApart(t *order.Task) string { return t.IdempotencyKey + " " + t.ID }
