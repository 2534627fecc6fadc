package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/queue"
)

const (
	// sweepGrace is how long what is due is left to who does it in the ordinary
	// course: the queue's expiry tasks, and the process that closed an order.
	sweepGrace = 3 * time.Second
	// sweepPage is how many orders are swept in one transaction.
	sweepPage = 256
	// strangeAfter is when units whose order a sale does not know are no longer
	// put down to a load under way: the sale is dropped then, to be loaded again.
	strangeAfter = 10 * time.Minute
)

// Sweeper finishes what was left undone: it expires orders whose task was lost
// with Redis, gives back units that nobody gave back because a process died or
// Redis was away, rejects orders that no worker could commit, and removes ended sales from
// Redis. Any number of sweepers may run at once and beside the workers; one is enough. A
// Sweeper itself is for one goroutine.
type Sweeper struct {
	SweeperConfig

	f    *Fulfiller
	dead []*letterBox
	// The rest belongs to who sweeps: where the next sweep goes on.
	freeAt    freeableItem
	returnsAt string
}

// SweeperConfig says what a Sweeper does beside finishing orders. All may be missing.
type SweeperConfig struct {
	// Dead are the queues of orders in which it looks for dead letters.
	Dead []DeadLetters
	// Logs are the queues of orders from whose logs each sweep removes what has left
	// them; see inventory.TrimQueued.
	Logs []*queue.Queue
	// KeepEnded is how long Redis keeps a sale after its end and its payment window;
	// then a sweep removes it. Default 0: none is removed.
	KeepEnded time.Duration
}

// NewSweeper returns a Sweeper that works as f does.
func NewSweeper(f *Fulfiller, cfg SweeperConfig) *Sweeper {
	s := &Sweeper{SweeperConfig: cfg, f: f}
	for _, q := range cfg.Dead {
		s.dead = append(s.dead, &letterBox{letters: q})
	}
	return s
}

// Swept is what a sweep did.
type Swept struct {
	Expired  int // orders that were overdue
	Rejected int // orders that no worker could commit, and are rejected now
	Returned int // closed orders whose units came back
	Waiting  int // closed orders whose units are still to come back, as far as they were looked at
	Freed    int // ended sales that were removed from Redis
}

// Sweep goes once through all that is overdue, in pages. What cannot be done
// does not keep it from the rest; it is part of the error. The sweep ends early
// with ctx.
func (s *Sweeper) Sweep(ctx context.Context) (Swept, error) {
	var done Swept
	errs := []error{s.expiries(ctx, &done)}
	for _, g := range s.dead {
		errs = append(errs, s.deadLetters(ctx, g, &done))
	}
	errs = append(errs, s.returns(ctx, &done), s.free(ctx, &done))
	for _, q := range s.Logs {
		errs = append(errs, inventory.TrimQueued(ctx, s.f.rdb, q))
	}
	return done, errors.Join(errs...)
}

// Run sweeps at once and then at every interval, until ctx ends.
func (s *Sweeper) Run(ctx context.Context, every time.Duration) {
	for {
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.f.onError(fmt.Errorf("sweep: %w", err))
		}
		if !pause.For(ctx, every) {
			return
		}
	}
}

// maxSweepErrors bounds the errors that a sweep keeps: what fails may fail for
// every order alike.
const maxSweepErrors = 10

// expiries expires the overdue orders, the oldest first. The pages follow each
// other by position, so that orders which cannot be expired do not hold up
// those behind them.
func (s *Sweeper) expiries(ctx context.Context, done *Swept) error {
	before := s.f.store.Now().Add(-sweepGrace).UnixMilli()
	var at overdue
	var errs []error
	for ctx.Err() == nil {
		page, err := s.f.store.overdue(ctx, before, at)
		if err != nil || len(page) == 0 {
			return errors.Join(append(errs, err)...)
		}
		at = page[len(page)-1]
		ids := make([]string, len(page))
		for i := range page {
			ids[i] = page[i].ID
		}
		failed := 0
		s.f.expire(ctx, ids, func(i int, err error) {
			failed++
			if len(errs) < maxSweepErrors {
				errs = append(errs, fmt.Errorf("expire order %s: %w", ids[i], err))
			}
		})
		done.Expired += len(ids) - failed
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// idlePages is how many pages in a row a sweep looks at of which no unit could be given
// back. The next sweep goes on behind them, so that many units that have to wait do not
// make every sweep expensive.
const idlePages = 4

// returns gives back what is still noted.
func (s *Sweeper) returns(ctx context.Context, done *Swept) error {
	now := s.f.store.Now()
	before := now.Add(-sweepGrace).UnixMilli()
	strange := now.Add(-strangeAfter).UnixMilli()
	var errs []error
	for idle := 0; idle < idlePages && ctx.Err() == nil; {
		page, err := s.f.store.returnsBefore(ctx, before, s.returnsAt)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(page) == 0 {
			s.returnsAt = ""
			return errors.Join(errs...)
		}
		s.returnsAt = page[len(page)-1].orderID
		waiting, failed := s.f.returns.give(ctx, page)
		left := len(waiting) + len(failed)
		if left < len(page) {
			idle = 0
		} else {
			idle++
		}
		done.Returned += len(page) - left
		done.Waiting += left
		for _, err := range failed {
			if len(errs) < maxSweepErrors {
				errs = append(errs, err)
			}
		}
		if err := s.reload(ctx, waiting, strange); err != nil && len(errs) < maxSweepErrors {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// reload drops the sales that for long have not known of an order: either there
// is none, and then it costs nothing, or it misses the order, and then its next
// load does not. A load under way has read of the order, and has to come to an end.
func (s *Sweeper) reload(ctx context.Context, waiting []returned, strange int64) error {
	var items []string
	for i := range waiting {
		if w := &waiting[i]; w.createdAt < strange && !slices.Contains(items, w.itemID) {
			items = append(items, w.itemID)
		}
	}
	for _, item := range items {
		if err := s.f.returns.stock.Unload(ctx, item); err != nil {
			return err
		}
	}
	return nil
}

// overdue is the place of an order among those that expire.
type overdue struct {
	ID        string
	ExpiresAt int64 // Unix milliseconds
}

// overdue reads a page of the unpaid orders that expired by then, those after a
// place, the oldest first, without those of stopped sales. The conditions on status and expires_at are written
// out, since that is how the database knows the index that serves them.
func (s *Store) overdue(ctx context.Context, before int64, after overdue) ([]overdue, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var page []overdue
	err := s.Reader().WithContext(ctx).Raw(selectOverdue, before, after.ExpiresAt, after.ID, s.HighWater().stoppedList(), sweepPage).Scan(&page).Error
	if err != nil {
		return nil, wrap("find overdue orders", err)
	}
	return page, nil
}

const selectOverdue = `SELECT id, expires_at FROM orders
	WHERE status = 'confirmed' AND expires_at > 0 AND expires_at <= ? AND (expires_at, id) > (?, ?)
		AND item_id NOT IN (SELECT value FROM json_each(?))
	ORDER BY expires_at, id LIMIT ?`

// returnsBefore reads a page of the units that were to be given back by then.
func (s *Store) returnsBefore(ctx context.Context, before int64, after string) (page []returned, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.Reader().DB()
	if err == nil {
		page, err = readReturns(ctx, db, selectReturns, before, after, sweepPage)
	}
	if err != nil {
		return nil, wrap("find units to release", err)
	}
	return page, nil
}

const selectReturns = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE created_at <= ? AND order_id > ? ORDER BY order_id LIMIT ?`
