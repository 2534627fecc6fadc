package store

import (
	"flashsale/order"
	"flashsale/order/store/database"
)

// orderColumns is the number of values of insertConfirmed for one order.
const orderColumns = 10

// insertConfirmed fails if a row with the same id, or idempotency key, exists; see database.Duplicate. Skipping
// such rows costs a fifth of the insert on Postgres: both unique indexes are searched twice for each
// row, and the log has two records of it.
var insertConfirmed = database.NewRowsStatement(
	"INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, idempotency_key, created_at, confirmed_at, expires_at, status)",
	"text text text bigint bigint text text bigint bigint bigint 'confirmed'", "")

const (
	selectKeyTaken = `SELECT EXISTS (SELECT 1 FROM orders WHERE user_id = ?1 AND item_id = ?2 AND idempotency_key = ?3)`
	selectOutcomes = `SELECT id, status, reason, confirmed_at, expires_at, closed_at FROM orders WHERE id IN (SELECT value FROM json_each(?1))`
)

// insertRejected inserts rejected orders.
var insertRejected = database.NewRowsStatement(
	"INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, reason, idempotency_key, created_at, closed_at, status)",
	"text text text bigint bigint text text text bigint bigint 'rejected'", "")

const buyerColumns = 3

// addToBuyers skips a buyer who would exceed the item's limit (P5). The caller checks the number
// of rows written.
var addToBuyers = database.NewRowsStatement(
	"INSERT INTO buyers (item_id, user_id, quantity)", "text text bigint",
	`ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = buyers.quantity + excluded.quantity
	WHERE buyers.quantity + excluded.quantity <= (SELECT per_user_limit FROM items WHERE items.id = excluded.item_id)`)

// addAllowed does not check the limit: its orders were checked in the same transaction, some of
// them against an earlier limit.
var addAllowed = database.NewRowsStatement(
	"INSERT INTO buyers (item_id, user_id, quantity)", "text text bigint",
	"ON CONFLICT (item_id, user_id) DO UPDATE SET quantity = buyers.quantity + excluded.quantity")

// sellUnits counts units as sold if the item's total allows it, and records the sale's
// sequence.
const sellUnits = `UPDATE items SET sold = sold + ?1, sequence = MAX(sequence, ?3), revision = revision + 1
	WHERE id = ?2 AND sold + ?1 <= total
	RETURNING per_user_limit, payment_window_seconds, total, sold = total, revision`

// BumpRevision increments an item's revision.
const BumpRevision = `UPDATE items SET revision = revision + 1 WHERE id = ?1 RETURNING revision`

// bumpRevisions increments the revisions of the items in a JSON list.
const bumpRevisions = `UPDATE items SET revision = revision + 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING id, revision`

// OrdersHold selects the orders whose units are taken from the stock and count towards
// their buyer's limit.
const OrdersHold = `(status IN ('confirmed', 'paid') OR status = 'refunded' AND restocked = 0)`

const (
	// OrdersAfter selects the orders of item ?1 after id ?2, by id. For item_id = ?1 AND
	// id > ?2 ORDER BY id, Postgres may read the orders of all items by their ids, which
	// takes long if the sale was long ago. A comparison of both columns only has the index of
	// the item's orders. The unary plus keeps SQLite from beginning at the item's first order.
	OrdersAfter = `(item_id, id) > (?1, ?2) AND +item_id >= ?1 AND item_id <= ?1 ORDER BY item_id, id`
	// LastOrderOfPage reads the last id of a page of ?3 such orders; empty: there are none.
	LastOrderOfPage = `SELECT COALESCE(MAX(id), '') FROM (SELECT id FROM orders WHERE ` + OrdersAfter + ` LIMIT ?3) page`
)

// The statements of changes after the commit. A list of ids is one value, in JSON.
const (
	OrderFields = `id, item_id, user_id, quantity, unit_price_minor, currency, status, reason, idempotency_key,
	created_at, confirmed_at, expires_at, paid_at, closed_at, payment_reference, restocked`
	selectOrder = `SELECT ` + OrderFields + ` FROM orders WHERE id = ?1`

	SelectPayment = `SELECT id, order_id, amount_minor, currency, received_as, outcome FROM payments WHERE reference = ?1`
	CountPayments = `SELECT COUNT(*) FROM payments WHERE order_id = ?1`
	insertPayment = `INSERT INTO payments (reference, order_id, amount_minor, currency, received_as, outcome, received_at)
	VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6) RETURNING id`
	correctPayment = `UPDATE payments SET amount_minor = ?1, currency = ?2, received_as = ?3, outcome = ?3, received_at = ?4 WHERE id = ?5`
	// payUnpaid and expireDue meet at expires_at: an order can be paid before that time,
	// and expires from that time on.
	payUnpaid = `UPDATE orders SET status = 'paid', paid_at = ?1, payment_reference = ?2
	WHERE id = ?3 AND status = 'confirmed' AND (expires_at = 0 OR expires_at > ?1)
		AND unit_price_minor * quantity = ?4 AND currency = ?5
		AND (?6 = 1 OR NOT EXISTS (SELECT 1 FROM payments WHERE reference = ?2))
	RETURNING ` + OrderFields

	// payUnpaidOf and insertPaymentsOf are payUnpaid and insertPayment for a JSON list of
	// payments, each a list of order, reference, amount and currency.
	payUnpaidOf = `UPDATE orders SET status = 'paid', paid_at = ?1, payment_reference = json_extract(p.value, '$[1]') FROM json_each(?2) p
	WHERE orders.id = json_extract(p.value, '$[0]') AND status = 'confirmed' AND (expires_at = 0 OR expires_at > ?1)
		AND unit_price_minor * quantity = CAST(json_extract(p.value, '$[2]') AS BIGINT) AND currency = json_extract(p.value, '$[3]')
		AND NOT EXISTS (SELECT 1 FROM payments WHERE reference = json_extract(p.value, '$[1]'))
	RETURNING ` + OrderFields
	insertPaymentsOf = `INSERT INTO payments (reference, order_id, amount_minor, currency, received_as, outcome, received_at)
	SELECT json_extract(value, '$[1]'), json_extract(value, '$[0]'), CAST(json_extract(value, '$[2]') AS BIGINT), json_extract(value, '$[3]'),
		'accepted', 'accepted', CAST(?1 AS BIGINT) FROM json_each(?2) WHERE true
	ON CONFLICT DO NOTHING`

	// payAllUnpaid is payUnpaidOf and insertPaymentsOf in one statement for Postgres. It takes arrays of orders,
	// references, amounts and currencies, and also raises the revisions of the items, which it locks last. A
	// subquery that is a value is never planned as a join with all payments.
	payAllUnpaid = `WITH paid AS (
		UPDATE orders SET status = 'paid', paid_at = ?1, payment_reference = given.reference
		FROM unnest(?2::text[], ?3::text[], ?4::bigint[], ?5::text[]) AS given (order_id, reference, amount, money)
		WHERE orders.id = given.order_id AND status = 'confirmed' AND (expires_at = 0 OR expires_at > ?1)
			AND unit_price_minor * quantity = given.amount AND currency = given.money
			AND (SELECT p.id FROM payments p WHERE p.reference = given.reference) IS NULL
		RETURNING ` + OrderFields + `
	), recorded AS (
		INSERT INTO payments (reference, order_id, amount_minor, currency, received_as, outcome, received_at)
		SELECT payment_reference, id, unit_price_minor * quantity, currency, 'accepted', 'accepted', ?1::bigint FROM paid RETURNING order_id
	), raised AS (
		UPDATE items SET revision = items.revision + 1
		FROM (SELECT id FROM items WHERE id IN (SELECT item_id FROM paid WHERE (SELECT COUNT(*) FROM recorded) > 0) ORDER BY id FOR UPDATE) locked
		WHERE items.id = locked.id RETURNING items.id AS item, items.revision
	) SELECT ` + OrderFields + `, COALESCE(revision, 0) FROM paid LEFT JOIN raised ON raised.item = paid.item_id`

	// cancelConfirmed takes a JSON list of orders, each a list of its id and the reason.
	cancelConfirmed = `UPDATE orders SET status = 'cancelled', reason = json_extract(p.value, '$[1]'), closed_at = ?1 FROM json_each(?2) p
	WHERE orders.id = json_extract(p.value, '$[0]') AND status = 'confirmed'
	RETURNING ` + OrderFields
	expireDue = `UPDATE orders SET status = 'expired', reason = '` + order.ReasonUnpaid + `', closed_at = ?1
	WHERE id IN (SELECT value FROM json_each(?2)) AND status = 'confirmed' AND expires_at > 0 AND expires_at <= ?1
		AND item_id NOT IN (SELECT value FROM json_each(?3))
	RETURNING ` + OrderFields
	RefundPaid = `UPDATE orders SET status = 'refunded', closed_at = ?1, restocked = ?2
	WHERE id = ?3 AND status = 'paid'
	RETURNING ` + OrderFields
	RefundAccepted = `UPDATE payments SET outcome = 'refunded', refunded_at = ?1 WHERE order_id = ?2 AND outcome = 'accepted'`
	RefundPayment  = `UPDATE payments SET outcome = 'refunded', refunded_at = ?1 WHERE id = ?2 AND ` + PaymentNeedsRefund
	selectExpiries = `SELECT id, status, expires_at FROM orders WHERE id IN (SELECT value FROM json_each(?1))`

	selectOrders = `SELECT ` + OrderFields + ` FROM orders WHERE id IN (SELECT value FROM json_each(?1))`

	// unsellUnits takes a JSON list of items and units.
	unsellUnits = `UPDATE items SET sold = sold - CAST(json_extract(p.value, '$[1]') AS BIGINT), revision = revision + 1 FROM json_each(?1) p
	WHERE items.id = json_extract(p.value, '$[0]') RETURNING id, revision`

	SelectReleasesOfOrders = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE order_id IN (SELECT value FROM json_each(?1))`
	SelectReleasesOfItem = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE item_id = ?1`
	DeleteReleases = `DELETE FROM releases WHERE order_id IN (SELECT value FROM json_each(?1))`
	NoteSequence   = `UPDATE items SET sequence = MAX(sequence, ?1) WHERE id = ?2`
)

// takeFromBuyers skips a buyer who has fewer units. The caller checks the number of rows changed.
var takeFromBuyers = database.NewRowsStatement(
	"WITH released (item_id, user_id, quantity) AS (", "text text bigint",
	`) UPDATE buyers SET quantity = buyers.quantity - released.quantity FROM released
	WHERE buyers.item_id = released.item_id AND buyers.user_id = released.user_id AND buyers.quantity >= released.quantity`)

const releaseColumns = 6

// InsertReleases records pending releases.
var InsertReleases = database.NewRowsStatement(
	"INSERT INTO releases (order_id, item_id, user_id, idempotency_key, quantity, created_at)",
	"text text text text bigint bigint", "")
