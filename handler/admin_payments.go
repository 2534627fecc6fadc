package handler

import (
	"context"
	"strconv"

	"flashsale/handler/encode"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/checkout"
)

// paymentService lists received amounts and records refunds. Errors: those of payments.Service's
// methods.
type paymentService interface {
	// Payments returns a page of the received amounts, newest first, and whether
	// more follow.
	Payments(ctx context.Context, f order.PaymentFilter) (payments []order.PaymentRecord, more bool, err error)
	// OrderPayments returns the amounts received for an order, oldest first.
	OrderPayments(ctx context.Context, id string) ([]order.PaymentRecord, error)
	// MarkRefunded records that an amount that paid for no order was refunded.
	MarkRefunded(ctx context.Context, id int64, by order.By) (order.PaymentRecord, error)
}

// orderRefunder refunds paid orders.
type orderRefunder interface {
	// Refund records that a paid order was refunded. Errors: those of
	// checkout.Service.Refund.
	Refund(ctx context.Context, id string, r checkout.Refund) (order.Order, error)
}

// paymentRoutes list received amounts and record refunds.
type paymentRoutes struct {
	payments paymentService
	orders   orderRefunder
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
	q.out = append(encode.TextField(b, `,"next_cursor":`, next), '}')
	return q.json(200)
}

func (rs *paymentRoutes) readFilter(q *call) (f order.PaymentFilter, err error) {
	if f.Outcome, err = request.Choice(q.query, "outcome", order.PaymentOutcomes); err != nil {
		return f, err
	}
	if f.NeedsRefund, err = q.query.Switch("needs_refund", false); err != nil {
		return f, err
	}
	if f.Reference = q.query.Get("reference"); q.query.Has("reference") && !request.VisibleASCII(f.Reference, maxReference) {
		return f, request.ErrParameter.With("reference", "reference has 1 to 255 visible ASCII characters.")
	}
	if f.Limit, err = q.query.Limit(); err != nil {
		return f, err
	}
	f.Before, err = rs.cursors.before(q.query, paymentList(f))
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

// readPaymentID reads a payment's id from the path. Each id has exactly one form.
func readPaymentID(text string) (int64, bool) {
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == text
}

// refund answers POST /v1/admin/orders/{order}/refund.
func (rs *paymentRoutes) refund(q *call) error {
	id := q.c.Param("order")
	f := request.ReadFields(q.in)
	restock, _ := f.Bool("restock", true)
	if err := f.Done(); err != nil {
		return err
	}
	o, err := rs.orders.Refund(q.ctx(), id, checkout.Refund{Restock: restock, By: q.by()})
	if err != nil {
		return err
	}
	return q.order(&o)
}
