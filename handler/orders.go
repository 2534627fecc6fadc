package handler

import (
	"errors"
	"net/url"
	"strconv"

	"flashsale/catalog"
	"flashsale/handler/auth"
	"flashsale/order"
)

// getOrder answers GET /v1/orders/{order}. Another buyer's order is answered
// like one that does not exist, so that ids tell nothing.
func (e *edge) getOrder(q *call) error {
	id := q.c.Param("order")
	if !validOrderID(id) {
		return problemOrderID
	}
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	if err := e.limit(q); err != nil {
		return err
	}
	o, err := e.Orders.Get(q.ctx(), id)
	if err != nil {
		return err
	}
	if q.who.Role == auth.RoleBuyer && o.UserID != q.who.Subject {
		return order.ErrNotFound
	}
	if q.out, err = e.appendPaymentsOf(q, appendOrder(q.out[:0], &o), id); err != nil {
		return err
	}
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
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

// listOrders answers GET /v1/orders: a buyer's own, or what an admin asks for.
func (e *edge) listOrders(q *call) error {
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	if err := e.limit(q); err != nil {
		return err
	}
	f, err := e.readFilter(q)
	if err != nil {
		return err
	}
	orders, after, err := e.Orders.List(q.ctx(), f)
	incomplete := errors.Is(err, order.ErrIncompleteList)
	if err != nil && !incomplete {
		return err
	}
	b := append(q.out[:0], `{"orders":[`...)
	for i := range orders {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOrder(b, &orders[i])
	}
	next := ""
	if after != "" {
		next = e.makeCursor(f, after)
	}
	b = appendTextField(append(b, ']'), `,"next_cursor":`, next)
	if incomplete {
		b = append(b, `,"incomplete":true`...)
	}
	q.out = append(b, '}')
	q.c.Writer.Header()["Cache-Control"] = headerNoStore
	return q.json(200)
}

// The page's length, in orders.
const (
	defaultPage = 20
	maxPage     = 100
)

// readFilter reads the query of a list. A parameter that is misspelled must
// not widen the answer in silence, so unknown ones are refused.
func (e *edge) readFilter(q *call) (order.Filter, error) {
	f := order.Filter{Limit: defaultPage}
	values, err := url.ParseQuery(q.c.Request.URL.RawQuery)
	if err != nil {
		return f, problemParameter
	}
	cursor, paged := "", false
	for name, all := range values {
		if len(all) != 1 {
			return f, problemParameter.with(truncate(name, 64), "The parameter was sent more than once; send it once.")
		}
		switch name {
		case "limit":
			f.Limit, err = readLimit(all[0])
		case "cursor":
			cursor, paged = all[0], true
		default:
			err = readAdminFilter(&f, q.who.Role, name, all[0])
		}
		if err != nil {
			return f, err
		}
	}
	if q.who.Role == auth.RoleBuyer {
		f.UserID = q.who.Subject
	}
	if f.Status == order.StatusQueued && f.UserID == "" {
		// Queued orders are found by their buyer only. An empty list would look as if
		// none were queued.
		return f, problemParameter.with("status",
			"status=queued also needs user_id. GET /v1/admin/queue shows how many orders are queued.")
	}
	if paged {
		before, ok := e.readCursor(f, cursor)
		if !ok {
			return f, problemCursor
		}
		f.Before = before
	}
	return f, nil
}

func readLimit(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxPage {
		return 0, problemLimit
	}
	return n, nil
}

// readAdminFilter reads the parameters that only an admin may use.
func readAdminFilter(f *order.Filter, role auth.Role, name, value string) error {
	if role != auth.RoleAdmin {
		return problemUnknownParameter.with(truncate(name, 64), "The list takes limit and cursor.")
	}
	switch name {
	case "user_id":
		if !auth.ValidSubject(value) {
			return problemParameter.with(name, "user_id has 1 to 128 characters of A-Z a-z 0-9 . _ : @ -.")
		}
		f.UserID = value
	case "item_id":
		if !catalog.ValidID(value) {
			return problemItemID.with(name, problemItemID.detail)
		}
		f.ItemID = value
	case "status":
		switch s := order.Status(value); s {
		case order.StatusQueued, order.StatusConfirmed, order.StatusPaid, order.StatusRefunded,
			order.StatusCancelled, order.StatusExpired, order.StatusRejected:
			f.Status = s
		default:
			return problemParameter.with(name, "status is one of queued, confirmed, paid, refunded, cancelled, expired, rejected.")
		}
	default:
		return problemUnknownParameter.with(truncate(name, 64), "The list takes limit, cursor, user_id, item_id and status.")
	}
	return nil
}
