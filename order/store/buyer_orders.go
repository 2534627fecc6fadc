package store

import (
	"context"
	"database/sql"

	"flashsale/order"
)

// orderPeriod is the period of an order: the beginning of its id, which encodes its time.
// The expression must equal the first column of the index orders_buyer. An index that
// starts with the buyer would keep a buyer's orders in one place, but every purchase would
// then change a random page of the shop's whole history.
const orderPeriod = `substr(id, 1, 6)`

const (
	// firstPeriods is how many periods the first query for a buyer's list reads; each
	// further query reads four times as many, up to maxPeriods for a page. Only periods
	// that have orders count: maxPeriods covers at least half a year.
	firstPeriods = 8
	maxPeriods   = 1000
)

const (
	// listPeriods finds the periods below ?1 that have orders, newest first.
	listPeriods = `WITH RECURSIVE period (p) AS (SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < ?1)
		UNION ALL SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < p) FROM period WHERE p IS NOT NULL)
	SELECT p FROM period WHERE p IS NOT NULL LIMIT ?2`
	// listBuyersIn reads a buyer's orders in the periods of a JSON list.
	listBuyersIn = `SELECT ` + OrderFields + ` FROM (SELECT value AS p FROM json_each(?1)) AS list CROSS JOIN orders ON ` + orderPeriod + ` = p AND user_id = ?2
	WHERE +id < ?3 AND (?4 = '' OR status = ?4) ORDER BY +id DESC LIMIT ?5`
	// The unary plus keeps SQLite from scanning all orders of the item.
	listBuyersOf = `SELECT ` + OrderFields + ` FROM orders
	WHERE item_id = ?1 AND user_id = ?2 AND +id < ?3 AND (?4 = '' OR +status = ?4) ORDER BY +id DESC LIMIT ?5`
	// BuyersOrders are the orders of buyer ?1 in all periods: their ids, and their items.
	BuyersOrders = `(WITH RECURSIVE period (p) AS (SELECT (SELECT MAX(` + orderPeriod + `) FROM orders)
		UNION ALL SELECT (SELECT MAX(` + orderPeriod + `) FROM orders WHERE ` + orderPeriod + ` < p) FROM period WHERE p IS NOT NULL)
	SELECT id, item_id FROM period CROSS JOIN orders ON ` + orderPeriod + ` = p AND user_id = ?1)`
)

// afterAllIDs sorts after every order id.
const afterAllIDs = "~"

// listOfBuyer reads a page of one buyer's orders; see List. With a filter by item it uses
// the index of idempotency keys. Otherwise it reads one period after the other, newest
// first, and ends the page early after maxPeriods.
func listOfBuyer(ctx context.Context, c Conn, f order.Filter) (orders []order.Order, next string, err error) {
	before := f.Before
	if before == "" {
		before = afterAllIDs
	}
	read := func(query, where string) error {
		args := []any{where, f.UserID, before, string(f.Status), f.Limit + 1 - len(orders)}
		return Each(ctx, c, query, args, func(rows *sql.Rows) error {
			o, err := ScanOrder(rows)
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
			err = read(listBuyersIn, JSONList(periods...))
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

// periodsBelow returns the next n periods that have orders, newest first.
func periodsBelow(ctx context.Context, c Conn, end string, n int) ([]string, error) {
	periods := make([]string, 0, n)
	err := Each(ctx, c, listPeriods, []any{end, n}, func(rows *sql.Rows) error {
		var p string
		err := rows.Scan(&p)
		periods = append(periods, p)
		return err
	})
	return periods, err
}

// cutPage cuts the orders to a page. next is the start of the next page: after the last
// order if there were more than fit, and floor otherwise.
func cutPage(orders []order.Order, limit int, floor string) (page []order.Order, next string) {
	if len(orders) > limit {
		return orders[:limit], orders[limit-1].ID
	}
	return orders, floor
}

// lowestID sorts before every id of a period, and has the form of an id.
func lowestID(period string) string {
	const lowest = "00000000-0000-0000-0000-000000000000"
	return period + lowest[min(len(period), len(lowest)):]
}
