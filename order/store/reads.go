package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

const selectHolding = `SELECT id, ` + OrdersHold + ` FROM orders WHERE id IN (SELECT value FROM json_each(?1))`

// Holding reads whether the orders with these ids hold their units. Orders without a row
// are omitted.
func Holding(ctx context.Context, s *Store, ids []string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	out := make(map[string]bool, len(ids))
	db, err := s.Reader().DB()
	if err == nil {
		err = database.Each(ctx, db, selectHolding, []any{database.JSONList(ids...)}, func(rows *sql.Rows) error {
			var id string
			var holds bool
			err := rows.Scan(&id, &holds)
			out[id] = holds
			return err
		})
	}
	if err != nil {
		return nil, database.Wrap("read orders", err)
	}
	return out, nil
}

const (
	// PaymentNeedsRefund is the condition of the index payments_refund. The text must be equal.
	PaymentNeedsRefund = `outcome IN ('late', 'duplicate', 'mismatch')`

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

// Order reads one order. It returns ErrNotFound if there is no such row.
func (s *Store) Order(ctx context.Context, id string) (order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	if err := s.Reader().WithContext(ctx).Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return order.Order{}, database.Wrap("read order "+id, err)
	}
	if len(rows) == 0 {
		return order.Order{}, order.ErrNotFound
	}
	return rows[0].Order(), s.Replicated(ctx)
}

// OrderByKey reads the order of an idempotency key. Errors: ErrNotFound.
func OrderByKey(ctx context.Context, s *Store, user, item, key string) (order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	err := s.Reader().WithContext(ctx).
		Where("user_id = ? AND item_id = ? AND idempotency_key = ?", user, item, key).Limit(1).Find(&rows).Error
	if err != nil {
		return order.Order{}, database.Wrap("read order by key", err)
	}
	if len(rows) == 0 {
		return order.Order{}, order.ErrNotFound
	}
	return rows[0].Order(), s.Replicated(ctx)
}

// Settled reads the results of those orders that are committed.
func (s *Store) Settled(ctx context.Context, ids []string) ([]order.Notice, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	if err := s.Reader().WithContext(ctx).Where("id IN ?", ids).Find(&rows).Error; err != nil {
		return nil, database.Wrap("read orders", err)
	}
	out := make([]order.Notice, len(rows))
	for i := range rows {
		r := &rows[i]
		out[i] = order.Notice{ID: r.ID, Outcome: order.Outcome{Status: order.Status(r.Status), Reason: r.Reason, ConfirmedAt: r.ConfirmedAt, ExpiresAt: r.ExpiresAt, ClosedAt: r.ClosedAt}}
	}
	return out, s.Replicated(ctx)
}

// WithoutRow returns the elements of a list whose order has no row. id returns the id of an element's order.
func WithoutRow[T any](ctx context.Context, s *Store, list []T, id func(*T) string) (missing []T, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	ids := make([]string, len(list))
	for i := range list {
		ids[i] = id(&list[i])
	}
	found, err := s.Settled(ctx, ids)
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool, len(found))
	for i := range found {
		known[found[i].ID] = true
	}
	for i := range list {
		if !known[ids[i]] {
			missing = append(missing, list[i])
		}
	}
	return missing, nil
}

// ReadOrder reads an order inside a transaction. Errors: ErrNotFound.
func ReadOrder(ctx context.Context, c database.Conn, id string) (order.Order, error) {
	var o order.Order
	err := database.One(ctx, c, selectOrder, []any{id}, func(rows *sql.Rows) (err error) {
		o, err = ScanOrder(rows)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return order.Order{}, order.ErrNotFound
	}
	if err != nil {
		return order.Order{}, fmt.Errorf("read order: %w", err)
	}
	return o, nil
}

// ReadOrders reads the rows of a query with OrderFields.
func ReadOrders(ctx context.Context, c database.Conn, query string, args ...any) ([]order.Order, error) {
	var list []order.Order
	err := database.Each(ctx, c, query, args, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		list = append(list, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	return list, nil
}

// ScanOrder reads a row of OrderFields.
func ScanOrder(row interface{ Scan(to ...any) error }) (order.Order, error) {
	var r schema.Order
	err := row.Scan(&r.ID, &r.ItemID, &r.UserID, &r.Quantity, &r.UnitPriceMinor,
		&r.Currency, &r.Status, &r.Reason, &r.IdempotencyKey, &r.CreatedAt, &r.ConfirmedAt, &r.ExpiresAt, &r.PaidAt,
		&r.ClosedAt, &r.PaymentReference, &r.Restocked)
	return r.Order(), err
}
