package handler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"flashsale/handler/metrics"
	"flashsale/handler/problem"
	"flashsale/handler/request"
	"flashsale/handler/strictjson"
	"flashsale/internal/faultpoint"
	"flashsale/inventory"
	"flashsale/order"
)

// orderPlacer places orders.
type orderPlacer interface {
	// Place takes the stock and queues the order. Its refusals are the errors of package
	// inventory.
	Place(ctx context.Context, p order.Purchase) (order.Placed, error)
}

// purchaseRoutes place orders.
type purchaseRoutes struct {
	items     itemCatalog
	orders    orderPlacer
	admission admission // nil: no purchase is refused before its script runs
	metrics   *metrics.Metrics
	// The wait of a purchase for its commit: the default, and the maximum.
	defaultWait, maxWait time.Duration
}

// purchase answers POST /v1/items/{item}/orders.
func (rs *purchaseRoutes) purchase(q *call) error {
	item := q.c.Param("item")
	quantity, err := decodePurchase(q.in)
	if err != nil {
		return err
	}
	prefer := readPrefer(q.c.Request.Header, rs.defaultWait, rs.maxWait)
	placed, err := rs.place(q, item, quantity, q.key, &prefer)
	if err != nil {
		return err
	}
	return q.answerPlaced(&placed, prefer)
}

// place takes the units and queues the order. It reduces the preference to what can be met.
func (rs *purchaseRoutes) place(q *call, item string, quantity int64, key string, prefer *preference) (order.Placed, error) {
	// The sale checks the item's limit, because a repeat of an order that was made under a
	// higher limit gets that order.
	if quantity < 1 || quantity > maxPerUserLimit {
		return order.Placed{}, problemQuantity
	}
	what, err := rs.items.Item(q.ctx(), item)
	if err != nil {
		return order.Placed{}, err
	}
	*prefer = rs.unhurried(item, *prefer)
	if q.trace != nil {
		q.trace.Purchase(item, quantity)
	}
	submitted := time.Now()
	rs.metrics.Admitted(q.shard, submitted.Sub(q.start))
	placed, err := rs.orders.Place(q.ctx(), order.Purchase{
		ItemID:         item,
		Item:           what,
		UserID:         q.identity.Subject,
		IdempotencyKey: key,
		Quantity:       quantity,
		Wait:           prefer.wait,
		SubmittedAt:    submitted,
		RequestID:      q.requestID(),
		Trace:          q.trace.Parent(),
	})
	if rs.admission != nil && errors.Is(err, inventory.ErrOverloaded) {
		return placed, fmt.Errorf("%w: %w", overloadedFor(rs.admission.Wait(item)), err)
	}
	return placed, err
}

// unhurried returns the preference that can be met: while commits are late, a client is
// answered immediately instead of holding a connection in vain.
func (rs *purchaseRoutes) unhurried(item string, p preference) preference {
	if p.wait > 0 && rs.admission != nil && rs.admission.Late(item) {
		p.wait, p.asked = 0, false
	}
	return p
}

// answerPlaced writes the order: 201 if it is in the database, 202 if it is queued.
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
	q.placed(p)
	q.out = appendOrder(q.out[:0], &p.Order)
	faultpoint.Reach("handler.answer")
	return q.json(status)
}

// placed notes the order for metrics, log and trace.
func (q *call) placed(p *order.Placed) {
	q.bought, q.committed, q.committedAt, q.orderID = true, p.Committed, p.CommittedAt, p.Order.ID
}

// decodePurchase reads the body of a purchase, {"quantity":n}. It returns a number that exceeds
// int64 as the largest int64, for the check of its range.
func decodePurchase(body []byte) (quantity int64, err error) {
	if n, ok := plainPurchase(body); ok {
		return n, nil
	}
	return strictPurchase(body)
}

// plainPurchase parses the two forms that nearly all clients send, and leaves everything else
// to strictPurchase, which gives the same results.
func plainPurchase(body []byte) (int64, bool) {
	const head = `{"quantity":`
	if len(body) < len(head)+2 || string(body[:len(head)]) != head || body[len(body)-1] != '}' {
		return 0, false
	}
	digits := body[len(head) : len(body)-1]
	if digits[0] == ' ' {
		digits = digits[1:]
	}
	// Up to nine digits cannot overflow. strictPurchase handles a leading zero.
	if len(digits) == 0 || len(digits) > 9 || digits[0] == '0' {
		return 0, false
	}
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// strictPurchase parses any form. It reports the first fault in this order: syntax, trailing
// bytes, a repeated name, an unknown field, a wrong type, a missing field.
func strictPurchase(body []byte) (quantity int64, err error) {
	var unknown *problem.Problem
	var found, isInteger bool
	r := strictjson.Read(body)
	for r.Next() {
		if string(r.Name()) != "quantity" {
			if unknown == nil {
				unknown = request.UnknownField(r.Name())
			}
			continue
		}
		found = true
		isInteger = r.Value().Kind() == strictjson.Integer
		quantity = r.Value().Int()
	}
	switch {
	case r.Err() != nil:
		return 0, request.JSONProblem(&r)
	case unknown != nil:
		return 0, unknown
	case !found:
		return 0, request.ErrFieldMissing.With("quantity", "quantity is required: a whole number.")
	case !isInteger:
		return 0, request.ErrFieldType.With("quantity", "quantity must be a whole number, without quotes, point or exponent.")
	}
	return quantity, nil
}

// preference is a purchase's Prefer header.
type preference struct {
	wait  time.Duration
	async bool
	asked bool // the header has a wait
}

// readPrefer parses `respond-async` and `wait=n` (seconds). A wait is limited to most; invalid
// preferences are ignored, as RFC 7240 requires.
func readPrefer(h http.Header, fallback, most time.Duration) preference {
	p := preference{wait: fallback}
	values := h["Prefer"]
	if len(values) == 0 {
		return p
	}
	if len(values) == 1 && values[0] == "respond-async" {
		return preference{async: true}
	}
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			one, _, _ = strings.Cut(one, ";")
			name, argument, _ := strings.Cut(one, "=")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "respond-async":
				p.async = true
			case "wait":
				if wait, ok := readWait(argument, most); ok && !p.asked {
					p.wait, p.asked = wait, true
				}
			}
		}
	}
	if p.async && !p.asked {
		p.wait = 0
	}
	return p
}

func readWait(argument string, most time.Duration) (time.Duration, bool) {
	argument = strings.Trim(strings.TrimSpace(argument), `"`)
	if argument == "" {
		return 0, false
	}
	var wait time.Duration
	for i := range len(argument) {
		if argument[i] < '0' || argument[i] > '9' {
			return 0, false
		}
		// Limiting after every digit prevents an overflow.
		wait = min(wait*10+time.Duration(argument[i]-'0')*time.Second, 10*most)
	}
	return min(wait, most), true
}

var asyncApplied = []string{"respond-async"}

// applied returns the Preference-Applied header for an answer, or nil if no preference was
// honoured.
func (p preference) applied(queued bool) []string {
	async := p.async && queued
	switch {
	case async && !p.asked:
		return asyncApplied
	case !p.asked:
		return nil
	}
	value := "wait=" + strconv.FormatInt(int64(p.wait/time.Second), 10)
	if async {
		value = "respond-async, " + value
	}
	return []string{value}
}
