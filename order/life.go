package order

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
)

// commitWait is how long a payment or a cancellation waits for an order that is still in
// the queue.
const commitWait = 2 * time.Second

// Pay records a payment, and marks its order as paid if it can still be paid. A repeat of
// the same payment gets the same answer. A repeat with another amount corrects the first,
// if that was a mismatch and is not refunded.
//
// With ErrOrderExpired, ErrOrderFinal, ErrAmountMismatch and ErrPaymentLimit it also
// returns the order. Other errors: ErrNotFound, ErrReferenceReused, ErrDatabase, and
// inventory.ErrUnavailable while the order is not committed yet. After the last two the
// outcome is unknown; repeat the call.
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

// Cancel cancels a confirmed order that is not paid. When it returns, the units can be
// bought again, unless Redis is down. A repeat gets the same answer.
//
// With ErrOrderFinal it also returns the order. Other errors: ErrNotFound, also for another
// buyer's order, ErrDatabase, and inventory.ErrUnavailable while the order is not committed
// yet. After the last two the outcome is unknown; repeat the call.
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
		// The order is cancelled anyway; the sweeper releases its units later.
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
