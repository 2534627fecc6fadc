// Package privacy exports and erases the personal data of buyers.
package privacy

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// ErrOrdersInFlight means that a buyer has purchases in the queue, dead letters included.
// Nothing more was changed; retry once they are committed or discarded.
var ErrOrdersInFlight = errors.New("order: the buyer has orders in flight")

// Renamer replaces a buyer's name in Redis, around a change of the database.
type Renamer interface {
	// Rename is inventory.Inventory.Rename.
	Rename(ctx context.Context, item string, plan func(ctx context.Context) (inventory.Renaming, error), commit func(ctx context.Context) error) error
}

// Service exports and erases the personal data of buyers. All fields are required.
type Service struct {
	Store *store.Store
	Tasks []order.Queued // one per partition
	// Queued finds the queued orders of a buyer.
	Queued  order.BuyersQueued
	Renamer Renamer
}

// Erasure is the author and the reason of an erasure. It is kept, so it must not name the
// buyer.
type Erasure struct {
	Actor     string
	Reason    string
	RequestID string
}

// Erased is the result of an erasure.
type Erased struct {
	// Pseudonym replaces the buyer's name; empty if there was nothing to erase.
	Pseudonym string
	Orders    int // rows that have the pseudonym now
}

// EraseBuyer replaces the buyer's name with a random pseudonym everywhere, and replaces the
// idempotency keys of the buyer's orders, which the buyer chose, with the orders' ids. The
// orders stay, with their amounts and their payments' references. The audit records who
// erased and why, and names only the pseudonym.
//
// It erases one item after the other, each in one transaction under the item's lock, in
// Redis and in the database together: see inventory.Rename. A repeat continues where an
// error stopped it, with another pseudonym, and finds nothing when all is done. Purchases
// that the buyer makes afterwards are not affected.
//
// Errors: ErrOrdersInFlight, database.ErrUnavailable, inventory.ErrUnavailable, inventory.ErrStopped.
func (s *Service) EraseBuyer(ctx context.Context, user string, e Erasure) (Erased, error) {
	// This call also reads the log of queued orders, so that only its end remains to be
	// read under the lock.
	if err := s.noneInFlight(ctx, user, ""); err != nil {
		return Erased{}, err
	}
	items, err := itemsOf(ctx, s.Store, user)
	if err != nil {
		return Erased{}, err
	}
	done := Erased{Pseudonym: NewPseudonym()}
	if e.Actor == user {
		e.Actor = done.Pseudonym // an admin who erases their own name must not leave it in the audit
	}
	for _, item := range items {
		if ctx.Err() != nil {
			return Erased{}, context.Cause(ctx)
		}
		plan := func(ctx context.Context) (inventory.Renaming, error) {
			r := inventory.Renaming{Buyer: user, NewBuyer: done.Pseudonym}
			err := s.noneInFlight(ctx, user, item)
			if err == nil {
				r.Keys, err = keysOf(ctx, s.Store, user, item)
			}
			return r, err
		}
		commit := func(ctx context.Context) error {
			n, err := EraseFromItem(ctx, s.Store, user, item, done.Pseudonym, e)
			done.Orders += n
			return err
		}
		// An item that was begun is finished even if the caller has gone.
		if err := s.Renamer.Rename(context.WithoutCancel(ctx), item, plan, commit); err != nil {
			return Erased{}, fmt.Errorf("erase a buyer from item %s: %w", item, err)
		}
	}
	rest, err := auditErasure{Erasure: e, user: user, pseudonym: done.Pseudonym}.run(ctx, s.Store)
	if err != nil {
		return Erased{}, err
	}
	if done.Orders == 0 && rest == 0 {
		done.Pseudonym = ""
	}
	return done, nil
}

// noneInFlight searches for the buyer's purchases in the queues, of one item or of all.
func (s *Service) noneInFlight(ctx context.Context, user, item string) error {
	for before, more := "", true; more; more = before != "" {
		found := false
		var err error
		before, err = s.Queued.Orders(ctx, user, before, 1, func(a accepted.Order) bool {
			t, err := order.ParseAccepted(a) // an unreadable task names no buyer
			if err == nil && t.UserID == user && (item == "" || t.ItemID == item) {
				found = true
			}
			return found
		})
		switch {
		case err != nil:
			return fmt.Errorf("find a buyer's queued orders: %w: %w", inventory.ErrUnavailable, err)
		case found:
			return ErrOrdersInFlight
		}
	}
	return nil
}

// NewPseudonym returns a name that no buyer has, and that is valid as a token's subject.
func NewPseudonym() string {
	var b [16]byte
	// crypto/rand.Read never returns an error; it ends the program instead.
	_, _ = rand.Read(b[:])
	return "erased-" + hex.EncodeToString(b[:])
}

const (
	// Every buyer with a counted quantity or a recorded release has an order.
	selectItemsOf = `SELECT DISTINCT item_id FROM ` + store.BuyersOrders + ` b`
	selectKeysOf  = `SELECT idempotency_key, id FROM orders WHERE user_id = ?1 AND item_id = ?2`
	eraseOrders   = `UPDATE orders SET user_id = ?1, idempotency_key = id WHERE user_id = ?2 AND item_id = ?3`
	eraseCount    = `UPDATE buyers SET user_id = ?1 WHERE user_id = ?2 AND item_id = ?3`
	eraseReleases = `UPDATE releases SET user_id = ?1, idempotency_key = order_id
		WHERE user_id = ?2 AND order_id IN (SELECT id FROM orders WHERE user_id = ?1 AND item_id = ?3)`
	eraseEvents = `UPDATE webhook_events SET body = replace(body, '"user_id":"' || ?2 || '"', '"user_id":"' || ?1 || '"')
		WHERE order_id IN (SELECT id FROM orders WHERE user_id = ?1 AND item_id = ?3)`
	// A name in JSON is a value between quotes, and no name needs an escape. A field name
	// equal to it stays, and so do the entries that contain only the service's own words: a
	// buyer may be called "admin" or "control".
	eraseAudit = `UPDATE audit SET actor = CASE WHEN actor = ?2 THEN ?1 ELSE actor END,
		before = CASE WHEN ` + auditWords + ` THEN before ELSE replace(before, ':"' || ?2 || '"', ':"' || ?1 || '"') END,
		after = CASE WHEN ` + auditWords + ` THEN after ELSE replace(after, ':"' || ?2 || '"', ':"' || ?1 || '"') END
		WHERE id IN (SELECT CAST(value AS BIGINT) FROM json_each(?3)) AND ` + auditNames
	// No index finds a name within an entry, so all entries are read, on a reading
	// connection and in pages.
	selectNamed     = `SELECT id FROM audit WHERE id > ?1 AND id <= ?3 AND ` + auditNames
	selectLastEntry = `SELECT COALESCE(MAX(id), 0) FROM audit`
	auditNames      = `(actor = ?2 OR NOT ` + auditWords + ` AND (instr(before, ':"' || ?2 || '"') > 0 OR instr(after, ':"' || ?2 || '"') > 0))`
	// auditWords selects the entries that contain no user-supplied text.
	auditWords = `action IN ('` + order.ActionOrderCancel + `', '` + order.ActionOrderRefund + `', '` + order.ActionPaymentRefund + `', '` + order.ActionItemPause + `', '` + order.ActionItemResume + `', '` + order.ActionItemClose + `')`
)

// itemsOf returns the items that a buyer must be erased from.
func itemsOf(ctx context.Context, s *store.Store, user string) (items []string, err error) {
	err = readRows(ctx, s, selectItemsOf, []any{user}, func(rows *sql.Rows) error {
		var item string
		err := rows.Scan(&item)
		items = append(items, item)
		return err
	})
	return items, err
}

// keysOf returns the keys of a buyer's orders of an item, each with its replacement.
func keysOf(ctx context.Context, s *store.Store, user, item string) (keys []inventory.RenamedKey, err error) {
	err = readRows(ctx, s, selectKeysOf, []any{user, item}, func(rows *sql.Rows) error {
		var k inventory.RenamedKey
		err := rows.Scan(&k.Key, &k.NewKey)
		keys = append(keys, k)
		return err
	})
	return keys, err
}

// EraseFromItem is the database's part of an erasure from one item. It returns how many
// orders have the pseudonym now. An error wraps inventory.ErrUnchanged if it is certain
// that nothing was changed.
func EraseFromItem(ctx context.Context, s *store.Store, user, item, pseudonym string, e Erasure) (orders int, err error) {
	committing := false
	err = s.ChangeWithEvents(ctx, "erase a buyer from item "+item, func(ctx context.Context, c database.Conn, box *store.Outbox) error {
		ctx, cancel := context.WithTimeout(ctx, timeouts.Write) // a buyer may have any number of rows
		defer cancel()
		committing = false
		n, err := database.Changed(c.ExecContext(ctx, eraseOrders, pseudonym, user, item))
		if err != nil {
			return err
		}
		orders = int(n)
		for _, statement := range []string{eraseCount, eraseReleases, eraseEvents} {
			if _, err := c.ExecContext(ctx, statement, pseudonym, user, item); err != nil {
				return err
			}
		}
		box.Touch(item) // the rows of buyers sort differently now, so a reconciliation of them must start over
		err = e.note(ctx, c, box.Now, item, pseudonym, orders)
		committing = err == nil
		return err
	})
	switch {
	case err == nil:
		return orders, nil
	case committing:
		return 0, err
	default:
		return 0, fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
	}
}

const (
	// auditScan is how many audit entries one query reads.
	auditScan = 20_000
	// auditPage is how many are changed in one transaction.
	auditPage = 500
)

// auditErasure is the erasure of a buyer's name from the audit.
type auditErasure struct {
	Erasure
	user, pseudonym string
}

// run writes the pseudonym into the audit's entries, and returns their number. At the end it
// truncates the database's log, which has the old entries.
func (a auditErasure) run(ctx context.Context, s *store.Store) (entries int64, err error) {
	var last int64
	err = readRows(ctx, s, selectLastEntry, nil, func(rows *sql.Rows) error { return rows.Scan(&last) })
	for from := int64(0); err == nil && from < last; from += auditScan {
		var named []int64
		err = readRows(ctx, s, selectNamed, []any{from, a.user, from + auditScan}, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			named = append(named, id)
			return err
		})
		for page := range slices.Chunk(named, auditPage) {
			if err != nil {
				break
			}
			var n int64
			n, err = a.replaceIn(ctx, s, page, entries == 0)
			entries += n
		}
	}
	if err != nil {
		return 0, err
	}
	return entries, s.EmptyWAL(ctx)
}

// replaceIn is run for some entries. The first of its transactions records the erasure.
func (a auditErasure) replaceIn(ctx context.Context, s *store.Store, ids []int64, first bool) (entries int64, err error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, err
	}
	err = s.Change(ctx, "erase a buyer from the audit", func(ctx context.Context, c database.Conn, now int64) error {
		entries, err = database.Changed(c.ExecContext(ctx, eraseAudit, a.pseudonym, a.user, string(list)))
		if err != nil || entries == 0 || !first {
			return err
		}
		return a.note(ctx, c, now, "", a.pseudonym, 0)
	})
	return entries, err
}

// note writes the audit entry of the erasure.
func (e *Erasure) note(ctx context.Context, c database.Conn, now int64, item, pseudonym string, orders int) error {
	after, err := json.Marshal(struct {
		Pseudonym string `json:"pseudonym"`
		Orders    int    `json:"orders"`
		Reason    string `json:"reason"`
	}{pseudonym, orders, e.Reason})
	if err != nil {
		return err
	}
	return store.WriteAudit(ctx, c, &store.AuditRow{
		At: now, Actor: e.Actor, Action: order.ActionBuyerErase, ItemID: item, After: string(after), RequestID: e.RequestID,
	})
}
