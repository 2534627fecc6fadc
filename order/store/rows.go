package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"flashsale/order"
)

// chunkSizes are the numbers of rows for which a statement is prepared. A batch of any size
// is split into these sizes, so that each statement is prepared once: preparing a new text
// for every batch length took a sixth of the worker's time.
var chunkSizes = [...]int{256, 64, 16, 4, 1}

// rowsStatement is an INSERT of several rows in its prepared sizes.
type rowsStatement struct {
	columns int
	text    [len(chunkSizes)]string
}

func newRowsStatement(columns int, head, row, tail string) *rowsStatement {
	s := &rowsStatement{columns: columns}
	for i, n := range chunkSizes {
		s.text[i] = head + " VALUES " + strings.TrimSuffix(strings.Repeat(row+",", n), ",") + " " + tail
	}
	return s
}

// Exec runs the statement over args, which hold s.columns values per row, and returns the
// number of rows written.
func (s *rowsStatement) Exec(ctx context.Context, c Conn, args []any) (int64, error) {
	var written int64
	for i, n := range chunkSizes {
		for size := n * s.columns; len(args) >= size; args = args[size:] {
			res, err := c.ExecContext(ctx, s.text[i], args[:size]...)
			if err != nil {
				return written, err
			}
			k, err := res.RowsAffected()
			if err != nil {
				return written, fmt.Errorf("rows affected: %w", err)
			}
			written += k
		}
	}
	return written, nil
}

const orderColumns = 10

// insertConfirmed skips rows that exist already, by id or by idempotency key. The caller
// checks the number of rows written.
var insertConfirmed = newRowsStatement(orderColumns,
	"INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, confirmed_at, expires_at)",
	"(?, ?, ?, ?, ?, ?, 'confirmed', ?, ?, ?, ?)",
	"ON CONFLICT DO NOTHING")

const (
	insertRejected = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key, created_at, closed_at)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'rejected', ?7, ?8, ?9, ?10)`
	selectKeyTaken  = `SELECT EXISTS (SELECT 1 FROM orders WHERE user_id = ?1 AND item_id = ?2 AND idempotency_key = ?3)`
	selectItemKnown = `SELECT EXISTS (SELECT 1 FROM items WHERE id = ?1)`
)

const buyerColumns = 3

// addToBuyers skips a buyer who would exceed the item's limit. The caller checks the number
// of rows written.
var addToBuyers = newRowsStatement(buyerColumns,
	"INSERT INTO buyers (item_id, user_id, quantity)",
	"(?, ?, ?)",
	`ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = quantity + excluded.quantity
	WHERE quantity + excluded.quantity <= (SELECT per_user_limit FROM items WHERE items.id = excluded.item_id)`)

// sellUnits counts units as sold if the item's total allows it, and records the sale's
// sequence.
const sellUnits = `UPDATE items SET sold = sold + ?1, sequence = MAX(sequence, ?3), revision = revision + 1
	WHERE id = ?2 AND sold + ?1 <= total
	RETURNING per_user_limit, payment_window_seconds, total, sold = total, revision`

// OrdersHold selects the orders whose units are taken from the stock and count towards
// their buyer's limit.
const OrdersHold = `(status IN ('confirmed', 'paid') OR status = 'refunded' AND restocked = 0)`

// The statements of changes after the commit. A list of ids is one value, in JSON.
const (
	OrderFields = `id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key,
	created_at, confirmed_at, expires_at, paid_at, closed_at, payment_reference, restocked`
	// HoldingsOfItems reads one item after the other. CROSS JOIN makes the list the outer
	// loop; ORDER BY would sort all orders of a large sale before it returns the first.
	HoldingsOfItems = `SELECT j.key, o.id, o.user_id, o.idempotency_key, o.quantity, ` + OrdersHold + `
		FROM json_each(?1) j CROSS JOIN orders o ON o.item_id = j.value`
	selectOrder = `SELECT ` + OrderFields + ` FROM orders WHERE id = ?1`

	SelectPayment = `SELECT id, order_id, amount_minor, currency, received_as, outcome FROM payments WHERE reference = ?1`
	CountPayments = `SELECT COUNT(*) FROM payments WHERE order_id = ?1`
	insertPayment = `INSERT INTO payments (reference, order_id, amount_minor, currency, received_as, outcome, received_at)
	VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)`
	correctPayment = `UPDATE payments SET amount_minor = ?1, currency = ?2, received_as = ?3, outcome = ?3, received_at = ?4 WHERE id = ?5`
	// payUnpaid and expireDue meet at expires_at: an order can be paid before that time,
	// and expires from that time on.
	payUnpaid = `UPDATE orders SET status = 'paid', paid_at = ?1, payment_reference = ?2
	WHERE id = ?3 AND status = 'confirmed' AND (expires_at = 0 OR expires_at > ?1)
		AND unit_price_minor * quantity = ?4 AND currency = ?5
		AND (?6 OR NOT EXISTS (SELECT 1 FROM payments WHERE reference = ?2))
	RETURNING ` + OrderFields

	// payUnpaidOf and insertPaymentsOf are payUnpaid and insertPayment for a JSON list of
	// payments, each a list of order, reference, amount and currency.
	payUnpaidOf = `UPDATE orders SET status = 'paid', paid_at = ?1, payment_reference = p.value->>1 FROM json_each(?2) p
	WHERE orders.id = p.value->>0 AND status = 'confirmed' AND (expires_at = 0 OR expires_at > ?1)
		AND unit_price_minor * quantity = p.value->>2 AND currency = p.value->>3
		AND NOT EXISTS (SELECT 1 FROM payments WHERE reference = p.value->>1)
	RETURNING ` + OrderFields
	insertPaymentsOf = `INSERT INTO payments (reference, order_id, amount_minor, currency, received_as, outcome, received_at)
	SELECT value->>1, value->>0, value->>2, value->>3, 'accepted', 'accepted', ?1 FROM json_each(?2) WHERE true
	ON CONFLICT DO NOTHING`

	cancelConfirmed = `UPDATE orders SET status = 'cancelled', reason = ?2, closed_at = ?1
	WHERE id = ?3 AND status = 'confirmed'
	RETURNING id, item_id, user_id, idempotency_key, quantity, closed_at`
	expireDue = `UPDATE orders SET status = 'expired', reason = '` + order.ReasonUnpaid + `', closed_at = ?1
	WHERE id IN (SELECT value FROM json_each(?2)) AND status = 'confirmed' AND expires_at > 0 AND expires_at <= ?1
		AND item_id NOT IN (SELECT value FROM json_each(?3))
	RETURNING id, item_id, user_id, idempotency_key, quantity, closed_at`
	RefundPaid = `UPDATE orders SET status = 'refunded', closed_at = ?1, restocked = ?2
	WHERE id = ?3 AND status = 'paid'
	RETURNING id, item_id, user_id, idempotency_key, quantity, closed_at`
	RefundAccepted = `UPDATE payments SET outcome = 'refunded', refunded_at = ?1 WHERE order_id = ?2 AND outcome = 'accepted'`
	RefundPayment  = `UPDATE payments SET outcome = 'refunded', refunded_at = ?1 WHERE id = ?2 AND ` + PaymentsOwed
	selectExpiries = `SELECT id, status, expires_at FROM orders WHERE id IN (SELECT value FROM json_each(?1))`

	unsellUnits   = `UPDATE items SET sold = sold - ?1, revision = revision + 1 WHERE id = ?2 RETURNING revision`
	takeFromBuyer = `UPDATE buyers SET quantity = quantity - ?1 WHERE item_id = ?2 AND user_id = ?3 AND quantity >= ?1`

	ReturnsOfOrders = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE order_id IN (SELECT value FROM json_each(?1))`
	ReturnsOfItem = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE item_id = ?1`
	DeleteReturns = `DELETE FROM releases WHERE order_id IN (SELECT value FROM json_each(?1))`
	NoteSequence  = `UPDATE items SET sequence = MAX(sequence, ?1) WHERE id = ?2`
)

const returnColumns = 6

// InsertReturns records units that have to return to their sales.
var InsertReturns = newRowsStatement(returnColumns,
	"INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)",
	"(?, ?, ?, ?, ?, ?)", "")

// hotTexts are the statements that the writer keeps prepared.
var hotTexts = slices.Concat([]string{
	setSavepoint, undoSavepoint, releaseSavepoint,
	sellUnits, selectOrder, selectKeyTaken, selectItemKnown, insertRejected,
	SelectPayment, CountPayments, insertPayment, correctPayment, payUnpaid, payUnpaidOf, insertPaymentsOf, RefundPaid, RefundAccepted, cancelConfirmed, expireDue, selectExpiries,
	unsellUnits, takeFromBuyer, ReturnsOfOrders, DeleteReturns, NoteSequence, insertAudit, BumpRevision,
	selectWanted, selectLastEvent, insertDeliveries,
}, insertConfirmed.text[:], addToBuyers.text[:], InsertReturns.text[:], insertEvents.text[:])
