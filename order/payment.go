package order

import (
	"errors"
	"fmt"
	"time"
)

// The errors of a payment or a cancellation.
var (
	// ErrOrderFinal means that the order is in another final state.
	ErrOrderFinal = errors.New("order: in a final state")
	// ErrPaidAlready is an ErrOrderFinal: a payment with another reference has paid the order.
	// This one is recorded for refund.
	ErrPaidAlready = fmt.Errorf("%w: paid by another payment", ErrOrderFinal)
	// ErrOrderExpired means that the order was expired, past its window, cancelled, rejected
	// or refunded when the payment arrived. The payment is recorded for refund.
	ErrOrderExpired = errors.New("order: can no longer be paid")
	// ErrAmountMismatch means that a payment's amount or currency differs from the order's.
	// The order is unchanged, and the payment is recorded for refund.
	ErrAmountMismatch = errors.New("order: amount or currency differs from the order")
	// ErrPaymentLimit means that an order has the maximum number of recorded payments.
	// Nothing was changed or recorded.
	ErrPaymentLimit = errors.New("order: too many payments")
	// ErrReferenceReused means that a payment's reference is recorded for another order, or
	// for another amount or currency that cannot be corrected. Nothing was changed.
	ErrReferenceReused = errors.New("order: payment reference reused")
)

// Payment is a payment for an order that the shop's backend reports.
type Payment struct {
	Reference   string // the payment provider's identifier, 1 to 255 bytes
	AmountMinor int64  // in the currency's smallest unit; the order's unit price times its quantity
	Currency    string
}

// Canceller identifies the caller that cancels an order.
type Canceller struct {
	UserID string // the buyer, or the admin's name for the audit
	Admin  bool
	// RequestID is the id of the HTTP request, for the audit.
	RequestID string
}

// The reasons of a closed order.
const (
	ReasonBuyer  = "buyer"
	ReasonAdmin  = "admin"
	ReasonUnpaid = "unpaid"
	// ReasonRecovered is the reason of an order that was closed after the backup from which
	// the database was restored; see Recoverer.
	ReasonRecovered = "recovered"
)

// PaymentOutcome is the result of a payment that the shop's backend reported.
type PaymentOutcome string

// The outcomes. A late payment, a duplicate and a mismatch pay no order and must be
// refunded. They keep that outcome until they are refunded.
const (
	// PaymentAccepted paid its order.
	PaymentAccepted PaymentOutcome = "accepted"
	// PaymentLate arrived when the order was expired, past its window, cancelled,
	// rejected or refunded.
	PaymentLate PaymentOutcome = "late"
	// PaymentDuplicate arrived when a payment with another reference had paid the order.
	PaymentDuplicate PaymentOutcome = "duplicate"
	// PaymentMismatch had another amount or currency than the order.
	PaymentMismatch PaymentOutcome = "mismatch"
	// PaymentRefunded was returned to the buyer.
	PaymentRefunded PaymentOutcome = "refunded"
)

// PaymentOutcomes are all outcomes.
var PaymentOutcomes = []PaymentOutcome{PaymentAccepted, PaymentLate, PaymentDuplicate, PaymentMismatch, PaymentRefunded}

var (
	// ErrPaymentNotFound means that no payment has this id.
	ErrPaymentNotFound = errors.New("order: payment not found")
	// ErrPaymentAccepted means that a payment has paid its order: refund the order to refund
	// the payment.
	ErrPaymentAccepted = errors.New("order: the payment has paid its order")
)

// PaymentRecord is a payment that the shop's backend reported for an order. Times are UTC
// with millisecond precision.
type PaymentRecord struct {
	Payment
	ID         int64 // higher than the id of every earlier one
	OrderID    string
	ItemID     string
	UserID     string // of the order's buyer
	Outcome    PaymentOutcome
	ReceivedAs PaymentOutcome // the outcome before a refund
	ReceivedAt time.Time
	RefundedAt time.Time // zero: not refunded
}

// PaymentFilter selects payments for a list, newest first.
type PaymentFilter struct {
	Outcome     PaymentOutcome // empty: any
	NeedsRefund bool           // only those that pay no order and are not refunded
	Reference   string         // empty: any; at most one payment has a reference
	// Before is the id of the last payment of the previous page; 0: from the start.
	Before int64
	Limit  int // 1 to 100
}

// PayAgainWithin is the least time to pay that an unpaid order has after the database was replaced by
// an older copy. The order may have been paid since, and that payment must be reported again before
// the order expires and its units are sold to another buyer.
const PayAgainWithin = 24 * time.Hour
