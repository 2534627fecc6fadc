package handler

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"

	"github.com/gin-gonic/gin"

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

// moneyRoutes are the routes for received amounts.
func (e *edge) moneyRoutes(r gin.IRoutes, admin access) {
	e.get(r, "/v1/admin/payments", admin, e.listPayments)
	e.post(r, "/v1/admin/payments/:payment/refunded", admin, e.markRefunded)
	e.post(r, "/v1/admin/orders/:order/refund", admin, e.refundOrder)
}

// listPayments answers GET /v1/admin/payments.
func (e *edge) listPayments(q *call) error {
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	f, err := e.readPaymentFilter(q)
	if err != nil {
		return err
	}
	payments, more, err := e.Money.Payments(q.ctx(), f)
	if err != nil {
		return err
	}
	next := ""
	if more && len(payments) > 0 {
		next = e.makePaymentCursor(f, payments[len(payments)-1].ID)
	}
	b := appendPayments(append(q.out[:0], `{"payments":`...), payments)
	q.out = append(appendTextField(b, `,"next_cursor":`, next), '}')
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.json(200)
}

// readPaymentFilter reads the query of the list of payments.
func (e *edge) readPaymentFilter(q *call) (order.PaymentFilter, error) {
	f := order.PaymentFilter{Limit: defaultPage}
	values, err := q.query("outcome", "needs_refund", "limit", "cursor")
	if err != nil {
		return f, err
	}
	if values.Has("outcome") {
		f.Outcome = order.PaymentOutcome(values.Get("outcome"))
		if !slices.Contains(order.PaymentOutcomes, f.Outcome) {
			return f, problemParameter.with("outcome", "outcome is one of accepted, late, duplicate, mismatch, refunded.")
		}
	}
	if f.NeedsRefund, err = readSwitch(values, "needs_refund"); err != nil {
		return f, err
	}
	if values.Has("limit") {
		if f.Limit, err = readLimit(values.Get("limit")); err != nil {
			return f, err
		}
	}
	if values.Has("cursor") {
		before, ok := e.readPaymentCursor(f, values.Get("cursor"))
		if !ok {
			return f, problemCursor
		}
		f.Before = before
	}
	return f, nil
}

// A cursor of payments is base64url of 8 bytes of a payment's id and a seal, made
// like that of the audit.

func (e *edge) makePaymentCursor(f order.PaymentFilter, last int64) string {
	id := binary.BigEndian.AppendUint64(nil, uint64(last))
	return cursorText.EncodeToString(append(id, e.sealPaymentCursor(f, id)...))
}

// readPaymentCursor returns the id in a cursor that was made for these filters.
func (e *edge) readPaymentCursor(f order.PaymentFilter, cursor string) (before int64, ok bool) {
	raw, err := cursorText.DecodeString(cursor)
	if err != nil || len(raw) != 8+sealLength || len(cursor) != cursorText.EncodedLen(len(raw)) {
		return 0, false
	}
	id, seal := raw[:8], raw[8:]
	if !hmac.Equal(seal, e.sealPaymentCursor(f, id)) {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(id)), true
}

func (e *edge) sealPaymentCursor(f order.PaymentFilter, id []byte) []byte {
	mac := hmac.New(sha256.New, e.CursorKey)
	mac.Write(id)
	// The name distinguishes the cursor from those of other lists.
	mac.Write([]byte("payments\x00" + string(f.Outcome) + "\x00" + strconv.FormatBool(f.NeedsRefund)))
	return mac.Sum(nil)[:sealLength]
}

// markRefunded answers POST /v1/admin/payments/{payment}/refunded.
func (e *edge) markRefunded(q *call) error {
	id, ok := readPaymentID(q.c.Param("payment"))
	if !ok {
		return problemPaymentID
	}
	if err := e.readAction(q); err != nil {
		return err
	}
	if err := q.readNothing(); err != nil {
		return err
	}
	p, err := e.Money.MarkRefunded(q.ctx(), id, q.by())
	if err != nil {
		return err
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	q.out = appendPayment(q.out[:0], &p)
	return q.json(200)
}

// readPaymentID reads a payment's id from the path. Each id has one spelling.
func readPaymentID(text string) (int64, bool) {
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil && id > 0 && strconv.FormatInt(id, 10) == text
}

// readAction makes the checks of a change that takes no parameters.
func (e *edge) readAction(q *call) error {
	if _, err := q.query(); err != nil {
		return err
	}
	return checkAccept(q.c.Request.Header)
}

// refundOrder answers POST /v1/admin/orders/{order}/refund.
func (e *edge) refundOrder(q *call) error {
	id := q.c.Param("order")
	if !validOrderID(id) {
		return problemOrderID
	}
	if err := checkContent(q.c.Request.Header); err != nil {
		return err
	}
	if err := e.readAction(q); err != nil {
		return err
	}
	if err := q.readBody(maxAdminBody); err != nil {
		return err
	}
	f := newFields(q.in)
	restock, _ := f.take("restock", strictjson.Bool, true, "true or false")
	if err := f.done(); err != nil {
		return err
	}
	o, err := e.Money.Refund(q.ctx(), id, order.Refund{Restock: restock.Bool(), By: q.by()})
	if err != nil {
		return err
	}
	return q.order(&o)
}

// appendPaymentsOf adds to an order what was received for it, for admins only.
func (e *edge) appendPaymentsOf(q *call, b []byte, id string) ([]byte, error) {
	if e.Money == nil || q.who.Role != auth.RoleAdmin {
		return b, nil
	}
	payments, err := e.Money.OrderPayments(q.ctx(), id)
	if err != nil {
		return b, err
	}
	return append(appendPayments(append(b[:len(b)-1], `,"payments":`...), payments), '}'), nil
}

// logUnaccepted logs an amount that was received and paid nothing: its client must
// refund it, and may not be listening.
func (e *edge) logUnaccepted(q *call, id string, p *order.Payment, cause error) {
	message := "payment pays nothing and is to be refunded"
	switch {
	case errors.Is(cause, order.ErrPaymentLimit):
		message = "payment was not recorded: its order has too many; refund it"
	case errors.Is(cause, order.ErrOrderExpired), errors.Is(cause, order.ErrOrderFinal), errors.Is(cause, order.ErrAmountMismatch):
	default:
		return
	}
	e.Log.Warn().Str("order", id).Str("reference", p.Reference).Int64("amount_minor", p.AmountMinor).Str("currency", p.Currency).
		Str("request_id", q.requestID()).AnErr("cause", cause).Msg(message)
}
