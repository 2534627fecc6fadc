package handler

import (
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/inventory"
	"flashsale/order"
)

// purchaseRoutes place orders.
type purchaseRoutes struct {
	items     Items
	orders    Orders
	admission Admission // nil: no purchase is refused before its script runs
	// How long a purchase waits for its commit: without a preference, and at most.
	defaultWait, maxWait time.Duration
}

// purchase answers POST /v1/items/{item}/orders.
func (rs *purchaseRoutes) purchase(q *call) error {
	item := q.c.Param("item")
	quantity, err := decodePurchase(q.in)
	if err != nil {
		return err
	}
	// Whether it is above the item's limit, the sale knows: a repeat of an order that was
	// made under a higher limit gets that order.
	if quantity < 1 || quantity > maxPerUserLimit {
		return problemQuantity
	}
	what, err := rs.items.Item(q.ctx(), item)
	if err != nil {
		return err
	}
	prefer := rs.unhurried(item, readPrefer(q.c.Request.Header, rs.defaultWait, rs.maxWait))
	placed, err := rs.orders.Place(q.ctx(), order.Purchase{
		ItemID:         item,
		Item:           what,
		UserID:         q.who.Subject,
		IdempotencyKey: q.key,
		Quantity:       quantity,
		Wait:           prefer.wait,
	})
	if rs.admission != nil && errors.Is(err, inventory.ErrOverloaded) {
		return fmt.Errorf("%w: %w", overloadedFor(rs.admission.Wait(item)), err)
	}
	if err != nil {
		return err
	}
	return q.answerPlaced(&placed, prefer)
}

// answerPlaced writes the order: 201 when it is in the database, 202 when it
// is queued.
func (q *call) answerPlaced(p *order.Placed, prefer preference) error {
	h := q.c.Writer.Header()
	h["Location"] = []string{"/v1/orders/" + p.Order.ID}
	if p.Replayed {
		h["Idempotent-Replayed"] = headerTrue
	}
	status := 202
	if p.Committed {
		status = 201
	}
	if applied := prefer.applied(status == 202); applied != nil {
		h["Preference-Applied"] = applied
	}
	q.out = appendOrder(q.out[:0], &p.Order)
	faultpoint.Reach("handler.answer")
	return q.json(status)
}
