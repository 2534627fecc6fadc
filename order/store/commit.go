package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"flashsale/internal/bucket"
	"flashsale/internal/faultpoint"
	"flashsale/order"
)

// errUneven says that a batch cannot be committed whole: an order exists already, or a
// condition refused one. The batch is then committed in parts.
var errUneven = errors.New("order: batch must be committed in parts")

// Commit inserts the rows of the tasks in one transaction. It first assumes that all are
// new and allowed, which takes a handful of statements for any number of tasks, and the
// constraints of the database check that. If one fails, the tasks are committed in parts with
// the same statements.
//
// It is not cancelled with ctx: the outcome of a transaction that was cut off is unknown.
// The database's lock timeout bounds it.
func (s *Store) Commit(ctx context.Context, tasks []order.Task) (out []order.Outcome, err error) {
	commit := func(sole bool, fn func(ctx context.Context, g *group, box *Outbox) error) error {
		return s.writer.batch(ctx, sole, boughtItems(tasks), func(ctx context.Context, g *group) error {
			return g.telling(ctx, func(box *Outbox) error { return fn(ctx, g, box) })
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

type soldKey struct{ item, user string }

func (k soldKey) compare(other soldKey) int {
	return cmp.Or(cmp.Compare(k.item, other.item), cmp.Compare(k.user, other.user))
}

// commitWhole commits all tasks or none. Errors: errUneven.
//
// On Postgres several workers run it concurrently. Each locks the rows of buyers, then of
// items, then of orders, and those of a table in one order, so that no two wait for each
// other. The items come late because all buyers of an item share its row.
func commitWhole(ctx context.Context, c Conn, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	units := make(map[string]sum, 4)
	held := make(map[soldKey]int64, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		if t.Quantity <= 0 {
			return nil, errUneven
		}
		units[t.ItemID] = units[t.ItemID].plus(t)
		held[soldKey{t.ItemID, t.UserID}] += t.Quantity
	}
	of, out, err := takeAndInsert(ctx, c, tasks, held, units, box.Now)
	if err != nil {
		return nil, err
	}
	if exceeded(held, of) {
		return nil, errUneven
	}
	for item, got := range of {
		box.revised(item, got.Revision)
	}
	if err := box.tasks(ctx, c, tasks, out, of); err != nil {
		return nil, err
	}
	faultpoint.Reach("order.committing")
	return out, nil
}

// insertTasks inserts the rows of confirmed orders. Errors: errUneven if one exists, by its id
// or its key.
func insertTasks(ctx context.Context, c Conn, tasks []order.Task, out []order.Outcome) error {
	written, err := insertConfirmed.Exec(ctx, c, orderRows(tasks, out))
	if err != nil {
		return fmt.Errorf("insert orders: %w", err)
	}
	if written != int64(len(tasks)) {
		return errUneven
	}
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

// takeAndInsert counts what each buyer holds and what each item has sold, and inserts the rows
// of the orders. Errors: errUneven.
func takeAndInsert(ctx context.Context, c Conn, tasks []order.Task, held map[soldKey]int64, units map[string]sum, now int64) (of map[string]terms, out []order.Outcome, err error) {
	out = make([]order.Outcome, len(tasks))
	items := slices.Sorted(maps.Keys(units))
	if g, ok := c.(*group); ok && g.store.Postgres() {
		for i := range tasks {
			window, known := g.open.windows[tasks[i].ItemID]
			if !known {
				return nil, nil, errUneven
			}
			out[i] = confirmed(now, window)
		}
		of, err = g.takeAndInsert(ctx, tasks, out, held, items, units)
		return of, out, err
	}
	if err := addHolders(ctx, c, held); err != nil {
		return nil, nil, err
	}
	of = make(map[string]terms, len(units))
	for _, item := range items {
		if of[item], err = sell(ctx, c, item, units[item]); err != nil {
			return nil, nil, err
		}
	}
	for i := range tasks {
		out[i] = confirmed(now, of[tasks[i].ItemID].PaymentWindowSeconds)
	}
	return of, out, insertTasks(ctx, c, tasks, out)
}

// takeAndInsert does so in one round trip.
func (g *group) takeAndInsert(ctx context.Context, tasks []order.Task, out []order.Outcome, held map[soldKey]int64, items []string, units map[string]sum) (map[string]terms, error) {
	of := make(map[string]terms, len(items))
	// pgx takes an error of these functions for one of the statements, and forgets them.
	var uneven error
	err := g.pipeline(ctx, func(b *pgx.Batch) {
		b.Queue(addToBuyers.postgres, addToBuyers.arrays(holders(held))...).Exec(func(tag pgconn.CommandTag) error {
			uneven = counted(tag.RowsAffected(), held)
			return nil
		})
		for _, item := range items {
			n := units[item]
			b.Queue(translate(sellUnits), n.units, item, n.sequence).QueryRow(func(row pgx.Row) (err error) {
				if of[item], err = sold(item, n, row); errors.Is(err, errUneven) {
					uneven, err = err, nil
				}
				return err
			})
		}
		b.Queue(insertNew.postgres, insertNew.arrays(orderRows(tasks, out))...)
	})
	switch {
	case existed(err):
		return nil, errUneven
	case err != nil:
		return nil, fmt.Errorf("count buyers and items, and insert orders: %w", err)
	}
	return of, uneven
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

// addHolders counts what each buyer holds, if the limit allows it (P5). It does not check the
// quantity of a buyer's first row; see exceeded.
func addHolders(ctx context.Context, c Conn, held map[soldKey]int64) error {
	written, err := addToBuyers.Exec(ctx, c, holders(held))
	if err != nil {
		return fmt.Errorf("count buyers: %w", err)
	}
	return counted(written, held)
}

// holders returns the values of addToBuyers, in the order in which every transaction locks the
// rows.
func holders(held map[soldKey]int64) []any {
	args := make([]any, 0, len(held)*buyerColumns)
	for _, k := range slices.SortedFunc(maps.Keys(held), soldKey.compare) {
		args = append(args, k.item, k.user, held[k])
	}
	return args
}

// counted checks the number of rows that addToBuyers has written. Errors: errUneven.
func counted(written int64, held map[soldKey]int64) error {
	if written != int64(len(held)) {
		return errUneven
	}
	return nil
}

// exceeded reports whether a buyer gets more than the limit at once. A buyer's first row
// conflicts with no other, so the statement of addHolders does not see that.
func exceeded(held map[soldKey]int64, of map[string]terms) bool {
	for k, n := range held {
		if n > of[k.item].PerUserLimit {
			return true
		}
	}
	return false
}

// commitUneven commits tasks of which some exist or are refused. An order that exists already
// is reported in its present state; an order that a condition refuses is inserted as rejected,
// with the reason.
func commitUneven(ctx context.Context, g *group, tasks []order.Task, box *Outbox) ([]order.Outcome, error) {
	existing, err := outcomes(ctx, g, tasks)
	if err != nil {
		return nil, err
	}
	out := make([]order.Outcome, len(tasks))
	missing, places := make([]order.Task, 0, len(tasks)), make([]int, 0, len(tasks))
	for i := range tasks {
		// Also for orders that had rows before: their commit may not be recorded yet.
		box.Touch(tasks[i].ItemID)
		if o, ok := existing[tasks[i].ID]; ok {
			out[i] = o
			continue
		}
		missing, places = append(missing, tasks[i]), append(places, i)
	}
	whole := func(part []order.Task) (done []order.Outcome, err error) {
		err = g.savepoint(func() (err error) {
			done, err = commitWhole(ctx, g, part, box)
			return err
		})
		return done, err
	}
	one := func(t *order.Task) (order.Outcome, error) {
		o, err := commitOne(ctx, g, t, box)
		if err != nil {
			return o, fmt.Errorf("order %s: %w", t.ID, err)
		}
		return o, nil
	}
	done, err := inParts(missing, len(existing) == 0, whole, one)
	if err != nil {
		return nil, err
	}
	for n, i := range places {
		out[i] = done[n]
	}
	return out, nil
}

// onePart is the largest part that is committed one by one if it cannot be committed whole.
const onePart = 4

// inParts commits tasks by halving them until a half can be committed whole: one order that is
// refused then costs a few statements for each halving, instead of a few for each other order.
// uneven says that the tasks are known not to be committable whole.
func inParts(tasks []order.Task, uneven bool, whole func([]order.Task) ([]order.Outcome, error), one func(*order.Task) (order.Outcome, error)) ([]order.Outcome, error) {
	if !uneven && len(tasks) > 1 {
		out, err := whole(tasks)
		if err == nil || isLost(err) || !errors.Is(err, errUneven) {
			return out, err
		}
	}
	if len(tasks) <= onePart {
		out := make([]order.Outcome, len(tasks))
		for i := range tasks {
			var err error
			if out[i], err = one(&tasks[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	half := len(tasks) / 2
	first, err := inParts(tasks[:half], false, whole, one)
	if err != nil {
		return nil, err
	}
	second, err := inParts(tasks[half:], false, whole, one)
	return append(first, second...), err
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

func commitOne(ctx context.Context, g *group, t *order.Task, box *Outbox) (order.Outcome, error) {
	o, err := ReadOrder(ctx, g, t.ID)
	if err == nil { // a redelivery: it was committed before
		return order.Outcome{Status: o.Status, Reason: o.Reason, ConfirmedAt: order.ToMillis(o.ConfirmedAt), ExpiresAt: order.ToMillis(o.ExpiresAt), ClosedAt: order.ToMillis(o.ClosedAt)}, nil
	}
	if !errors.Is(err, order.ErrNotFound) {
		return order.Outcome{}, err
	}
	var got terms
	var out order.Outcome
	var refusal refused
	// The savepoint undoes only the statements of the refused order.
	err = g.savepoint(func() (err error) {
		if got, err = claim(ctx, g, t); err != nil {
			return err
		}
		out = confirmed(box.Now, got.PaymentWindowSeconds)
		return insertTasks(ctx, g, []order.Task{*t}, []order.Outcome{out})
	})
	switch {
	case err == nil:
		box.Task(t, out)
		box.revised(t.ItemID, got.Revision)
		if got.SoldOut {
			err = box.soldOut(ctx, g, bucket.Item(t.ItemID))
		}
		return out, err
	case !isLost(err) && errors.As(err, &refusal):
		out = order.Outcome{Status: order.StatusRejected, Reason: string(refusal), ClosedAt: box.Now}
		box.Task(t, out)
		return out, InsertRejection(ctx, g, t, out)
	default:
		return order.Outcome{}, err
	}
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
	_, err = c.ExecContext(ctx, insertRejected, t.ID, t.ItemID, t.UserID, t.Quantity, t.UnitPriceMinor, t.Currency,
		o.Reason, key, t.CreatedAt, o.ClosedAt)
	if err != nil {
		return fmt.Errorf("insert order: %w", err)
	}
	return nil
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

// refused is the reason for which a condition refuses one order.
type refused string

func (r refused) Error() string { return "order: refused: " + string(r) }

// claim counts one order against the item's total and its buyer's limit. Errors: refused.
func claim(ctx context.Context, c Conn, t *order.Task) (terms, error) {
	taken, err := keyTaken(ctx, c, t)
	if err != nil {
		return terms{}, err
	}
	if taken {
		return terms{}, refused(order.ReasonDuplicate)
	}
	got, err := sell(ctx, c, t.ItemID, sum{}.plus(t))
	if errors.Is(err, errUneven) {
		var known bool
		if err := c.QueryRowContext(ctx, selectItemKnown, t.ItemID).Scan(&known); err != nil {
			return terms{}, fmt.Errorf("find item: %w", err)
		}
		if !known {
			return terms{}, refused(order.ReasonNoItem)
		}
		return terms{}, refused(order.ReasonSoldOut)
	}
	if err != nil {
		return terms{}, err
	}
	err = errUneven
	if t.Quantity <= got.PerUserLimit {
		err = addHolders(ctx, c, map[soldKey]int64{{t.ItemID, t.UserID}: t.Quantity})
	}
	if errors.Is(err, errUneven) {
		err = addUnderOldLimit(ctx, c, t, order.FromMillis(t.CreatedAt))
	}
	if errors.Is(err, errUneven) {
		return terms{}, refused(order.ReasonUserLimit)
	}
	return got, err
}

// limitSince is the highest limit per buyer that the item has had since a time, if it was
// changed after that time; otherwise 0.
const limitSince = `SELECT COALESCE(MAX(CAST(json_extract(before, '$.per_user_limit') AS BIGINT)), 0) FROM audit
	WHERE item_id = ?1 AND item_id <> '' AND action = '` + order.ActionItemChange + `' AND at >= ?2`

// addToBuyer is addToBuyers for one buyer and an earlier limit of the item.
const addToBuyer = `INSERT INTO buyers (item_id, user_id, quantity) VALUES (?1, ?2, ?3)
	ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = buyers.quantity + excluded.quantity
	WHERE buyers.quantity + excluded.quantity <= ?4`

// addUnderOldLimit counts an order that exceeds the present limit, if the limit was higher
// when the order was accepted. The sale in Redis enforced the limit of that time, and an
// accepted order is kept. Errors: errUneven.
func addUnderOldLimit(ctx context.Context, c Conn, t *order.Task, accepted time.Time) error {
	var limit int64
	if err := c.QueryRowContext(ctx, limitSince, t.ItemID, order.ToMillis(accepted)).Scan(&limit); err != nil {
		return fmt.Errorf("find an earlier limit: %w", err)
	}
	if t.Quantity > limit {
		return errUneven
	}
	n, err := Changed(c.ExecContext(ctx, addToBuyer, t.ItemID, t.UserID, t.Quantity, limit))
	if err != nil {
		return fmt.Errorf("count buyer: %w", err)
	}
	if n != 1 {
		return errUneven
	}
	return nil
}
