// Package history fills a database with the orders of past and open sales.
package history

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// History is what a database holds before a measurement: sales that have ended, and
// sales that are open, with the same number of committed orders in each. The oldest
// sale comes first; no two orders have the same time. The zero value is an empty shop.
type History struct {
	Ended, EndedOrders int // sales, and orders in each
	Live, LiveOrders   int
	Buyers             int // population from which each sale draws; 0: 1,000,000
}

// Orders is how many orders the database holds.
func (h History) Orders() int { return h.Ended*h.EndedOrders + h.Live*h.LiveOrders }

// EndedID is the id of an ended sale of a history.
func EndedID(i int) string { return fmt.Sprintf("ended-%06d", i) }

// LiveID is the id of an open sale of a history.
func LiveID(i int) string { return fmt.Sprintf("live-%06d", i) }

// LiveIDs are the ids of the first n open sales.
func LiveIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = LiveID(i)
	}
	return ids
}

// saleStock is the stock of each sale, above any demand.
const saleStock = 100_000_000

// Both texts are for sales of ?1 orders each, named ?2 and a number, whose orders are
// the numbers ?3 to ?4. An order's time is ?5 plus its number, in milliseconds, and its
// buyer one of ?6. The id is a UUID of version 7 with that time.
const (
	insertOrders = `WITH RECURSIVE i(n) AS (SELECT ?3 UNION ALL SELECT n + 1 FROM i WHERE n < ?4)
		INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, confirmed_at)
		SELECT printf('%08x-%04x-7000-8000-%012x', (?5 + n) >> 16, (?5 + n) & 65535, n), printf('%s-%06d', ?2, (n - ?3) / ?1),
			'buyer-' || (1000000 + n * 7919 % ?6), 1, 4900, 'EUR', 'confirmed', 'past-' || n, ?5 + n, ?5 + n FROM i`
	insertItems = `WITH RECURSIVE i(k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM i WHERE k < ?7 - 1)
		INSERT INTO items (id, name, price_minor, currency, initial, total, sold, per_user_limit, opens_at, closes_at, created_at, updated_at)
		SELECT printf('%s-%06d', ?2, k), printf('%s-%06d', ?2, k), 4900, 'EUR', ?8, ?8, ?1, 1000000,
			?5 + ?3 + k * ?1, CASE ?9 WHEN 1 THEN ?5 + ?3 + (k + 1) * ?1 + 1 ELSE 0 END, ?5, ?5 FROM i`
	countBuyers = `INSERT INTO buyers (item_id, user_id, quantity)
		SELECT item_id, user_id, SUM(quantity) FROM orders GROUP BY item_id, user_id ORDER BY item_id, user_id`
)

// Write adds the history to a migrated database that no other process has open. It
// gives up durability and rebuilds the indexes of orders at the end, which is faster
// than inserting into them.
func (h History) Write(ctx context.Context, path string) (err error) {
	if h.Ended == 0 && h.Live == 0 {
		return nil
	}
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=OFF&_synchronous=OFF&_locking_mode=EXCLUSIVE&_cache_size=-400000")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	indexes, err := dropIndexes(ctx, db)
	if err != nil {
		return err
	}
	people := h.Buyers
	if people == 0 {
		people = 1_000_000
	}
	base := time.Now().Add(-24*time.Hour).UnixMilli() - int64(h.Orders())
	first := 0
	for _, part := range []struct {
		prefix        string
		sales, orders int
		closed        int
	}{{"ended", h.Ended, h.EndedOrders, 1}, {"live", h.Live, h.LiveOrders, 0}} {
		last := first + part.sales*part.orders - 1
		args := []any{part.orders, part.prefix, first, last, base, people, part.sales, saleStock, part.closed}
		if part.sales > 0 {
			if _, err := db.ExecContext(ctx, insertItems, args...); err != nil {
				return fmt.Errorf("insert items: %w", err)
			}
		}
		if last >= first {
			if _, err := db.ExecContext(ctx, insertOrders, args[:6]...); err != nil {
				return fmt.Errorf("insert orders: %w", err)
			}
		}
		first = last + 1
	}
	for _, text := range append([]string{countBuyers}, indexes...) {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("%.60s: %w", text, err)
		}
	}
	return nil
}

// dropIndexes drops the indexes of orders and returns the statements that make them.
func dropIndexes(ctx context.Context, db *sql.DB) (texts []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT name, sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'orders' AND sql IS NOT NULL`)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // its errors are Err's
	var names []string
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return nil, err
		}
		names, texts = append(names, name), append(texts, text)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := db.ExecContext(ctx, `DROP INDEX "`+name+`"`); err != nil {
			return nil, err
		}
	}
	return texts, nil
}
