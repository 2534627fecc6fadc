package handler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/catalog"
	"flashsale/inventory"
	"flashsale/order"
)

// maxReason is how long the reason of a restock may be, in characters.
const maxReason = 200

// notChanged words a failure of a change for who asked for it: that of a
// purchase speaks of orders. The cause stays, for the log.
func notChanged(err error) error { return reworded(err, problemNotChanged) }

// reworded puts as in place of what the error table says of a part that is away.
func reworded(err error, as *problem) error {
	if errors.Is(err, inventory.ErrStopped) {
		return err // definite: nothing was changed
	}
	for _, cause := range []error{inventory.ErrUnavailable, inventory.ErrRebuilding, order.ErrDatabase, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			return fmt.Errorf("%w: %w", as, err)
		}
	}
	return err
}

// change answers PATCH /v1/admin/items/{item}.
func (rs *adminItemRoutes) change(q *call) error {
	c, err := readItemChange(q.in)
	if err != nil {
		return err
	}
	c.Match = q.match
	item, err := rs.changes.ChangeItem(q.ctx(), q.c.Param("item"), c, q.by())
	if err != nil {
		return notChanged(err)
	}
	return rs.writeTagged(q, 200, &item)
}

// fixedFields are those of an item that a change cannot state, and why.
var fixedFields = []struct{ name, why string }{
	{"id", "id cannot change: orders name the item by it. Create another item."},
	{"currency", "currency cannot change: orders were accepted in it. Create another item."},
	{"stock", "stock changes by POST /v1/admin/items/{item}/restock, which counts what is sold meanwhile."},
}

// readItemChange reads and checks the body of a change.
func readItemChange(body []byte) (order.ItemChange, error) {
	f := newFields(body)
	f.near = nearChange
	c := order.ItemChange{
		Name:         f.textIfStated("name"),
		Description:  f.textIfStated("description"),
		PriceMinor:   f.integerIfStated("price_minor"),
		PerUserLimit: f.integerIfStated("per_user_limit"),
	}
	window := f.integerIfStated("payment_window_seconds")
	opens := f.textIfStated("opens_at")
	closes, ends := f.optionalText("closes_at")
	for _, fixed := range fixedFields {
		f.known[fixed.name] = true
	}
	if err := f.done(); err != nil {
		return c, err
	}
	for _, fixed := range fixedFields {
		if f.has(fixed.name) {
			return c, problemFieldFixed.with(fixed.name, fixed.why)
		}
	}
	if len(f.values) == 0 {
		return c, problemFieldMissing.with("", "State at least one field to change: name, description, price_minor, "+
			"per_user_limit, opens_at, closes_at or payment_window_seconds.")
	}
	if err := checkTexts(c.Name, c.Description); err != nil {
		return c, err
	}
	if err := checkRanges(
		ranged{"price_minor", c.PriceMinor, 0, maxPriceMinor},
		ranged{"per_user_limit", c.PerUserLimit, 1, maxPerUserLimit},
		ranged{"payment_window_seconds", window, 0, maxPaymentWindow},
	); err != nil {
		return c, err
	}
	if window != nil {
		d := time.Duration(*window) * time.Second
		c.PaymentWindow = &d
	}
	if opens != nil {
		t, err := readInstant("opens_at", *opens, true)
		if err != nil {
			return c, err
		}
		c.OpensAt = &t
	}
	if f.has("closes_at") { // null takes the end away
		t, err := readInstant("closes_at", closes, ends)
		if err != nil {
			return c, err
		}
		c.ClosesAt = &t
	}
	return c, nil
}

// control answers POST /v1/admin/items/{item}/pause, /resume and /close. Without
// If-Match it is meant for whatever version there is: that is no change which
// could overwrite another's.
func (rs *adminItemRoutes) control(to catalog.Control) endpoint {
	return func(q *call) error {
		item, err := rs.changes.ControlItem(q.ctx(), q.c.Param("item"), order.ItemControl{To: to, Match: q.match}, q.by())
		if err != nil {
			return notChanged(err)
		}
		return rs.writeTagged(q, 200, &item)
	}
}

// restock answers POST /v1/admin/items/{item}/restock.
func (rs *adminItemRoutes) restock(q *call) error {
	r, err := readRestock(q.in)
	if err != nil {
		return err
	}
	r.IdempotencyKey, r.Match = q.key, q.match
	item, replayed, err := rs.changes.Restock(q.ctx(), q.c.Param("item"), r, q.by())
	if err != nil {
		return notChanged(err)
	}
	if replayed {
		q.c.Writer.Header()["Idempotent-Replayed"] = headerTrue
	}
	return rs.writeTagged(q, 200, &item)
}

// readRestock reads and checks the body of a restock.
func readRestock(body []byte) (order.Restock, error) {
	f := newFields(body)
	r := order.Restock{Quantity: f.integer("quantity", true, 0), Reason: f.text("reason", true)}
	if err := f.done(); err != nil {
		return r, err
	}
	if r.Quantity == 0 || r.Quantity < -maxStock || r.Quantity > maxStock {
		return r, problemFieldRange.with("quantity",
			"quantity is how many units come, up to 1,000,000,000; a negative number takes back unsold ones, and 0 changes nothing.")
	}
	return r, checkText("reason", r.Reason, 1, maxReason, false)
}
