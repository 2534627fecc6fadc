package order

import (
	"errors"
	"time"
)

// The refusals of a payment or a cancellation.
var (
	// ErrOrderFinal says that the order has reached another final state, in which
	// it stays. A payment refused so is recorded for refund: another reference has
	// paid the order already.
	ErrOrderFinal = errors.New("order: in a final state")
	// ErrOrderExpired says that a payment came when its order was expired, past
	// its window, cancelled, rejected or refunded. The payment is recorded for refund.
	ErrOrderExpired = errors.New("order: expired")
	// ErrAmountMismatch says that a payment's amount or currency is not what the
	// order costs. The order is unchanged, and the payment is recorded for refund.
	ErrAmountMismatch = errors.New("order: amount or currency differs from the order")
	// ErrPaymentLimit says that an order has as many recorded payments as it can
	// have. Nothing was changed or recorded.
	ErrPaymentLimit = errors.New("order: too many payments")
	// ErrReferenceReused says that a payment's reference is recorded for another
	// order, or for another amount or currency that stands. Nothing was changed.
	ErrReferenceReused = errors.New("order: payment reference reused")
)

// Payment is money that the shop's backend has received for an order.
type Payment struct {
	Reference   string // the payment provider's name of it, 1 to 255 bytes
	AmountMinor int64  // in the currency's smallest unit; the order's unit price times its quantity
	Currency    string
}

// Canceller is who wants an order cancelled.
type Canceller struct {
	UserID string // the buyer; of an admin, the name in the audit
	Admin  bool
	// RequestID is the request that asked for it, for the audit.
	RequestID string
}

// The reasons of a closed order.
const (
	reasonBuyer  = "buyer"
	reasonAdmin  = "admin"
	reasonUnpaid = "unpaid"
	// reasonRecovered is that of an order that was closed after the backup from which
	// the database was restored; see Recoverer.
	reasonRecovered = "recovered"
)

// PaymentOutcome is what became of an amount that the shop's backend reported.
type PaymentOutcome string

// The outcomes. A late amount, a duplicate and a mismatch pay nothing and are to be
// refunded. An amount keeps the outcome that it was received as until then.
const (
	// PaymentAccepted paid its order.
	PaymentAccepted PaymentOutcome = "accepted"
	// PaymentLate arrived when the order was expired, past its window, cancelled,
	// rejected or refunded.
	PaymentLate PaymentOutcome = "late"
	// PaymentDuplicate arrived when another reference had paid the order.
	PaymentDuplicate PaymentOutcome = "duplicate"
	// PaymentMismatch was not what the order costs, or in another currency.
	PaymentMismatch PaymentOutcome = "mismatch"
	// PaymentRefunded went back to the buyer.
	PaymentRefunded PaymentOutcome = "refunded"
)

// PaymentOutcomes are all outcomes.
var PaymentOutcomes = []PaymentOutcome{PaymentAccepted, PaymentLate, PaymentDuplicate, PaymentMismatch, PaymentRefunded}

var (
	// ErrPaymentNotFound says that no payment has this id.
	ErrPaymentNotFound = errors.New("order: payment not found")
	// ErrPaymentAccepted says that a payment has paid its order: it is refunded by
	// refunding the order.
	ErrPaymentAccepted = errors.New("order: the payment has paid its order")
)

// PaymentRecord is an amount that the shop's backend reported for an order. Times
// are UTC with millisecond precision.
type PaymentRecord struct {
	Payment
	ID         int64 // higher than that of every earlier one
	OrderID    string
	ItemID     string
	UserID     string // of the order's buyer
	Outcome    PaymentOutcome
	ReceivedAs PaymentOutcome // the outcome until the refund
	ReceivedAt time.Time
	RefundedAt time.Time // zero: it was not
}

// PaymentFilter selects payments for a list, newest first.
type PaymentFilter struct {
	Outcome     PaymentOutcome // empty: any
	NeedsRefund bool           // those that pay nothing and are not refunded
	// Before is the id of the last payment of the page before; 0: from the start.
	Before int64
	Limit  int // 1 to 100
}
