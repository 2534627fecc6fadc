package checkout

import (
	"context"
	"errors"
	"fmt"

	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

var (
	// ErrNotPaid means that an order cannot be refunded, because it is not paid.
	ErrNotPaid = errors.New("order: not paid")
	// ErrRefundDiffers means that an order was refunded before, with another value of
	// Restock. Nothing was changed.
	ErrRefundDiffers = errors.New("order: refunded with another value of restock")
)

// Refund describes the refund of a paid order.
type Refund struct {
	// Restock returns the order's units to stock, and subtracts them from the buyer's
	// count. Otherwise they stay sold, and count towards the buyer's limit.
	Restock bool
	By      order.By
}

// Refund records that the payment of an order was returned to the buyer. It moves no money.
// When it returns, restocked units can be bought again, unless Redis is down. A repeat gets
// the same answer.
//
// With ErrNotPaid and ErrRefundDiffers it also returns the order. Other errors:
// ErrNotFound, database.ErrUnavailable, inventory.ErrUnavailable, and inventory.ErrStopped while the
// database may have lost an earlier refund. After database.ErrUnavailable and ErrUnavailable the
// outcome is unknown; repeat the call.
func (s *Service) Refund(ctx context.Context, id string, r Refund) (order.Order, error) {
	o, pending, err := RefundInStore(ctx, s.Store, id, r)
	if errors.Is(err, order.ErrNotFound) {
		// An order in the queue is not paid, and an unknown one is not found.
		if o, err = s.Get(ctx, id); err == nil {
			err = ErrNotPaid
		}
	}
	if err != nil {
		return o, err
	}
	_, failed := s.Releaser.Release(ctx, pending)
	for _, err := range failed {
		// The order is refunded anyway; the sweeper releases its units later.
		s.OnError(fmt.Errorf("refund order %s: %w", id, err))
	}
	s.ChangeNotifier.Notify(ctx, id)
	return o, nil
}

// RefundInStore refunds an order. It returns the order's units if they are still to be released,
// also on a repeat. See Service.Refund.
func RefundInStore(ctx context.Context, s *store.Store, id string, r Refund) (o order.Order, pending []store.Release, err error) {
	refunded := false
	err = s.ChangeWithEvents(ctx, "refund order "+id, func(ctx context.Context, c database.Conn, box *store.Outbox) error {
		if o, err = store.ReadOrder(ctx, c, id); err != nil {
			return err
		}
		if o.Status == order.StatusPaid && s.HighWater().IsStopped(o.ItemID) {
			return inventory.ErrStopped // the database may have lost its refund
		}
		if refunded, err = refundOrder(ctx, c, id, r, box); err != nil {
			return err
		}
		if o, err = store.ReadOrder(ctx, c, id); err != nil {
			return err
		}
		pending, err = store.ReadReleases(ctx, c, store.SelectReleasesOfOrders, database.JSONList(id))
		return err
	})
	switch {
	case err != nil:
		return order.Order{}, nil, err
	case o.Status != order.StatusRefunded:
		return o, nil, ErrNotPaid
	case o.Restocked != r.Restock:
		return o, nil, ErrRefundDiffers
	case refunded:
		s.ReportPayment(order.PaymentRefunded)
	}
	return o, pending, nil
}

// refundOrder changes an order to refunded, if it is paid.
func refundOrder(ctx context.Context, c database.Conn, id string, r Refund, box *store.Outbox) (refunded bool, err error) {
	closed, err := store.ReadOrders(ctx, c, store.RefundPaid, box.Now, r.Restock, id)
	if err != nil || len(closed) == 0 {
		return false, err
	}
	if !r.Restock {
		box.Touch(closed[0].ItemID)
	} else if err := store.TakeBack(ctx, c, closed, box); err != nil {
		return false, err
	}
	if n, err := database.Changed(c.ExecContext(ctx, store.RefundAccepted, box.Now, id)); err != nil || n != 1 {
		return false, errors.Join(err, fmt.Errorf("a paid order has %s, want 1", plural.Count(n, "accepted payment")))
	}
	err = store.WriteAudit(ctx, c, &store.AuditRow{
		At: box.Now, Actor: r.By.Actor, Action: order.ActionOrderRefund, ItemID: closed[0].ItemID, OrderID: id,
		Before: store.FactsJSON(map[string]any{"status": order.StatusPaid}),
		After:  store.FactsJSON(map[string]any{"status": order.StatusRefunded, "restocked": r.Restock}), RequestID: r.By.RequestID,
	})
	if err != nil {
		return false, err
	}
	box.Closed(order.EventRefunded, closed)
	return true, nil
}
