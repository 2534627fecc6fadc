package reconcile

import (
	"context"

	"flashsale/order"
	"flashsale/order/store"
)

// ledgerTasks is the largest queue that is read for a ledger. For a longer one, all units
// that are neither left nor sold count as held, and a ledger detects only that a sale has
// too many units left.
const ledgerTasks = 2000

// Ledger reads the conservation equation of an item, summed over its buckets, from Redis and the
// database; see inspector. It loads no sale. Errors: catalog.ErrItemNotFound, database.ErrUnavailable,
// inventory.ErrUnavailable.
func (r *Reconciler) Ledger(ctx context.Context, item string) (order.Ledger, error) {
	rows, err := store.Buckets(ctx, r.Store, item)
	if err != nil {
		return order.Ledger{}, err
	}
	all := make([]*inspection, len(rows))
	var open []*inspection
	for n := range rows {
		i := r.inspect(ctx, rows[n].ID)
		if i.open() || !i.seen.live.Loaded {
			open = append(open, i)
		}
		all[n] = i
	}
	if len(open) > 0 {
		if err := r.countQueued(ctx, open, ledgerTasks); err != nil {
			return order.Ledger{}, err
		}
	}
	var sum order.Ledger
	for _, i := range all {
		if i.err != nil {
			return order.Ledger{}, i.err
		}
		sum = sum.Plus(i.ledger())
	}
	return sum, nil
}
