package order

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"flashsale/inventory"
)

// ErrOrdersInFlight says that a buyer has purchases in the queue, dead letters
// included. Nothing more was changed; try again once they are committed or
// discarded.
var ErrOrdersInFlight = errors.New("order: the buyer has orders in flight")

// Rebuilder makes Redis forget what it remembers of an item's buyers.
type Rebuilder interface {
	// Rebuild is inventory.Inventory.Rebuild.
	Rebuild(ctx context.Context, item string, check, change func(ctx context.Context) error) error
}

// Erasure is who wants a buyer's personal data erased, and why. It is kept, and
// so it must not name the buyer.
type Erasure struct {
	Actor     string
	Reason    string
	RequestID string
}

// Erased is what an erasure came to.
type Erased struct {
	// Pseudonym stands in the buyer's place; empty where there was nothing to erase.
	Pseudonym string
	Orders    int // rows that bear the pseudonym now
}

// EraseBuyer puts a random pseudonym in a buyer's place wherever the buyer is
// named, and the orders' ids in the place of their idempotency keys, which the
// buyer chose. The orders stay, with their money and their payments' references.
// The audit says who erased and why, under the pseudonym alone.
//
// It goes item by item, each in one transaction under the item's lock, with Redis
// made to forget: see inventory.Rebuild. A repeat goes on where an error has
// stopped it, under another pseudonym, and finds nothing when all is done. What
// the buyer buys afterwards is a stranger's purchase.
//
// Errors: ErrOrdersInFlight, ErrDatabase, inventory.ErrUnavailable.
func (s *Service) EraseBuyer(ctx context.Context, user string, e Erasure) (Erased, error) {
	for p := range s.Tasks {
		if err := s.noneInFlight(ctx, p, user, ""); err != nil {
			return Erased{}, err
		}
	}
	items, err := s.Store.itemsOf(ctx, user)
	if err != nil {
		return Erased{}, err
	}
	done := Erased{Pseudonym: newPseudonym()}
	if e.Actor == user {
		e.Actor = done.Pseudonym // who erases their own name must not leave it behind
	}
	for _, of := range items {
		item := of.id
		if ctx.Err() != nil {
			return Erased{}, context.Cause(ctx)
		}
		check := func(ctx context.Context) error {
			return s.noneInFlight(ctx, s.Stock.Partition(item), user, item)
		}
		change := func(ctx context.Context) error {
			n, err := s.Store.eraseFromItem(ctx, user, item, done.Pseudonym, e)
			done.Orders += n
			return err
		}
		// An item that was begun is finished, whether or not the caller waits for it.
		if err := s.Rebuilder.Rebuild(context.WithoutCancel(ctx), item, check, change); err != nil {
			return Erased{}, fmt.Errorf("erase a buyer from item %s: %w", item, err)
		}
		if err := s.Store.rebuilt(ctx, of, done.Pseudonym); err != nil {
			return Erased{}, err
		}
	}
	rest, err := s.Store.eraseFromAudit(ctx, user, done.Pseudonym, e)
	if err != nil {
		return Erased{}, err
	}
	if done.Orders == 0 && rest == 0 {
		done.Pseudonym = ""
	}
	return done, nil
}

// noneInFlight looks for the buyer's purchases in a partition's queue, of one
// item or of all.
func (s *Service) noneInFlight(ctx context.Context, partition int, user, item string) error {
	err := s.Tasks[partition].Scan(ctx, func(id string, payload []byte) error {
		if strings.HasPrefix(id, expiryPrefix) {
			return nil
		}
		t, err := parseTask(id, payload)
		if err == nil && t.UserID == user && (item == "" || t.ItemID == item) {
			return ErrOrdersInFlight
		}
		return nil // what cannot be read names nobody
	})
	if err != nil && !errors.Is(err, ErrOrdersInFlight) {
		return fmt.Errorf("look for a buyer's queued orders: %w: %w", inventory.ErrUnavailable, err)
	}
	return err
}

// newPseudonym is a name that no buyer has, and that could be a token's subject.
func newPseudonym() string {
	var b [16]byte
	// crypto/rand.Read never returns an error; it ends the program instead.
	_, _ = rand.Read(b[:])
	return "erased-" + hex.EncodeToString(b[:])
}

// rebuildOwed opens the keys of meta that name an item from which a buyer was
// erased in the database, but perhaps not yet in Redis. The value is the last such
// buyer's pseudonym.
const rebuildOwed = "rebuild:"

const (
	// Every buyer that is counted or noted has an order, which leads here by its
	// index. Items that are still owed a rebuild come along.
	selectItemsOf = `SELECT i.id, COALESCE(m.value, '') FROM (SELECT item_id AS id FROM orders WHERE user_id = ?1
		UNION SELECT substr(key, length('` + rebuildOwed + `') + 1) FROM meta WHERE key LIKE '` + rebuildOwed + `%') i
		LEFT JOIN meta m ON m.key = '` + rebuildOwed + `' || i.id`
	eraseOrders   = `UPDATE orders SET user_id = ?1, idempotency_key = id WHERE user_id = ?2 AND item_id = ?3`
	eraseCount    = `UPDATE buyers SET user_id = ?1 WHERE user_id = ?2 AND item_id = ?3`
	eraseReleases = `UPDATE releases SET user_id = ?1, idempotency_key = order_id WHERE user_id = ?2 AND item_id = ?3`
	eraseEvents   = `UPDATE webhook_events SET body = replace(body, '"user_id":"' || ?2 || '"', '"user_id":"' || ?1 || '"')
		WHERE order_id IN (SELECT id FROM orders WHERE user_id = ?1 AND item_id = ?3)`
	oweRebuild    = `INSERT INTO meta (key, value) VALUES ('` + rebuildOwed + `' || ?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value`
	settleRebuild = `DELETE FROM meta WHERE key = '` + rebuildOwed + `' || ?1 AND value IN (?2, ?3)`
	// A name in JSON is a value between quotes, and none needs an escape. A field of
	// that name stays, and so does what is not a name but the service's own word: a
	// buyer may be called "admin" or "control".
	eraseAudit = `UPDATE audit SET actor = CASE WHEN actor = ?2 THEN ?1 ELSE actor END,
		before = CASE WHEN ` + auditWords + ` THEN before ELSE replace(before, ':"' || ?2 || '"', ':"' || ?1 || '"') END,
		after = CASE WHEN ` + auditWords + ` THEN after ELSE replace(after, ':"' || ?2 || '"', ':"' || ?1 || '"') END
		WHERE ` + auditNames
	auditNames = `(actor = ?2 OR NOT ` + auditWords + ` AND (instr(before, ':"' || ?2 || '"') > 0 OR instr(after, ':"' || ?2 || '"') > 0))`
	// auditWords are the entries that say nothing in anybody's own words.
	auditWords = `action IN ('` + actionOrderCancel + `', '` + actionOrderRefund + `', '` + actionPaymentRefund + `', '` + actionItemPause + `', '` + actionItemResume + `', '` + actionItemClose + `')`
)

// erasedItem is an item that a buyer is to be erased from. owed is the pseudonym for
// which it was to be rebuilt before that, or empty.
type erasedItem struct{ id, owed string }

// itemsOf are the items that a buyer is to be erased from.
func (s *Store) itemsOf(ctx context.Context, user string) ([]erasedItem, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.read.DB()
	if err != nil {
		return nil, err
	}
	var items []erasedItem
	err = each(ctx, db, selectItemsOf, []any{user}, func(rows *sql.Rows) error {
		var item erasedItem
		err := rows.Scan(&item.id, &item.owed)
		items = append(items, item)
		return err
	})
	if err != nil {
		return nil, wrap("look for a buyer's items", err)
	}
	return items, nil
}

// eraseFromItem is the database's part of an erasure from one item. It returns
// how many orders bear the pseudonym now.
func (s *Store) eraseFromItem(ctx context.Context, user, item, pseudonym string, e Erasure) (orders int, err error) {
	err = s.transition(ctx, "erase a buyer from item "+item, func(ctx context.Context, c conn, now int64) error {
		n, err := changed(c.ExecContext(ctx, eraseOrders, pseudonym, user, item))
		if err != nil || n == 0 {
			return err // an item that was still owed a rebuild
		}
		orders = int(n)
		for _, statement := range []string{eraseCount, eraseReleases, eraseEvents} {
			if _, err := c.ExecContext(ctx, statement, pseudonym, user, item); err != nil {
				return err
			}
		}
		if _, err := c.ExecContext(ctx, oweRebuild, item, pseudonym); err != nil {
			return err
		}
		return e.note(ctx, c, now, item, pseudonym, orders)
	})
	if err != nil {
		return 0, err
	}
	return orders, nil
}

// rebuilt notes that Redis has forgotten, too. What another erasure has come to owe
// since then stays: its part of Redis may have been loaded after this one's.
func (s *Store) rebuilt(ctx context.Context, item erasedItem, pseudonym string) error {
	return s.transition(ctx, "note the rebuild of item "+item.id, func(ctx context.Context, c conn, _ int64) error {
		_, err := c.ExecContext(ctx, settleRebuild, item.id, pseudonym, item.owed)
		return err
	})
}

// eraseFromAudit puts the pseudonym into the audit's entries, and returns into how
// many. Last of all it has the log of what was overwritten cut off.
func (s *Store) eraseFromAudit(ctx context.Context, user, pseudonym string, e Erasure) (entries int64, err error) {
	err = s.transition(ctx, "erase a buyer from the audit", func(ctx context.Context, c conn, now int64) error {
		if entries, err = changed(c.ExecContext(ctx, eraseAudit, pseudonym, user)); err != nil || entries == 0 {
			return err
		}
		return e.note(ctx, c, now, "", pseudonym, 0)
	})
	if err != nil {
		return 0, err
	}
	return entries, s.cutLog(ctx)
}

// cutLog moves what was written into the database's file, and empties the log,
// which still shows pages as they were. It waits only briefly for readers, since
// all writers wait for it; what they keep it from, a later one does.
func (s *Store) cutLog(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	db, err := s.write.DB()
	if err != nil {
		return err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return wrap("empty the database's log", err)
	}
	defer func() {
		// Whatever became of the rest: it is the one connection of all writers.
		_, rerr := c.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("PRAGMA busy_timeout = %d", lockWait))
		err = errors.Join(err, rerr, c.Close())
	}()
	for _, pragma := range []string{"busy_timeout = 100", "wal_checkpoint(TRUNCATE)"} {
		if _, err := c.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return wrap("empty the database's log", err)
		}
	}
	return nil
}

// note writes the audit's entry of the erasure.
func (e *Erasure) note(ctx context.Context, c conn, now int64, item, pseudonym string, orders int) error {
	after, err := json.Marshal(struct {
		Pseudonym string `json:"pseudonym"`
		Orders    int    `json:"orders"`
		Reason    string `json:"reason"`
	}{pseudonym, orders, e.Reason})
	if err != nil {
		return err
	}
	return writeAudit(ctx, c, &auditRow{
		At: now, Actor: e.Actor, Action: actionBuyerErase, ItemID: item, After: string(after), RequestID: e.RequestID,
	})
}
