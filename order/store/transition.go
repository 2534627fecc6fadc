package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/timeouts"
)

// A confirmed order ends by exactly one of payOrder, cancelOrders and expireOrders, and a
// paid one may then be refunded by refundOrder. Each is one conditional UPDATE, and SQLite
// has one writer. Each runs in one transaction with everything that belongs to the change,
// including its webhook events.

// Transition runs fn as one change of the writer, at one instant. If ctx ends, fn is only
// cancelled if it has not begun; see writer.change. fn may run again if the changes of its
// first run were rolled back.
func (s *Store) Transition(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, now int64) error) error {
	_, err := s.writer.change(ctx, within(timeouts.Write, func(ctx context.Context, g *group) error {
		// The clock is read once the change has its turn: after the wait, a payment must
		// not count as older than it is, and no order may expire early.
		return fn(ctx, g, s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// Changing is transition for the administration of items and webhooks, by gorm.
func (s *Store) Changing(ctx context.Context, operation string, fn func(tx *gorm.DB, now int64) error) error {
	_, err := s.writer.change(ctx, within(timeouts.Write, func(ctx context.Context, g *group) error {
		return fn(g.orm(ctx), s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// PaymentErrors are the answers to recorded payments.
var PaymentErrors = map[order.PaymentOutcome]error{
	order.PaymentAccepted: nil, order.PaymentLate: order.ErrOrderExpired, order.PaymentDuplicate: order.ErrPaidAlready, order.PaymentMismatch: order.ErrAmountMismatch,
}

// receipt is the answer to a payment.
type receipt struct {
	order    order.Order
	outcome  order.PaymentOutcome // the outcome recorded for the payment
	recorded bool                 // by this call; a repeat records nothing
	refusal  error
}

// Pay records a payment and pays its order if that is possible. See Service.Pay.
func (s *Store) Pay(ctx context.Context, id string, p order.Payment) (order.Order, error) {
	own := &payment{orderID: id, Payment: p}
	change := &write{fn: func(ctx context.Context, g *group) error {
		return g.withOutbox(ctx, func(box *Outbox) (err error) {
			own.got, err = payOrder(ctx, g, id, p, box)
			return err
		})
	}}
	if own.plain() {
		change.pay = own
	}
	if err := submitChange(ctx, s, "pay order "+id, change); err != nil {
		return order.Order{}, err
	}
	if own.got.recorded {
		s.onPayment(own.got.outcome)
	}
	return own.got.order, own.got.refusal
}

// payOrder pays an order. A refusal is part of the receipt and not an error, because the
// transaction is committed anyway: a payment that pays no order is recorded, too.
func payOrder(ctx context.Context, c Conn, id string, p order.Payment, box *Outbox) (receipt, error) {
	var known reported
	// Most payments are new and pay their order; then this is the only read of the order.
	o, paid, err := settle(ctx, c, id, p, box.Now, false)
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
			o, err := ReadOrder(ctx, c, id)
			return receipt{order: o, outcome: known.receivedAs, refusal: PaymentErrors[known.receivedAs]}, err
		case known.orderID != id || known.outcome != order.PaymentMismatch:
			return receipt{refusal: order.ErrReferenceReused}, nil
		default:
			if o, paid, err = settle(ctx, c, id, p, box.Now, true); err != nil {
				return receipt{}, err
			}
		}
	}
	got := receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
	if !paid {
		if got.order, err = ReadOrder(ctx, c, id); err != nil {
			return receipt{}, err
		}
		got.outcome = unaccepted(&got.order, p, box.Now)
	}
	got.refusal = PaymentErrors[got.outcome]
	payment, err := recordPayment(ctx, c, known.id, id, p, got.outcome, box.Now)
	if errors.Is(err, order.ErrPaymentLimit) {
		return receipt{order: got.order, refusal: order.ErrPaymentLimit}, nil
	}
	if err != nil {
		return receipt{}, fmt.Errorf("record payment: %w", err)
	}
	box.Touch(got.order.ItemID)
	box.payment(&got.order, payment, p, got.outcome)
	return got, nil
}

// settle pays an order if this payment can, and then returns the order. The payment's
// reference must be new, unless the payment corrects the one recorded under it.
func settle(ctx context.Context, c Conn, id string, p order.Payment, now int64, corrects bool) (o order.Order, paid bool, err error) {
	o, err = ScanOrder(c.QueryRowContext(ctx, payUnpaid, now, p.Reference, id, p.AmountMinor, p.Currency, corrects))
	if errors.Is(err, sql.ErrNoRows) {
		return order.Order{}, false, nil
	}
	if err != nil {
		return order.Order{}, false, fmt.Errorf("pay: %w", err)
	}
	return o, true, nil
}

// reported is the payment recorded under a reference.
type reported struct {
	order.Payment
	id                  int64 // 0: nothing
	orderID             string
	receivedAs, outcome order.PaymentOutcome
}

func readReported(ctx context.Context, c Conn, reference string) (reported, error) {
	r := reported{Payment: order.Payment{Reference: reference}}
	err := c.QueryRowContext(ctx, SelectPayment, reference).Scan(&r.id, &r.orderID, &r.AmountMinor, &r.Currency, &r.receivedAs, &r.outcome)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return reported{}, fmt.Errorf("find payment: %w", err)
	}
	return r, nil
}

// recordPayment writes a payment and returns its id. If known is not 0, it replaces the
// mismatch with that id. Errors: ErrPaymentLimit.
func recordPayment(ctx context.Context, c Conn, known int64, orderID string, p order.Payment, outcome order.PaymentOutcome, now int64) (int64, error) {
	if known != 0 {
		_, err := c.ExecContext(ctx, correctPayment, p.AmountMinor, p.Currency, outcome, now, known)
		return known, err
	}
	if outcome != order.PaymentAccepted { // an order has at most one accepted payment
		var n int
		if err := c.QueryRowContext(ctx, CountPayments, orderID).Scan(&n); err != nil {
			return 0, err
		}
		if n >= MaxPayments {
			return 0, order.ErrPaymentLimit
		}
	}
	var id int64
	err := c.QueryRowContext(ctx, insertPayment, p.Reference, orderID, p.AmountMinor, p.Currency, outcome, now).Scan(&id)
	return id, err
}

// unaccepted returns the outcome of a payment that did not pay its order at now.
func unaccepted(o *order.Order, p order.Payment, now int64) order.PaymentOutcome {
	open := o.Status == order.StatusConfirmed && (o.ExpiresAt.IsZero() || o.ExpiresAt.UnixMilli() > now)
	switch {
	case !open && o.Status != order.StatusPaid:
		return order.PaymentLate
	case p.AmountMinor != o.UnitPriceMinor*o.Quantity || p.Currency != o.Currency:
		return order.PaymentMismatch
	default:
		return order.PaymentDuplicate
	}
}

// Returned is a pending release: the units of one closed order.
type Returned struct {
	OrderID        string
	ItemID         string
	UserID         string
	IdempotencyKey string
	Quantity       int64
	CreatedAt      int64 // Unix milliseconds; when the order was closed
}

// Expiry is the result of an order's expiry.
type Expiry struct {
	Status order.Status
	// in is the time until the order expires, if it is not due.
	In time.Duration
}

// Expire closes the due orders, all in one transaction, and returns the result of each. It
// also returns the units that are still to be released, including those of orders closed
// before.
func (s *Store) Expire(ctx context.Context, ids []string) (stand map[string]Expiry, owed []Returned, err error) {
	err = s.TransitionWithEvents(ctx, fmt.Sprintf("expire %d orders", len(ids)), func(ctx context.Context, c Conn, box *Outbox) error {
		list := JSONList(ids...)
		if err := expireOrders(ctx, c, list, s.highWater.StoppedList(), box); err != nil {
			return err
		}
		if stand, err = readExpiries(ctx, c, list, box.Now); err != nil {
			return err
		}
		owed, err = ReadReturns(ctx, c, ReturnsOfOrders, list)
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

// StoppedPause returns a random pause, so that such tasks are not all retried together.
func StoppedPause() time.Duration { return stoppedMin + rand.N(stoppedMax-stoppedMin) }

// expireOrders changes those orders of a JSON list to expired that are confirmed and due.
// It is never early: an order expires at its expires_at. Orders of the items in stopped,
// which is a JSON list too, do not expire.
func expireOrders(ctx context.Context, c Conn, list, stopped string, box *Outbox) error {
	_, err := closeOrders(ctx, c, box, order.EventExpired, expireDue, box.Now, list, stopped)
	return err
}

// closeOrders runs a statement that changes confirmed orders to a final state and returns their
// OrderFields, with all that belongs to that change. It returns those orders.
func closeOrders(ctx context.Context, c Conn, box *Outbox, kind order.EventType, query string, args ...any) ([]order.Order, error) {
	closed, err := ReadOrders(ctx, c, query, args...)
	if err != nil {
		return nil, err
	}
	if err := TakeBack(ctx, c, closed, box); err != nil {
		return nil, err
	}
	box.Closed(kind, closed)
	return closed, nil
}

// TakeBack subtracts the units of orders that were just closed, and records their releases. The
// number of its statements does not depend on that of the orders: on Postgres, nothing else is
// written meanwhile.
func TakeBack(ctx context.Context, c Conn, closed []order.Order, box *Outbox) error {
	if len(closed) == 0 {
		return nil
	}
	units := make(map[string]int64, 1)
	held := make(map[soldKey]int64, len(closed))
	args := make([]any, 0, len(closed)*returnColumns)
	for i := range closed {
		o := &closed[i]
		units[o.ItemID] += o.Quantity
		held[soldKey{o.ItemID, o.UserID}] += o.Quantity
		args = append(args, o.ID, o.ItemID, o.UserID, o.IdempotencyKey, o.Quantity, order.ToMillis(o.ClosedAt))
	}
	if err := unsell(ctx, c, units, box); err != nil {
		return err
	}
	if n, err := takeFromBuyers.Exec(ctx, c, holders(held)); err != nil || n != int64(len(held)) {
		return errors.Join(err, fmt.Errorf("take back the units of %d buyers: the count is lower for %d", len(held), int64(len(held))-n))
	}
	if n, err := InsertReturns.Exec(ctx, c, args); err != nil || n != int64(len(closed)) {
		return errors.Join(err, fmt.Errorf("only %d of %d orders are recorded for release", n, len(closed)))
	}
	return nil
}

// unsell subtracts units from what the items have sold.
func unsell(ctx context.Context, c Conn, units map[string]int64, box *Outbox) error {
	list := make([][2]any, 0, len(units))
	for item, n := range units {
		list = append(list, [2]any{item, n})
	}
	found := 0
	err := Each(ctx, c, unsellUnits, []any{jsonOf(list)}, func(rows *sql.Rows) error {
		var item string
		var revision int64
		err := rows.Scan(&item, &revision)
		box.revised(item, revision)
		found++
		return err
	})
	if err != nil || found != len(units) {
		return errors.Join(err, fmt.Errorf("take back units of %d items: %d have a row", len(units), found))
	}
	return nil
}

// JSONList passes any number of ids to a statement as one value.
func JSONList(ids ...string) string { return jsonOf(ids) }

func jsonOf(list any) string {
	b, err := json.Marshal(list)
	if err != nil {
		panic(fmt.Sprintf("order: a list of strings and numbers has no JSON: %v", err)) // it always has one
	}
	return string(b)
}

// Changed returns the number of rows that a statement changed.
func Changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Each calls scan for every row of a query.
func Each(ctx context.Context, c Conn, query string, args []any, scan func(rows *sql.Rows) error) (err error) {
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

// ReadOrder reads an order inside a transaction. Errors: ErrNotFound.
func ReadOrder(ctx context.Context, c Conn, id string) (order.Order, error) {
	o, err := ScanOrder(c.QueryRowContext(ctx, selectOrder, id))
	if errors.Is(err, sql.ErrNoRows) {
		return order.Order{}, order.ErrNotFound
	}
	if err != nil {
		return order.Order{}, fmt.Errorf("read order: %w", err)
	}
	return o, nil
}

// ScanOrder reads a row of OrderFields.
func ScanOrder(row interface{ Scan(to ...any) error }) (order.Order, error) {
	var r schema.Order
	err := row.Scan(&r.ID, &r.ItemID, &r.UserID, &r.Quantity, &r.UnitPriceMinor,
		&r.Currency, &r.Status, &r.Reason, &r.IdempotencyKey, &r.CreatedAt, &r.ConfirmedAt, &r.ExpiresAt, &r.PaidAt,
		&r.ClosedAt, &r.PaymentReference, &r.Restocked)
	return r.Order(), err
}

// ReadOrders reads the rows of a query with OrderFields.
func ReadOrders(ctx context.Context, c Conn, query string, args ...any) ([]order.Order, error) {
	var list []order.Order
	err := Each(ctx, c, query, args, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		list = append(list, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read orders: %w", err)
	}
	return list, nil
}

// ReadReturns reads the rows of a query with the columns of returned.
func ReadReturns(ctx context.Context, c Conn, query string, args ...any) ([]Returned, error) {
	var list []Returned
	err := Each(ctx, c, query, args, func(rows *sql.Rows) error {
		var r Returned
		err := rows.Scan(&r.OrderID, &r.ItemID, &r.UserID, &r.IdempotencyKey, &r.Quantity, &r.CreatedAt)
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
func readExpiries(ctx context.Context, c Conn, list string, now int64) (map[string]Expiry, error) {
	stand := make(map[string]Expiry)
	err := Each(ctx, c, selectExpiries, []any{list}, func(rows *sql.Rows) error {
		var id string
		var status order.Status
		var expiresAt int64
		if err := rows.Scan(&id, &status, &expiresAt); err != nil {
			return err
		}
		e := Expiry{Status: status}
		switch {
		case status != order.StatusConfirmed || expiresAt == 0:
		case expiresAt > now:
			e.In = time.Duration(expiresAt-now) * time.Millisecond
		default:
			e.In = StoppedPause() // it is due, but the sale is stopped
		}
		stand[id] = e
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read orders to expire: %w", err)
	}
	return stand, nil
}

// MaxPayments bounds the payments recorded for one order. A backend that reports one
// order's payment repeatedly with new references must not fill the disk.
const MaxPayments = 100
