// Package sales reads from the database what a sale in Redis is built from, and answers for
// sales that have ended.
package sales

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// Source provides the database's state of a sale to the inventory. It is separate from
// Service because the inventory is created before the Service.
type Source struct {
	Store *store.Store
	// Tasks are the task queues, one per partition.
	Tasks []order.Queued
	// Partition returns the partition of an item.
	Partition func(item string) int

	shared sharedScans
}

// Epoch is the number of the current build of all state in Redis.
func (s *Source) Epoch(ctx context.Context) (int64, error) { return s.Store.Epoch(ctx) }

// Sales reads items and calls each for every committed or queued order of theirs; see
// inventory.Source. An order that a worker has committed since the queue was read is in
// both, and counts once, by its id.
func (s *Source) Sales(ctx context.Context, items []string, queued map[string]inventory.Queued,
	each func(item string, h inventory.Holding) error, done func(item string, sale inventory.Sale) error,
) error {
	return s.Store.Loading(ctx, items, func(tx *gorm.DB) error {
		rows, err := readItems(tx, items)
		if err != nil {
			return err
		}
		next := 0 // the first item that is not done
		var pending map[string]inventory.Holding
		begin := func() {
			if pending == nil && next < len(items) {
				orders := queued[items[next]].Orders
				pending = make(map[string]inventory.Holding, len(orders))
				for i := range orders {
					pending[orders[i].OrderID] = orders[i]
				}
			}
		}
		end := func() error {
			begin()
			item := items[next]
			sale := saleOf(rows[item])
			sale.Sequence = max(sale.Sequence, queued[item].Sequence)
			for _, h := range pending {
				sale.Left -= h.Quantity
				if err := each(item, h); err != nil {
					return err
				}
			}
			sale.Left = max(sale.Left, 0)
			next, pending = next+1, nil
			return done(item, sale)
		}
		err = eachHolding(ctx, tx, items, func(i int, h inventory.Holding) error {
			for next < i {
				if err := end(); err != nil {
					return err
				}
			}
			begin()
			delete(pending, h.OrderID)
			return each(items[i], h)
		})
		for err == nil && next < len(items) {
			err = end()
		}
		return err
	})
}

// saleOf returns an item's sale after its committed orders.
func saleOf(row *schema.Item) inventory.Sale {
	return inventory.Sale{
		Left: row.Total - row.Sold, PerUserLimit: row.PerUserLimit,
		OpensAt: order.FromMillis(row.OpensAt), ClosesAt: order.FromMillis(row.ClosesAt),
		Control: row.Control, Version: row.Version, Sequence: row.Sequence,
	}
}

// readItems reads the rows of items. Errors: catalog.ErrItemNotFound if one is missing.
func readItems(tx *gorm.DB, ids []string) (map[string]*schema.Item, error) {
	var list []schema.Item
	if err := tx.Where("id IN (SELECT value FROM json_each(?))", database.JSONList(ids...)).Find(&list).Error; err != nil {
		return nil, database.Wrap("read items", err)
	}
	rows := make(map[string]*schema.Item, len(list))
	for i := range list {
		rows[list[i].ID] = &list[i]
	}
	for _, id := range ids {
		if rows[id] == nil {
			return nil, fmt.Errorf("item %s: %w", id, catalog.ErrItemNotFound)
		}
	}
	return rows, nil
}

// holdingsOfItem has no order, so that the database returns rows as it finds them: SQLite
// oldest first, by the index.
const holdingsOfItem = `SELECT id, user_id, idempotency_key, quantity, ` + store.OrdersHold + `
	FROM orders INDEXED BY orders_item WHERE item_id = ?1`

// eachHolding calls fn for every order of items, with the index of its item and the data
// that a sale records of it. It reads one item after the other. It passes rows on as the
// database returns them, because a sale of a million orders is loaded while buyers wait.
func eachHolding(ctx context.Context, tx *gorm.DB, items []string, fn func(i int, h inventory.Holding) error) error {
	var h inventory.Holding
	for i, item := range items {
		var refused error // by fn
		err := database.Each(ctx, tx.Statement.ConnPool, holdingsOfItem, []any{item}, func(rows *sql.Rows) error {
			if err := rows.Scan(&h.OrderID, &h.Buyer, &h.IdempotencyKey, &h.Quantity, &h.Counts); err != nil {
				return err
			}
			refused = fn(i, h)
			return refused
		})
		if refused != nil {
			return refused
		}
		if err != nil {
			return database.Wrap("read orders of items", err)
		}
	}
	return nil
}
