package order

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"flashsale/inventory"
)

// A confirmed order ends by exactly one of payOrder, cancelOrder and expireOrders, and a
// paid one may then be refunded by refundOrder. Each is one conditional UPDATE, and SQLite
// has one writer. Each runs in one transaction with everything that belongs to the change,
// including its webhook events.

// transition runs fn as one change of the writer, at one instant. If ctx ends, fn is only
// cancelled if it has not begun; see writer.change. fn may run again if the changes of its
// first run were rolled back.
func (s *Store) transition(ctx context.Context, operation string, fn func(ctx context.Context, c conn, now int64) error) error {
	_, err := s.writer.change(ctx, within(writeTimeout, func(ctx context.Context, g *group) error {
		// The clock is read once the change has its turn: after the wait, a payment must
		// not count as older than it is, and no order may expire early.
		return fn(ctx, g, s.now().UnixMilli())
	}))
	if err != nil {
		return wrap(operation, err)
	}
	return nil
}

// changing is transition for the administration of items and webhooks, by gorm.
func (s *Store) changing(ctx context.Context, operation string, fn func(tx *gorm.DB, now int64) error) error {
	_, err := s.writer.change(ctx, within(writeTimeout, func(ctx context.Context, g *group) error {
		return fn(g.orm(ctx), s.now().UnixMilli())
	}))
	if err != nil {
		return wrap(operation, err)
	}
	return nil
}

// paymentErrors are the answers to recorded payments.
var paymentErrors = map[PaymentOutcome]error{
	PaymentAccepted: nil, PaymentLate: ErrOrderExpired, PaymentDuplicate: ErrOrderFinal, PaymentMismatch: ErrAmountMismatch,
}

// receipt is the answer to a payment.
type receipt struct {
	order    Order
	outcome  PaymentOutcome // the outcome recorded for the payment
	recorded bool           // by this call; a repeat records nothing
	refusal  error
}

// pay records a payment and pays its order if that is possible. See Service.Pay.
func (s *Store) pay(ctx context.Context, id string, p Payment) (Order, error) {
	own := &payment{orderID: id, Payment: p}
	change := &write{fn: func(ctx context.Context, g *group) error {
		return g.telling(ctx, func(box *outbox) (err error) {
			own.got, err = payOrder(ctx, g, id, p, box)
			return err
		})
	}}
	if own.plain() {
		change.pay = own
	}
	if err := s.tell(ctx, "pay order "+id, change); err != nil {
		return Order{}, err
	}
	if own.got.recorded {
		s.onPayment(own.got.outcome)
	}
	return own.got.order, own.got.refusal
}

// payOrder pays an order. A refusal is part of the receipt and not an error, because the
// transaction is committed anyway: a payment that pays no order is recorded, too.
func payOrder(ctx context.Context, c conn, id string, p Payment, box *outbox) (receipt, error) {
	var known reported
	// Most payments are new and pay their order; then this is the only read of the order.
	o, paid, err := settle(ctx, c, id, p, box.now, false)
	if err != nil {
		return receipt{}, err
	}
	if !paid {
		if known, err = readReported(ctx, c, p.Reference); err != nil {
			return receipt{}, err
		}
		switch {
		case known.id == 0:
		case known.orderID == id && known.Payment == p:
			o, err := readOrder(ctx, c, id)
			return receipt{order: o, outcome: known.receivedAs, refusal: paymentErrors[known.receivedAs]}, err
		case known.orderID != id || known.outcome != PaymentMismatch:
			return receipt{refusal: ErrReferenceReused}, nil
		default:
			if o, paid, err = settle(ctx, c, id, p, box.now, true); err != nil {
				return receipt{}, err
			}
		}
	}
	got := receipt{order: o, outcome: PaymentAccepted, recorded: true}
	if !paid {
		if got.order, err = readOrder(ctx, c, id); err != nil {
			return receipt{}, err
		}
		got.outcome = unaccepted(&got.order, p, box.now)
	}
	got.refusal = paymentErrors[got.outcome]
	payment, err := recordPayment(ctx, c, known.id, id, p, got.outcome, box.now)
	if errors.Is(err, ErrPaymentLimit) {
		return receipt{order: got.order, refusal: ErrPaymentLimit}, nil
	}
	if err != nil {
		return receipt{}, fmt.Errorf("record payment: %w", err)
	}
	box.touch(got.order.ItemID)
	box.payment(&got.order, payment, p, got.outcome)
	return got, nil
}

// settle pays an order if this payment can, and then returns the order. The payment's
// reference must be new, unless the payment corrects the one recorded under it.
func settle(ctx context.Context, c conn, id string, p Payment, now int64, corrects bool) (o Order, paid bool, err error) {
	o, err = scanOrder(c.QueryRowContext(ctx, payUnpaid, now, p.Reference, id, p.AmountMinor, p.Currency, corrects))
	if errors.Is(err, sql.ErrNoRows) {
		return Order{}, false, nil
	}
	if err != nil {
		return Order{}, false, fmt.Errorf("pay: %w", err)
	}
	return o, true, nil
}

// reported is the payment recorded under a reference.
type reported struct {
	Payment
	id                  int64 // 0: nothing
	orderID             string
	receivedAs, outcome PaymentOutcome
}

func readReported(ctx context.Context, c conn, reference string) (reported, error) {
	r := reported{Payment: Payment{Reference: reference}}
	err := c.QueryRowContext(ctx, selectPayment, reference).Scan(&r.id, &r.orderID, &r.AmountMinor, &r.Currency, &r.receivedAs, &r.outcome)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return reported{}, fmt.Errorf("find payment: %w", err)
	}
	return r, nil
}

// recordPayment writes a payment and returns its id. If known is not 0, it replaces the
// mismatch with that id. Errors: ErrPaymentLimit.
func recordPayment(ctx context.Context, c conn, known int64, orderID string, p Payment, outcome PaymentOutcome, now int64) (int64, error) {
	if known != 0 {
		_, err := c.ExecContext(ctx, correctPayment, p.AmountMinor, p.Currency, outcome, now, known)
		return known, err
	}
	if outcome != PaymentAccepted { // an order has at most one accepted payment
		var n int
		if err := c.QueryRowContext(ctx, countPayments, orderID).Scan(&n); err != nil {
			return 0, err
		}
		if n >= maxPayments {
			return 0, ErrPaymentLimit
		}
	}
	res, err := c.ExecContext(ctx, insertPayment, p.Reference, orderID, p.AmountMinor, p.Currency, outcome, now)
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

// unaccepted returns the outcome of a payment that did not pay its order at now.
func unaccepted(o *Order, p Payment, now int64) PaymentOutcome {
	open := o.Status == StatusConfirmed && (o.ExpiresAt.IsZero() || o.ExpiresAt.UnixMilli() > now)
	switch {
	case !open && o.Status != StatusPaid:
		return PaymentLate
	case p.AmountMinor != o.UnitPriceMinor*o.Quantity || p.Currency != o.Currency:
		return PaymentMismatch
	default:
		return PaymentDuplicate
	}
}

// returned is a pending release: the units of one closed order.
type returned struct {
	orderID        string
	itemID         string
	userID         string
	idempotencyKey string
	quantity       int64
	createdAt      int64 // Unix milliseconds; when the order was closed
}

// cancel closes an order for a caller that may do so. It returns the order's units if they
// are still to be released, also on a repeat. See Service.Cancel.
func (s *Store) cancel(ctx context.Context, id string, by Canceller) (o Order, owed []returned, err error) {
	user, reason := by.UserID, reasonBuyer
	if by.Admin {
		user, reason = "", reasonAdmin
	}
	err = s.telling(ctx, "cancel order "+id, func(ctx context.Context, c conn, box *outbox) error {
		if o, err = readOrder(ctx, c, id); err != nil {
			return err
		}
		if user != "" && user != o.UserID || !by.Admin && user == "" {
			return ErrNotFound
		}
		was := o.Status
		if was == StatusConfirmed && s.highWater.IsStopped(o.ItemID) {
			return inventory.ErrStopped // the database may have lost its payment
		}
		if err := cancelOrder(ctx, c, id, reason, box); err != nil {
			return err
		}
		if o, err = readOrder(ctx, c, id); err != nil {
			return err
		}
		if by.Admin && o.Status != was {
			if err := auditCancel(ctx, c, &o, was, by, box.now); err != nil {
				return err
			}
		}
		owed, err = readReturns(ctx, c, returnsOfOrders, jsonList(id))
		return err
	})
	switch {
	case err != nil:
		return Order{}, nil, err
	case o.Status != StatusCancelled:
		return o, nil, ErrOrderFinal
	}
	return o, owed, nil
}

// cancelOrder changes an order to cancelled, if it is confirmed.
func cancelOrder(ctx context.Context, c conn, id, reason string, box *outbox) error {
	closed, err := readReturns(ctx, c, cancelConfirmed, box.now, reason, id)
	if err != nil {
		return err
	}
	if err := takeBack(ctx, c, closed, box); err != nil {
		return err
	}
	return box.closed(ctx, c, EventCancelled, closed)
}

// expiry is the result of an order's expiry.
type expiry struct {
	status Status
	// in is the time until the order expires, if it is not due.
	in time.Duration
}

// expire closes the due orders, all in one transaction, and returns the result of each. It
// also returns the units that are still to be released, including those of orders closed
// before.
func (s *Store) expire(ctx context.Context, ids []string) (stand map[string]expiry, owed []returned, err error) {
	err = s.telling(ctx, fmt.Sprintf("expire %d orders", len(ids)), func(ctx context.Context, c conn, box *outbox) error {
		list := jsonList(ids...)
		if err := expireOrders(ctx, c, list, s.highWater.stoppedList(), box); err != nil {
			return err
		}
		if stand, err = readExpiries(ctx, c, list, box.now); err != nil {
			return err
		}
		owed, err = readReturns(ctx, c, returnsOfOrders, list)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return stand, owed, nil
}

// stoppedMin and stoppedMax bound the pause before a task of a stopped sale is retried. An
// operator must decide first, so retries need not be quick.
const (
	stoppedMin = 5 * time.Second
	stoppedMax = 15 * time.Second
)

// stoppedPause returns a random pause, so that such tasks are not all retried together.
func stoppedPause() time.Duration { return stoppedMin + rand.N(stoppedMax-stoppedMin) }

// expireOrders changes those orders of a JSON list to expired that are confirmed and due.
// It is never early: an order expires at its expires_at. Orders of the items in stopped,
// which is a JSON list too, do not expire.
func expireOrders(ctx context.Context, c conn, list, stopped string, box *outbox) error {
	closed, err := readReturns(ctx, c, expireDue, box.now, list, stopped)
	if err != nil {
		return err
	}
	if err := takeBack(ctx, c, closed, box); err != nil {
		return err
	}
	return box.closed(ctx, c, EventExpired, closed)
}

// takeBack subtracts the units of orders that were just closed, and records their releases.
func takeBack(ctx context.Context, c conn, closed []returned, box *outbox) error {
	units := make(map[string]int64, 1)
	held := make(map[soldKey]int64, len(closed))
	args := make([]any, 0, len(closed)*returnColumns)
	for i := range closed {
		r := &closed[i]
		units[r.itemID] += r.quantity
		held[soldKey{r.itemID, r.userID}] += r.quantity
		args = append(args, r.orderID, r.itemID, r.userID, r.idempotencyKey, r.quantity, r.createdAt)
	}
	for item, n := range units {
		var revision int64
		if err := c.QueryRowContext(ctx, unsellUnits, n, item).Scan(&revision); err != nil {
			return fmt.Errorf("take back %d of item %s: %w", n, item, err)
		}
		box.revised(item, revision)
	}
	for h, n := range held {
		if k, err := changed(c.ExecContext(ctx, takeFromBuyer, n, h.item, h.user)); err != nil || k != 1 {
			return errors.Join(err, fmt.Errorf("take back %d of item %s: the buyer's count is lower", n, h.item))
		}
	}
	if n, err := insertReturns.exec(ctx, c, args); err != nil || n != int64(len(closed)) {
		return errors.Join(err, fmt.Errorf("only %d of %d orders are recorded for release", n, len(closed)))
	}
	return nil
}

// jsonList passes any number of ids to a statement as one value.
func jsonList(ids ...string) string {
	b, err := json.Marshal(ids)
	if err != nil {
		panic(fmt.Sprintf("order: a list of strings has no JSON: %v", err)) // it always has one
	}
	return string(b)
}

// changed returns the number of rows that a statement changed.
func changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// each calls scan for every row of a query.
func each(ctx context.Context, c conn, query string, args []any, scan func(rows *sql.Rows) error) (err error) {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// readOrder reads an order inside a transaction. Errors: ErrNotFound.
func readOrder(ctx context.Context, c conn, id string) (Order, error) {
	o, err := scanOrder(c.QueryRowContext(ctx, selectOrder, id))
	if errors.Is(err, sql.ErrNoRows) {
		return Order{}, ErrNotFound
	}
	if err != nil {
		return Order{}, fmt.Errorf("read order: %w", err)
	}
	return o, nil
}

// scanOrder reads a row of orderFields.
func scanOrder(row interface{ Scan(to ...any) error }) (Order, error) {
	var r orderRow
	err := row.Scan(&r.ID, &r.ItemID, &r.UserID, &r.Quantity, &r.UnitPriceMinor,
		&r.Currency, &r.Status, &r.Reason, &r.IdempotencyKey, &r.CreatedAt, &r.ConfirmedAt, &r.ExpiresAt, &r.PaidAt,
		&r.ClosedAt, &r.PaymentReference, &r.Restocked)
	return r.order(), err
}

// readReturns reads the rows of a query with the columns of returned.
func readReturns(ctx context.Context, c conn, query string, args ...any) ([]returned, error) {
	var list []returned
	err := each(ctx, c, query, args, func(rows *sql.Rows) error {
		var r returned
		err := rows.Scan(&r.orderID, &r.itemID, &r.userID, &r.idempotencyKey, &r.quantity, &r.createdAt)
		list = append(list, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read units to release: %w", err)
	}
	return list, nil
}

// readExpiries reads the states of the orders in a JSON list. Orders without a row are
// omitted.
func readExpiries(ctx context.Context, c conn, list string, now int64) (map[string]expiry, error) {
	stand := make(map[string]expiry)
	err := each(ctx, c, selectExpiries, []any{list}, func(rows *sql.Rows) error {
		var id string
		var status Status
		var expiresAt int64
		if err := rows.Scan(&id, &status, &expiresAt); err != nil {
			return err
		}
		e := expiry{status: status}
		switch {
		case status != StatusConfirmed || expiresAt == 0:
		case expiresAt > now:
			e.in = time.Duration(expiresAt-now) * time.Millisecond
		default:
			e.in = stoppedPause() // it is due, but the sale is stopped
		}
		stand[id] = e
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read orders to expire: %w", err)
	}
	return stand, nil
}

// maxPayments bounds the payments recorded for one order. A backend that reports one
// order's payment repeatedly with new references must not fill the disk.
const maxPayments = 100
