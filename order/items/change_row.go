package items

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// errSame says that a change leaves every field as it is.
var errSame = errors.New("order: nothing to change")

// edit is one change of an item's row.
type edit struct {
	action string // for the audit; empty: no entry
	by     order.By
	match  order.Match
	// apply writes the change into a copy of the row, or refuses it. It runs once on the
	// row as read before the change, and again in the transaction.
	apply func(r *schema.Item) error
	// before runs first in the transaction; nil: nothing.
	before func(tx *gorm.DB) error
	// also writes what belongs to the change; nil: nothing.
	also func(tx *gorm.DB, r *schema.Item) error
	// note is added to the audit entry.
	note map[string]any

	samePrice bool // set by on: the change leaves the price as it is
}

// on returns the row after the change. Errors: ErrVersion, errSame, and the edit's own.
func (e *edit) on(row schema.Item) (schema.Item, error) {
	if !allows(e.match, row.Version-row.Moves) {
		return row, order.ErrVersion
	}
	next := row
	if err := e.apply(&next); err != nil {
		return row, err
	}
	if next == row {
		return row, errSame
	}
	e.samePrice = next.PriceMinor == row.PriceMinor
	return next, nil
}

// changeItem makes a change of an item, with its audit entry. The caller calls HighWater.Note. An error wraps
// inventory.ErrUnchanged if it is certain that nothing was changed. With errSame the row is
// returned as it is.
//
// If ctx ends before the change has begun, nothing is changed: the item is not sold
// meanwhile.
func changeItem(ctx context.Context, s *store.Store, id string, e *edit) (schema.Item, error) {
	var row schema.Item
	committing := false
	err := s.ChangeWithGORM(ctx, "change item "+id, func(tx *gorm.DB, _ int64) error {
		committing = false
		if e.before != nil {
			if err := e.before(tx); err != nil {
				return err
			}
		}
		var err error
		row, err = changeRow(ctx, s, tx, id, e)
		committing = err == nil
		return err
	})
	switch {
	case err == nil:
		s.HighWater().Committed(map[string]int64{id: row.Revision})
		return row, nil
	case committing:
		return schema.Item{}, err
	}
	return row, fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
}

// changeRow makes a change of an item in a transaction. It returns the row after it, or with an
// error as it is.
func changeRow(ctx context.Context, s *store.Store, tx *gorm.DB, id string, e *edit) (schema.Item, error) {
	row, err := store.ReadItem(tx, id)
	if err != nil {
		return row, err
	}
	next, err := e.on(row)
	if err != nil {
		return row, err
	}
	err = writeChange(ctx, s, tx, e, &row, &next)
	return next, err
}

// changeable are the columns that a change may write.
var changeable = []string{
	"name", "description", "image_url", "price_minor", "total", "per_user_limit", "opens_at", "closes_at",
	"payment_window_seconds", "control", "version", "updated_at", "freed", "moves",
}

// writeChange writes the new row, its audit entry if it has one, and what belongs to the change.
func writeChange(ctx context.Context, s *store.Store, tx *gorm.DB, e *edit, row, next *schema.Item) error {
	now := s.Now()
	next.Version, next.UpdatedAt, next.Freed = row.Version+1, order.ToMillis(now), false
	res := tx.Model(&schema.Item{}).Where("id = ? AND version = ?", row.ID, row.Version).Select(changeable).Updates(next)
	if res.Error != nil {
		return res.Error
	}
	if res.RowsAffected != 1 {
		return order.ErrVersion
	}
	err := database.One(ctx, tx.Statement.ConnPool, store.BumpRevision, []any{row.ID}, func(rows *sql.Rows) error {
		return rows.Scan(&next.Revision)
	})
	if err != nil {
		return err
	}
	if e.also != nil {
		if err := e.also(tx, next); err != nil {
			return err
		}
	}
	if e.action == "" {
		return nil
	}
	before, after := difference(row.Facts(), next.Facts())
	for name, value := range e.note {
		after[name] = value
	}
	return store.WriteAudit(ctx, tx.Statement.ConnPool, &store.AuditRow{
		At: order.ToMillis(now), Actor: e.by.Actor, Action: e.action, ItemID: row.ID,
		Before: store.FactsJSON(before), After: store.FactsJSON(after), RequestID: e.by.RequestID,
	})
}

// difference returns the fields that differ, with both values.
func difference(was, is map[string]any) (before, after map[string]any) {
	before, after = make(map[string]any), make(map[string]any)
	for name := range was {
		if was[name] != is[name] {
			before[name], after[name] = was[name], is[name]
		}
	}
	return before, after
}
