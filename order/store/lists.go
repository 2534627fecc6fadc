package store

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// ListScan is how many rows a page reads if no index selects its rows.
const ListScan = 5000

// orderQuery reads a page of orders: query with args selects its rows, newest first. If no
// index selects them, floor with floorArgs selects the last id that the page reads; the
// next page continues there.
type orderQuery struct {
	query, floor    string
	args, floorArgs []any
}

const (
	// endedStatus is the condition of the indexes orders_ended and orders_item_ended. The
	// text must be equal.
	endedStatus = `status IN ('rejected', 'cancelled', 'expired', 'refunded')`

	listOrders = `SELECT ` + OrderFields + ` FROM orders WHERE id < ?1 ORDER BY id DESC LIMIT ?2`
	// The conditions on (item_id, id) keep Postgres from scanning all orders backwards for
	// those of one item.
	listOrdersOf = `SELECT ` + OrderFields + ` FROM orders WHERE (item_id, id) < (?3, ?1) AND item_id >= ?3 AND +item_id <= ?3
		ORDER BY item_id DESC, id DESC LIMIT ?2`
	listEnded = `SELECT ` + OrderFields + ` FROM orders INDEXED BY orders_ended
		WHERE ` + endedStatus + ` AND status = ?3 AND id < ?1 ORDER BY id DESC LIMIT ?2`
	listEndedOf = `SELECT ` + OrderFields + ` FROM orders INDEXED BY orders_item_ended
		WHERE ` + endedStatus + ` AND item_id = ?3 AND status = ?4 AND id < ?1 ORDER BY id DESC LIMIT ?2`
	// Confirmed and paid orders have no index by status, because it would slow every
	// purchase. A page reads at most the next ListScan orders or payments.
	listStanding   = `SELECT ` + OrderFields + ` FROM orders WHERE +status = ?3 AND id < ?1 AND id >= ?4 ORDER BY id DESC LIMIT ?2`
	listStandingOf = `SELECT ` + OrderFields + ` FROM orders WHERE (item_id, id) < (?4, ?1) AND (item_id, id) >= (?4, ?5)
		AND +item_id <= ?4 AND +item_id >= ?4 AND +status = ?3 ORDER BY item_id DESC, id DESC LIMIT ?2`
	listPaid = `SELECT ` + OrderFields + ` FROM (SELECT order_id FROM payments INDEXED BY payments_accepted
		WHERE received_as = 'accepted' AND order_id < ?1 AND order_id >= ?3) AS paid CROSS JOIN orders ON id = order_id
		WHERE status = 'paid' ORDER BY order_id DESC LIMIT ?2`
	floorOfOrders = `SELECT id FROM orders WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2`
	floorOfItem   = `SELECT id FROM orders WHERE (item_id, id) < (?3, ?1) AND item_id >= ?3 AND +item_id <= ?3
		ORDER BY item_id DESC, id DESC LIMIT 1 OFFSET ?2`
	floorOfPayments = `SELECT order_id FROM payments INDEXED BY payments_accepted
		WHERE received_as = 'accepted' AND order_id < ?1 ORDER BY order_id DESC LIMIT 1 OFFSET ?2`
)

// queryOf returns the query of a filter without a buyer. It selects one order more than
// fits on the page, which shows whether more follow.
func queryOf(f order.Filter) orderQuery {
	before := f.Before
	if before == "" {
		before = afterAllIDs
	}
	page := []any{before, f.Limit + 1}
	look := []any{before, ListScan - 1}
	with := func(query string, more ...any) orderQuery {
		return orderQuery{query: query, args: append(page, more...)}
	}
	status := string(f.Status)
	switch {
	case status == "" && f.ItemID != "":
		return with(listOrdersOf, f.ItemID)
	case status == "":
		return with(listOrders)
	case isEnded(f.Status) && f.ItemID != "":
		return with(listEndedOf, f.ItemID, status)
	case isEnded(f.Status):
		return with(listEnded, status)
	case f.ItemID != "":
		return orderQuery{listStandingOf, floorOfItem, append(page, status, f.ItemID), append(look, f.ItemID)}
	case f.Status == order.StatusPaid:
		return orderQuery{listPaid, floorOfPayments, page, look}
	default:
		return orderQuery{listStanding, floorOfOrders, append(page, status), look}
	}
}

// isEnded reports whether an order of this status holds no units, or was refunded. It equals
// endedStatus.
func isEnded(s order.Status) bool {
	switch s {
	case order.StatusRejected, order.StatusCancelled, order.StatusExpired, order.StatusRefunded:
		return true
	default:
		return false
	}
}

// List reads a page of orders, newest first. next is the Filter.Before of the next page;
// empty: there is none. A page may be shorter than the limit although others follow.
// Errors: ErrTooManyLists, unless the list is one buyer's; database.ErrUnavailable.
func (s *Store) List(ctx context.Context, f order.Filter) (orders []order.Order, next string, err error) {
	if f.UserID == "" {
		err = s.ReadList(ctx, "list orders", func(db *gorm.DB) (err error) {
			orders, next, err = queryOf(f).read(db, f.Limit)
			return err
		})
		return orders, next, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err == nil {
		orders, next, err = listOfBuyer(ctx, db, f)
	}
	if err != nil {
		return nil, "", database.Wrap("list a buyer's orders", err)
	}
	return orders, next, s.Replicated(ctx)
}

func (q orderQuery) read(db *gorm.DB, limit int) (orders []order.Order, next string, err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, "", err
	}
	ctx, args := db.Statement.Context, q.args
	floor := ""
	if q.floor != "" {
		if err := pool.QueryRowContext(ctx, q.floor, q.floorArgs...).Scan(&floor); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, "", err
		}
		args = append(args, floor)
	}
	err = database.Each(ctx, pool, q.query, args, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		orders = append(orders, o)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	orders, next = cutPage(orders, limit, floor)
	return orders, next, nil
}

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
func listOfBuyer(ctx context.Context, c database.Conn, f order.Filter) (orders []order.Order, next string, err error) {
	before := f.Before
	if before == "" {
		before = afterAllIDs
	}
	read := func(query, where string) error {
		args := []any{where, f.UserID, before, string(f.Status), f.Limit + 1 - len(orders)}
		return database.Each(ctx, c, query, args, func(rows *sql.Rows) error {
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
			err = read(listBuyersIn, database.JSONList(periods...))
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
func periodsBelow(ctx context.Context, c database.Conn, end string, n int) ([]string, error) {
	periods := make([]string, 0, n)
	err := database.Each(ctx, c, listPeriods, []any{end, n}, func(rows *sql.Rows) error {
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
