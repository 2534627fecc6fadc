package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/inventory"
)

// errSame says that a change leaves everything as it is.
var errSame = errors.New("order: nothing to change")

// edit is one change of an item's row.
type edit struct {
	action string
	by     By
	match  Match
	// apply writes the change into a copy of the row, or refuses it. It is called
	// with the row as it was read before the change, and again in the transaction.
	apply func(r *itemRow) error
	// look is asked in the transaction before anything else; nil: nothing is.
	look func(tx *gorm.DB) error
	// also adds what goes with the change; nil: nothing does.
	also func(tx *gorm.DB, r *itemRow) error
	// note is shown in the audit beside what has changed.
	note map[string]any
}

// on is the row after the change. Errors: ErrVersion, errSame, and the edit's own.
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

// item reads an item's row. Errors: catalog.ErrItemNotFound.
func (s *Store) item(ctx context.Context, id string) (itemRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return readItem(s.read.WithContext(ctx), id)
}

// changeItem makes a change of an item, with its entry in the audit. Every error
// that leaves no doubt that nothing was changed wraps inventory.ErrUnchanged.
// With errSame the row is returned as it is.
//
// If ctx ends before it has begun, nothing is changed: the item is not sold meanwhile.
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
		s.highWater.commit(map[string]int64{id: row.Revision})
		s.highWater.note(ctx)
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

// writeChange writes the row as it is next, and what goes with it.
func (s *Store) writeChange(ctx context.Context, tx *gorm.DB, e *edit, row, next *itemRow) error {
	now := s.now()
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

// facts are what the audit tells of an item, named as in the API.
func (r *itemRow) facts() map[string]any {
	return map[string]any{
		"name": r.Name, "description": r.Description, "price_minor": r.PriceMinor, "currency": r.Currency,
		"stock_total": r.Total, "per_user_limit": r.PerUserLimit,
		"opens_at": timeFact(r.OpensAt), "closes_at": timeFact(r.ClosesAt),
		"payment_window_seconds": r.PaymentWindowSeconds, "control": r.Control,
	}
}

// timeFact is a time as the API spells it, nil for none.
func timeFact(ms int64) any {
	if ms == 0 {
		return nil
	}
	return fromMillis(ms).Format("2006-01-02T15:04:05.000Z07:00")
}

// difference leaves of both what is not the same in the other.
func difference(was, is map[string]any) (before, after map[string]any) {
	before, after = make(map[string]any), make(map[string]any)
	for name := range was {
		if was[name] != is[name] {
			before[name], after[name] = was[name], is[name]
		}
	}
	return before, after
}

// limitSince is the highest limit per buyer that an item has had since a time,
// as far as it was changed after it; 0 where it was not.
const limitSince = `SELECT COALESCE(MAX(json_extract(before, '$.per_user_limit')), 0) FROM audit
	WHERE item_id = ?1 AND item_id <> '' AND action = '` + actionItemChange + `' AND at >= ?2`

// addToBuyer is addToBuyers for one buyer and a limit that the item no longer has.
const addToBuyer = `INSERT INTO buyers (item_id, user_id, quantity) VALUES (?1, ?2, ?3)
	ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = quantity + excluded.quantity
	WHERE quantity + excluded.quantity <= ?4`

// addUnderOldLimit counts an order that today's limit forbids, if the limit was
// higher when the order was accepted and has been lowered since. The sale in
// Redis has kept the limit then; the order keeps its promise. Errors: errUneven.
func addUnderOldLimit(ctx context.Context, c conn, t *task, accepted time.Time) error {
	var limit int64
	if err := c.QueryRowContext(ctx, limitSince, t.ItemID, toMillis(accepted)).Scan(&limit); err != nil {
		return fmt.Errorf("find an earlier limit: %w", err)
	}
	if t.Quantity > limit {
		return errUneven
	}
	n, err := changed(c.ExecContext(ctx, addToBuyer, t.ItemID, t.UserID, t.Quantity, limit))
	if err != nil {
		return fmt.Errorf("count buyer: %w", err)
	}
	if n != 1 {
		return errUneven
	}
	return nil
}
