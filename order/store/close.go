package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store/database"
)

// A confirmed order ends by exactly one of payOrder (pay.go), cancelOrders (cancel.go) and
// expireOrders (expire.go), and a paid one may then be refunded by package checkout. Each is one
// conditional UPDATE, and SQLite has one writer. Each runs in one transaction with everything that
// belongs to the change, including its webhook events.

// closeOrders runs a statement that changes confirmed orders to a final state and returns their
// OrderFields, with all that belongs to that change. It returns those orders.
func closeOrders(ctx context.Context, c database.Conn, box *Outbox, kind order.EventType, query string, args ...any) ([]order.Order, error) {
	closed, err := ReadOrders(ctx, c, query, args...)
	if err != nil {
		return nil, err
	}
	if err := TakeBack(ctx, c, closed, box); err != nil {
		return nil, err
	}
	box.Closed(kind, closed)
	return closed, nil
}

// TakeBack subtracts the units of orders that were just closed, and records their releases. The
// number of its statements does not depend on that of the orders: on Postgres, nothing else is
// written meanwhile.
func TakeBack(ctx context.Context, c database.Conn, closed []order.Order, box *Outbox) error {
	if len(closed) == 0 {
		return nil
	}
	units := make(map[string]int64, 1)
	held := make(map[buyerKey]int64, len(closed))
	args := make([]any, 0, len(closed)*releaseColumns)
	for i := range closed {
		o := &closed[i]
		units[o.ItemID] += o.Quantity
		held[buyerKey{o.ItemID, o.UserID}] += o.Quantity
		args = append(args, o.ID, o.ItemID, o.UserID, o.IdempotencyKey, o.Quantity, order.ToMillis(o.ClosedAt))
	}
	if err := unsell(ctx, c, units, box); err != nil {
		return err
	}
	if n, err := takeFromBuyers.Exec(ctx, c, buyerRows(held)); err != nil || n != int64(len(held)) {
		return errors.Join(err, fmt.Errorf("take back the units of %s: %d of them hold fewer", plural.Count(len(held), "buyer"), int64(len(held))-n))
	}
	if n, err := InsertReleases.Exec(ctx, c, args); err != nil || n != int64(len(closed)) {
		return errors.Join(err, fmt.Errorf("recorded for release: only %d of %s", n, plural.Count(len(closed), "order")))
	}
	return nil
}

// unsell subtracts units from what the items have sold.
func unsell(ctx context.Context, c database.Conn, units map[string]int64, box *Outbox) error {
	list := make([][2]any, 0, len(units))
	for item, n := range units {
		list = append(list, [2]any{item, n})
	}
	found := 0
	err := database.Each(ctx, c, unsellUnits, []any{database.JSON(list)}, func(rows *sql.Rows) error {
		var item string
		var revision int64
		err := rows.Scan(&item, &revision)
		box.revised(item, revision)
		found++
		return err
	})
	if err != nil || found != len(units) {
		return errors.Join(err, fmt.Errorf("take back units of %s: %d have a row", plural.Count(len(units), "item"), found))
	}
	return nil
}
