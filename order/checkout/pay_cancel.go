package checkout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order"
)

// commitWait is how long a payment or a cancellation waits for an order that is still in
// the queue.
const commitWait = 2 * time.Second

// Pay records a payment, and marks its order as paid if it can still be paid. A repeat of
// the same payment gets the same answer. A repeat with another amount corrects the first,
// if that was a mismatch and is not refunded.
//
// With ErrOrderExpired, ErrOrderFinal, ErrAmountMismatch and ErrPaymentLimit it also
// returns the order. Other errors: ErrNotFound, ErrReferenceReused, database.ErrUnavailable, and
// inventory.ErrUnavailable while the order is not committed yet. After the last two the
// outcome is unknown; repeat the call.
func (s *Service) Pay(ctx context.Context, id string, p order.Payment) (order.Order, error) {
	o, err := s.Store.Pay(ctx, id, p)
	if errors.Is(err, order.ErrNotFound) {
		if _, err := s.committed(ctx, id, order.Canceller{Admin: true}); err != nil {
			return order.Order{}, err
		}
		o, err = s.Store.Pay(ctx, id, p)
	}
	if err == nil {
		s.ChangeNotifier.Notify(ctx, id)
	}
	return o, err
}

// Cancel cancels a confirmed order that is not paid. When it returns, the units can be
// bought again, unless Redis is down. A repeat gets the same answer.
//
// With ErrOrderFinal it also returns the order. Other errors: ErrNotFound, also for another
// buyer's order, database.ErrUnavailable, and inventory.ErrUnavailable while the order is not committed
// yet. After the last two the outcome is unknown; repeat the call.
func (s *Service) Cancel(ctx context.Context, id string, by order.Canceller) (order.Order, error) {
	o, pending, err := s.Store.Cancel(ctx, id, by)
	if errors.Is(err, order.ErrNotFound) {
		if _, err := s.committed(ctx, id, by); err != nil {
			return order.Order{}, err
		}
		o, pending, err = s.Store.Cancel(ctx, id, by)
	}
	if err != nil {
		return o, err
	}
	_, failed := s.Releaser.Release(ctx, pending)
	for _, err := range failed {
		// The order is cancelled anyway; the sweeper releases its units later.
		s.OnError(fmt.Errorf("cancel order %s: %w", id, err))
	}
	s.ChangeNotifier.Notify(ctx, id)
	return o, nil
}

// committed waits for an order to leave the queue.
func (s *Service) committed(ctx context.Context, id string, viewer order.Canceller) (order.Order, error) {
	end := time.Now().Add(commitWait)
	for d := replayPollMin; ; d = min(2*d, replayPollMax) {
		o, err := s.Get(ctx, id)
		left := time.Until(end)
		switch {
		case err != nil:
			return order.Order{}, err
		case !viewer.Admin && o.UserID != viewer.UserID:
			return order.Order{}, order.ErrNotFound
		case o.Status != order.StatusQueued:
			return o, nil
		case left <= 0:
			return order.Order{}, fmt.Errorf("order %s is not committed yet: %w", id, inventory.ErrUnavailable)
		}
		if !pause.For(ctx, min(d, left)) {
			return order.Order{}, context.Cause(ctx)
		}
	}
}
