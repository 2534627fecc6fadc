package privacy

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// BuyerRecords receives the data about a buyer, one kind after the other, in the order of
// the fields. An error ends the export.
type BuyerRecords struct {
	// Orders are the rows, by id, with the idempotency keys that the buyer chose.
	Orders func(order.Order) error
	// Queued are accepted purchases that have no row yet, dead letters included.
	Queued func(order.Order) error
	// Holdings are the units that count towards the buyer's limits.
	Holdings func(item string, quantity int64) error
	Payments func(order.PaymentRecord) error
	// Releases are those of closed orders that Redis has not confirmed yet.
	Releases func(ReleaseRecord) error
	// Audit are the entries that name the buyer or one of the buyer's orders.
	Audit func(order.AuditEntry) error
}

// ReleaseRecord is a release of one closed order's units that is still pending.
type ReleaseRecord struct {
	OrderID        string
	ItemID         string
	IdempotencyKey string
	Quantity       int64
	CreatedAt      time.Time
}

// exportPage is how many orders one query reads.
const exportPage = 500

const (
	selectOrdersOfUser = `SELECT ` + store.OrderFields + ` FROM orders WHERE id IN (SELECT id FROM ` + store.BuyersOrders + ` b WHERE id > ?2 ORDER BY id LIMIT ?3) ORDER BY id`
	// The table's key starts with the item, so the query lists the buyer's items.
	selectHoldings = `SELECT item_id, quantity FROM buyers
		WHERE user_id = ?1 AND item_id IN (SELECT item_id FROM ` + store.BuyersOrders + ` b) ORDER BY item_id`
	selectPaymentsOfUser = `SELECT ` + store.PaymentFields + ` FROM ` + store.BuyersOrders + ` b CROSS JOIN orders o ON o.id = b.id
		CROSS JOIN payments p ON p.order_id = o.id ORDER BY p.id`
	selectReleasesOfUser = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
		WHERE user_id = ?1 ORDER BY order_id`
	selectAuditOfUser = `SELECT id, at, actor, action, item_id, order_id, before, after, request_id FROM audit
		WHERE id > ?3 AND id <= ?4 AND (` + auditNames + ` OR order_id <> '' AND order_id IN (SELECT id FROM ` + store.BuyersOrders + ` b)) ORDER BY id`
)

// ExportBuyer reads all data about a buyer. The queue is read before the database, so an
// order that moves between the two is not missed; one that was committed meanwhile is
// exported as a row. Errors: those of to, database.ErrUnavailable, inventory.ErrUnavailable.
func (s *Service) ExportBuyer(ctx context.Context, user string, to BuyerRecords) error {
	pending := make(map[string]order.Task)
	for _, q := range s.Tasks {
		err := q.Scan(ctx, func(a accepted.Order) error {
			if strings.HasPrefix(a.OrderID, order.ExpiryPrefix) {
				return nil
			}
			if t, err := order.ParseAccepted(a); err == nil && t.UserID == user {
				pending[t.ID] = t
			}
			return nil // an unreadable task names no buyer
		})
		if err != nil {
			return fmt.Errorf("find a buyer's queued orders: %w: %w", inventory.ErrUnavailable, err)
		}
	}
	after := ""
	for more := true; more; {
		page, err := ordersOf(ctx, s.Store, user, after)
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
		if err := to.Queued(t.Queued()); err != nil {
			return err
		}
	}
	return exportRest(ctx, s.Store, user, to)
}

// ordersOf reads a page of a buyer's orders, those after an id.
func ordersOf(ctx context.Context, s *store.Store, user, after string) (page []order.Order, err error) {
	err = readRows(ctx, s, selectOrdersOfUser, []any{user, after, exportPage}, func(rows *sql.Rows) error {
		o, err := store.ScanOrder(rows)
		page = append(page, o)
		return err
	})
	return page, err
}

// readRows reads the rows of a query about a buyer, and waits until they are on the synchronous
// standbys.
func readRows(ctx context.Context, s *store.Store, query string, args []any, scan func(rows *sql.Rows) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.LongReader().DB()
	if err == nil {
		err = database.Each(ctx, db, query, args, scan)
	}
	if err != nil {
		return database.Wrap("export a buyer's data", err)
	}
	return s.Replicated(ctx)
}

// exportRest exports everything but the orders. It is little data, and is read before it is
// passed on: a slow receiver must not hold a connection.
func exportRest(ctx context.Context, s *store.Store, user string, to BuyerRecords) error {
	if err := exportMoney(ctx, s, user, to); err != nil {
		return err
	}
	var releases []ReleaseRecord
	err := readRows(ctx, s, selectReleasesOfUser, []any{user}, func(rows *sql.Rows) error {
		var r ReleaseRecord
		var at int64
		err := rows.Scan(&r.OrderID, &r.ItemID, new(string), &r.IdempotencyKey, &r.Quantity, &at)
		r.CreatedAt = order.FromMillis(at)
		releases = append(releases, r)
		return err
	})
	if err != nil {
		return err
	}
	if err := each(releases, to.Releases); err != nil {
		return err
	}
	audit, err := auditOf(ctx, s, user)
	if err != nil {
		return err
	}
	return each(audit, to.Audit)
}

// auditOf returns the audit's entries that name a buyer or are about the buyer's orders. No index
// finds a name within an entry, so all entries are read, in pages.
func auditOf(ctx context.Context, s *store.Store, user string) (audit []order.AuditEntry, err error) {
	var last int64
	err = readRows(ctx, s, selectLastEntry, nil, func(rows *sql.Rows) error { return rows.Scan(&last) })
	for from := int64(0); err == nil && from < last; from += auditScan {
		// The erasure's condition expects the name as its second parameter.
		err = readRows(ctx, s, selectAuditOfUser, []any{user, user, from, from + auditScan}, func(rows *sql.Rows) error {
			var a order.AuditEntry
			var at int64
			err := rows.Scan(&a.ID, &at, &a.Actor, &a.Action, &a.ItemID, &a.OrderID, &a.Before, &a.After, &a.RequestID)
			a.At = order.FromMillis(at)
			audit = append(audit, a)
			return err
		})
	}
	return audit, err
}

func exportMoney(ctx context.Context, s *store.Store, user string, to BuyerRecords) error {
	type holding struct {
		item     string
		quantity int64
	}
	var holdings []holding
	err := readRows(ctx, s, selectHoldings, []any{user}, func(rows *sql.Rows) error {
		var h holding
		err := rows.Scan(&h.item, &h.quantity)
		holdings = append(holdings, h)
		return err
	})
	if err != nil {
		return err
	}
	if err := each(holdings, func(h holding) error { return to.Holdings(h.item, h.quantity) }); err != nil {
		return err
	}
	var payments []order.PaymentRecord
	err = readRows(ctx, s, selectPaymentsOfUser, []any{user}, func(rows *sql.Rows) error {
		p, err := store.ScanPayment(rows)
		payments = append(payments, p)
		return err
	})
	if err != nil {
		return err
	}
	return each(payments, to.Payments)
}

func each[T any](records []T, to func(T) error) error {
	for i := range records {
		if err := to(records[i]); err != nil {
			return err
		}
	}
	return nil
}
