package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"gorm.io/gorm"
)

// statement returns the query of a filter, and its arguments.
func (f PaymentFilter) statement() (string, []any) {
	before := f.Before
	if before == 0 {
		before = math.MaxInt64
	}
	args := []any{before, f.Limit + 1}
	switch {
	case f.NeedsRefund && f.Outcome == "":
		return listPaymentsOwed, args
	case f.Outcome != "":
		return listPaymentsBy, append(args, string(f.Outcome))
	}
	return listPayments, args
}

// PaymentService lists received payments and records refunds.
type PaymentService struct{ Store *Store }

// Payments reads a page of the recorded payments, newest first, and whether more follow.
func (s *PaymentService) Payments(ctx context.Context, f PaymentFilter) ([]PaymentRecord, bool, error) {
	if f.NeedsRefund && (f.Outcome == PaymentAccepted || f.Outcome == PaymentRefunded) {
		return nil, false, nil // such a payment needs no refund
	}
	var page []PaymentRecord
	err := s.Store.ReadList(ctx, "list payments", func(db *gorm.DB) (err error) {
		query, args := f.statement()
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
func (s *PaymentService) OrderPayments(ctx context.Context, id string) ([]PaymentRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := readPayments(s.Store.Reader().WithContext(ctx), selectPaymentsOf, id)
	if err != nil {
		return nil, wrap("read payments", err)
	}
	return list, nil
}

func readPayments(db *gorm.DB, query string, args ...any) (list []PaymentRecord, err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	err = each(db.Statement.Context, pool, query, args, func(rows *sql.Rows) error {
		p, err := scanPayment(rows)
		list = append(list, p)
		return err
	})
	return list, err
}

// ToRefund counts the amounts that are to be refunded, up to a limit.
// Errors: ErrDatabase.
func (s *PaymentService) ToRefund(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.Store.Reader().DB()
	if err == nil {
		err = db.QueryRowContext(ctx, countPaymentsToWatch, limit).Scan(&n)
	}
	if err != nil {
		return 0, wrap("count payments to refund", err)
	}
	return n, nil
}

// MarkRefunded records that a payment which paid no order was returned to the buyer. A
// repeat gets the same answer.
//
// With ErrPaymentAccepted it also returns the payment. Other errors: ErrPaymentNotFound,
// ErrDatabase.
func (s *PaymentService) MarkRefunded(ctx context.Context, id int64, by By) (p PaymentRecord, err error) {
	marked := false
	err = s.Store.telling(ctx, fmt.Sprintf("refund payment %d", id), func(ctx context.Context, c conn, box *outbox) error {
		n, err := changed(c.ExecContext(ctx, refundPayment, box.now, id))
		if err != nil {
			return err
		}
		p, err = scanPayment(c.QueryRowContext(ctx, selectPaymentByID, id))
		if errors.Is(err, sql.ErrNoRows) {
			return ErrPaymentNotFound
		}
		if err != nil {
			return fmt.Errorf("read payment: %w", err)
		}
		if marked = n == 1; !marked {
			return nil
		}
		box.touch(p.ItemID)
		return writeAudit(ctx, c, &auditRow{
			At: box.now, Actor: by.Actor, Action: actionPaymentRefund, ItemID: p.ItemID, OrderID: p.OrderID,
			Before:    factsJSON(map[string]any{"payment": id, "outcome": p.ReceivedAs}),
			After:     factsJSON(map[string]any{"payment": id, "outcome": p.Outcome}),
			RequestID: by.RequestID,
		})
	})
	switch {
	case err != nil:
		return PaymentRecord{}, err
	case p.Outcome == PaymentAccepted:
		return p, ErrPaymentAccepted
	case marked:
		s.Store.ReportPayment(PaymentRefunded)
	}
	return p, nil
}
