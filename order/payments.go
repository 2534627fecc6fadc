package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"gorm.io/gorm"
)

// PaymentOutcome is what became of an amount that the shop's backend reported.
type PaymentOutcome string

// The outcomes. A late amount, a duplicate and a mismatch pay nothing and are to be
// refunded. An amount keeps the outcome that it was received as until then.
const (
	// PaymentAccepted paid its order.
	PaymentAccepted PaymentOutcome = "accepted"
	// PaymentLate arrived when the order was expired, past its window, cancelled,
	// rejected or refunded.
	PaymentLate PaymentOutcome = "late"
	// PaymentDuplicate arrived when another reference had paid the order.
	PaymentDuplicate PaymentOutcome = "duplicate"
	// PaymentMismatch was not what the order costs, or in another currency.
	PaymentMismatch PaymentOutcome = "mismatch"
	// PaymentRefunded went back to the buyer.
	PaymentRefunded PaymentOutcome = "refunded"
)

// PaymentOutcomes are all outcomes.
var PaymentOutcomes = []PaymentOutcome{PaymentAccepted, PaymentLate, PaymentDuplicate, PaymentMismatch, PaymentRefunded}

var (
	// ErrPaymentNotFound says that no payment has this id.
	ErrPaymentNotFound = errors.New("order: payment not found")
	// ErrPaymentAccepted says that a payment has paid its order: it is refunded by
	// refunding the order.
	ErrPaymentAccepted = errors.New("order: the payment has paid its order")
)

// maxPayments bounds the amounts that are recorded for one order. A backend that
// reports one order's money under ever new references must not fill the disk.
const maxPayments = 100

// PaymentRecord is an amount that the shop's backend reported for an order. Times
// are UTC with millisecond precision.
type PaymentRecord struct {
	Payment
	ID         int64 // higher than that of every earlier one
	OrderID    string
	ItemID     string
	UserID     string // of the order's buyer
	Outcome    PaymentOutcome
	ReceivedAs PaymentOutcome // the outcome until the refund
	ReceivedAt time.Time
	RefundedAt time.Time // zero: it was not
}

// PaymentFilter selects payments for a list, newest first.
type PaymentFilter struct {
	Outcome     PaymentOutcome // empty: any
	NeedsRefund bool           // those that pay nothing and are not refunded
	// Before is the id of the last payment of the page before; 0: from the start.
	Before int64
	Limit  int // 1 to 100
}

const (
	// paymentsOwed is the condition of the index payments_refund, word for word.
	paymentsOwed = `outcome IN ('late', 'duplicate', 'mismatch')`

	paymentFields = `p.id, p.order_id, COALESCE(o.item_id, ''), COALESCE(o.user_id, ''), p.reference, p.amount_minor, p.currency,
	p.received_as, p.outcome, p.received_at, p.refunded_at`
	// A page of payments leads, and each finds its order by the id. The indexes are
	// named so that no page ever becomes a scan of the table.
	selectPayments       = `SELECT ` + paymentFields + ` FROM payments p LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsBy     = `SELECT ` + paymentFields + ` FROM payments p INDEXED BY payments_outcome LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsOwed   = `SELECT ` + paymentFields + ` FROM payments p INDEXED BY payments_refund LEFT JOIN orders o ON o.id = p.order_id `
	paymentsPage         = ` p.id < ?1 ORDER BY p.id DESC LIMIT ?2`
	listPayments         = selectPayments + `WHERE` + paymentsPage
	listPaymentsBy       = selectPaymentsBy + `WHERE p.outcome = ?3 AND` + paymentsPage
	listPaymentsOwed     = selectPaymentsOwed + `WHERE p.` + paymentsOwed + ` AND` + paymentsPage
	selectPaymentsOf     = selectPayments + `WHERE p.order_id = ?1 ORDER BY p.id`
	selectPaymentByID    = selectPayments + `WHERE p.id = ?1`
	countPaymentsToWatch = `SELECT COUNT(*) FROM (SELECT 1 FROM payments INDEXED BY payments_refund WHERE ` + paymentsOwed + ` LIMIT ?1)`
)

// statement is the query of a filter, and its values.
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

// scanPayment reads a row of paymentFields.
func scanPayment(row interface{ Scan(to ...any) error }) (PaymentRecord, error) {
	var p PaymentRecord
	var received, refunded int64
	err := row.Scan(&p.ID, &p.OrderID, &p.ItemID, &p.UserID, &p.Reference, &p.AmountMinor, &p.Currency,
		&p.ReceivedAs, &p.Outcome, &received, &refunded)
	p.ReceivedAt, p.RefundedAt = fromMillis(received), fromMillis(refunded)
	return p, err
}

// PaymentService lists received payments and records refunds.
type PaymentService struct{ Store *Store }

// Payments reads a page of the recorded payments, newest first, and whether more follow.
func (s *PaymentService) Payments(ctx context.Context, f PaymentFilter) ([]PaymentRecord, bool, error) {
	if f.NeedsRefund && (f.Outcome == PaymentAccepted || f.Outcome == PaymentRefunded) {
		return nil, false, nil // such a payment needs none
	}
	var page []PaymentRecord
	err := s.Store.lists.read(ctx, "list payments", func(db *gorm.DB) (err error) {
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

// OrderPayments reads what was received for an order, oldest first.
func (s *PaymentService) OrderPayments(ctx context.Context, id string) ([]PaymentRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := readPayments(s.Store.read.WithContext(ctx), selectPaymentsOf, id)
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

// WithPayments makes the store report every amount that was recorded, and every refund,
// once it is committed.
func WithPayments(fn func(PaymentOutcome)) StoreOption {
	return func(s *Store) { s.onPayment = fn }
}

// ToRefund counts the amounts that are to be refunded, up to a limit.
// Errors: ErrDatabase.
func (s *PaymentService) ToRefund(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.Store.read.DB()
	if err == nil {
		err = db.QueryRowContext(ctx, countPaymentsToWatch, limit).Scan(&n)
	}
	if err != nil {
		return 0, wrap("count payments to refund", err)
	}
	return n, nil
}

// MarkRefunded records that an amount which paid nothing went back to the buyer. A
// repeat gets the same answer.
//
// With ErrPaymentAccepted the payment is returned as it stands. Other errors:
// ErrPaymentNotFound, ErrDatabase.
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
		s.Store.onPayment(PaymentRefunded)
	}
	return p, nil
}
