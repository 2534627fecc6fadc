package order

const (
	// paymentsOwed is the condition of the index payments_refund. The text must be equal.
	paymentsOwed = `outcome IN ('late', 'duplicate', 'mismatch')`

	paymentFields = `p.id, p.order_id, COALESCE(o.item_id, ''), COALESCE(o.user_id, ''), p.reference, p.amount_minor, p.currency,
	p.received_as, p.outcome, p.received_at, p.refunded_at`
	// SQLite scans a page of payments, and looks up each one's order by id. INDEXED BY
	// makes sure that no page scans the table.
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

// scanPayment reads a row of paymentFields.
func scanPayment(row interface{ Scan(to ...any) error }) (PaymentRecord, error) {
	var p PaymentRecord
	var received, refunded int64
	err := row.Scan(&p.ID, &p.OrderID, &p.ItemID, &p.UserID, &p.Reference, &p.AmountMinor, &p.Currency,
		&p.ReceivedAs, &p.Outcome, &received, &refunded)
	p.ReceivedAt, p.RefundedAt = fromMillis(received), fromMillis(refunded)
	return p, err
}
