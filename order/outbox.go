package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// outbox collects the webhook events of one transaction. They are written in that
// transaction, so the change and its events are committed together or not at all. The
// transaction also decides which endpoints get them: an endpoint gets every change that is
// committed after it was added.
type outbox struct {
	now    int64
	wanted map[EventType]bool // nil: no endpoint is enabled
	events []event
	// revisions are those of the items that the transaction has changed; see HighWater. 0:
	// something other than the units was changed, and the revision is still to be
	// incremented.
	revisions map[string]int64
}

// openOutbox reads which events the endpoints subscribe to. Without endpoints, that query
// is the only cost of the outbox.
func openOutbox(ctx context.Context, c conn, now int64) (*outbox, error) {
	box := &outbox{now: now}
	err := each(ctx, c, selectWanted, nil, func(rows *sql.Rows) error {
		var events string
		if err := rows.Scan(&events); err != nil {
			return err
		}
		if box.wanted == nil {
			box.wanted = make(map[EventType]bool, len(EventTypes))
		}
		for _, kind := range strings.Fields(events) {
			box.wanted[EventType(kind)] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find webhooks: %w", err)
	}
	return box, nil
}

// order adds an event of an order; data is called only if an endpoint subscribes to it.
func (b *outbox) order(kind EventType, data func() orderData) {
	if b.wanted[kind] {
		d := data()
		b.events = append(b.events, event{kind, d.ItemID, d.ID, d})
	}
}

// tasks adds the events of committed purchases, and of the items that they sold out.
func (b *outbox) tasks(tasks []task, out []outcome, of map[string]terms) {
	if b.wanted[EventConfirmed] {
		b.events = slices.Grow(b.events, len(tasks))
	}
	for i := range tasks {
		b.task(&tasks[i], out[i])
	}
	for item, t := range of {
		b.soldOut(item, t)
	}
}

// task adds the event of one committed purchase.
func (b *outbox) task(t *task, o outcome) {
	kind := EventConfirmed
	if o.status == StatusRejected {
		kind = EventRejected
	}
	b.order(kind, func() orderData { return dataOfTask(t, o) })
}

// soldOut adds an event if a sale under these terms sold out the item.
func (b *outbox) soldOut(item string, t terms) {
	if t.SoldOut && b.wanted[EventSoldOut] {
		b.events = append(b.events, event{EventSoldOut, item, "", soldOutData{item, t.Total}})
	}
}

// payment adds the event of a payment.
func (b *outbox) payment(o *Order, id int64, p Payment, outcome PaymentOutcome) {
	switch {
	case outcome == PaymentAccepted:
		b.order(EventPaid, func() orderData { return dataOf(o) })
	case b.wanted[EventLate]:
		b.events = append(b.events, event{EventLate, o.ItemID, o.ID, paymentData{
			id, p.Reference, p.AmountMinor, p.Currency, outcome, stamp(b.now), dataOf(o),
		}})
	}
}

// closed adds the events of closed orders.
func (b *outbox) closed(ctx context.Context, c conn, kind EventType, orders []returned) error {
	if !b.wanted[kind] {
		return nil
	}
	for i := range orders {
		o, err := readOrder(ctx, c, orders[i].orderID)
		if err != nil {
			return err
		}
		b.order(kind, func() orderData { return dataOf(&o) })
	}
	return nil
}

// write writes the events and their deliveries into the database.
func (b *outbox) write(ctx context.Context, c conn) error {
	before, err := b.writeEvents(ctx, c)
	if err != nil || len(b.events) == 0 {
		return err
	}
	if _, err := c.ExecContext(ctx, insertDeliveries, before); err != nil {
		return fmt.Errorf("insert deliveries: %w", err)
	}
	return nil
}

// writeEvents writes only the events, and returns the highest number before them.
func (b *outbox) writeEvents(ctx context.Context, c conn) (before int64, err error) {
	if len(b.events) == 0 {
		return 0, nil
	}
	if err := c.QueryRowContext(ctx, selectLastEvent).Scan(&before); err != nil {
		return 0, fmt.Errorf("find the last event: %w", err)
	}
	args := make([]any, 0, len(b.events)*eventColumns)
	for i := range b.events {
		e := &b.events[i]
		id, err := newID(eventPrefix)
		if err != nil {
			return 0, err
		}
		body, err := e.body(b.now)
		if err != nil {
			return 0, err
		}
		args = append(args, id, string(e.kind), e.itemID, e.orderID, string(body), b.now)
	}
	if _, err := insertEvents.exec(ctx, c, args); err != nil {
		return 0, fmt.Errorf("insert events: %w", err)
	}
	return before, nil
}

// touch makes bump increment the revision of an item of which something other than the
// units was changed.
func (b *outbox) touch(item string) { b.revised(item, 0) }

// revised records the revision of an item whose units were changed.
func (b *outbox) revised(item string, revision int64) {
	if b.revisions == nil {
		b.revisions = make(map[string]int64, 1)
	}
	b.revisions[item] = max(b.revisions[item], revision)
}

// add moves the contents of another outbox of the same transaction into this one.
func (b *outbox) add(other *outbox) {
	b.events = append(b.events, other.events...)
	for item, revision := range other.revisions {
		b.revised(item, revision)
	}
}

// bump increments the revisions that are still to be incremented, once for each item. Items
// that do not exist are skipped.
func (b *outbox) bump(ctx context.Context, c conn) error {
	for item, revision := range b.revisions {
		if revision > 0 {
			continue
		}
		err := c.QueryRowContext(ctx, bumpRevision, item).Scan(&revision)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			delete(b.revisions, item)
		case err != nil:
			return fmt.Errorf("raise revision of item %s: %w", item, err)
		default:
			b.revisions[item] = revision
		}
	}
	return nil
}

// announce wakes the deliverer, once events are committed, and passes the revisions to
// HighWater, whose next call of note records them.
func (s *Store) announce(b *outbox) {
	if b == nil {
		return
	}
	s.highWater.commit(b.revisions)
	if len(b.events) > 0 {
		s.wake()
	}
}

// wake wakes this process's deliverer, if it has one. It never blocks: one wake-up is
// enough for any number of events.
func (s *Store) wake() {
	select {
	case s.told <- struct{}{}:
	default:
	}
}

// telling is transition for changes that have events. Its statements are few and find their
// rows by an index, so they need no timeout.
func (s *Store) telling(ctx context.Context, operation string, fn func(ctx context.Context, c conn, box *outbox) error) error {
	return s.tell(ctx, operation, &write{fn: func(ctx context.Context, g *group) error {
		return g.telling(ctx, func(box *outbox) error { return fn(ctx, g, box) })
	}})
}

// tell makes a change, and returns once the revisions of its transaction are recorded. They
// are recorded once for all changes of the transaction.
func (s *Store) tell(ctx context.Context, operation string, own *write) error {
	g, err := s.writer.change(ctx, own)
	if err != nil {
		return wrap(operation, err)
	}
	g.noted.Do(func() { s.highWater.note(ctx) })
	return nil
}

const eventColumns = 6

var insertEvents = newRowsStatement(eventColumns,
	"INSERT INTO webhook_events (id, type, item_id, order_id, body, at)", "(?, ?, ?, ?, ?, ?)", "")

// The statements of the outbox. A deleted endpoint is not enabled.
const (
	selectWanted    = `SELECT events FROM webhook_endpoints WHERE enabled = 1`
	selectLastEvent = `SELECT COALESCE(MAX(seq), 0) FROM webhook_events`
	// No other transaction writes, so all events after the last earlier one belong to this
	// one.
	insertDeliveries = `INSERT INTO webhook_deliveries (endpoint_id, event_seq, next_at)
	SELECT e.id, v.seq, v.at FROM webhook_events v JOIN webhook_endpoints e
		ON e.enabled = 1 AND instr(' ' || e.events || ' ', ' ' || v.type || ' ') > 0
	WHERE v.seq > ?1`
)

// repairing is telling with a timeout for its statements.
func (s *Store) repairing(ctx context.Context, operation string, fn func(ctx context.Context, c conn, box *outbox) error) error {
	return s.tell(ctx, operation, within(writeTimeout, func(ctx context.Context, g *group) error {
		return g.telling(ctx, func(box *outbox) error { return fn(ctx, g, box) })
	}))
}
