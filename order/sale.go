package order

import (
	"context"
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
