package order

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"flashsale/inventory"
)

// BuyerRecords receives the data about a buyer, one kind after the other, in the order of
// the fields. An error ends the export.
type BuyerRecords struct {
	// Orders are the rows, by id, with the idempotency keys that the buyer chose.
	Orders func(Order) error
	// Queued are accepted purchases that have no row yet, dead letters included.
	Queued func(Order) error
	// Holdings are the units that count towards the buyer's limits.
	Holdings func(item string, quantity int64) error
	Payments func(PaymentRecord) error
	// Returns are units of closed orders that Redis has not confirmed as released.
	Returns func(ReturnRecord) error
	// Audit are the entries that name the buyer or one of the buyer's orders.
	Audit func(AuditEntry) error
}

// ReturnRecord is a release of one closed order's units that is still pending.
type ReturnRecord struct {
	OrderID        string
	ItemID         string
	IdempotencyKey string
	Quantity       int64
	CreatedAt      time.Time
}

// exportPage is how many orders one query reads.
const exportPage = 500

const (
	selectOrdersOfUser = `SELECT ` + orderFields + ` FROM orders WHERE id IN (SELECT id FROM ` + buyersOrders + ` WHERE id > ?2 ORDER BY id LIMIT ?3) ORDER BY id`
	// The table's key starts with the item, so the query lists the buyer's items.
	selectHoldings = `SELECT item_id, quantity FROM buyers
		WHERE user_id = ?1 AND item_id IN (SELECT item_id FROM ` + buyersOrders + `) ORDER BY item_id`
	selectPaymentsOfUser = `SELECT ` + paymentFields + ` FROM ` + buyersOrders + ` b CROSS JOIN orders o ON o.id = b.id
		CROSS JOIN payments p ON p.order_id = o.id ORDER BY p.id`
	selectReturnsOfUser = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
		WHERE user_id = ?1 ORDER BY order_id`
	selectAuditOfUser = `SELECT id, at, actor, action, item_id, order_id, before, after, request_id FROM audit
		WHERE ` + auditNames + ` OR order_id <> '' AND order_id IN (SELECT id FROM ` + buyersOrders + `) ORDER BY id`
)

// ExportBuyer reads all data about a buyer. The queue is read before the database, so an
// order that moves between the two is not missed; one that was committed meanwhile is
// exported as a row. Errors: those of to, ErrDatabase, inventory.ErrUnavailable.
func (s *BuyerService) ExportBuyer(ctx context.Context, user string, to BuyerRecords) error {
	pending := make(map[string]task)
	for _, q := range s.Tasks {
		err := q.Scan(ctx, func(id string, payload []byte) error {
			if strings.HasPrefix(id, expiryPrefix) {
				return nil
			}
			if t, err := parseTask(id, payload); err == nil && t.UserID == user {
				pending[id] = t
			}
			return nil // an unreadable task names no buyer
		})
		if err != nil {
			return fmt.Errorf("find a buyer's queued orders: %w: %w", inventory.ErrUnavailable, err)
		}
	}
	after := ""
	for more := true; more; {
		page, err := s.Store.ordersOf(ctx, user, after)
		if err != nil {
			return err
		}
		for i := range page {
			after = page[i].ID
			delete(pending, after)
			if err := to.Orders(page[i]); err != nil {
				return err
			}
		}
		more = len(page) == exportPage
	}
	for _, id := range slices.Sorted(maps.Keys(pending)) {
		t := pending[id]
		if err := to.Queued(t.queued()); err != nil {
			return err
		}
	}
	return s.Store.exportRest(ctx, user, to)
}

// ordersOf reads a page of a buyer's orders, those after an id.
func (s *Store) ordersOf(ctx context.Context, user, after string) (page []Order, err error) {
	err = s.readRows(ctx, selectOrdersOfUser, []any{user, after, exportPage}, func(rows *sql.Rows) error {
		o, err := scanOrder(rows)
		page = append(page, o)
		return err
	})
	return page, err
}

// readRows reads the rows of a query about a buyer.
func (s *Store) readRows(ctx context.Context, query string, args []any, scan func(rows *sql.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.LongReader().DB()
	if err == nil {
		err = each(ctx, db, query, args, scan)
	}
	if err != nil {
		return wrap("export a buyer's data", err)
	}
	return nil
}

// exportRest exports everything but the orders. It is little data, and is read before it is
// passed on: a slow receiver must not hold a connection.
func (s *Store) exportRest(ctx context.Context, user string, to BuyerRecords) error {
	if err := s.exportMoney(ctx, user, to); err != nil {
		return err
	}
	var returns []ReturnRecord
	err := s.readRows(ctx, selectReturnsOfUser, []any{user}, func(rows *sql.Rows) error {
		var r ReturnRecord
		var at int64
		err := rows.Scan(&r.OrderID, &r.ItemID, new(string), &r.IdempotencyKey, &r.Quantity, &at)
		r.CreatedAt = fromMillis(at)
		returns = append(returns, r)
		return err
	})
	if err != nil {
		return err
	}
	if err := handOn(returns, to.Returns); err != nil {
		return err
	}
	var audit []AuditEntry
	// The erasure's condition expects the name as its second parameter.
	err = s.readRows(ctx, selectAuditOfUser, []any{user, user}, func(rows *sql.Rows) error {
		var a AuditEntry
		var at int64
		err := rows.Scan(&a.ID, &at, &a.Actor, &a.Action, &a.ItemID, &a.OrderID, &a.Before, &a.After, &a.RequestID)
		a.At = fromMillis(at)
		audit = append(audit, a)
		return err
	})
	if err != nil {
		return err
	}
	return handOn(audit, to.Audit)
}

func (s *Store) exportMoney(ctx context.Context, user string, to BuyerRecords) error {
	type holding struct {
		item     string
		quantity int64
	}
	var holdings []holding
	err := s.readRows(ctx, selectHoldings, []any{user}, func(rows *sql.Rows) error {
		var h holding
		err := rows.Scan(&h.item, &h.quantity)
		holdings = append(holdings, h)
		return err
	})
	if err != nil {
		return err
	}
	if err := handOn(holdings, func(h holding) error { return to.Holdings(h.item, h.quantity) }); err != nil {
		return err
	}
	var payments []PaymentRecord
	err = s.readRows(ctx, selectPaymentsOfUser, []any{user}, func(rows *sql.Rows) error {
		p, err := scanPayment(rows)
		payments = append(payments, p)
		return err
	})
	if err != nil {
		return err
	}
	return handOn(payments, to.Payments)
}

func handOn[T any](records []T, to func(T) error) error {
	for i := range records {
		if err := to(records[i]); err != nil {
			return err
		}
	}
	return nil
}
