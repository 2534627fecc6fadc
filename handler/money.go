package handler

import (
	"context"
	"errors"
	"strconv"

	"flashsale/handler/auth"
	"flashsale/handler/strictjson"
	"flashsale/order"
)

// Money is what an admin sees of received amounts, and does about them. Errors:
// those of order.Service's methods.
type Money interface {
	// Payments returns a page of the received amounts, newest first, and whether
	// more follow.
	Payments(ctx context.Context, f order.PaymentFilter) (payments []order.PaymentRecord, more bool, err error)
	// OrderPayments returns what was received for an order, oldest first.
	OrderPayments(ctx context.Context, id string) ([]order.PaymentRecord, error)
	// MarkRefunded records that an amount which paid nothing was refunded.
	MarkRefunded(ctx context.Context, id int64, by order.By) (order.PaymentRecord, error)
	// Refund records that a paid order was refunded.
	Refund(ctx context.Context, id string, r order.Refund) (order.Order, error)
}

// paymentRoutes show received amounts and record refunds.
type paymentRoutes struct {
	payments Money
	cursors  sealer
}

// list answers GET /v1/admin/payments.
func (rs *paymentRoutes) list(q *call) error {
	f, err := rs.readFilter(q)
	if err != nil {
		return err
	}
	payments, more, err := rs.payments.Payments(q.ctx(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(payments) > 0 {
		next = rs.cursors.after(payments[len(payments)-1].ID, more, paymentList(f))
	}
	b := appendPayments(append(q.out[:0], `{"payments":`...), payments)
	q.out = append(appendTextField(b, `,"next_cursor":`, next), '}')
	return q.json(200)
}

func (rs *paymentRoutes) readFilter(q *call) (f order.PaymentFilter, err error) {
	if f.Outcome, err = queryChoice(q, "outcome", order.PaymentOutcomes); err != nil {
		return f, err
	}
	if f.NeedsRefund, err = q.querySwitch("needs_refund", false); err != nil {
		return f, err
	}
	if f.Limit, err = q.pageLimit(); err != nil {
		return f, err
	}
	f.Before, err = rs.cursors.before(q, paymentList(f))
	return f, err
}

// markRefunded answers POST /v1/admin/payments/{payment}/refunded.
func (rs *paymentRoutes) markRefunded(q *call) error {
	id, _ := readPaymentID(q.c.Param("payment"))
	p, err := rs.payments.MarkRefunded(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	q.out = appendPayment(q.out[:0], &p)
	return q.json(200)
}

func validPaymentID(text string) bool {
	_, ok := readPaymentID(text)
	return ok
}

// readPaymentID reads a payment's id from the path. Each id has one spelling.
func readPaymentID(text string) (int64, bool) {
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == text
}

// refund answers POST /v1/admin/orders/{order}/refund.
func (rs *paymentRoutes) refund(q *call) error {
	id := q.c.Param("order")
	f := newFields(q.in)
	restock, _ := f.take("restock", strictjson.Bool, true, "true or false")
	if err := f.done(); err != nil {
		return err
	}
	o, err := rs.payments.Refund(q.ctx(), id, order.Refund{Restock: restock.Bool(), By: q.by()})
	if err != nil {
		return err
	}
	return q.order(&o)
}

// appendPaymentsOf adds to an order what was received for it, for admins only.
func (rs *orderRoutes) appendPaymentsOf(q *call, b []byte, id string) ([]byte, error) {
	if rs.payments == nil || q.who.Role != auth.RoleAdmin {
		return b, nil
	}
	payments, err := rs.payments.OrderPayments(q.ctx(), id)
	if err != nil {
		return b, err
	}
	return append(appendPayments(append(b[:len(b)-1], `,"payments":`...), payments), '}'), nil
}

// logUnaccepted logs an amount that was received and paid nothing: its client must
// refund it, and may not be listening.
func (rs *orderRoutes) logUnaccepted(q *call, id string, p *order.Payment, cause error) {
	message := "payment pays nothing and is to be refunded"
	switch {
	case errors.Is(cause, order.ErrPaymentLimit):
		message = "payment was not recorded: its order has too many; refund it"
	case errors.Is(cause, order.ErrOrderExpired), errors.Is(cause, order.ErrOrderFinal), errors.Is(cause, order.ErrAmountMismatch):
	default:
		return
	}
	rs.log.Warn().Str("order", id).Str("reference", p.Reference).Int64("amount_minor", p.AmountMinor).Str("currency", p.Currency).
		Str("request_id", q.requestID()).AnErr("cause", cause).Msg(message)
}
