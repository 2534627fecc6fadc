package reconcile

import (
	"context"

	"flashsale/order"
)

// ledgerTasks is the largest queue that is read for a ledger. For a longer one, all units
// that are neither left nor sold count as held, and a ledger detects only that a sale has
// too many units left.
const ledgerTasks = 2000

// Ledger reads the conservation equation of an item from Redis and the database; see
// inspector. It loads no sale. Errors: catalog.ErrItemNotFound, ErrDatabase,
// inventory.ErrUnavailable.
func (r *Reconciler) Ledger(ctx context.Context, item string) (order.Ledger, error) {
	i := r.inspect(ctx, item)
	if i.open() || !i.seen.live.Loaded {
		if err := r.weigh(ctx, []*inspection{i}, ledgerTasks); err != nil {
			return order.Ledger{}, err
		}
	}
	if i.err != nil {
		return order.Ledger{}, i.err
	}
	return i.ledger(), nil
}
