// Package order defines an order, its states, the events and payments of its life, and the
// format in which an accepted purchase travels through the queue. It uses neither Redis nor
// SQL. The packages below it are the features of the shop: checkout places orders, worker
// commits and expires them, items creates and changes what is sold. They share the database
// through package store; nothing else uses its tables.
package order

import (
	"errors"
	"time"

	"flashsale/catalog"
	"flashsale/internal/tracing"
)

// Status is the state of an order.
type Status string

// The states of an order. A queued order becomes confirmed or rejected. A confirmed one
// becomes paid, cancelled or expired if a payment is expected. A paid one may become
// refunded.
const (
	StatusQueued    Status = "queued"
	StatusConfirmed Status = "confirmed"
	StatusPaid      Status = "paid"
	StatusRefunded  Status = "refunded"
	StatusCancelled Status = "cancelled"
	StatusExpired   Status = "expired"
	StatusRejected  Status = "rejected"
)

// ErrNotFound means that no such order exists, or none that the viewer may see.
var ErrNotFound = errors.New("order: not found")

// Order is one buyer's claim on a quantity of one item. Times are UTC with
// millisecond precision; a zero time means "not happened".
type Order struct {
	ID               string // UUIDv7
	ItemID           string
	UserID           string
	Quantity         int64
	UnitPriceMinor   int64
	Currency         string
	Status           Status
	Reason           string // why it was rejected, cancelled or expired
	IdempotencyKey   string
	CreatedAt        time.Time
	ConfirmedAt      time.Time
	ExpiresAt        time.Time // the end of the time to pay
	PaidAt           time.Time
	ClosedAt         time.Time
	PaymentReference string
	// Restocked means that the units of a refunded order returned to stock. Otherwise they
	// count as sold, and towards the buyer's limit.
	Restocked bool
}

// Purchase is a buyer's request to buy.
type Purchase struct {
	ItemID string
	// Item is the item as the caller has just read it from the catalogue. If it is zero,
	// Place reads it.
	Item           catalog.Item
	UserID         string
	IdempotencyKey string
	Quantity       int64
	// Wait bounds the wait for the commit. Zero or less: answer as soon as the order is
	// durably queued. With an engine that loses its data on restart, Place always waits for
	// the commit.
	Wait time.Duration
	// SubmittedAt is when the request was found to be valid. Zero: when Place submits it.
	SubmittedAt time.Time
	// RequestID is the id of the request, for the log of the worker; see Task.RequestID.
	RequestID string
	// Trace is the request's span if the purchase is sampled, otherwise nil.
	Trace *tracing.Parent
}

// Placed is the outcome of an accepted purchase.
type Placed struct {
	Order Order
	// Committed means that the order is in the database (answer 201); false
	// means it is durably queued (answer 202).
	Committed bool
	// Replayed means that an earlier request with the same key created the order.
	Replayed bool
	// CommittedAt is when the order was committed, by this host's clock; zero if unknown.
	CommittedAt time.Time
}

// Filter selects orders for a list, newest first.
type Filter struct {
	UserID string // empty: any
	ItemID string // empty: any
	Status Status // empty: any
	// Before is the id of the last order of the previous page; empty: from the start.
	Before string
	Limit  int // 1 to 100
	// Buckets is the number of buckets of the item; at most 1 if its stock is not divided.
	Buckets int
}

// Ledger is the conservation equation of one item:
// Initial + Restocked = Left + Held + Sold.
type Ledger struct {
	Initial   int64
	Restocked int64
	Left      int64 // units that can be bought, in Redis
	Held      int64 // units taken and not yet committed, or awaiting payment
	Sold      int64 // units paid, or confirmed without a payment to wait for
	// unbalanced says that the equation does not hold in one of the ledgers of a sum.
	unbalanced bool
}

// Balanced reports whether the equation holds, in a sum also for each of its ledgers.
func (l Ledger) Balanced() bool {
	return !l.unbalanced && l.Initial+l.Restocked == l.Left+l.Held+l.Sold
}

// Plus returns the sum of two ledgers, for the buckets of an item.
func (l Ledger) Plus(m Ledger) Ledger {
	return Ledger{
		Initial: l.Initial + m.Initial, Restocked: l.Restocked + m.Restocked,
		Left: l.Left + m.Left, Held: l.Held + m.Held, Sold: l.Sold + m.Sold,
		unbalanced: !l.Balanced() || !m.Balanced(),
	}
}
