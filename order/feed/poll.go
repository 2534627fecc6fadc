package feed

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

const (
	// pollPage bounds the orders of one query.
	pollPage = 500
	// absentAfter is the default of Feed.absentAfter. An order that has neither a row nor a
	// task was lost with Redis, or a worker is about to commit it.
	absentAfter = 5 * time.Second
	// maxAbsent is how many searches must fail to find an order before its streams end.
	maxAbsent = 2
	// maxSearches bounds the orders that one tick searches for in the queue.
	maxSearches = 64
)

// receive records the orders that a message names.
func (f *Feed) receive(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range strings.SplitSeq(message, " ") {
		if f.followed[id] != nil {
			f.changed[id] = struct{}{}
		}
	}
	f.notify()
}

// changedAll records all followed orders after a new subscription: messages sent before it were missed.
func (f *Feed) changedAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.followed {
		f.changed[id] = struct{}{}
	}
	f.notify()
}

// notify wakes the reader of changed orders. The caller holds the feed's mutex.
func (f *Feed) notify() {
	if len(f.changed) > 0 {
		signal(f.notified)
	}
}

// pollSet holds the ids of followed orders to be read, by their last known status. Those
// that have another status by now have changed.
type pollSet map[order.Status][]string

func (f *Feed) takeNotified() pollSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := make(pollSet)
	for id := range f.changed {
		if e := f.followed[id]; e != nil {
			w[e.known] = append(w[e.known], id)
		}
	}
	clear(f.changed)
	return w
}

func (f *Feed) all() pollSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := make(pollSet)
	for id, e := range f.followed {
		w[e.known] = append(w[e.known], id)
	}
	return w
}

// poll delivers the orders that have changed. After an error the next tick reads them
// again.
func (f *Feed) poll(ctx context.Context, w pollSet) {
	for known, ids := range w {
		for from := 0; from < len(ids) && ctx.Err() == nil; from += pollPage {
			changed, err := changedFrom(ctx, f.cfg.Store, known, ids[from:min(from+pollPage, len(ids))])
			if err != nil && ctx.Err() == nil {
				f.cfg.OnError(fmt.Errorf("read streamed orders: %w", err))
				return
			}
			for i := range changed {
				f.deliver(&changed[i])
			}
		}
	}
}

// search searches for orders that have had no row for long, and ends the streams of those
// that do not exist: their clients request the order again and get 404. It stops at the
// first error: while Redis is down each search would take as long as the timeout of Redis,
// and no stream would receive changes meanwhile.
func (f *Feed) search(ctx context.Context) {
	for _, id := range f.rowless(time.Now()) {
		_, err := f.cfg.Orders.Get(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, order.ErrNotFound) {
			f.cfg.OnError(fmt.Errorf("read streamed orders: %w", err))
			return
		}
		f.mu.Lock()
		e := f.followed[id]
		switch {
		case e == nil:
		case err == nil:
			e.absent = 0
		default:
			if e.absent++; e.absent >= maxAbsent {
				e.end(order.ErrNotFound)
			}
		}
		f.mu.Unlock()
	}
}

// rowless returns the orders without a row that are due for a search.
func (f *Feed) rowless(now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, e := range f.followed {
		switch {
		case e.known != order.StatusQueued:
		case e.missing.IsZero():
			e.missing = now
		case now.Sub(e.missing) >= f.absentAfter && len(ids) < maxSearches:
			e.missing = now
			ids = append(ids, id)
		}
	}
	return ids
}

const selectChanged = `SELECT ` + store.OrderFields + ` FROM orders
	WHERE id IN (SELECT value FROM json_each(?1)) AND status <> ?2`

// changedFrom reads the orders whose row has another status.
func changedFrom(ctx context.Context, s *store.Store, known order.Status, ids []string) ([]order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return nil, err
	}
	var orders []order.Order
	err = database.Each(ctx, db, selectChanged, []any{database.JSONList(ids...), string(known)}, func(rows *sql.Rows) error {
		o, err := store.ScanOrder(rows)
		orders = append(orders, o)
		return err
	})
	if err != nil {
		return nil, database.Wrap("read streamed orders", err)
	}
	return orders, s.Replicated(ctx)
}
