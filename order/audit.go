package order

import (
	"context"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// auditRow is a row of the table audit.
type auditRow struct {
	ID        int64 `gorm:"primaryKey"`
	At        int64
	Actor     string
	Action    string
	ItemID    string
	OrderID   string
	Before    string
	After     string
	RequestID string
}

// TableName returns the name of the table to gorm.
func (auditRow) TableName() string { return "audit" }

const insertAudit = `INSERT INTO audit (at, actor, action, item_id, order_id, before, after, request_id)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)`

// writeAudit adds an entry in the transaction of the change that it records. So every
// committed change has its entry, and a change that is rolled back has none.
func writeAudit(ctx context.Context, c conn, r *auditRow) error {
	_, err := c.ExecContext(ctx, insertAudit, r.At, r.Actor, r.Action, r.ItemID, r.OrderID, r.Before, r.After, r.RequestID)
	if err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// factsJSON writes the fields of one side of an entry; none gives an empty text.
func factsJSON(facts map[string]any) string {
	if len(facts) == 0 {
		return ""
	}
	b, err := json.Marshal(facts)
	if err != nil {
		panic(fmt.Sprintf("order: texts and numbers have no JSON: %v", err)) // they always have one
	}
	return string(b)
}

// Audit reads a page of the audit, newest first, and whether more follow.
// Errors: ErrDatabase, ErrTooManyLists.
func (s *Store) Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, bool, error) {
	var rows []auditRow
	err := s.lists.read(ctx, "read audit", func(db *gorm.DB) error { return auditQuery(db, f).Find(&rows).Error })
	if err != nil {
		return nil, false, err
	}
	more := len(rows) > f.Limit
	if more {
		rows = rows[:f.Limit]
	}
	entries := make([]AuditEntry, len(rows))
	for i := range rows {
		r := &rows[i]
		entries[i] = AuditEntry{
			ID: r.ID, At: fromMillis(r.At), Actor: r.Actor, Action: r.Action, ItemID: r.ItemID, OrderID: r.OrderID,
			Before: r.Before, After: r.After, RequestID: r.RequestID,
		}
	}
	return entries, more, nil
}

// auditQuery reads one entry more than a page holds, which shows whether more follow.
func auditQuery(db *gorm.DB, f AuditFilter) *gorm.DB {
	q := db.Order(clause.OrderByColumn{Column: clause.Column{Name: "id"}, Desc: true}).Limit(f.Limit + 1)
	// Each index omits the rows without an item or order, so SQLite uses it only if the
	// query excludes these rows too. An order has few entries and an item many, so the
	// order's index serves a filter with both.
	switch {
	case f.OrderID != "" && f.ItemID != "":
		q = q.Where("order_id = ? AND order_id <> '' AND +item_id = ?", f.OrderID, f.ItemID)
	case f.OrderID != "":
		q = q.Where("order_id = ? AND order_id <> ''", f.OrderID)
	case f.ItemID != "":
		q = q.Where("item_id = ? AND item_id <> ''", f.ItemID)
	}
	if f.Before > 0 {
		q = q.Where("id < ?", f.Before)
	}
	return q
}

// auditCancel records that an admin cancelled an order.
func auditCancel(ctx context.Context, c conn, o *Order, was Status, by Canceller, now int64) error {
	return writeAudit(ctx, c, &auditRow{
		At: now, Actor: by.UserID, Action: actionOrderCancel, ItemID: o.ItemID, OrderID: o.ID,
		Before: factsJSON(map[string]any{"status": was}), After: factsJSON(map[string]any{"status": o.Status, "reason": o.Reason}),
		RequestID: by.RequestID,
	})
}
