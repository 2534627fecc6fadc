package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// errNotRepairable says that the database's counts cannot agree with its orders without
// violating its conditions. Nothing was changed.
var errNotRepairable = errors.New("order: the orders hold more than the item's total")

// errMoved says that an item has changed since it was read.
var errMoved = errors.New("order: the item has changed meanwhile")

// repairPage is how many rows one transaction of a repair reads. It is also in
// addMissingBuyers.
const repairPage = 500

// The statements of a repair. Each reads the orders in its own transaction, because earlier
// results may be outdated.
const (
	lastBuyerOfPage = `SELECT COALESCE(MAX(user_id), '') FROM (SELECT user_id FROM buyers WHERE item_id = ?1 AND user_id > ?2 ORDER BY user_id LIMIT ?3) page`
	repairBuyers    = `UPDATE buyers SET quantity = (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
		WHERE o.user_id = buyers.user_id AND o.item_id = buyers.item_id AND ` + store.OrdersHold + `)
	WHERE item_id = ?1 AND user_id > ?2 AND user_id <= ?3 AND quantity <> (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
		WHERE o.user_id = buyers.user_id AND o.item_id = buyers.item_id AND ` + store.OrdersHold + `)`
	addMissingBuyers = `INSERT INTO buyers (item_id, user_id, quantity)
	SELECT p.item_id, p.user_id, (SELECT SUM(o.quantity) FROM orders o WHERE o.user_id = p.user_id AND o.item_id = p.item_id AND ` + store.OrdersHold + `)
	FROM (SELECT DISTINCT item_id, user_id FROM (SELECT id, item_id, user_id, status, restocked FROM orders WHERE ` + store.OrdersAfter + ` LIMIT 500) page
		WHERE id <= ?3 AND ` + store.OrdersHold + `) p
	WHERE NOT EXISTS (SELECT 1 FROM buyers b WHERE b.item_id = p.item_id AND b.user_id = p.user_id)`
	repairSold = `UPDATE items SET sold = ?1, awaiting = ?2
	WHERE id = ?3 AND revision = ?4 AND sold = ?5 AND awaiting = ?6 AND CAST(?1 AS BIGINT) BETWEEN 0 AND total`
)

// repaired is the audit's record of one step of a repair.
type repaired struct {
	Sold     int64 `json:"sold"`
	Awaiting int64 `json:"awaiting"`
	// Buyers is how many rows of buyers the step corrected.
	Buyers int64 `json:"buyers_mended,omitempty"`
}

// repairCounts recomputes the database's counts from the item's orders, and writes audit entries.
// It changes no order. Each step is a short transaction that is correct without the others;
// an interrupted repair is finished by the next one. b is the comparison to repair. Errors:
// errNotRepairable, errMoved, database.ErrUnavailable.
func repairCounts(ctx context.Context, s *store.Store, item string, b *books, actor, requestID string) error {
	if b.held > b.row.Total {
		return fmt.Errorf("%w: %d of %d", errNotRepairable, b.held, b.row.Total)
	}
	found := repaired{Sold: b.row.Sold, Awaiting: b.row.Awaiting}
	note := func(ctx context.Context, c database.Conn, now int64, after repaired) error {
		was, err := json.Marshal(found)
		if err != nil {
			return err
		}
		is, err := json.Marshal(after)
		if err != nil {
			return err
		}
		return store.WriteAudit(ctx, c, &store.AuditRow{
			At: now, Actor: actor, Action: order.ActionReconcileRepair, ItemID: item, Before: string(was), After: string(is), RequestID: requestID,
		})
	}
	corrected := int64(0)
	for _, p := range []struct{ page, change string }{{lastBuyerOfPage, repairBuyers}, {store.LastOrderOfPage, addMissingBuyers}} {
		for last, after := "", ""; ; after = last {
			step := found
			err := s.Change(ctx, "repair buyers of "+item, func(ctx context.Context, c database.Conn, now int64) error {
				if err := c.QueryRowContext(ctx, p.page, item, after, repairPage).Scan(&last); err != nil {
					return err
				}
				var err error
				step.Buyers, err = database.Changed(c.ExecContext(ctx, p.change, item, after, last))
				if err != nil || step.Buyers == 0 {
					return err
				}
				return note(ctx, c, now, step)
			})
			if err != nil {
				return err
			}
			corrected += step.Buyers
			if last == "" {
				break
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	if !b.inconsistent() {
		if corrected == 0 {
			return nil
		}
		// The item's counts are unchanged. The new revision makes the background compare it
		// again.
		return s.ChangeWithEvents(ctx, "note the repair of "+item, func(_ context.Context, _ database.Conn, box *store.Outbox) error {
			box.Touch(item)
			return nil
		})
	}
	return s.Change(ctx, "repair item "+item, func(ctx context.Context, c database.Conn, now int64) error {
		n, err := database.Changed(c.ExecContext(ctx, repairSold, b.held, b.due, item, b.row.Revision, b.row.Sold, b.row.Awaiting))
		if err != nil {
			return err
		}
		if n == 0 {
			return errMoved
		}
		return note(ctx, c, now, repaired{Sold: b.held, Awaiting: b.due})
	})
}
