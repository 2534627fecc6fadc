package handler

import (
	"context"
	"errors"

	"github.com/rs/zerolog"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/handler/encode"
	"flashsale/handler/request"
	"flashsale/order"
	"flashsale/order/checkout"
)

// orderReader reads orders.
type orderReader interface {
	// Get returns one order, or order.ErrNotFound. The routes check access.
	Get(ctx context.Context, id string) (order.Order, error)
}

// orderBook lists orders and changes their states.
type orderBook interface {
	orderReader
	// List returns a page of orders, newest first, and the id before which the next page
	// begins; empty: there is none.
	List(ctx context.Context, f order.Filter) (orders []order.Order, next string, err error)
	// Pay records a payment and settles the order with it. Errors: those of
	// checkout.Service.Pay.
	Pay(ctx context.Context, id string, p order.Payment) (order.Order, error)
	// Cancel cancels an order that is not paid. Errors: those of
	// checkout.Service.Cancel.
	Cancel(ctx context.Context, id string, by order.Canceller) (order.Order, error)
}

// orderRoutes read, pay and cancel orders.
type orderRoutes struct {
	items    itemCatalog
	orders   orderBook
	payments paymentService
	cursors  sealer
	log      zerolog.Logger
}

// get answers GET /v1/orders/{order}. Another buyer's order is answered
// like one that does not exist, so that ids reveal nothing.
func (rs *orderRoutes) get(q *call) error {
	id := q.c.Param("order")
	o, err := rs.orders.Get(q.ctx(), id)
	if err != nil {
		return err
	}
	if q.identity.Role == auth.RoleBuyer && o.UserID != q.identity.Subject {
		return order.ErrNotFound
	}
	if q.out, err = rs.appendPaymentsOf(q, appendOrder(q.out[:0], &o), id); err != nil {
		return err
	}
	return q.json(200)
}

// validOrderID reports whether id is a UUID in lower case, of any version.
func validOrderID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// list answers GET /v1/orders: a buyer's own orders, or those that match an admin's filters.
func (rs *orderRoutes) list(q *call) error {
	f, err := rs.readFilter(q)
	if err != nil {
		return err
	}
	orders, after, err := rs.orders.List(q.ctx(), f)
	incomplete := errors.Is(err, checkout.ErrIncompleteList)
	if err != nil && !incomplete {
		return err
	}
	b := encode.List(append(q.out[:0], `{"orders":[`...), orders, appendOrder)
	b = encode.TextField(b, `],"next_cursor":`, rs.cursors.makeCursor(f, after))
	if incomplete {
		b = append(b, `,"incomplete":true`...)
	}
	q.out = append(b, '}')
	return q.json(200)
}

var orderStatuses = []order.Status{
	order.StatusQueued, order.StatusConfirmed, order.StatusPaid, order.StatusRefunded,
	order.StatusCancelled, order.StatusExpired, order.StatusRejected,
}

// readFilter reads the query of a list. The route only allows filters for admins.
func (rs *orderRoutes) readFilter(q *call) (f order.Filter, err error) {
	if f.Limit, err = q.query.Limit(); err != nil {
		return f, err
	}
	if f.ItemID, err = q.query.ID("item_id", catalog.ValidID, problemItemID); err != nil {
		return f, err
	}
	if f.ItemID != "" {
		item, err := rs.items.Item(q.ctx(), f.ItemID)
		if err != nil && !errors.Is(err, catalog.ErrItemNotFound) {
			return f, err
		}
		f.Buckets = item.Buckets
	}
	if f.Status, err = request.Choice(q.query, "status", orderStatuses); err != nil {
		return f, err
	}
	if q.identity.Role == auth.RoleBuyer {
		f.UserID = q.identity.Subject
	} else if f.UserID = q.query.Get("user_id"); q.query.Has("user_id") && !auth.ValidSubject(f.UserID) {
		return f, request.ErrParameter.With("user_id", "user_id has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
	}
	if f.Status == order.StatusQueued && f.UserID == "" {
		// Only their buyer can find queued orders. An empty list would suggest that there are
		// none.
		return f, request.ErrParameter.With("status",
			"status=queued also needs user_id. GET /v1/admin/queue shows how many orders are queued.")
	}
	f.Before, err = rs.cursors.beforeOrder(q.query, f)
	return f, err
}

// maxReference is the maximum length of a payment's reference, in characters.
const maxReference = 255

// maxAmount bounds a payment in the currency's smallest unit. A larger number is a mistake.
const maxAmount = 1_000_000_000_000_000_000

// cancel answers POST /v1/orders/{order}/cancel. Another buyer's order is
// answered like one that does not exist.
func (rs *orderRoutes) cancel(q *call) error {
	id := q.c.Param("order")
	o, err := rs.orders.Cancel(q.ctx(), id, order.Canceller{
		UserID: q.identity.Subject, Admin: q.identity.Role == auth.RoleAdmin, RequestID: q.requestID(),
	})
	if err != nil {
		return err
	}
	return q.order(&o)
}

// pay answers POST /v1/orders/{order}/payment, which the shop's backend calls when it has
// received money.
func (rs *orderRoutes) pay(q *call) error {
	id := q.c.Param("order")
	p, err := readPayment(q.in)
	if err != nil {
		return err
	}
	o, err := rs.orders.Pay(q.ctx(), id, p)
	if err != nil {
		rs.logUnaccepted(q, id, &o, &p, err)
		return err
	}
	return q.order(&o)
}

// readPayment reads and checks the body of a payment.
func readPayment(body []byte) (order.Payment, error) {
	f := request.ReadFields(body)
	p := order.Payment{
		Reference:   f.Text("reference", true),
		AmountMinor: f.Integer("amount_minor", true, 0),
		Currency:    f.Text("currency", true),
	}
	if err := f.Done(); err != nil {
		return p, err
	}
	switch {
	case !request.VisibleASCII(p.Reference, maxReference):
		return p, request.ErrFieldRange.With("reference", "reference has 1 to 255 visible ASCII characters.")
	case p.AmountMinor < 0 || p.AmountMinor > maxAmount:
		return p, request.ErrFieldRange.With("amount_minor", "amount_minor is the amount in the currency's smallest unit, from 0 to 1,000,000,000,000,000,000.")
	case !request.KnownCurrency(p.Currency):
		return p, request.ErrFieldRange.With("currency", "currency is an ISO 4217 code in upper case, such as EUR.")
	}
	return p, nil
}

// order writes an order as the answer.
func (q *call) order(o *order.Order) error {
	q.out = appendOrder(q.out[:0], o)
	return q.json(200)
}

// appendPaymentsOf appends the amounts received for an order, for admins only.
func (rs *orderRoutes) appendPaymentsOf(q *call, b []byte, id string) ([]byte, error) {
	if q.identity.Role != auth.RoleAdmin {
		return b, nil
	}
	payments, err := rs.payments.OrderPayments(q.ctx(), id)
	if err != nil {
		return b, err
	}
	return append(appendPayments(append(b[:len(b)-1], `,"payments":`...), payments), '}'), nil
}

// logUnaccepted logs a received amount that paid for no order: the shop must refund it, and may
// ignore the answer. o is the order with the id, if the cause is one that returns it.
func (rs *orderRoutes) logUnaccepted(q *call, id string, o *order.Order, p *order.Payment, cause error) {
	message, why := "payment paid no order, refund it", cause.Error()
	switch {
	case errors.Is(cause, order.ErrPaymentLimit):
		message = "payment was not recorded because its order has too many, refund it"
	case errors.Is(cause, order.ErrOrderExpired) && o.Status == order.StatusConfirmed:
		why = "the order's time to pay is over"
	case errors.Is(cause, order.ErrOrderExpired):
		why = "the order is " + string(o.Status)
	case errors.Is(cause, order.ErrOrderFinal), errors.Is(cause, order.ErrAmountMismatch):
	default:
		return
	}
	rs.log.Warn().Str("order_id", id).Str("reference", p.Reference).Int64("amount_minor", p.AmountMinor).Str("currency", p.Currency).
		Str("request_id", q.requestID()).Str("cause", why).Msg(message)
}
