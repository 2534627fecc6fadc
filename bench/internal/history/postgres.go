package history

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// The texts for Postgres: $1 sales of $2 orders each. An order's time is $3 plus its number, in
// milliseconds, and its buyer one of $4.
const (
	insertItemsPostgres = `INSERT INTO items (id, name, price_minor, currency, initial, total, sold, per_user_limit, opens_at, closes_at, created_at, updated_at)
		SELECT 'ended-' || lpad(k::text, 6, '0'), 'ended', 4900, 'EUR', $4, $4, $2, 1000000, $3 + k * $2, $3 + (k + 1) * $2 + 1, $3, $3
		FROM generate_series(0, $1::bigint - 1) k`
	insertOrdersPostgres = `INSERT INTO orders (id, item_id, user_id, quantity, unit_price_minor, currency, status, idempotency_key, created_at, confirmed_at)
		SELECT lpad(to_hex(($3 + n) >> 16), 8, '0') || '-' || lpad(to_hex(($3 + n) & 65535), 4, '0') || '-7000-8000-' || lpad(to_hex(n), 12, '0'),
			'ended-' || lpad((n / $2)::text, 6, '0'), 'buyer-' || (1000000 + n * 7919 % $4), 1, 4900, 'EUR', 'confirmed', 'past-' || n, $3 + n, $3 + n
		FROM generate_series(0, $1::bigint * $2::bigint - 1) n`
	indexesOfOrders = `SELECT i.indexname, i.indexdef FROM pg_indexes i WHERE i.schemaname = current_schema AND i.tablename = 'orders'
		AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conname = i.indexname)`
)

// WritePostgres adds the ended sales of the history to a migrated database on Postgres that no
// other process writes to. It rebuilds the indexes of orders at the end, and leaves the tables
// analyzed.
func (h History) WritePostgres(ctx context.Context, db *sql.DB) error {
	indexes, err := namesAndTexts(ctx, db, indexesOfOrders)
	if err != nil {
		return err
	}
	for name := range indexes {
		if _, err := db.ExecContext(ctx, `DROP INDEX "`+name+`"`); err != nil {
			return err
		}
	}
	people := h.Buyers
	if people == 0 {
		people = 1_000_000
	}
	base := time.Now().Add(-24*time.Hour).UnixMilli() - int64(h.Orders())
	if _, err := db.ExecContext(ctx, insertItemsPostgres, h.Ended, h.EndedOrders, base, saleStock); err != nil {
		return fmt.Errorf("insert items: %w", err)
	}
	if _, err := db.ExecContext(ctx, insertOrdersPostgres, h.Ended, h.EndedOrders, base, people); err != nil {
		return fmt.Errorf("insert orders: %w", err)
	}
	texts := []string{countBuyers}
	for _, text := range indexes {
		texts = append(texts, text)
	}
	for _, text := range append(texts, "VACUUM ANALYZE", "CHECKPOINT") {
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("%.60s: %w", text, err)
		}
	}
	return nil
}

func namesAndTexts(ctx context.Context, db *sql.DB, query string) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // its errors are Err's
	texts := make(map[string]string)
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return nil, err
		}
		texts[name] = text
	}
	return texts, rows.Err()
}
