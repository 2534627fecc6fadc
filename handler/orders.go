package handler

import (
	"errors"

	"github.com/rs/zerolog"

	"flashsale/handler/auth"
	"flashsale/order"
)

// orderRoutes read and close orders.
type orderRoutes struct {
	orders   Orders
	payments Money
	cursors  sealer
	log      zerolog.Logger
}

// get answers GET /v1/orders/{order}. Another buyer's order is answered
// like one that does not exist, so that ids tell nothing.
func (rs *orderRoutes) get(q *call) error {
	id := q.c.Param("order")
	o, err := rs.orders.Get(q.ctx(), id)
	if err != nil {
		return err
	}
	if q.who.Role == auth.RoleBuyer && o.UserID != q.who.Subject {
		return order.ErrNotFound
	}
	if q.out, err = rs.appendPaymentsOf(q, appendOrder(q.out[:0], &o), id); err != nil {
		return err
	}
	return q.json(200)
}

// validOrderID reports whether id is spelled as a UUID in lower case. Which
// version it is does not matter: a random one is not found.
func validOrderID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// list answers GET /v1/orders: a buyer's own, or what an admin asks for.
func (rs *orderRoutes) list(q *call) error {
	f, err := rs.readFilter(q)
	if err != nil {
		return err
	}
	orders, after, err := rs.orders.List(q.ctx(), f)
	incomplete := errors.Is(err, order.ErrIncompleteList)
	if err != nil && !incomplete {
		return err
	}
	b := appendList(append(q.out[:0], `{"orders":[`...), orders, appendOrder)
	b = appendTextField(b, `],"next_cursor":`, rs.cursors.makeCursor(f, after))
	if incomplete {
		b = append(b, `,"incomplete":true`...)
	}
	q.out = append(b, '}')
	return q.json(200)
}

var orderStatuses = []order.Status{
	order.StatusQueued, order.StatusConfirmed, order.StatusPaid, order.StatusRefunded,
	order.StatusCancelled, order.StatusExpired, order.StatusRejected,
}

// readFilter reads the query of a list. The route lets only admins send filters.
func (rs *orderRoutes) readFilter(q *call) (f order.Filter, err error) {
	if f.Limit, err = q.pageLimit(); err != nil {
		return f, err
	}
	if f.ItemID, err = q.queryID("item_id", "item"); err != nil {
		return f, err
	}
	if f.Status, err = queryChoice(q, "status", orderStatuses); err != nil {
		return f, err
	}
	if q.who.Role == auth.RoleBuyer {
		f.UserID = q.who.Subject
	} else if f.UserID = q.query.Get("user_id"); q.query.Has("user_id") && !auth.ValidSubject(f.UserID) {
		return f, problemParameter.with("user_id", "user_id has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
	}
	if f.Status == order.StatusQueued && f.UserID == "" {
		// Queued orders are found by their buyer only. An empty list would look as if
		// none were queued.
		return f, problemParameter.with("status",
			"status=queued also needs user_id. GET /v1/admin/queue shows how many orders are queued.")
	}
	if q.query.Has("cursor") {
		before, ok := rs.cursors.readCursor(f, q.query.Get("cursor"))
		if !ok {
			return f, problemCursor
		}
		f.Before = before
	}
	return f, nil
}
