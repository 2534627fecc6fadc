package handler

import (
	"flashsale/handler/auth"
	"flashsale/order"
)

// maxReference is how long a payment's reference may be, in characters.
const maxReference = 255

// maxAmount bounds a payment in the currency's smallest unit. Larger numbers are a
// mistake, and would be recorded as something else.
const maxAmount = 1_000_000_000_000_000_000

// cancel answers POST /v1/orders/{order}/cancel. Another buyer's order is
// answered like one that does not exist.
func (rs *orderRoutes) cancel(q *call) error {
	id := q.c.Param("order")
	o, err := rs.orders.Cancel(q.ctx(), id, order.Canceller{
		UserID: q.who.Subject, Admin: q.who.Role == auth.RoleAdmin, RequestID: q.requestID(),
	})
	if err != nil {
		return err
	}
	return q.order(&o)
}

// pay answers POST /v1/orders/{order}/payment, which the shop's backend
// sends when it has received money.
func (rs *orderRoutes) pay(q *call) error {
	id := q.c.Param("order")
	p, err := readPayment(q.in)
	if err != nil {
		return err
	}
	o, err := rs.orders.Pay(q.ctx(), id, p)
	if err != nil {
		rs.logUnaccepted(q, id, &p, err)
		return err
	}
	return q.order(&o)
}

// readPayment reads and checks the body of a payment.
func readPayment(body []byte) (order.Payment, error) {
	f := newFields(body)
	p := order.Payment{
		Reference:   f.text("reference", true),
		AmountMinor: f.integer("amount_minor", true, 0),
		Currency:    f.text("currency", true),
	}
	if err := f.done(); err != nil {
		return p, err
	}
	switch {
	case !visibleASCII(p.Reference, maxReference):
		return p, problemFieldRange.with("reference", "reference has 1 to 255 visible ASCII characters.")
	case p.AmountMinor < 0 || p.AmountMinor > maxAmount:
		return p, problemFieldRange.with("amount_minor", "amount_minor is the amount in the currency's smallest unit, from 0 to 1,000,000,000,000,000,000.")
	case !knownCurrency(p.Currency):
		return p, problemFieldRange.with("currency", "currency is an ISO 4217 code in upper case, such as EUR.")
	}
	return p, nil
}

// visibleASCII reports whether text has 1 to limit characters from '!' to '~'.
func visibleASCII(text string, limit int) bool {
	for i := range len(text) {
		if text[i] < '!' || text[i] > '~' {
			return false
		}
	}
	return text != "" && len(text) <= limit
}

// order writes an order as the answer.
func (q *call) order(o *order.Order) error {
	q.out = appendOrder(q.out[:0], o)
	return q.json(200)
}
