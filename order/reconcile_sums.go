package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/catalog"
)

// lateReturn is when units on their way back are worth telling: the sweeper has
// tried to give them back many times by then.
const lateReturn = 5 * time.Minute

// sumsTimeout bounds the sums of one item. They are taken in one read, which
// occupies one of the few reading connections.
const sumsTimeout = 20 * time.Second

// sums is what the database says of an item, in one snapshot.
type sums struct {
	row     itemRow
	held    int64 // units of orders that await payment
	sold    int64 // units of orders that hold for good
	changes int64 // recorded changes of the total
	counted int64 // units that the rows of buyers add up to
	astray  int   // buyers whose row is wrong or missing
	off     int64 // units by which these are wrong, added up
	late    int64 // orders whose units are late
}

// The rows of buyers are compared one by one by an index, so that a sale of any
// size needs no memory. LIMIT keeps each buyer's sum from being taken anew for each use of it.
const (
	compareBuyers = `SELECT COALESCE(SUM(counted), 0), COALESCE(SUM(held), 0), COALESCE(SUM(counted <> held), 0), COALESCE(SUM(ABS(counted - held)), 0)
	FROM (SELECT b.quantity AS counted, (SELECT COALESCE(SUM(o.quantity), 0) FROM orders o
			WHERE o.user_id = b.user_id AND o.item_id = b.item_id AND ` + ordersHold + `) AS held
		FROM buyers b WHERE b.item_id = ?1 LIMIT -1)`
	countMissingBuyers = `SELECT COUNT(DISTINCT o.user_id) FROM orders o WHERE o.item_id = ?1 AND ` + ordersHold + `
		AND NOT EXISTS (SELECT 1 FROM buyers b WHERE b.item_id = o.item_id AND b.user_id = o.user_id)`
	sumChanges   = `SELECT COALESCE(SUM(quantity), 0) FROM stock_changes WHERE item_id = ?1`
	countReturns = `SELECT COUNT(*) FROM releases WHERE item_id = ?1 AND created_at <= ?2`
)

// sums adds up what the database has of an item. Every transaction leaves these
// sums in agreement, so a difference in one snapshot is a real one, whatever is
// under way. Errors: catalog.ErrItemNotFound, ErrDatabase.
func (s *Store) sums(ctx context.Context, item string) (sums, error) {
	ctx, cancel := context.WithTimeout(ctx, sumsTimeout)
	defer cancel()
	var out sums
	err := s.snapshot(ctx, func(tx *gorm.DB) (err error) {
		if out.row, err = readItem(tx, item); err != nil {
			return err
		}
		if out.held, out.sold, err = unitsOf(tx, item); err != nil {
			return err
		}
		c := tx.Statement.ConnPool
		if err := c.QueryRowContext(ctx, sumChanges, item).Scan(&out.changes); err != nil {
			return fmt.Errorf("sum changes: %w", err)
		}
		before := s.now().Add(-lateReturn).UnixMilli()
		if err := c.QueryRowContext(ctx, countReturns, item, before).Scan(&out.late); err != nil {
			return fmt.Errorf("count returns: %w", err)
		}
		return out.compareBuyers(ctx, c)
	})
	if err != nil && !errors.Is(err, catalog.ErrItemNotFound) {
		err = wrap("add up item "+item, err)
	}
	return out, err
}

func (s *sums) compareBuyers(ctx context.Context, c conn) error {
	var held int64
	err := c.QueryRowContext(ctx, compareBuyers, s.row.ID).Scan(&s.counted, &held, &s.astray, &s.off)
	if err != nil {
		return fmt.Errorf("compare buyers: %w", err)
	}
	if s.held+s.sold == held {
		return nil
	}
	// What is left over is held by buyers who have no row.
	var missing int
	if err := c.QueryRowContext(ctx, countMissingBuyers, s.row.ID).Scan(&missing); err != nil {
		return fmt.Errorf("count missing buyers: %w", err)
	}
	s.astray += missing
	s.off += s.held + s.sold - held
	return nil
}

// drifts are the differences within the database.
func (s *sums) drifts() []Drift {
	var out []Drift
	if want := s.row.Initial + s.changes; s.row.Total != want {
		out = append(out, Drift{
			Kind: DriftTotal, Expected: want, Found: s.row.Total, Units: distance(want, s.row.Total), Count: 1,
			Note: "the total and its record contradict each other; which is right cannot be told, so neither is changed",
		})
	}
	if units := s.held + s.sold; s.row.Sold != units {
		out = append(out, Drift{Kind: DriftSold, Expected: units, Found: s.row.Sold, Units: distance(units, s.row.Sold), Count: 1})
	}
	if s.astray > 0 {
		out = append(out, Drift{Kind: DriftBuyers, Expected: s.held + s.sold, Found: s.counted, Units: s.off, Count: s.astray})
	}
	return out
}

// torn reports whether the item's count of sold units is not what its orders hold.
func (s *sums) torn() bool { return s.row.Sold != s.held+s.sold }

// ledger is the equation of an item as its row is now, with so many units left
// and so many queued. units is what the orders hold now, which may be others than
// when the sums were taken: how many of these are paid was not looked at.
func (s *sums) ledger(row *itemRow, left, units, queued int64) Ledger {
	l := Ledger{Initial: row.Initial, Restocked: row.Total - row.Initial, Left: left, Held: s.held, Sold: s.sold}
	if since := units - s.held - s.sold; row.PaymentWindowSeconds > 0 {
		l.Held += since
	} else {
		l.Sold += since
	}
	if l.Held < 0 {
		l.Held, l.Sold = 0, l.Sold+l.Held
	}
	if l.Sold < 0 {
		l.Held, l.Sold = l.Held+l.Sold, 0
	}
	l.Held += queued
	return l
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// itemIDs reads a page of the items' ids, those after one.
func (s *Store) itemIDs(ctx context.Context, after string, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var ids []string
	err := s.read.WithContext(ctx).Model(&itemRow{}).Where("id > ?", after).Order("id").Limit(limit).Pluck("id", &ids).Error
	if err != nil {
		return nil, wrap("read items", err)
	}
	return ids, nil
}

// holding reads whether the orders with these ids hold their units; what has no row
// is left out.
func (s *Store) holding(ctx context.Context, ids []string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.read.DB()
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool, len(ids))
	err = each(ctx, db, selectHolding, []any{jsonList(ids...)}, func(rows *sql.Rows) error {
		var id string
		var holds bool
		err := rows.Scan(&id, &holds)
		out[id] = holds
		return err
	})
	if err != nil {
		return nil, wrap("read orders", err)
	}
	return out, nil
}

const (
	selectHolding = `SELECT id, ` + ordersHold + ` FROM orders WHERE id IN (SELECT value FROM json_each(?1))`
	// unitsOfBuyers sums what each buyer of a JSON list holds of an item. The join
	// is written so that the list leads, and each buyer is found by the index.
	unitsOfBuyers = `SELECT o.user_id, SUM(o.quantity) FROM json_each(?1) j CROSS JOIN orders o
	ON o.user_id = j.value AND o.item_id = ?2 AND ` + ordersHold + ` GROUP BY o.user_id`
	// ordersOfKeys finds the orders of a JSON list of [buyer, idempotency key].
	ordersOfKeys = `SELECT o.id, o.user_id, o.idempotency_key, o.quantity, o.status, o.restocked FROM json_each(?1) j CROSS JOIN orders o
	ON o.user_id = json_extract(j.value, '$[0]') AND o.item_id = ?2 AND o.idempotency_key = json_extract(j.value, '$[1]')`
)

// buyersUnits reads what each of these buyers holds of an item; who holds
// nothing is left out.
func buyersUnits(ctx context.Context, c conn, item string, buyers []string) (map[string]int64, error) {
	out := make(map[string]int64, len(buyers))
	err := each(ctx, c, unitsOfBuyers, []any{jsonList(buyers...), item}, func(rows *sql.Rows) error {
		var buyer string
		var units int64
		err := rows.Scan(&buyer, &units)
		out[buyer] = units
		return err
	})
	if err != nil {
		return nil, wrap("sum orders of buyers of "+item, err)
	}
	return out, nil
}
