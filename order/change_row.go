package order

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/inventory"
)

// errSame says that a change leaves every field as it is.
var errSame = errors.New("order: nothing to change")

// edit is one change of an item's row.
type edit struct {
	action string
	by     By
	match  Match
	// apply writes the change into a copy of the row, or refuses it. It runs once on the
	// row as read before the change, and again in the transaction.
	apply func(r *itemRow) error
	// look runs first in the transaction; nil: nothing.
	look func(tx *gorm.DB) error
	// also writes what belongs to the change; nil: nothing.
	also func(tx *gorm.DB, r *itemRow) error
	// note is added to the audit entry.
	note map[string]any
}

// on returns the row after the change. Errors: ErrVersion, errSame, and the edit's own.
func (e *edit) on(row itemRow) (itemRow, error) {
	if !e.match.allows(row.Version) {
		return row, ErrVersion
	}
	next := row
	if err := e.apply(&next); err != nil {
		return row, err
	}
	if next == row {
		return row, errSame
	}
	return next, nil
}

// changeItem makes a change of an item, with its audit entry. An error wraps
// inventory.ErrUnchanged if it is certain that nothing was changed. With errSame the row is
// returned as it is.
//
// If ctx ends before the change has begun, nothing is changed: the item is not sold
// meanwhile.
func (s *Store) changeItem(ctx context.Context, id string, e *edit) (itemRow, error) {
	var row itemRow
	committing := false
	err := s.changing(ctx, "change item "+id, func(tx *gorm.DB, _ int64) error {
		committing = false
		if e.look != nil {
			if err := e.look(tx); err != nil {
				return err
			}
		}
		var err error
		if row, err = readItem(tx, id); err != nil {
			return err
		}
		next, err := e.on(row)
		if err != nil {
			return err
		}
		if err := s.writeChange(ctx, tx, e, &row, &next); err != nil {
			return err
		}
		row, committing = next, true
		return nil
	})
	switch {
	case err == nil:
		s.HighWater().commit(map[string]int64{id: row.Revision})
		s.HighWater().note(ctx)
		return row, nil
	case committing:
		return itemRow{}, err
	}
	return row, fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
}

// changeable are the columns that a change may write.
var changeable = []string{
	"name", "description", "price_minor", "total", "per_user_limit", "opens_at", "closes_at",
	"payment_window_seconds", "control", "version", "updated_at", "freed",
}

// writeChange writes the new row, its audit entry, and what belongs to the change.
func (s *Store) writeChange(ctx context.Context, tx *gorm.DB, e *edit, row, next *itemRow) error {
	now := s.Now()
	next.Version, next.UpdatedAt, next.Freed = row.Version+1, toMillis(now), false
	res := tx.Model(&itemRow{}).Where("id = ? AND version = ?", row.ID, row.Version).Select(changeable).Updates(next)
	if res.Error != nil {
		return res.Error
	}
	if res.RowsAffected != 1 {
		return ErrVersion
	}
	if err := tx.Raw(bumpRevision, row.ID).Scan(&next.Revision).Error; err != nil {
		return err
	}
	if e.also != nil {
		if err := e.also(tx, next); err != nil {
			return err
		}
	}
	before, after := difference(row.facts(), next.facts())
	for name, value := range e.note {
		after[name] = value
	}
	return writeAudit(ctx, tx.Statement.ConnPool, &auditRow{
		At: toMillis(now), Actor: e.by.Actor, Action: e.action, ItemID: row.ID,
		Before: factsJSON(before), After: factsJSON(after), RequestID: e.by.RequestID,
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
