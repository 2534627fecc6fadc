package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/timeouts"
)

// ErrTooManyLists says that the maximum number of lists is being read. Retry in a second.
var ErrTooManyLists = errors.New("order: too many lists are being read")

const (
	// maxLists is how many pages of long lists are read concurrently.
	maxLists = 2
	// ListScan is how many rows a page reads if no index selects its rows.
	ListScan = 5000
)

// listWait is how long a list waits for another one to finish. See timeouts.Write.
var listWait = time.Second

// listPool reads the lists of all buyers' orders, payments and audit entries. It has its
// own connections, so that no list delays a purchase or a buyer's page.
type listPool struct {
	db    *gorm.DB
	turns chan struct{}
}

func newListPool() *listPool { return &listPool{turns: make(chan struct{}, maxLists)} }

// read runs fn once a turn is free. Errors: ErrTooManyLists, ErrDatabase, and those of fn.
func (p *listPool) read(ctx context.Context, operation string, fn func(db *gorm.DB) error) error {
	timer := time.NewTimer(listWait)
	defer timer.Stop()
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-timer.C:
		return fmt.Errorf("%s: %w", operation, ErrTooManyLists)
	case <-ctx.Done():
		return Wrap(operation, context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	if err := fn(p.db.WithContext(ctx)); err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// ReadList runs fn, which reads a page of a list, when it is its turn. It returns once the
// synchronous standbys have what fn has read: see Replicated. Errors: ErrTooManyLists, ErrDatabase,
// and fn's.
func (s *Store) ReadList(ctx context.Context, operation string, fn func(db *gorm.DB) error) error {
	if err := s.lists.read(ctx, operation, fn); err != nil {
		return err
	}
	return s.Replicated(ctx)
}

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
// Errors: ErrTooManyLists, unless the list is one buyer's; ErrDatabase.
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
	db, err := s.read.DB()
	if err == nil {
		orders, next, err = listOfBuyer(ctx, db, f)
	}
	if err != nil {
		return nil, "", Wrap("list a buyer's orders", err)
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
	err = Each(ctx, pool, q.query, args, func(rows *sql.Rows) error {
		o, err := ScanOrder(rows)
		orders = append(orders, o)
		return err
	})
	switch {
	case err != nil:
		return nil, "", err
	case len(orders) > limit:
		return orders[:limit], orders[limit-1].ID, nil
	default:
		return orders, floor, nil
	}
}
