package store

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"time"

	"flashsale/internal/plural"
	"flashsale/order"
	"flashsale/order/store/database"
)

// Expiry is the result of an order's expiry.
type Expiry struct {
	Status order.Status
	// In is the time until the order expires, if it is not due.
	In time.Duration
	// Closed means that this call has closed the order.
	Closed bool
}

// Expire closes the due orders, all in one transaction, and returns the result of each. It
// also returns the units that are still to be released, including those of orders closed
// before.
func (s *Store) Expire(ctx context.Context, ids []string) (results map[string]Expiry, pending []Release, err error) {
	err = s.ChangeWithEvents(ctx, "expire "+plural.Count(len(ids), "order"), func(ctx context.Context, c database.Conn, box *Outbox) error {
		list := database.JSONList(ids...)
		closed, err := expireOrders(ctx, c, list, s.highWater.StoppedList(), box)
		if err != nil {
			return err
		}
		if results, err = readExpiries(ctx, c, list, box.Now); err != nil {
			return err
		}
		for i := range closed {
			e := results[closed[i].ID]
			e.Closed = true
			results[closed[i].ID] = e
		}
		pending, err = ReadReleases(ctx, c, SelectReleasesOfOrders, list)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return results, pending, nil
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
func expireOrders(ctx context.Context, c database.Conn, list, stopped string, box *Outbox) ([]order.Order, error) {
	return closeOrders(ctx, c, box, order.EventExpired, expireDue, box.Now, list, stopped)
}

// readExpiries reads the states of the orders in a JSON list. Orders without a row are
// omitted.
func readExpiries(ctx context.Context, c database.Conn, list string, now int64) (map[string]Expiry, error) {
	results := make(map[string]Expiry)
	err := database.Each(ctx, c, selectExpiries, []any{list}, func(rows *sql.Rows) error {
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
		results[id] = e
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read orders to expire: %w", err)
	}
	return results, nil
}
