package store

import (
	"context"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"flashsale/internal/bucket"
	"flashsale/order"
	"flashsale/order/store/database"
)

// AuditRow is a row of the table audit.
type AuditRow struct {
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
func (AuditRow) TableName() string { return "audit" }

// Entry returns the entry of the row.
func (r *AuditRow) Entry() order.AuditEntry {
	return order.AuditEntry{
		ID: r.ID, At: order.FromMillis(r.At), Actor: r.Actor, Action: r.Action, ItemID: r.ItemID, OrderID: r.OrderID,
		Before: r.Before, After: r.After, RequestID: r.RequestID,
	}
}

var insertAudit = database.NewRowsStatement("INSERT INTO audit (at, actor, action, item_id, order_id, before, after, request_id)",
	"bigint text text text text text text text", "")

// WriteAudit adds entries in the transaction of the changes that they record. So every
// committed change has its entry, and a change that is rolled back has none.
// An entry of an order names its item, any other the bucket that was changed.
func WriteAudit(ctx context.Context, c database.Conn, rows ...*AuditRow) error {
	args := make([]any, 0, len(rows)*insertAudit.Columns())
	for _, r := range rows {
		item := r.ItemID
		if r.OrderID != "" {
			item = bucket.Item(item)
		}
		args = append(args, r.At, r.Actor, r.Action, item, r.OrderID, r.Before, r.After, r.RequestID)
	}
	if _, err := insertAudit.Exec(ctx, c, args); err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// FactsJSON writes the fields of one side of an entry; none gives an empty text.
func FactsJSON(facts map[string]any) string {
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
// Errors: database.ErrUnavailable, ErrTooManyLists.
func (s *Store) Audit(ctx context.Context, f order.AuditFilter) ([]order.AuditEntry, bool, error) {
	var rows []AuditRow
	err := s.ReadList(ctx, "read audit", func(db *gorm.DB) error { return AuditQuery(db, f).Find(&rows).Error })
	if err != nil {
		return nil, false, err
	}
	more := len(rows) > f.Limit
	if more {
		rows = rows[:f.Limit]
	}
	entries := make([]order.AuditEntry, len(rows))
	for i := range rows {
		entries[i] = rows[i].Entry()
	}
	return entries, more, nil
}

// AuditQuery reads one entry more than a page holds, which shows whether more follow.
func AuditQuery(db *gorm.DB, f order.AuditFilter) *gorm.DB {
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
