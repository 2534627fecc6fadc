package store

import (
	"context"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store/database"
)

// cancellation is a call of Cancel.
type cancellation struct {
	id string
	by order.Canceller

	// The answer.
	order   order.Order
	pending []Release
	refusal error
}

// Cancel closes an order for a caller that may do so. It returns the order's units if they
// are still to be released, also on a repeat. See checkout.Service.Cancel.
func (s *Store) Cancel(ctx context.Context, id string, by order.Canceller) (o order.Order, pending []Release, err error) {
	own := &cancellation{id: id, by: by}
	operation := "cancel order " + id
	err = changeAndNoteRevisions(ctx, s, operation, &database.Write{Kind: cancellations, Value: own, Run: func(ctx context.Context, tx *database.Tx) error {
		return cancelAll(ctx, tx, own)
	}})
	switch {
	case err != nil:
		return order.Order{}, nil, err
	case own.refusal != nil:
		return order.Order{}, nil, database.Wrap(operation, own.refusal)
	case own.order.Status != order.StatusCancelled:
		return own.order, nil, order.ErrOrderFinal
	}
	return own.order, own.pending, nil
}

// cancellations are the changes whose value is a cancellation.
var cancellations = &database.Kind{Together: cancelTogether}

// cancelTogether carries out several cancellations.
func cancelTogether(ctx context.Context, tx *database.Tx, bunch []*database.Write) (rest []*database.Write, err error) {
	list := make([]*cancellation, len(bunch))
	for i, one := range bunch {
		list[i] = one.Value.(*cancellation)
	}
	return nil, cancelAll(ctx, tx, list...)
}

// cancelAll carries out cancellations. An order of several is cancelled for the first of them
// that may, and the others are repeats.
func cancelAll(ctx context.Context, tx *database.Tx, list ...*cancellation) error {
	t := transactionOf(tx)
	return t.withOutbox(ctx, func(box *Outbox) error { return cancelOrders(ctx, tx, t.store.highWater, list, box) })
}

// cancelOrders implements cancelAll. The number of its statements does not depend on that of the
// orders.
func cancelOrders(ctx context.Context, c database.Conn, h *HighWater, list []*cancellation, box *Outbox) error {
	asked := make([]string, len(list))
	for i, own := range list {
		asked[i] = own.id
	}
	ids := database.JSONList(asked...)
	found, err := ReadOrders(ctx, c, selectOrders, ids)
	if err != nil {
		return err
	}
	orders := make(map[string]order.Order, len(found))
	for i := range found {
		orders[found[i].ID] = found[i]
	}
	closing := make([][2]string, 0, len(list)) // orders and reasons
	first := make(map[string]*cancellation, len(list))
	for _, own := range list {
		o, known := orders[own.id]
		if own.refusal = own.refused(&o, known, h); own.refusal == nil && first[own.id] == nil {
			first[own.id] = own
			closing = append(closing, [2]string{own.id, own.reason()})
		}
	}
	closed, err := closeOrders(ctx, c, box, order.EventCancelled, cancelConfirmed, box.Now, database.JSON(closing))
	if err != nil {
		return err
	}
	var entries []*AuditRow
	for i := range closed {
		o := &closed[i]
		orders[o.ID] = *o
		if by := first[o.ID].by; by.Admin {
			entries = append(entries, &AuditRow{
				At: box.Now, Actor: by.UserID, Action: order.ActionOrderCancel, ItemID: o.ItemID, OrderID: o.ID,
				Before:    FactsJSON(map[string]any{"status": order.StatusConfirmed}),
				After:     FactsJSON(map[string]any{"status": o.Status, "reason": o.Reason}),
				RequestID: by.RequestID,
			})
		}
	}
	if err := WriteAudit(ctx, c, entries...); err != nil {
		return err
	}
	releases, err := ReadReleases(ctx, c, SelectReleasesOfOrders, ids)
	if err != nil {
		return err
	}
	pending := make(map[string][]Release, len(releases))
	for _, r := range releases {
		pending[r.OrderID] = append(pending[r.OrderID], r)
	}
	for _, own := range list {
		own.order, own.pending = orders[own.id], pending[own.id]
	}
	return nil
}

func (own *cancellation) reason() string {
	if own.by.Admin {
		return order.ReasonAdmin
	}
	return order.ReasonBuyer
}

// refused returns the reason for which an order, if it is known, may not be cancelled.
func (own *cancellation) refused(o *order.Order, known bool, h *HighWater) error {
	switch {
	case !known, !own.by.Admin && (own.by.UserID == "" || own.by.UserID != o.UserID):
		return order.ErrNotFound
	case o.Status == order.StatusConfirmed && h.IsStopped(o.ItemID):
		return inventory.ErrStopped // the database may have lost its payment
	}
	return nil
}
