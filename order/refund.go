package order

import (
	"context"
	"errors"
	"fmt"

	"flashsale/inventory"
)

var (
	// ErrNotPaid says that an order cannot be refunded, because it is not paid.
	ErrNotPaid = errors.New("order: not paid")
	// ErrRefundDiffers says that an order was refunded before, with another value of
	// Restock. Nothing was changed.
	ErrRefundDiffers = errors.New("order: refunded with another value of restock")
)

// Refund describes the refund of a paid order.
type Refund struct {
	// Restock returns the order's units to stock, and subtracts them from the buyer's
	// count. Otherwise they stay sold, and count towards the buyer's limit.
	Restock bool
	By      By
}

// Refund records that the payment of an order was returned to the buyer. It moves no money.
// When it returns, restocked units can be bought again, unless Redis is down. A repeat gets
// the same answer.
//
// With ErrNotPaid and ErrRefundDiffers it also returns the order. Other errors:
// ErrNotFound, ErrDatabase, inventory.ErrUnavailable, and inventory.ErrStopped while the
// database may have lost an earlier refund. After ErrDatabase and ErrUnavailable the
// outcome is unknown; repeat the call.
func (s *Service) Refund(ctx context.Context, id string, r Refund) (Order, error) {
	o, owed, err := s.Store.refund(ctx, id, r)
	if errors.Is(err, ErrNotFound) {
		// An order in the queue is not paid, and an unknown one is not found.
		if o, err = s.Get(ctx, id); err == nil {
			err = ErrNotPaid
		}
	}
	if err != nil {
		return o, err
	}
	_, failed := s.Returns.give(ctx, owed)
	for _, err := range failed {
		// The order is refunded anyway; the sweeper releases its units later.
		s.OnError(fmt.Errorf("refund order %s: %w", id, err))
	}
	s.Bell.ring(ctx, id)
	return o, nil
}

// refund refunds an order. It returns the order's units if they are still to be released,
// also on a repeat. See Service.Refund.
func (s *Store) refund(ctx context.Context, id string, r Refund) (o Order, owed []returned, err error) {
	refunded := false
	err = s.telling(ctx, "refund order "+id, func(ctx context.Context, c conn, box *outbox) error {
		if o, err = readOrder(ctx, c, id); err != nil {
			return err
		}
		if o.Status == StatusPaid && s.HighWater().IsStopped(o.ItemID) {
			return inventory.ErrStopped // the database may have lost its refund
		}
		if refunded, err = refundOrder(ctx, c, id, r, box); err != nil {
			return err
		}
		if o, err = readOrder(ctx, c, id); err != nil {
			return err
		}
		owed, err = readReturns(ctx, c, returnsOfOrders, jsonList(id))
		return err
	})
	switch {
	case err != nil:
		return Order{}, nil, err
	case o.Status != StatusRefunded:
		return o, nil, ErrNotPaid
	case o.Restocked != r.Restock:
		return o, nil, ErrRefundDiffers
	case refunded:
		s.ReportPayment(PaymentRefunded)
	}
	return o, owed, nil
}

// refundOrder changes an order to refunded, if it is paid.
func refundOrder(ctx context.Context, c conn, id string, r Refund, box *outbox) (refunded bool, err error) {
	closed, err := readReturns(ctx, c, refundPaid, box.now, r.Restock, id)
	if err != nil || len(closed) == 0 {
		return false, err
	}
	if !r.Restock {
		box.touch(closed[0].itemID)
	} else if err := takeBack(ctx, c, closed, box); err != nil {
		return false, err
	}
	if n, err := changed(c.ExecContext(ctx, refundAccepted, box.now, id)); err != nil || n != 1 {
		return false, errors.Join(err, fmt.Errorf("%d accepted payments of a paid order, want 1", n))
	}
	err = writeAudit(ctx, c, &auditRow{
		At: box.now, Actor: r.By.Actor, Action: actionOrderRefund, ItemID: closed[0].itemID, OrderID: id,
		Before: factsJSON(map[string]any{"status": StatusPaid}),
		After:  factsJSON(map[string]any{"status": StatusRefunded, "restocked": r.Restock}), RequestID: r.By.RequestID,
	})
	if err != nil {
		return false, err
	}
	return true, box.closed(ctx, c, EventRefunded, closed)
}
