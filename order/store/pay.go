package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store/database"
)

// payment is a payment to be recorded.
type payment struct {
	order.Payment
	orderID string
	got     receipt // the answer
}

// receipt is the answer to a payment.
type receipt struct {
	order    order.Order
	outcome  order.PaymentOutcome // the outcome recorded for the payment
	recorded bool                 // by this call; a repeat records nothing
	refusal  error
}

// Pay records a payment and pays its order if that is possible. See checkout.Service.Pay.
func (s *Store) Pay(ctx context.Context, id string, p order.Payment) (order.Order, error) {
	own := &payment{orderID: id, Payment: p}
	change := &database.Write{Value: own, Run: func(ctx context.Context, tx *database.Tx) error {
		return transactionOf(tx).withOutbox(ctx, func(box *Outbox) (err error) {
			own.got, err = payOrder(ctx, tx, id, p, box)
			return err
		})
	}}
	if own.plain() {
		change.Kind = payments
	}
	if err := changeAndNoteRevisions(ctx, s, "pay order "+id, change); err != nil {
		return order.Order{}, err
	}
	if own.got.recorded {
		s.onPayment(own.got.outcome)
	}
	return own.got.order, own.got.refusal
}

// PaymentErrors are the answers to recorded payments.
var PaymentErrors = map[order.PaymentOutcome]error{
	order.PaymentAccepted: nil, order.PaymentLate: order.ErrOrderExpired, order.PaymentDuplicate: order.ErrPaidAlready, order.PaymentMismatch: order.ErrAmountMismatch,
}

// MaxPayments bounds the payments recorded for one order. A backend that reports one
// order's payment repeatedly with new references must not fill the disk.
const MaxPayments = 100

// payOrder pays an order. A refusal is part of the receipt and not an error, because the
// transaction is committed anyway: a payment that pays no order is recorded, too.
func payOrder(ctx context.Context, c database.Conn, id string, p order.Payment, box *Outbox) (receipt, error) {
	var known reported
	// Most payments are new and pay their order; then this is the only read of the order.
	o, paid, err := tryPay(ctx, c, id, p, box.Now, false)
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
			if o, paid, err = tryPay(ctx, c, id, p, box.Now, true); err != nil {
				return receipt{}, err
			}
		}
	}
	got := receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
	if !paid {
		if got.order, err = ReadOrder(ctx, c, id); err != nil {
			return receipt{}, err
		}
		got.outcome = outcomeUnaccepted(&got.order, p, box.Now)
	}
	got.refusal = PaymentErrors[got.outcome]
	payment, err := recordPayment(ctx, c, reported{Payment: p, id: known.id, orderID: id, receivedAs: got.outcome}, box.Now)
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

// tryPay pays an order if this payment can, and then returns the order. The payment's
// reference must be new, unless the payment corrects the one recorded under it.
func tryPay(ctx context.Context, c database.Conn, id string, p order.Payment, now int64, corrects bool) (o order.Order, paid bool, err error) {
	o, err = ScanOrder(c.QueryRowContext(ctx, payUnpaid, now, p.Reference, id, p.AmountMinor, p.Currency, corrects))
	if errors.Is(err, sql.ErrNoRows) {
		return order.Order{}, false, nil
	}
	if err != nil {
		return order.Order{}, false, fmt.Errorf("pay: %w", err)
	}
	return o, true, nil
}

// reported is a payment as it is, or will be, recorded under its reference.
type reported struct {
	order.Payment
	id                  int64 // 0: nothing is recorded
	orderID             string
	receivedAs, outcome order.PaymentOutcome
}

func readReported(ctx context.Context, c database.Conn, reference string) (reported, error) {
	r := reported{Payment: order.Payment{Reference: reference}}
	err := c.QueryRowContext(ctx, SelectPayment, reference).Scan(&r.id, &r.orderID, &r.AmountMinor, &r.Currency, &r.receivedAs, &r.outcome)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return reported{}, fmt.Errorf("find payment: %w", err)
	}
	return r, nil
}

// recordPayment writes a payment and returns its id; its outcome is what it was received as. If it has an id, it
// replaces the mismatch with that id. Errors: ErrPaymentLimit.
func recordPayment(ctx context.Context, c database.Conn, r reported, now int64) (int64, error) {
	if r.id != 0 {
		_, err := c.ExecContext(ctx, correctPayment, r.AmountMinor, r.Currency, r.receivedAs, now, r.id)
		return r.id, err
	}
	if r.receivedAs != order.PaymentAccepted { // an order has at most one accepted payment
		var n int
		if err := c.QueryRowContext(ctx, CountPayments, r.orderID).Scan(&n); err != nil {
			return 0, err
		}
		if n >= MaxPayments {
			return 0, order.ErrPaymentLimit
		}
	}
	var id int64
	err := c.QueryRowContext(ctx, insertPayment, r.Reference, r.orderID, r.AmountMinor, r.Currency, r.receivedAs, now).Scan(&id)
	return id, err
}

// outcomeUnaccepted returns the outcome of a payment that did not pay its order at now.
func outcomeUnaccepted(o *order.Order, p order.Payment, now int64) order.PaymentOutcome {
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

// plain reports whether the payment's texts need no escapes in JSON.
func (p *payment) plain() bool { return plain(p.orderID) && plain(p.Reference) && plain(p.Currency) }

func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// errNotAll says that payments that pay their orders could not be recorded. They are then recorded
// one by one.
var errNotAll = errors.New("order: payments must be recorded one by one")

// payments are the changes whose value is a payment that can be recorded together with others.
var payments = &database.Kind{Together: payTogether, Shared: true}

// payTogether records the payments that are new, pay different orders, and may pay them. It returns the
// rest. Statements for single payments cost three times as much. Errors: errNotAll.
func payTogether(ctx context.Context, tx *database.Tx, bunch []*database.Write) (rest []*database.Write, err error) {
	of := make(map[string]*payment, len(bunch))
	references := make(map[string]bool, len(bunch))
	for _, one := range bunch {
		if p := one.Value.(*payment); of[p.orderID] == nil && !references[p.Reference] {
			of[p.orderID], references[p.Reference] = p, true
		}
	}
	var paid map[string]*payment
	err = transactionOf(tx).withOutbox(ctx, func(box *Outbox) error {
		record := recordAll
		if tx.Postgres() {
			record = recordAllPostgres
		}
		paid, err = record(ctx, tx, of, box)
		return err
	})
	for _, one := range bunch {
		if p := one.Value.(*payment); paid[p.orderID] != p {
			rest = append(rest, one)
		}
	}
	return rest, err
}

// recordAll records those payments that may pay their orders, and returns them. The maps have the
// payments by their orders.
func recordAll(ctx context.Context, c database.Conn, of map[string]*payment, box *Outbox) (map[string]*payment, error) {
	paid := make(map[string]*payment, len(of))
	err := database.Each(ctx, c, payUnpaidOf, []any{box.Now, valuesOf(of)}, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		if err != nil {
			return err
		}
		p := of[o.ID]
		paid[o.ID] = p
		p.got = receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
		box.Touch(o.ItemID)
		box.payment(&o, 0, p.Payment, order.PaymentAccepted)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pay %s: %w", plural.Count(len(of), "order"), err)
	}
	if len(paid) == 0 {
		return nil, nil
	}
	recorded, err := database.Changed(c.ExecContext(ctx, insertPaymentsOf, box.Now, valuesOf(paid)))
	if err != nil {
		return nil, fmt.Errorf("record %s: %w", plural.Count(len(paid), "payment"), err)
	}
	if recorded != int64(len(paid)) {
		return nil, errNotAll
	}
	return paid, nil
}

// recordAllPostgres is recordAll in one statement. Payments and batches of orders run concurrently there, so
// the orders are locked before the items, each in the order of their ids.
func recordAllPostgres(ctx context.Context, c database.Conn, of map[string]*payment, box *Outbox) (map[string]*payment, error) {
	orders := slices.Sorted(maps.Keys(of))
	references, currencies, amounts := make([]string, len(of)), make([]string, len(of)), make([]int64, len(of))
	for i, id := range orders {
		references[i], amounts[i], currencies[i] = of[id].Reference, of[id].AmountMinor, of[id].Currency
	}
	paid := make(map[string]*payment, len(of))
	err := database.Each(ctx, c, payAllUnpaid, []any{box.Now, orders, references, amounts, currencies}, func(rows *sql.Rows) error {
		var revision int64
		o, err := ScanOrder(scanner(func(to ...any) error { return rows.Scan(append(to, &revision)...) }))
		if err != nil {
			return err
		}
		p := of[o.ID]
		paid[o.ID] = p
		p.got = receipt{order: o, outcome: order.PaymentAccepted, recorded: true}
		box.revised(o.ItemID, revision)
		box.payment(&o, 0, p.Payment, order.PaymentAccepted)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("pay %s: %w", plural.Count(len(of), "order"), err)
	}
	return paid, nil
}

// scanner reads a row.
type scanner func(to ...any) error

// Scan calls s.
func (s scanner) Scan(to ...any) error { return s(to...) }

// valuesOf returns payments as JSON.
func valuesOf(of map[string]*payment) string {
	list := []byte{'['}
	for _, p := range of {
		if len(list) > 1 {
			list = append(list, ',')
		}
		list = append(list, `["`...)
		list = append(append(list, p.orderID...), `","`...)
		list = append(append(list, p.Reference...), `",`...)
		list = append(strconv.AppendInt(list, p.AmountMinor, 10), `,"`...)
		list = append(append(list, p.Currency...), `"]`...)
	}
	return string(append(list, ']'))
}
