package store

import (
	"context"
	"database/sql"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/timeouts"
)

// Item reads an item's row. Errors: catalog.ErrItemNotFound, order.ErrDatabase.
func Item(ctx context.Context, s *Store, id string) (schema.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return ReadItem(s.read.WithContext(ctx), id)
}

// Snapshot runs fn on one consistent view of the database. It is for long reads, and uses
// the connections for them.
func Snapshot(ctx context.Context, s *Store, fn func(tx *gorm.DB) error) error {
	return s.long.WithContext(ctx).Transaction(fn, snapshot)
}

// snapshot gives a transaction one view of the database on Postgres; SQLite always does.
var snapshot = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}

// ReadItem reads an item's row. Errors: catalog.ErrItemNotFound.
func ReadItem(tx *gorm.DB, id string) (schema.Item, error) {
	var rows []schema.Item
	if err := tx.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return schema.Item{}, Wrap("read item "+id, err)
	}
	if len(rows) == 0 {
		return schema.Item{}, catalog.ErrItemNotFound
	}
	return rows[0], nil
}

const (
	selectHolding = `SELECT id, ` + OrdersHold + ` FROM orders WHERE id IN (SELECT value FROM json_each(?1))`
	// unitsOfBuyers sums the units that each buyer of a JSON list holds of an item. The
	// CROSS JOIN makes SQLite scan the list and find each buyer by the index.
	unitsOfBuyers = `SELECT o.user_id, SUM(o.quantity) FROM json_each(?1) j CROSS JOIN orders o
	ON o.user_id = j.value AND o.item_id = ?2 AND ` + OrdersHold + ` GROUP BY o.user_id`
)

// Holding reads whether the orders with these ids hold their units. Orders without a row
// are omitted.
func Holding(ctx context.Context, s *Store, ids []string) (map[string]bool, error) {
	out := make(map[string]bool, len(ids))
	err := eachRead(ctx, s, selectHolding, []any{JSONList(ids...)}, func(rows *sql.Rows) error {
		var id string
		var holds bool
		err := rows.Scan(&id, &holds)
		out[id] = holds
		return err
	})
	if err != nil {
		return nil, Wrap("read orders", err)
	}
	return out, nil
}

// BuyersUnits reads the units that each of these buyers holds of an item. Buyers without
// units are omitted.
func BuyersUnits(ctx context.Context, s *Store, item string, buyers []string) (map[string]int64, error) {
	out := make(map[string]int64, len(buyers))
	err := eachRead(ctx, s, unitsOfBuyers, []any{JSONList(buyers...), item}, func(rows *sql.Rows) error {
		var buyer string
		var units int64
		err := rows.Scan(&buyer, &units)
		out[buyer] = units
		return err
	})
	if err != nil {
		return nil, Wrap("sum orders of buyers of "+item, err)
	}
	return out, nil
}

// eachRead calls scan for every row of one short query.
func eachRead(ctx context.Context, s *Store, query string, args []any, scan func(*sql.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.read.DB()
	if err != nil {
		return err
	}
	return Each(ctx, db, query, args, scan)
}

const (
	// PaymentsOwed is the condition of the index payments_refund. The text must be equal.
	PaymentsOwed = `outcome IN ('late', 'duplicate', 'mismatch')`

	// PaymentFields are the columns that ScanPayment reads, of payments p and orders o.
	PaymentFields = `p.id, p.order_id, COALESCE(o.item_id, ''), COALESCE(o.user_id, ''), p.reference, p.amount_minor, p.currency,
	p.received_as, p.outcome, p.received_at, p.refunded_at`
)

// ScanPayment reads a row of PaymentFields.
func ScanPayment(row interface{ Scan(to ...any) error }) (order.PaymentRecord, error) {
	var p order.PaymentRecord
	var received, refunded int64
	err := row.Scan(&p.ID, &p.OrderID, &p.ItemID, &p.UserID, &p.Reference, &p.AmountMinor, &p.Currency,
		&p.ReceivedAs, &p.Outcome, &received, &refunded)
	p.ReceivedAt, p.RefundedAt = order.FromMillis(received), order.FromMillis(refunded)
	return p, err
}
