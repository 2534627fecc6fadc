package store

import (
	"flashsale/order"
)

const (
	// PaymentsOwed is the condition of the index payments_refund. The text must be equal.
	PaymentsOwed = `outcome IN ('late', 'duplicate', 'mismatch')`

	PaymentFields = `p.id, p.order_id, COALESCE(o.item_id, ''), COALESCE(o.user_id, ''), p.reference, p.amount_minor, p.currency,
	p.received_as, p.outcome, p.received_at, p.refunded_at`
	// SQLite scans a page of payments, and looks up each one's order by id. INDEXED BY
	// makes sure that no page scans the table.
	selectPayments       = `SELECT ` + PaymentFields + ` FROM payments p LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsBy     = `SELECT ` + PaymentFields + ` FROM payments p INDEXED BY payments_outcome LEFT JOIN orders o ON o.id = p.order_id `
	selectPaymentsOwed   = `SELECT ` + PaymentFields + ` FROM payments p INDEXED BY payments_refund LEFT JOIN orders o ON o.id = p.order_id `
	paymentsPage         = ` p.id < ?1 ORDER BY p.id DESC LIMIT ?2`
	ListPayments         = selectPayments + `WHERE` + paymentsPage
	ListPaymentsBy       = selectPaymentsBy + `WHERE p.outcome = ?3 AND` + paymentsPage
	ListPaymentsOwed     = selectPaymentsOwed + `WHERE p.` + PaymentsOwed + ` AND` + paymentsPage
	SelectPaymentsOf     = selectPayments + `WHERE p.order_id = ?1 ORDER BY p.id`
	SelectPaymentByID    = selectPayments + `WHERE p.id = ?1`
	CountPaymentsToWatch = `SELECT COUNT(*) FROM (SELECT 1 FROM payments INDEXED BY payments_refund WHERE ` + PaymentsOwed + ` LIMIT ?1)`
)

// ScanPayment reads a row of paymentFields.
func ScanPayment(row interface{ Scan(to ...any) error }) (order.PaymentRecord, error) {
	var p order.PaymentRecord
	var received, refunded int64
	err := row.Scan(&p.ID, &p.OrderID, &p.ItemID, &p.UserID, &p.Reference, &p.AmountMinor, &p.Currency,
		&p.ReceivedAs, &p.Outcome, &received, &refunded)
	p.ReceivedAt, p.RefundedAt = order.FromMillis(received), order.FromMillis(refunded)
	return p, err
}
