package timeline

import (
	"context"
	"database/sql"
	"errors"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
)

// maxEntries bounds the webhook deliveries of a timeline, and its audit entries. The payments of
// an order are bounded by store.MaxPayments.
const maxEntries = 100

// rows are the rows of the database about an order.
type rows struct {
	found      bool // the row of the order
	order      order.Order
	payments   []order.PaymentRecord // oldest first
	releasing  bool                  // its units have not returned to their sale
	audit      []order.AuditEntry    // latest first
	deliveries []Delivery            // those of the latest event first
	truncated  bool
}

const (
	selectPayments = `SELECT ` + store.PaymentFields + ` FROM payments p INDEXED BY payments_order JOIN orders o ON o.id = p.order_id
		WHERE p.order_id = ?1 ORDER BY p.id LIMIT ?2`
	// selectDeliveries reads the order's events, and looks up the delivery of each to each
	// endpoint. There are at most 50.
	selectDeliveries = `SELECT e.id, v.id, v.type, v.at, d.state, d.attempts, d.next_at, d.last_at, d.last_status, d.last_error, d.delivered_at
		FROM webhook_events v INDEXED BY webhook_events_order
		CROSS JOIN webhook_endpoints e ON true
		CROSS JOIN webhook_deliveries d NOT INDEXED ON d.endpoint_id = e.id AND d.event_seq = v.seq
		WHERE v.order_id = ?1 ORDER BY v.seq DESC, e.id LIMIT ?2`
	selectReleasing = `SELECT EXISTS (SELECT 1 FROM releases WHERE order_id = ?1)`
)

// readRows reads the rows about an order, as of one instant. Errors:
// database.ErrTooManyLists, database.ErrUnavailable.
func (s *Service) readRows(ctx context.Context, id string) (r rows, err error) {
	err = s.Store.ReadList(ctx, "read timeline of order "+id, func(db *gorm.DB) error {
		return db.Transaction(func(tx *gorm.DB) error {
			r = rows{}
			return r.read(tx, id)
		}, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	})
	return r, err
}

func (r *rows) read(tx *gorm.DB, id string) (err error) {
	ctx, c := tx.Statement.Context, tx.Statement.ConnPool
	r.order, err = store.ReadOrder(ctx, c, id)
	if errors.Is(err, order.ErrNotFound) {
		return nil // then there is nothing else about it
	}
	if err != nil {
		return err
	}
	r.found = true
	err = database.Each(ctx, c, selectPayments, []any{id, store.MaxPayments + 1}, func(row *sql.Rows) error {
		p, err := store.ScanPayment(row)
		r.payments = append(r.payments, p)
		return err
	})
	if err != nil {
		return err
	}
	err = database.One(ctx, c, selectReleasing, []any{id}, func(row *sql.Rows) error { return row.Scan(&r.releasing) })
	if err != nil {
		return err
	}
	if err := r.readAudit(tx, id); err != nil {
		return err
	}
	return r.readDeliveries(ctx, c, id)
}

func (r *rows) readAudit(tx *gorm.DB, id string) error {
	var list []store.AuditRow
	if err := store.AuditQuery(tx, order.AuditFilter{OrderID: id, Limit: maxEntries}).Find(&list).Error; err != nil {
		return err
	}
	if len(list) > maxEntries {
		list, r.truncated = list[:maxEntries], true
	}
	for i := range list {
		r.audit = append(r.audit, list[i].Entry())
	}
	return nil
}

func (r *rows) readDeliveries(ctx context.Context, c database.Conn, id string) error {
	err := database.Each(ctx, c, selectDeliveries, []any{id, maxEntries + 1}, func(row *sql.Rows) error {
		var d Delivery
		var at, next, last, delivered int64
		err := row.Scan(&d.EndpointID, &d.EventID, &d.Type, &at, &d.Status, &d.Attempts, &next, &last, &d.LastStatus, &d.LastError, &delivered)
		d.CreatedAt, d.LastAt, d.DeliveredAt = order.FromMillis(at), order.FromMillis(last), order.FromMillis(delivered)
		if d.Status == pending {
			d.NextAt = order.FromMillis(next)
		}
		r.deliveries = append(r.deliveries, d)
		return err
	})
	if len(r.deliveries) > maxEntries {
		r.deliveries, r.truncated = r.deliveries[:maxEntries], true
	}
	return err
}

// pending is the state of a delivery that has not ended.
const pending = "pending"
