package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// lookPage bounds the orders of one query.
	lookPage = 500
	// absentAfter is Feed's field of that name. An order that has no row and is not
	// in the queue either is lost with Redis, or still in the hands of a worker.
	absentAfter = 5 * time.Second
	// absentLooks is how often it has to be nowhere until its streams end.
	absentLooks = 2
	// seekMost bounds the orders that are searched for in the queue at one time.
	seekMost = 64
)

// hear notes what a message tells of.
func (f *Feed) hear(msg any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch m := msg.(type) {
	case *redis.Subscription:
		// What was told before, nobody here has heard.
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
// that have another status by now are news.
type lookup map[Status][]string

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

// look delivers those of the orders that have changed. What cannot be read is
// looked at again with the next tick.
func (f *Feed) look(ctx context.Context, w lookup) {
	for known, ids := range w {
		for from := 0; from < len(ids) && ctx.Err() == nil; from += lookPage {
			changed, err := f.cfg.Store.changedFrom(ctx, known, ids[from:min(from+lookPage, len(ids))])
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

// seek searches for orders that have had no row for long, and ends the streams of
// those that are nowhere: their clients ask again, and are told so. It gives up
// at the first that cannot be searched for: with Redis away each of them would take
// as long as Redis is waited for, and no stream hears anything meanwhile.
func (f *Feed) seek(ctx context.Context) {
	for _, id := range f.rowless(time.Now()) {
		_, err := f.cfg.Orders.Get(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
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
				e.end(ErrNotFound)
			}
		}
		f.mu.Unlock()
	}
}

// rowless are orders that are due to be searched for elsewhere.
func (f *Feed) rowless(now time.Time) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for id, e := range f.followed {
		switch {
		case e.known != StatusQueued:
		case e.missing.IsZero():
			e.missing = now
		case now.Sub(e.missing) >= f.absentAfter && len(ids) < seekMost:
			e.missing = now
			ids = append(ids, id)
		}
	}
	return ids
}

const selectChanged = `SELECT ` + orderFields + ` FROM orders
	WHERE id IN (SELECT value FROM json_each(?1)) AND status <> ?2`

// changedFrom reads those of the orders that have a row in another state.
func (s *Store) changedFrom(ctx context.Context, known Status, ids []string) ([]Order, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return nil, err
	}
	var orders []Order
	err = each(ctx, db, selectChanged, []any{jsonList(ids...), string(known)}, func(rows *sql.Rows) error {
		o, err := scanOrder(rows)
		orders = append(orders, o)
		return err
	})
	if err != nil {
		return nil, wrap("read streamed orders", err)
	}
	return orders, nil
}
