package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"flashsale/internal/bucket"
	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store/database"
)

// Outbox collects the webhook events of one transaction. They are written in that
// transaction, so the change and its events are committed together or not at all. The
// transaction also decides which endpoints get them: an endpoint gets every change that is
// committed after it was added.
type Outbox struct {
	Now    int64
	wanted map[order.EventType]bool // nil: no endpoint is enabled
	Events []Event
	// revisions are those of the items that the transaction has changed; see HighWater. 0:
	// something other than the units was changed, and the revision is still to be
	// incremented.
	revisions map[string]int64
}

// want adds events, separated by spaces, to those that endpoints subscribe to.
func (b *Outbox) want(events string) {
	for kind := range strings.FieldsSeq(events) {
		if b.wanted == nil {
			b.wanted = make(map[order.EventType]bool, len(order.EventTypes))
		}
		b.wanted[order.EventType(kind)] = true
	}
}

// order adds an event of an order; data is called only if an endpoint subscribes to it.
func (b *Outbox) order(kind order.EventType, data func() orderData) {
	if b.wanted[kind] {
		d := data()
		b.Events = append(b.Events, Event{kind, d.ItemID, d.ID, d})
	}
}

// tasks adds the events of committed purchases, and of the items that they sold out.
func (b *Outbox) tasks(ctx context.Context, tx *database.Tx, tasks []order.Task, out []order.Outcome, items map[string]soldItem) error {
	if b.wanted[order.EventConfirmed] {
		b.Events = slices.Grow(b.Events, len(tasks))
	}
	for i := range tasks {
		b.Task(&tasks[i], out[i])
	}
	sold := make(map[string]bool) // items of which a row was sold out
	for id, t := range items {
		if t.SoldOut {
			sold[bucket.Item(id)] = true
		}
	}
	for _, item := range slices.Sorted(maps.Keys(sold)) {
		if err := b.soldOut(ctx, tx, item); err != nil {
			return err
		}
	}
	return nil
}

// Task adds the event of one committed purchase.
func (b *Outbox) Task(t *order.Task, o order.Outcome) {
	kind := order.EventConfirmed
	if o.Status == order.StatusRejected {
		kind = order.EventRejected
	}
	b.order(kind, func() orderData { return dataOfTask(t, o) })
}

const (
	// stockOfItem sums the units of an item and of its buckets, whose ids are between the item's
	// id with a point and with a slash, the character after the point.
	stockOfItem = `SELECT COUNT(*), CAST(SUM(total) AS BIGINT), CAST(SUM(sold) AS BIGINT) FROM items
	WHERE id = ?1 OR id > ?1 || '.' AND id < ?1 || '/'`
	// lockSoldOut makes transactions that sell out buckets of one item on Postgres see each other.
	lockSoldOut = `SELECT pg_advisory_xact_lock(hashtextextended('sold out ' || ?1, 0))`
)

// soldOut adds an event if an item, of which a row was just sold out, is sold out. A bucket may be
// sold out while others are not.
func (b *Outbox) soldOut(ctx context.Context, tx *database.Tx, item string) error {
	if !b.wanted[order.EventSoldOut] {
		return nil
	}
	var rows int
	var total, sold int64
	sum := func() error { return tx.QueryRowContext(ctx, stockOfItem, item).Scan(&rows, &total, &sold) }
	err := sum()
	if err == nil && rows > 1 && tx.Postgres() {
		if _, err = tx.ExecContext(ctx, lockSoldOut, item); err == nil {
			err = sum()
		}
	}
	if err != nil {
		return fmt.Errorf("sum stock of %s: %w", item, err)
	}
	if sold == total {
		b.Events = append(b.Events, Event{order.EventSoldOut, item, "", soldOutData{item, total}})
	}
	return nil
}

// payment adds the event of a payment.
func (b *Outbox) payment(o *order.Order, id int64, p order.Payment, outcome order.PaymentOutcome) {
	switch {
	case outcome == order.PaymentAccepted:
		b.order(order.EventPaid, func() orderData { return dataOf(o) })
	case b.wanted[order.EventLate]:
		b.Events = append(b.Events, Event{order.EventLate, bucket.Item(o.ItemID), o.ID, paymentData{
			id, p.Reference, p.AmountMinor, p.Currency, outcome, Stamp(b.Now), dataOf(o),
		}})
	}
}

// Closed adds the events of closed orders.
func (b *Outbox) Closed(kind order.EventType, orders []order.Order) {
	for i := range orders {
		b.order(kind, func() orderData { return dataOf(&orders[i]) })
	}
}

// write writes the events and their deliveries into the database.
func (b *Outbox) write(ctx context.Context, c database.Conn) error {
	ids, err := b.WriteEvents(ctx, c)
	if err != nil || len(ids) == 0 {
		return err
	}
	if _, err := c.ExecContext(ctx, insertDeliveries, database.JSONList(ids...)); err != nil {
		return fmt.Errorf("insert deliveries: %w", err)
	}
	return nil
}

// WriteEvents writes only the events, and returns their ids.
func (b *Outbox) WriteEvents(ctx context.Context, c database.Conn) (ids []string, err error) {
	if len(b.Events) == 0 {
		return nil, nil
	}
	ids = make([]string, len(b.Events))
	args := make([]any, 0, len(b.Events)*eventColumns)
	for i := range b.Events {
		e := &b.Events[i]
		if ids[i], err = NewID(eventPrefix); err != nil {
			return nil, err
		}
		body, err := e.body(b.Now)
		if err != nil {
			return nil, err
		}
		args = append(args, ids[i], string(e.Kind), e.itemID, e.orderID, string(body), b.Now)
	}
	if _, err := insertEvents.Exec(ctx, c, args); err != nil {
		return nil, fmt.Errorf("insert events: %w", err)
	}
	return ids, nil
}

// Touch makes raiseTouched increment the revision of an item of which something other than the
// units was changed.
func (b *Outbox) Touch(item string) { b.revised(item, 0) }

// revised records the revision of an item whose units were changed.
func (b *Outbox) revised(item string, revision int64) {
	if b.revisions == nil {
		b.revisions = make(map[string]int64, 1)
	}
	b.revisions[item] = max(b.revisions[item], revision)
}

// add moves the contents of another outbox of the same transaction into this one.
func (b *Outbox) add(other *Outbox) {
	b.Events = append(b.Events, other.Events...)
	for item, revision := range other.revisions {
		b.revised(item, revision)
	}
}

// raiseTouched increments the revisions that are still to be incremented, once for each item. Items
// that do not exist are skipped.
func (b *Outbox) raiseTouched(ctx context.Context, c database.Conn) error {
	var items []string
	for item, revision := range b.revisions {
		if revision == 0 {
			items = append(items, item)
			delete(b.revisions, item)
		}
	}
	if len(items) == 0 {
		return nil
	}
	err := database.Each(ctx, c, bumpRevisions, []any{database.JSONList(items...)}, func(rows *sql.Rows) error {
		var item string
		var revision int64
		err := rows.Scan(&item, &revision)
		b.revised(item, revision)
		return err
	})
	if err != nil {
		return fmt.Errorf("raise the revisions of %s: %w", plural.Count(len(items), "item"), err)
	}
	return nil
}

// Announce wakes the deliverer, once events are committed, and passes the revisions to
// HighWater, whose next call of Note records them.
func (s *Store) Announce(b *Outbox) {
	if b == nil {
		return
	}
	s.highWater.Committed(b.revisions)
	if len(b.Events) > 0 {
		s.Wake()
	}
}

// Wake wakes this process's deliverer, if it has one. It never blocks: one wake-up is
// enough for any number of events.
func (s *Store) Wake() {
	select {
	case s.EventsCommitted <- struct{}{}:
	default:
	}
}

const eventColumns = 6

var insertEvents = database.NewRowsStatement(
	"INSERT INTO webhook_events (id, type, item_id, order_id, body, at)", "text text text text text bigint", "")

// The statements of the outbox. A deleted endpoint is not enabled.
const (
	selectWanted = `SELECT events FROM webhook_endpoints WHERE enabled = 1`
	// The events are named, because other batches may insert theirs meanwhile.
	insertDeliveries = `INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at)
	SELECT e.id, v.seq, v.at FROM json_each(?1) j CROSS JOIN webhook_events v ON v.id = j.value JOIN webhook_endpoints e
		ON e.enabled = 1 AND instr(' ' || e.events || ' ', ' ' || v.type || ' ') > 0`
)
