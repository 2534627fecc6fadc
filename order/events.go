package order

import (
	"time"
)

// An order's events need no table: its row says when it reached each of its states, and
// every state has a fixed place in the order's life. So an event's number is the place of
// its state, and any process can compute which events follow it.

// Event is one change of an order: the order in its state after that change.
type Event struct {
	// Number is the place of the state in the order's life, from 1.
	Number int
	Order  Order
}

// The places of the states.
const (
	placeQueued  = 1
	placeDecided = 2 // confirmed or rejected
	placeClosed  = 3 // paid, cancelled or expired
	placeAfter   = 4 // refunded
)

// Place is the place of the order's state in its life, from 1. It only grows.
func (o *Order) Place() int {
	switch o.Status {
	case StatusQueued:
		return placeQueued
	case StatusConfirmed, StatusRejected:
		return placeDecided
	case StatusRefunded:
		return placeAfter
	default:
		return placeClosed
	}
}

// Settled reports whether no further event is expected: the order is in a final state,
// paid, or confirmed without a payment to wait for. A paid order can still be refunded, and
// a confirmed one cancelled, but no client needs to wait for that.
func (o *Order) Settled() bool {
	switch o.Status {
	case StatusQueued:
		return false
	case StatusConfirmed:
		return o.ExpiresAt.IsZero()
	default:
		return true
	}
}

// EventsAfter returns the order's events after that number, up to its present state.
func (o *Order) EventsAfter(number int) []Event {
	var events []Event
	for place := max(number+1, placeQueued); place <= o.Place(); place++ {
		events = append(events, Event{place, o.at(place)})
	}
	return events
}

// at returns the order as it was at an earlier place.
func (o *Order) at(place int) Order {
	then := *o
	if place >= o.Place() {
		return then
	}
	then.Reason, then.ClosedAt, then.Restocked = "", time.Time{}, false
	if place == placeClosed { // only a paid order has a later place
		then.Status = StatusPaid
		return then
	}
	then.Status = StatusConfirmed
	then.PaidAt, then.PaymentReference = time.Time{}, ""
	if place == placeQueued {
		then.Status = StatusQueued
		then.ConfirmedAt, then.ExpiresAt = time.Time{}, time.Time{}
	}
	return then
}
