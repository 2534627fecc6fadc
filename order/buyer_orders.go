package order

import (
	"context"
	"database/sql"
)

// orderPeriod is the period that an order belongs to: the beginning of its id, which is
// its time. It is the first column of the index orders_buyer, word for word. An index led
// by the buyer would find a buyer's orders in one place, but every purchase would change
// another page of the shop's whole history.
const orderPeriod = `substr(id, 1, 6)`

const (
	// firstPeriods is how many periods a buyer's list looks into first; each further look
	// takes four times as many, up to maxPeriods for a page. Only periods that have
	// orders count: these are at least half a year.
	firstPeriods = 8
	maxPeriods   = 1000
)

const (
	// listPeriods finds the periods below ?1 that have orders, newest first.
	listPeriods = `WITH RECURSIVE period (p) AS (SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < ?1)
		UNION ALL SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < p) FROM period WHERE p IS NOT NULL)
	SELECT p FROM period WHERE p IS NOT NULL LIMIT ?2`
	// listBuyersIn reads a buyer's orders in the periods of a JSON list.
	listBuyersIn = `SELECT ` + orderFields + ` FROM (SELECT value AS p FROM json_each(?1)) CROSS JOIN orders ON ` + orderPeriod + ` = p AND user_id = ?2
	WHERE +id < ?3 AND (?4 = '' OR status = ?4) ORDER BY +id DESC LIMIT ?5`
	// The unary plus keeps the database from walking through everybody's orders of the item.
	listBuyersOf = `SELECT ` + orderFields + ` FROM orders
	WHERE item_id = ?1 AND user_id = ?2 AND +id < ?3 AND (?4 = '' OR +status = ?4) ORDER BY +id DESC LIMIT ?5`
	// buyersOrders are the orders of buyer ?1 in all periods: their ids, and their items.
	buyersOrders = `(WITH RECURSIVE period (p) AS (SELECT (SELECT MAX(` + orderPeriod + `) FROM orders)
		UNION ALL SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < p) FROM period WHERE p IS NOT NULL)
	SELECT id, item_id FROM period CROSS JOIN orders ON ` + orderPeriod + ` = p AND user_id = ?1)`
)

// afterAllIDs is behind every id of an order.
const afterAllIDs = "~"

// listOfBuyer reads a page of one buyer's orders; see List. With a filter by item it
// follows the index of idempotency keys. Otherwise it looks into one period after the
// other, newest first, and ends the page early after maxPeriods.
func listOfBuyer(ctx context.Context, c conn, f Filter) (orders []Order, next string, err error) {
	before := f.Before
	if before == "" {
		before = afterAllIDs
	}
	read := func(query, where string) error {
		args := []any{where, f.UserID, before, string(f.Status), f.Limit + 1 - len(orders)}
		return each(ctx, c, query, args, func(rows *sql.Rows) error {
			o, err := scanOrder(rows)
			orders = append(orders, o)
			return err
		})
	}
	if f.ItemID != "" {
		err := read(listBuyersOf, f.ItemID)
		orders, next = cutPage(orders, f.Limit, "")
		return orders, next, err
	}
	end := before + afterAllIDs // above the period of before, and below the one after it
	for looked, n := 0, firstPeriods; ; n *= 4 {
		n = min(n, maxPeriods-looked)
		periods, err := periodsBelow(ctx, c, end, n)
		if err == nil {
			err = read(listBuyersIn, jsonList(periods...))
		}
		if err != nil {
			return nil, "", err
		}
		looked += n
		switch {
		case len(periods) < n || len(orders) > f.Limit:
			orders, next = cutPage(orders, f.Limit, "")
			return orders, next, nil
		case looked == maxPeriods:
			orders, next = cutPage(orders, f.Limit, lowestID(periods[n-1]))
			return orders, next, nil
		}
		end = periods[n-1]
	}
}

// periodsBelow are the next n periods that have orders, newest first.
func periodsBelow(ctx context.Context, c conn, end string, n int) ([]string, error) {
	periods := make([]string, 0, n)
	err := each(ctx, c, listPeriods, []any{end, n}, func(rows *sql.Rows) error {
		var p string
		err := rows.Scan(&p)
		periods = append(periods, p)
		return err
	})
	return periods, err
}

// cutPage cuts the orders to a page. next is where the page after it begins: behind the
// last order if there were more than fit, and at floor otherwise.
func cutPage(orders []Order, limit int, floor string) (page []Order, next string) {
	if len(orders) > limit {
		return orders[:limit], orders[limit-1].ID
	}
	return orders, floor
}

// lowestID is below every id of a period, and in the form of an id.
func lowestID(period string) string {
	const lowest = "00000000-0000-0000-0000-000000000000"
	return period + lowest[min(len(period), len(lowest)):]
}
