package feed

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/timeouts"
)

const (
	// lookPage bounds the orders of one query.
	lookPage = 500
	// absentAfter is the default of Feed.absentAfter. An order that has neither a row nor a
	// task was lost with Redis, or a worker is about to commit it.
	absentAfter = 5 * time.Second
	// absentLooks is how many searches must fail to find an order before its streams end.
	absentLooks = 2
	// seekMost bounds the orders that one tick searches for in the queue.
	seekMost = 64
)

// receive records the orders that a message names.
func (f *Feed) receive(msg any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m := msg.(type) {
	case *redis.Subscription:
		// Messages sent before the subscription were missed: read all orders.
		for id := range f.followed {
			f.told[id] = struct{}{}
		}
	case *redis.Message:
		for id := range strings.SplitSeq(m.Payload, " ") {
			if f.followed[id] != nil {
				f.told[id] = struct{}{}
			}
		}
	}
	if len(f.told) > 0 {
		signal(f.notified)
	}
}

// lookup holds the ids of followed orders to be read, by their last known status. Those
// that have another status by now have changed.
type lookup map[order.Status][]string

func (f *Feed) takeNotified() lookup {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := make(lookup)
	for id := range f.told {
		if e := f.followed[id]; e != nil {
			w[e.known] = append(w[e.known], id)
		}
	}
	clear(f.told)
	return w
}

func (f *Feed) all() lookup {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := make(lookup)
	for id, e := range f.followed {
		w[e.known] = append(w[e.known], id)
	}
	return w
}

// look delivers the orders that have changed. After an error the next tick reads them
// again.
func (f *Feed) look(ctx context.Context, w lookup) {
	for known, ids := range w {
		for from := 0; from < len(ids) && ctx.Err() == nil; from += lookPage {
			changed, err := changedFrom(ctx, f.cfg.Store, known, ids[from:min(from+lookPage, len(ids))])
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

// seek searches for orders that have had no row for long, and ends the streams of those
// that do not exist: their clients request the order again and get 404. It stops at the
// first error: while Redis is down each search would take as long as the timeout of Redis,
// and no stream would receive changes meanwhile.
func (f *Feed) seek(ctx context.Context) {
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
			if e.absent++; e.absent >= absentLooks {
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
		case now.Sub(e.missing) >= f.absentAfter && len(ids) < seekMost:
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
	err = store.Each(ctx, db, selectChanged, []any{store.JSONList(ids...), string(known)}, func(rows *sql.Rows) error {
		o, err := store.ScanOrder(rows)
		orders = append(orders, o)
		return err
	})
	if err != nil {
		return nil, store.Wrap("read streamed orders", err)
	}
	return orders, s.Replicated(ctx)
}
