// Package payments lists the received payments, and records refunds of those that paid no order.
package payments

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// statement returns the query of a filter, and its arguments.
func statement(f order.PaymentFilter) (string, []any) {
	before := f.Before
	if before == 0 {
		before = math.MaxInt64
	}
	args := []any{before, f.Limit + 1}
	switch {
	case f.Reference != "":
		return listPaymentsWith, append(args, f.Reference, string(f.Outcome), f.NeedsRefund)
	case f.NeedsRefund && f.Outcome == "":
		return listPaymentsToRefund, args
	case f.Outcome != "":
		return listPaymentsBy, append(args, string(f.Outcome))
	}
	return listPayments, args
}

const (
	// SQLite scans a page of payments, and looks up each one's order by id. INDEXED BY
	// makes sure that no page scans the table.
	selectPayments         = `SELECT ` + store.PaymentFields + ` FROM payments p LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsBy       = `SELECT ` + store.PaymentFields + ` FROM payments p INDEXED BY payments_outcome LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsToRefund = `SELECT ` + store.PaymentFields + ` FROM payments p INDEXED BY payments_refund LEFT JOIN orders o ON o.id = p.order_id `
	paymentsPage           = ` p.id < ?1 ORDER BY p.id DESC LIMIT ?2`
	listPayments           = selectPayments + `WHERE` + paymentsPage
	listPaymentsBy         = selectPaymentsBy + `WHERE p.outcome = ?3 AND` + paymentsPage
	listPaymentsToRefund   = selectPaymentsToRefund + `WHERE p.` + store.PaymentNeedsRefund + ` AND` + paymentsPage
	listPaymentsWith       = selectPayments + `WHERE p.reference = ?3 AND (?4 = '' OR p.outcome = ?4) AND (?5 = 0 OR p.` + store.PaymentNeedsRefund + `) AND` + paymentsPage
	selectPaymentsOf       = selectPayments + `WHERE p.order_id = ?1 ORDER BY p.id`
	selectPaymentByID      = selectPayments + `WHERE p.id = ?1`
	countPaymentsToWatch   = `SELECT COUNT(*) FROM (SELECT 1 FROM payments INDEXED BY payments_refund WHERE ` + store.PaymentNeedsRefund + ` LIMIT ?1) owed`
)

// Service lists received payments and records refunds.
type Service struct{ Store *store.Store }

// Payments reads a page of the recorded payments, newest first, and whether more follow.
func (s *Service) Payments(ctx context.Context, f order.PaymentFilter) ([]order.PaymentRecord, bool, error) {
	if f.NeedsRefund && (f.Outcome == order.PaymentAccepted || f.Outcome == order.PaymentRefunded) {
		return nil, false, nil // such a payment needs no refund
	}
	var page []order.PaymentRecord
	err := s.Store.ReadList(ctx, "list payments", func(db *gorm.DB) (err error) {
		query, args := statement(f)
		page, err = readPayments(db, query, args...)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	more := len(page) > f.Limit
	return page[:min(len(page), f.Limit)], more, nil
}

// OrderPayments reads the payments received for an order, oldest first.
func (s *Service) OrderPayments(ctx context.Context, id string) ([]order.PaymentRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	list, err := readPayments(s.Store.Reader().WithContext(ctx), selectPaymentsOf, id)
	if err != nil {
		return nil, database.Wrap("read payments", err)
	}
	return list, s.Store.Replicated(ctx)
}

func readPayments(db *gorm.DB, query string, args ...any) (list []order.PaymentRecord, err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	err = database.Each(db.Statement.Context, pool, query, args, func(rows *sql.Rows) error {
		p, err := store.ScanPayment(rows)
		list = append(list, p)
		return err
	})
	return list, err
}

// ToRefund counts the amounts that are to be refunded, up to a limit.
// Errors: database.ErrUnavailable.
func (s *Service) ToRefund(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Store.Reader().DB()
	if err == nil {
		err = db.QueryRowContext(ctx, countPaymentsToWatch, limit).Scan(&n)
	}
	if err != nil {
		return 0, database.Wrap("count payments to refund", err)
	}
	return n, nil
}

// MarkRefunded records that a payment which paid no order was returned to the buyer. A
// repeat gets the same answer.
//
// With ErrPaymentAccepted it also returns the payment. Other errors: ErrPaymentNotFound,
// database.ErrUnavailable.
func (s *Service) MarkRefunded(ctx context.Context, id int64, by order.By) (p order.PaymentRecord, err error) {
	marked := false
	err = s.Store.ChangeWithEvents(ctx, fmt.Sprintf("refund payment %d", id), func(ctx context.Context, c database.Conn, box *store.Outbox) error {
		n, err := database.Changed(c.ExecContext(ctx, store.RefundPayment, box.Now, id))
		if err != nil {
			return err
		}
		p, err = store.ScanPayment(c.QueryRowContext(ctx, selectPaymentByID, id))
		if errors.Is(err, sql.ErrNoRows) {
			return order.ErrPaymentNotFound
		}
		if err != nil {
			return fmt.Errorf("read payment: %w", err)
		}
		if marked = n == 1; !marked {
			return nil
		}
		box.Touch(p.ItemID)
		return store.WriteAudit(ctx, c, &store.AuditRow{
			At: box.Now, Actor: by.Actor, Action: order.ActionPaymentRefund, ItemID: p.ItemID, OrderID: p.OrderID,
			Before:    store.FactsJSON(map[string]any{"payment": id, "outcome": p.ReceivedAs}),
			After:     store.FactsJSON(map[string]any{"payment": id, "outcome": p.Outcome}),
			RequestID: by.RequestID,
		})
	})
	switch {
	case err != nil:
		return order.PaymentRecord{}, err
	case p.Outcome == order.PaymentAccepted:
		return p, order.ErrPaymentAccepted
	case marked:
		s.Store.ReportPayment(order.PaymentRefunded)
	}
	return p, nil
}
