package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
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

// commitWait is how long a payment or a cancellation waits for an order that is
// still in the queue.
const commitWait = 2 * time.Second

// Pay records a payment, and settles its order with it if the order can still
// be paid. A repeat of the same payment gets the same answer. One with another
// amount corrects the first, if that was a mismatch and is not refunded.
//
// With ErrOrderExpired, ErrOrderFinal, ErrAmountMismatch and ErrPaymentLimit the
// order is returned as it stands. Other errors: ErrNotFound, ErrReferenceReused,
// ErrDatabase, and inventory.ErrUnavailable while the order is not committed yet.
// After the last two a repeat settles the outcome.
func (s *Service) Pay(ctx context.Context, id string, p Payment) (Order, error) {
	o, err := s.Store.pay(ctx, id, p)
	if errors.Is(err, ErrNotFound) {
		if _, err := s.committed(ctx, id, Canceller{Admin: true}); err != nil {
			return Order{}, err
		}
		o, err = s.Store.pay(ctx, id, p)
	}
	if err == nil {
		s.Bell.ring(ctx, id)
	}
	return o, err
}

// Cancel cancels a confirmed order that is not paid. Its units can be bought
// again when it returns, unless Redis is away. A repeat gets the same answer.
//
// With ErrOrderFinal the order is returned as it stands. Other errors:
// ErrNotFound also for another buyer's order, ErrDatabase, and
// inventory.ErrUnavailable while the order is not committed yet. After the last
// two a repeat settles the outcome.
func (s *Service) Cancel(ctx context.Context, id string, by Canceller) (Order, error) {
	o, owed, err := s.Store.cancel(ctx, id, by)
	if errors.Is(err, ErrNotFound) {
		if _, err := s.committed(ctx, id, by); err != nil {
			return Order{}, err
		}
		o, owed, err = s.Store.cancel(ctx, id, by)
	}
	if err != nil {
		return o, err
	}
	_, failed := s.Returns.give(ctx, owed)
	for _, err := range failed {
		// The order is cancelled all the same; the sweeper gives its units back.
		s.OnError(fmt.Errorf("cancel order %s: %w", id, err))
	}
	s.Bell.ring(ctx, id)
	return o, nil
}

// committed waits for an order to leave the queue.
func (s *Service) committed(ctx context.Context, id string, viewer Canceller) (Order, error) {
	end := time.Now().Add(commitWait)
	for d := replayPollMin; ; d = min(2*d, replayPollMax) {
		o, err := s.Get(ctx, id)
		left := time.Until(end)
		switch {
		case err != nil:
			return Order{}, err
		case !viewer.Admin && o.UserID != viewer.UserID:
			return Order{}, ErrNotFound
		case o.Status != StatusQueued:
			return o, nil
		case left <= 0:
			return Order{}, fmt.Errorf("order %s is not committed yet: %w", id, inventory.ErrUnavailable)
		}
		if !pause.For(ctx, min(d, left)) {
			return Order{}, context.Cause(ctx)
		}
	}
}
