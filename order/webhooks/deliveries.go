package webhooks

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"gorm.io/gorm"

	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// DeliveryState is the state of the delivery of one event to one endpoint.
type DeliveryState string

// The states of a delivery.
const (
	DeliveryPending   DeliveryState = "pending"
	DeliveryDelivered DeliveryState = "delivered"
	// DeliveryDead is a dead letter: it is sent again only if an admin requests it.
	DeliveryDead DeliveryState = "dead"
)

// Delivery is one event to be sent to one endpoint. A zero time means "not happened".
type Delivery struct {
	// Position orders the deliveries of an endpoint, later events higher. On Postgres, events
	// of concurrent batches of orders can have their positions in another order than that of
	// their commits.
	Position  int64
	EventID   string
	Type      order.EventType
	ItemID    string // empty: none
	OrderID   string // empty: none
	State     DeliveryState
	Attempts  int // since the last request to deliver it
	CreatedAt time.Time
	// NextAt is when the next attempt is due; past if it waits for a worker.
	NextAt time.Time
	// LastAt is when the last attempt ended, LastStatus its HTTP status or 0, and LastError
	// the failure.
	LastAt      time.Time
	LastStatus  int
	LastError   string
	DeliveredAt time.Time
}

// DeliveryFilter selects deliveries of an endpoint for a list, latest event first.
type DeliveryFilter struct {
	EndpointID string
	State      DeliveryState // empty: any
	// Before is the last Position of the previous page; 0: from the start. An event that is
	// committed after the previous page was read may be missing from the following ones, as it
	// is if its position is higher.
	Before int64
	Limit  int // 1 to 100
}

// deliveries reads a page. next is the DeliveryFilter.Before of the next page; 0: there is
// none. A page may be shorter than the limit although others follow. Errors:
// ErrTooManyLists, database.ErrUnavailable.
func deliveries(ctx context.Context, s *store.Store, f DeliveryFilter) (list []Delivery, next int64, err error) {
	err = s.ReadList(ctx, "list webhook deliveries", func(db *gorm.DB) (err error) {
		list, next, err = f.read(db)
		return err
	})
	return list, next, err
}

const (
	// deliveryFields are the columns that scanDelivery reads, of deliveries d and events v.
	deliveryFields = `d.event_seq, v.id, v.type, v.item_id, v.order_id, d.state, d.attempts,
		v.at, d.next_at, d.last_at, d.last_status, d.last_error, d.delivered_at`
	// v.seq has the same bound as d.event_seq, or Postgres may merge the page with all events
	// from the latest one on.
	listDeliveries = `SELECT ` + deliveryFields + ` FROM webhook_deliveries d CROSS JOIN webhook_events v ON v.seq = d.event_seq
		WHERE d.endpoint_id = ?1 AND d.event_seq < ?2 AND v.seq < ?2 ORDER BY d.event_seq DESC LIMIT ?3`
	listDead = `SELECT ` + deliveryFields + ` FROM webhook_deliveries d INDEXED BY webhook_deliveries_dead
		CROSS JOIN webhook_events v ON v.seq = d.event_seq
		WHERE d.endpoint_id = ?1 AND d.event_seq < ?2 AND v.seq < ?2 AND d.state = 'dead' ORDER BY d.event_seq DESC LIMIT ?3`
	// No index has pending or delivered ones in this order. A page reads at most the next
	// ListScan deliveries.
	listDeliveriesIn = `SELECT ` + deliveryFields + ` FROM webhook_deliveries d NOT INDEXED
		CROSS JOIN webhook_events v ON v.seq = d.event_seq
		WHERE d.endpoint_id = ?1 AND d.event_seq < ?2 AND v.seq < ?2 AND d.event_seq >= ?5 AND d.state = ?4 ORDER BY d.event_seq DESC LIMIT ?3`
	floorOfDeliveries = `SELECT event_seq FROM webhook_deliveries NOT INDEXED
		WHERE endpoint_id = ?1 AND event_seq < ?2 ORDER BY event_seq DESC LIMIT 1 OFFSET ?3`
)

// statement returns the query of a page and its arguments. look says that floorOfDeliveries
// must be queried first to find where the page ends.
func (f DeliveryFilter) statement() (query string, args []any, look bool) {
	before := f.Before
	if before == 0 {
		before = math.MaxInt64
	}
	args = []any{f.EndpointID, before, f.Limit + 1}
	switch f.State {
	case "":
		return listDeliveries, args, false
	case DeliveryDead:
		return listDead, args, false
	default:
		return listDeliveriesIn, append(args, string(f.State)), true
	}
}

// read implements deliveries on a connection.
func (f DeliveryFilter) read(db *gorm.DB) (_ []Delivery, next int64, err error) {
	pool, err := db.DB()
	if err != nil {
		return nil, 0, err
	}
	ctx := db.Statement.Context
	query, args, look := f.statement()
	if look {
		err := pool.QueryRowContext(ctx, floorOfDeliveries, args[0], args[1], store.ListScan-1).Scan(&next)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, 0, err
		}
		args = append(args, next)
	}
	list := make([]Delivery, 0, f.Limit+1)
	err = database.Each(ctx, pool, query, args, func(rows *sql.Rows) error {
		d, err := scanDelivery(rows)
		list = append(list, d)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	if len(list) > f.Limit {
		list = list[:f.Limit]
		next = list[f.Limit-1].Position
	}
	return list, next, nil
}

// scanDelivery reads a row of deliveryFields.
func scanDelivery(rows *sql.Rows) (d Delivery, err error) {
	var at, next, last, delivered int64
	err = rows.Scan(&d.Position, &d.EventID, &d.Type, &d.ItemID, &d.OrderID, &d.State, &d.Attempts,
		&at, &next, &last, &d.LastStatus, &d.LastError, &delivered)
	d.CreatedAt, d.LastAt, d.DeliveredAt = order.FromMillis(at), order.FromMillis(last), order.FromMillis(delivered)
	if d.State == DeliveryPending {
		d.NextAt = order.FromMillis(next)
	}
	return d, err
}

// deliveryKey identifies a delivery.
type deliveryKey struct {
	EndpointID string
	EventSeq   int64
}

// dueDelivery is a delivery whose next try is due.
type dueDelivery struct {
	deliveryKey
	NextAt int64
	turn   int // how many deliveries of its endpoint come before it, running ones included
}

// due reads the due deliveries, the first of each endpoint. An endpoint with a million
// pending deliveries hides no other's, and does not slow the query.
func due(ctx context.Context, s *store.Store, perEndpoint int) (page []dueDelivery, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return nil, err
	}
	err = database.Each(ctx, db, selectDue, []any{s.Now().UnixMilli(), perEndpoint}, func(rows *sql.Rows) error {
		var endpoint, list string
		if err := rows.Scan(&endpoint, &list); err != nil {
			return err
		}
		var pairs [][2]int64
		if err := json.Unmarshal([]byte(list), &pairs); err != nil {
			return fmt.Errorf("due deliveries of %s: %w", endpoint, err)
		}
		for _, pair := range pairs {
			page = append(page, dueDelivery{deliveryKey: deliveryKey{endpoint, pair[0]}, NextAt: pair[1]})
		}
		return nil
	})
	if err != nil {
		return nil, database.Wrap("find deliveries", err)
	}
	return page, nil
}

// selectDue lists the due deliveries of each endpoint in JSON: the numbers of their events,
// and their due times. A subquery for one value is what both databases run once per endpoint,
// and by the index; Postgres would run a join with a limit per endpoint for every delivery. The
// condition on the state is written out, because the partial index is chosen by it.
//
// All pending deliveries of a disabled endpoint are due: they become dead letters.
//
// It selects by the due time and not by the number of the event: on Postgres, concurrent
// batches of orders can commit a lower number after a higher one, and neither is skipped.
const selectDue = `SELECT e.id, COALESCE((
		SELECT '[' || string_agg('[' || event_seq || ',' || next_at || ']', ',') || ']' FROM (
			SELECT event_seq, next_at FROM webhook_deliveries
			WHERE endpoint_id = e.id AND state = 'pending' AND next_at <= CASE WHEN e.enabled = 1 THEN ?1 ELSE 9223372036854775807 END
			ORDER BY next_at LIMIT ?2) page), '[]')
	FROM webhook_endpoints e WHERE e.deleted_at = 0`

// deliveryJob is one pending delivery, with all data for sending it.
type deliveryJob struct {
	deliveryKey
	eventID  string
	attempts int
	nextAt   int64
	body     []byte
	url      string
	enabled  bool
	secrets  []string
}

// job reads a delivery. Errors: ErrDeliveryNotFound, also for a deleted endpoint and for a
// delivery that is not pending.
func job(ctx context.Context, s *store.Store, key deliveryKey) (deliveryJob, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return deliveryJob{}, err
	}
	j := deliveryJob{deliveryKey: key}
	var secret, old string
	var oldUntil int64
	err = db.QueryRowContext(ctx, selectJob, key.EndpointID, key.EventSeq).
		Scan(&j.eventID, &j.attempts, &j.nextAt, &j.body, &j.url, &j.enabled, &secret, &old, &oldUntil)
	if errors.Is(err, sql.ErrNoRows) {
		return deliveryJob{}, ErrDeliveryNotFound
	}
	if err != nil {
		return deliveryJob{}, database.Wrap(fmt.Sprintf("read delivery of event %d", key.EventSeq), err)
	}
	j.secrets = append(j.secrets, secret)
	if old != "" && s.Now().UnixMilli() < oldUntil {
		j.secrets = append(j.secrets, old)
	}
	return j, s.Replicated(ctx)
}

const selectJob = `SELECT v.id, d.attempts, d.next_at, v.body, e.url, e.enabled, e.secret, e.old_secret, e.old_secret_until
	FROM webhook_deliveries d NOT INDEXED
	JOIN webhook_events v ON v.seq = d.event_seq
	JOIN webhook_endpoints e ON e.id = d.endpoint_id AND e.deleted_at = 0
	WHERE d.endpoint_id = ?1 AND d.event_seq = ?2 AND d.state = 'pending'`

// attempted is the result of an attempt.
type attempted struct {
	job      *deliveryJob
	state    DeliveryState
	attempts int
	next     time.Duration // until the next try, if it is still pending
	status   int
	reason   string // why it was not delivered
	gone     bool   // the endpoint answered 410 and wants no more events
}

// record writes the results of attempts in one transaction. A delivery that was requested
// again meanwhile stays pending, unless it is delivered by now.
func record(ctx context.Context, s *store.Store, tries []attempted) error {
	// A result is recorded even if ctx has ended.
	return s.ChangeWithGORM(context.WithoutCancel(ctx), "record "+plural.Count(len(tries), "delivery"), func(tx *gorm.DB, now int64) error {
		c := tx.Statement.ConnPool
		for i := range tries {
			v := tries[i]
			if v.gone {
				moved, err := disableGone(tx, now, v.job)
				if err != nil {
					return err
				}
				if moved { // then it is due again, for the new URL
					v.state = DeliveryPending
				}
			}
			delivered := int64(0)
			if v.state == DeliveryDelivered {
				delivered = now
			}
			_, err := c.ExecContext(tx.Statement.Context, updateDelivery, string(v.state), v.attempts, now+v.next.Milliseconds(), now,
				v.status, v.reason, delivered, v.job.EndpointID, v.job.EventSeq, v.job.attempts, v.job.nextAt)
			if err != nil {
				return fmt.Errorf("delivery of %s: %w", v.job.eventID, err)
			}
		}
		return nil
	})
}

const updateDelivery = `UPDATE webhook_deliveries SET state = ?1, attempts = ?2, next_at = ?3, last_at = ?4,
		last_status = ?5, last_error = ?6, delivered_at = ?7
	WHERE endpoint_id = ?8 AND event_seq = ?9 AND state = 'pending' AND (attempts = ?10 AND next_at = ?11 OR ?1 = 'delivered')`

// disableGone disables an endpoint whose server answered 410, unless the endpoint has got
// another URL since: the answer came from the old server.
func disableGone(tx *gorm.DB, now int64, j *deliveryJob) (moved bool, err error) {
	before, err := endpointOf(tx, j.EndpointID)
	if errors.Is(err, ErrEndpointNotFound) || err == nil && !before.Enabled {
		return false, nil
	}
	if err != nil || before.URL != j.url {
		return true, err
	}
	row := before
	row.Enabled, row.DisabledReason, row.UpdatedAt = false, disabledGone, now
	if err := tx.Save(&row).Error; err != nil {
		return false, err
	}
	return false, auditEndpoint(tx, now, order.By{Actor: "flashsale"}, "webhook.disable", &before, &row)
}

// redeliver makes a delivery pending again with no attempts, in any state. Errors:
// ErrEndpointNotFound, ErrEndpointDisabled, ErrDeliveryNotFound.
func redeliver(ctx context.Context, s *store.Store, endpointID, eventID string, by order.By) error {
	defer s.Wake()
	return s.ChangeWithGORM(ctx, "redeliver "+eventID, func(tx *gorm.DB, now int64) error {
		row, err := endpointOf(tx, endpointID)
		if err != nil {
			return err
		}
		if !row.Enabled {
			return ErrEndpointDisabled
		}
		res := tx.Exec(`UPDATE webhook_deliveries SET state = 'pending', attempts = 0, next_at = ?, delivered_at = 0
			WHERE endpoint_id = ? AND event_seq = (SELECT seq FROM webhook_events WHERE id = ?)`, now, endpointID, eventID)
		if res.Error != nil {
			return res.Error
		}
		if res.RowsAffected == 0 {
			return ErrDeliveryNotFound
		}
		return auditNote(tx, now, by, "webhook.redeliver", endpointID, eventID)
	})
}

// addTest writes a test event for one endpoint, and returns its id. Errors:
// ErrEndpointNotFound, ErrEndpointDisabled.
func addTest(ctx context.Context, s *store.Store, endpointID string, by order.By) (id string, err error) {
	var box *store.Outbox
	err = s.ChangeWithGORM(ctx, "test webhook endpoint "+endpointID, func(tx *gorm.DB, now int64) error {
		row, err := endpointOf(tx, endpointID)
		if err != nil {
			return err
		}
		if !row.Enabled {
			return ErrEndpointDisabled
		}
		// Only this endpoint gets it, so subscriptions do not apply.
		box = &store.Outbox{Now: now, Events: []store.Event{{Kind: order.EventTest, Data: store.TestData{EndpointID: endpointID}}}}
		ids, err := box.WriteEvents(ctx, tx.Statement.ConnPool)
		if err != nil {
			return err
		}
		id = ids[0]
		err = tx.Exec(`INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at)
			SELECT CAST(? AS TEXT), seq, at FROM webhook_events WHERE id = ?`, endpointID, id).Error
		if err != nil {
			return err
		}
		return auditNote(tx, now, by, "webhook.test", endpointID, id)
	})
	if err != nil {
		return "", err
	}
	s.Announce(box)
	return id, nil
}
