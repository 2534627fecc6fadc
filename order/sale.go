package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/inventory"
)

// Sales gives the inventory the database's view of a sale. It is apart from
// Service because the inventory needs it before there is one.
type Sales struct {
	Store *Store
	// Tasks are the task queues, one per partition.
	Tasks []Tasks
	// Partition tells in which partition an item lives.
	Partition func(item string) int
}

// Epoch is the number of the present build of all state in Redis.
func (s *Sales) Epoch(ctx context.Context) (int64, error) { return s.Store.Epoch(ctx) }

// salePage is how many orders are read at a time.
const salePage = 1000

// Sale reads an item and calls each for every order of it, committed or still
// queued. The queue is read before the database: a task that a worker commits
// in between is then seen twice, and skipped by its id, but never missed.
func (s *Sales) Sale(ctx context.Context, item string, each func(inventory.Holding) error) (inventory.Sale, error) {
	pending, err := pendingTasks(ctx, s.Tasks[s.Partition(item)], item)
	if err != nil {
		return inventory.Sale{}, err
	}
	var sale inventory.Sale
	err = s.Store.snapshot(ctx, func(tx *gorm.DB) error {
		row, err := readItem(tx, item)
		if err != nil {
			return err
		}
		if err := eachOrder(ctx, tx, item, func(h inventory.Holding) error {
			delete(pending, h.OrderID)
			return each(h)
		}); err != nil {
			return err
		}
		left, sequence := row.Total-row.Sold, row.Sequence
		for _, t := range pending {
			left -= t.Quantity
			sequence = max(sequence, t.Sequence)
			h := inventory.Holding{Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey, OrderID: t.ID, Quantity: t.Quantity, Counts: true}
			if err := each(h); err != nil {
				return err
			}
		}
		sale = inventory.Sale{
			Left: max(left, 0), PerUserLimit: row.PerUserLimit,
			OpensAt: fromMillis(row.OpensAt), ClosesAt: fromMillis(row.ClosesAt),
			Control: row.Control, Version: row.Version, Sequence: sequence,
		}
		return nil
	})
	return sale, err
}

// pendingTasks reads the item's orders that are in the queue, dead letters
// included: their units stay taken until someone decides about them.
func pendingTasks(ctx context.Context, q Tasks, item string) (map[string]task, error) {
	pending := make(map[string]task)
	err := q.Scan(ctx, func(id string, payload []byte) error {
		if strings.HasPrefix(id, expiryPrefix) {
			return nil
		}
		t, err := parseTask(id, payload)
		if err == nil && t.ItemID == item {
			pending[id] = t
		}
		return nil // a task that cannot be read holds nothing of any item
	})
	if err != nil {
		return nil, fmt.Errorf("read queued orders: %w: %w", inventory.ErrUnavailable, err)
	}
	return pending, nil
}

// snapshot runs fn on one consistent view of the database.
func (s *Store) snapshot(ctx context.Context, fn func(tx *gorm.DB) error) error {
	return s.read.WithContext(ctx).Transaction(fn)
}

func readItem(tx *gorm.DB, id string) (itemRow, error) {
	var rows []itemRow
	if err := tx.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return itemRow{}, wrap("read item "+id, err)
	}
	if len(rows) == 0 {
		return itemRow{}, catalog.ErrItemNotFound
	}
	return rows[0], nil
}

// eachOrder calls fn for every order of an item, oldest first, with what a sale
// must remember of it. It reads them one after the other, as the database finds
// them: a sale of a million orders is loaded while buyers wait.
func eachOrder(ctx context.Context, tx *gorm.DB, item string, fn func(inventory.Holding) error) (err error) {
	rows, err := tx.Statement.ConnPool.QueryContext(ctx, holdingsOfItem, item)
	if err != nil {
		return wrap("read orders of "+item, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var h inventory.Holding
		if err := rows.Scan(&h.OrderID, &h.Buyer, &h.IdempotencyKey, &h.Quantity, &h.Counts); err != nil {
			return wrap("read orders of "+item, err)
		}
		if err := fn(h); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return wrap("read orders of "+item, err)
	}
	return nil
}

// Ledger reads the conservation equation of an item from Redis and the
// database. The item's lock is held meanwhile, so that no purchase falls
// between the two looks: an order leaves the queue only after its commit, and
// the queue is read first. Errors: catalog.ErrItemNotFound.
func (s *Service) Ledger(ctx context.Context, item string) (Ledger, error) {
	if _, err := s.Items.Item(ctx, item); err != nil {
		return Ledger{}, err
	}
	var l Ledger
	err := s.Stock.Frozen(ctx, item, func(ctx context.Context, _ int64) error {
		pending, err := pendingTasks(ctx, s.Tasks[s.Stock.Partition(item)], item)
		if err != nil {
			return err
		}
		left, tx, err := s.leftNow(ctx, item)
		if err != nil {
			return err
		}
		l, err = ledgerOf(tx, item, left, pending)
		return errors.Join(err, undo(tx))
	})
	if errors.Is(err, inventory.ErrEnded) {
		return s.endedLedger(ctx, item)
	}
	return l, err
}

// endedLedger is the ledger of a sale that has ended and is not loaded: its units are
// those of the database and of the queue.
func (s *Service) endedLedger(ctx context.Context, item string) (l Ledger, err error) {
	pending, err := pendingTasks(ctx, s.Tasks[s.Stock.Partition(item)], item)
	if err != nil {
		return Ledger{}, err
	}
	err = s.Store.snapshot(ctx, func(tx *gorm.DB) error {
		row, err := readItem(tx, item)
		if err != nil {
			return err
		}
		if l, err = ledgerOf(tx, item, row.Total-row.Sold, pending); err != nil {
			return err
		}
		committed, err := committedOf(tx, item, pending)
		if err != nil {
			return err
		}
		for id, t := range pending {
			if _, ok := committed[id]; !ok {
				l.Left -= t.Quantity
			}
		}
		return nil
	})
	return l, err
}

// lookTries bounds the looks at an item of which units come back all the time.
const lookTries = 100

// leftNow reads the units left, and returns a transaction that sees the database
// as at that instant; the caller ends it.
//
// The units of a closed order come back without the item's lock, which the
// caller holds. It looks again until none came back between two reads of what is
// left, with the database's state taken between them, and all that was closed in
// that state is back. Then no unit is on its way, and none is seen twice.
func (s *Service) leftNow(ctx context.Context, item string) (left int64, tx *gorm.DB, err error) {
	for range lookTries {
		left, tx, err = s.look(ctx, item)
		if err != nil || tx != nil {
			return left, tx, err
		}
	}
	return 0, nil, fmt.Errorf("units of %s keep coming back: %w", item, inventory.ErrUnavailable)
}

// look is one try of leftNow; without a transaction it was in vain.
func (s *Service) look(ctx context.Context, item string) (int64, *gorm.DB, error) {
	given, err := s.Returns.giveAll(ctx, item)
	if err != nil {
		return 0, nil, err
	}
	before, err := s.left(ctx, item)
	if err != nil {
		return 0, nil, err
	}
	tx, err := s.Store.beginRead(ctx, item)
	if err != nil {
		return 0, nil, err
	}
	owed, err := readReturns(ctx, tx.Statement.ConnPool, returnsOfItem, item)
	if err != nil {
		return 0, nil, errors.Join(wrap("look at item "+item, err), undo(tx))
	}
	after, err := s.left(ctx, item)
	if err != nil {
		return 0, nil, errors.Join(err, undo(tx))
	}
	for i := range owed {
		if !given[owed[i].orderID] {
			return 0, nil, undo(tx)
		}
	}
	if before != after {
		return 0, nil, undo(tx)
	}
	return after, tx, nil
}

// left reads the units left of a sale that is loaded.
func (s *Service) left(ctx context.Context, item string) (int64, error) {
	units, err := s.Stock.Left(ctx, []string{item})
	if err != nil {
		return 0, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	if units[0] < 0 {
		return 0, fmt.Errorf("sale of %s: %w", item, inventory.ErrRebuilding)
	}
	return units[0], nil
}

// beginRead begins a transaction that sees the database as it is now, which is
// as at its first read. The caller ends it with undo.
func (s *Store) beginRead(ctx context.Context, item string) (*gorm.DB, error) {
	tx := s.read.WithContext(ctx).Begin()
	if tx.Error != nil {
		return nil, wrap("begin to read", tx.Error)
	}
	if _, err := readItem(tx, item); err != nil {
		return nil, errors.Join(err, undo(tx))
	}
	return tx, nil
}

// undo ends a transaction that has only read.
func undo(tx *gorm.DB) error {
	if err := tx.Rollback().Error; err != nil && !errors.Is(err, sql.ErrTxDone) { // ctx's end has undone it already
		return fmt.Errorf("end reading: %w", err)
	}
	return nil
}

func ledgerOf(tx *gorm.DB, item string, left int64, pending map[string]task) (Ledger, error) {
	row, err := readItem(tx, item)
	if err != nil {
		return Ledger{}, err
	}
	l := Ledger{Initial: row.Initial, Restocked: row.Total - row.Initial, Left: left}
	if l.Held, l.Sold, err = unitsOf(tx, item); err != nil {
		return Ledger{}, err
	}
	committed, err := committedOf(tx, item, pending)
	if err != nil {
		return Ledger{}, err
	}
	for id, t := range pending {
		if _, ok := committed[id]; !ok {
			l.Held += t.Quantity
		}
	}
	return l, nil
}

// unitsOf sums the units that an item's orders hold: those of which payment is
// awaited, and those that are sold.
func unitsOf(tx *gorm.DB, item string) (held, sold int64, err error) {
	var sums []struct {
		Unpaid bool
		Units  int64
	}
	err = tx.Model(&orderRow{}).Where("item_id = ? AND "+ordersHold, item).
		Select("status = 'confirmed' AND expires_at > 0 AS unpaid, SUM(quantity) AS units").
		Group("unpaid").Find(&sums).Error
	if err != nil {
		return 0, 0, wrap("sum orders of "+item, err)
	}
	for _, g := range sums {
		if g.Unpaid {
			held += g.Units
		} else {
			sold += g.Units
		}
	}
	return held, sold, nil
}

// committedOf reads of those of the queued orders that have a row already whether
// they hold their units.
func committedOf(tx *gorm.DB, item string, pending map[string]task) (map[string]bool, error) {
	committed := make(map[string]bool)
	ids := make([]string, 0, len(pending))
	for id := range pending {
		ids = append(ids, id)
	}
	for from := 0; from < len(ids); from += salePage {
		page := ids[from:min(from+salePage, len(ids))]
		var rows []orderRow
		if err := tx.Select("id", "status", "restocked").Where("id IN ?", page).Find(&rows).Error; err != nil {
			return nil, wrap("look for queued orders of "+item, err)
		}
		for i := range rows {
			committed[rows[i].ID] = rows[i].holds()
		}
	}
	return committed, nil
}
