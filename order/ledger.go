package order

import "context"

// ledgerTasks is up to how many tasks a queue is read for a ledger. Where it has more,
// all units that are neither left nor sold are called held, and a ledger shows only
// a sale that has more left than it may.
const ledgerTasks = 2000

// Ledger reads the conservation equation of an item from Redis and the database; see
// inspector. It loads no sale. Errors: catalog.ErrItemNotFound, ErrDatabase,
// inventory.ErrUnavailable.
func (r *Reconciler) Ledger(ctx context.Context, item string) (Ledger, error) {
	i := r.inspect(ctx, item)
	if i.open() || !i.seen.live.Loaded {
		if err := r.weigh(ctx, []*inspection{i}, ledgerTasks); err != nil {
			return Ledger{}, err
		}
	}
	if i.err != nil {
		return Ledger{}, i.err
	}
	return i.ledger(), nil
}
