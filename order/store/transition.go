package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/timeouts"
)

// A confirmed order ends by exactly one of payOrder (pay.go), cancelOrders (cancel.go) and
// expireOrders, and a paid one may then be refunded by package checkout. Each is one conditional UPDATE, and SQLite
// has one writer. Each runs in one transaction with everything that belongs to the change,
// including its webhook events.

// Transition runs fn as one change of the writer, at one instant. If ctx ends, fn is only
// cancelled if it has not begun; see writer.change. fn may run again if the changes of its
// first run were rolled back.
func (s *Store) Transition(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, now int64) error) error {
	_, err := s.changes.change(ctx, within(timeouts.Write, func(ctx context.Context, g *group) error {
		// The clock is read once the change has its turn: after the wait, a payment must
		// not count as older than it is, and no order may expire early.
		return fn(ctx, g, s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// Changing is Transition for the administration of items and webhooks, by gorm.
func (s *Store) Changing(ctx context.Context, operation string, fn func(tx *gorm.DB, now int64) error) error {
	_, err := s.changes.change(ctx, within(timeouts.Write, func(ctx context.Context, g *group) error {
		return fn(g.orm(ctx), s.now().UnixMilli())
	}))
	if err != nil {
		return Wrap(operation, err)
	}
	return nil
}

// TransitionWithEvents is Transition for changes that have events. Its statements are few and find their
// rows by an index, so they need no timeout.
func (s *Store) TransitionWithEvents(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, box *Outbox) error) error {
	return submitChange(ctx, s, operation, &write{fn: func(ctx context.Context, g *group) error {
		return g.withOutbox(ctx, func(box *Outbox) error { return fn(ctx, g, box) })
	}})
}

// Repairing is TransitionWithEvents with a timeout for its statements.
func (s *Store) Repairing(ctx context.Context, operation string, fn func(ctx context.Context, c Conn, box *Outbox) error) error {
	return submitChange(ctx, s, operation, within(timeouts.Write, func(ctx context.Context, g *group) error {
		return g.withOutbox(ctx, func(box *Outbox) error { return fn(ctx, g, box) })
	}))
}

// submitChange makes a change, and returns once the revisions of its transaction are recorded. They
// are recorded once for all changes of the transaction.
func submitChange(ctx context.Context, s *Store, operation string, own *write) error {
	g, err := s.changes.change(ctx, own)
	if err != nil {
		return Wrap(operation, err)
	}
	g.noted.Do(func() { s.highWater.Note(ctx) })
	return nil
}

// Release is a pending release: the units of one closed order that have to return to its sale.
type Release struct {
	OrderID        string
	ItemID         string
	UserID         string
	IdempotencyKey string
	Quantity       int64
	CreatedAt      int64 // Unix milliseconds; when the order was closed
}

// Expiry is the result of an order's expiry.
type Expiry struct {
	Status order.Status
	// In is the time until the order expires, if it is not due.
	In time.Duration
}

// Expire closes the due orders, all in one transaction, and returns the result of each. It
// also returns the units that are still to be released, including those of orders closed
// before.
func (s *Store) Expire(ctx context.Context, ids []string) (stand map[string]Expiry, pending []Release, err error) {
	err = s.TransitionWithEvents(ctx, fmt.Sprintf("expire %d orders", len(ids)), func(ctx context.Context, c Conn, box *Outbox) error {
		list := JSONList(ids...)
		if err := expireOrders(ctx, c, list, s.highWater.StoppedList(), box); err != nil {
			return err
		}
		if stand, err = readExpiries(ctx, c, list, box.Now); err != nil {
			return err
		}
		pending, err = ReadReleases(ctx, c, SelectReleasesOfOrders, list)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return stand, pending, nil
}

// stoppedMin and stoppedMax bound the pause before a task of a stopped sale is retried. An
// operator must decide first, so retries need not be quick.
const (
	stoppedMin = 5 * time.Second
	stoppedMax = 15 * time.Second
)

// StoppedPause returns a random pause, so that such tasks are not all retried together.
func StoppedPause() time.Duration { return stoppedMin + rand.N(stoppedMax-stoppedMin) }

// expireOrders changes those orders of a JSON list to expired that are confirmed and due.
// It is never early: an order expires at its expires_at. Orders of the items in stopped,
// which is a JSON list too, do not expire.
func expireOrders(ctx context.Context, c Conn, list, stopped string, box *Outbox) error {
	_, err := closeOrders(ctx, c, box, order.EventExpired, expireDue, box.Now, list, stopped)
	return err
}

// closeOrders runs a statement that changes confirmed orders to a final state and returns their
// OrderFields, with all that belongs to that change. It returns those orders.
func closeOrders(ctx context.Context, c Conn, box *Outbox, kind order.EventType, query string, args ...any) ([]order.Order, error) {
	closed, err := ReadOrders(ctx, c, query, args...)
	if err != nil {
		return nil, err
	}
	if err := TakeBack(ctx, c, closed, box); err != nil {
		return nil, err
	}
	box.Closed(kind, closed)
	return closed, nil
}

// TakeBack subtracts the units of orders that were just closed, and records their releases. The
// number of its statements does not depend on that of the orders: on Postgres, nothing else is
// written meanwhile.
func TakeBack(ctx context.Context, c Conn, closed []order.Order, box *Outbox) error {
	if len(closed) == 0 {
		return nil
	}
	units := make(map[string]int64, 1)
	held := make(map[buyerKey]int64, len(closed))
	args := make([]any, 0, len(closed)*releaseColumns)
	for i := range closed {
		o := &closed[i]
		units[o.ItemID] += o.Quantity
		held[buyerKey{o.ItemID, o.UserID}] += o.Quantity
		args = append(args, o.ID, o.ItemID, o.UserID, o.IdempotencyKey, o.Quantity, order.ToMillis(o.ClosedAt))
	}
	if err := unsell(ctx, c, units, box); err != nil {
		return err
	}
	if n, err := takeFromBuyers.Exec(ctx, c, buyerRows(held)); err != nil || n != int64(len(held)) {
		return errors.Join(err, fmt.Errorf("take back the units of %d buyers: %d of them hold fewer", len(held), int64(len(held))-n))
	}
	if n, err := InsertReleases.Exec(ctx, c, args); err != nil || n != int64(len(closed)) {
		return errors.Join(err, fmt.Errorf("only %d of %d orders were recorded for release", n, len(closed)))
	}
	return nil
}

// unsell subtracts units from what the items have sold.
func unsell(ctx context.Context, c Conn, units map[string]int64, box *Outbox) error {
	list := make([][2]any, 0, len(units))
	for item, n := range units {
		list = append(list, [2]any{item, n})
	}
	found := 0
	err := Each(ctx, c, unsellUnits, []any{jsonOf(list)}, func(rows *sql.Rows) error {
		var item string
		var revision int64
		err := rows.Scan(&item, &revision)
		box.revised(item, revision)
		found++
		return err
	})
	if err != nil || found != len(units) {
		return errors.Join(err, fmt.Errorf("take back units of %d items: %d have a row", len(units), found))
	}
	return nil
}

// ReadReleases reads the rows of a query with the columns of SelectReleasesOfOrders.
func ReadReleases(ctx context.Context, c Conn, query string, args ...any) ([]Release, error) {
	var list []Release
	err := Each(ctx, c, query, args, func(rows *sql.Rows) error {
		var r Release
		err := rows.Scan(&r.OrderID, &r.ItemID, &r.UserID, &r.IdempotencyKey, &r.Quantity, &r.CreatedAt)
		list = append(list, r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read releases: %w", err)
	}
	return list, nil
}

// readExpiries reads the states of the orders in a JSON list. Orders without a row are
// omitted.
func readExpiries(ctx context.Context, c Conn, list string, now int64) (map[string]Expiry, error) {
	stand := make(map[string]Expiry)
	err := Each(ctx, c, selectExpiries, []any{list}, func(rows *sql.Rows) error {
		var id string
		var status order.Status
		var expiresAt int64
		if err := rows.Scan(&id, &status, &expiresAt); err != nil {
			return err
		}
		e := Expiry{Status: status}
		switch {
		case status != order.StatusConfirmed || expiresAt == 0:
		case expiresAt > now:
			e.In = time.Duration(expiresAt-now) * time.Millisecond
		default:
			e.In = StoppedPause() // it is due, but the sale is stopped
		}
		stand[id] = e
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read orders to expire: %w", err)
	}
	return stand, nil
}
