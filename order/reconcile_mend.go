package order

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// errNotRepairable says that the database's counts cannot be made to agree with
// its orders without breaking its conditions. Nothing was changed.
var errNotRepairable = errors.New("order: the orders hold more than the item's total")

// The statements of a repair. Each looks at the orders in its own transaction:
// what was found before it may be old.
const (
	selectCounts = `SELECT sold, total, (SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE item_id = ?1 AND ` + ordersHold + `),
	(SELECT COALESCE(SUM(quantity), 0) FROM buyers WHERE item_id = ?1) FROM items WHERE id = ?1`
	mendSold   = `UPDATE items SET sold = ?1 WHERE id = ?2 AND ?1 BETWEEN 0 AND total`
	mendBuyers = `UPDATE buyers SET quantity = (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
		WHERE o.user_id = buyers.user_id AND o.item_id = buyers.item_id AND ` + ordersHold + `)
	WHERE item_id = ?1 AND quantity <> (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
		WHERE o.user_id = buyers.user_id AND o.item_id = buyers.item_id AND ` + ordersHold + `)`
	addMissingBuyers = `INSERT INTO buyers (item_id, user_id, quantity)
	SELECT o.item_id, o.user_id, SUM(o.quantity) FROM orders o WHERE o.item_id = ?1 AND ` + ordersHold + `
		AND NOT EXISTS (SELECT 1 FROM buyers b WHERE b.item_id = o.item_id AND b.user_id = o.user_id)
	GROUP BY o.item_id, o.user_id`
)

// counts is what the database counts of an item, as the audit remembers it.
type counts struct {
	Sold       int64 `json:"sold"`
	BuyerUnits int64 `json:"buyer_units"`
	// BuyersMended is how many rows of buyers a repair has changed.
	BuyersMended int64 `json:"buyers_mended,omitempty"`
}

// mend recomputes from the item's orders what the database counts of them, and
// leaves a record. No order is touched. It does all of it or nothing.
// Errors: errNotRepairable, ErrDatabase.
func (s *Store) mend(ctx context.Context, item, actor, requestID string) error {
	return s.transition(ctx, "repair item "+item, func(ctx context.Context, c conn, now int64) error {
		var before counts
		var total, held int64
		if err := c.QueryRowContext(ctx, selectCounts, item).Scan(&before.Sold, &total, &held, &before.BuyerUnits); err != nil {
			return err
		}
		n, err := changed(c.ExecContext(ctx, mendSold, held, item))
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%w: %d of %d", errNotRepairable, held, total)
		}
		after := counts{Sold: held, BuyerUnits: held}
		for _, text := range []string{mendBuyers, addMissingBuyers} {
			n, err := changed(c.ExecContext(ctx, text, item))
			if err != nil {
				return err
			}
			after.BuyersMended += n
		}
		if before.Sold == held && after.BuyersMended == 0 {
			return nil // another was quicker, or it has settled itself
		}
		was, err := json.Marshal(before)
		if err != nil {
			return err
		}
		is, err := json.Marshal(after)
		if err != nil {
			return err
		}
		return writeAudit(ctx, c, &auditRow{
			At: now, Actor: actor, Action: actionReconcileRepair, ItemID: item, Before: string(was), After: string(is), RequestID: requestID,
		})
	})
}
