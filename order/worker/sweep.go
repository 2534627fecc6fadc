package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/internal/pause"
	"flashsale/inventory/accepted"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

const (
	// SweepGrace is how long due work is left to its usual handlers: the queue's expiry
	// tasks, and the process that closed an order.
	SweepGrace = 3 * time.Second
	// sweepPage is how many orders are swept in one transaction.
	sweepPage = 256
	// unloadAfter is how long units whose order a sale does not have may be explained by a
	// running load. After that the sale is dropped, so that it is loaded again.
	unloadAfter = 10 * time.Minute
)

// Sweeper finishes incomplete work: it expires orders whose task was lost with Redis,
// releases units that were not released because a process died or Redis was down, rejects
// orders that no worker could commit, and removes ended sales from Redis. Any number of
// sweepers may run concurrently and beside the workers; one is enough. A Sweeper must be
// used by only one goroutine.
type Sweeper struct {
	SweeperConfig

	fulfiller *Fulfiller
	dead      []*deadLetterCursor
	// The rest is the place where the next sweep continues; only Sweep uses it.
	freeAfter     freeableItem
	releasesAfter string
}

// SweeperConfig configures what a Sweeper does in addition to expiries and releases. All
// fields are optional.
type SweeperConfig struct {
	// Dead are the queues of orders whose dead letters it rejects.
	Dead []DeadLetters
	// Logs are the queues of orders from whose logs each sweep removes the orders that have
	// left the queue; see accepted.Trim.
	Logs []*queue.Queue
	// KeepEnded is how long Redis keeps a sale after its end and its payment window; then a
	// sweep removes it. Default 0: sales are not removed.
	KeepEnded time.Duration
}

// NewSweeper returns a Sweeper that uses f.
func NewSweeper(f *Fulfiller, cfg SweeperConfig) *Sweeper {
	s := &Sweeper{SweeperConfig: cfg, fulfiller: f}
	for _, q := range cfg.Dead {
		s.dead = append(s.dead, &deadLetterCursor{letters: q})
	}
	return s
}

// Swept is the result of a sweep.
type Swept struct {
	Expired  int // orders that were overdue
	Rejected int // orders that no worker could commit, and are rejected now
	Released int // closed orders whose units were released
	Waiting  int // closed orders whose units are still pending, among those that were read
	Freed    int // ended sales that were removed from Redis
}

// Sweep handles all overdue work once, in pages. A failure does not stop the rest; it is
// part of the error. The sweep ends early with ctx.
func (s *Sweeper) Sweep(ctx context.Context) (Swept, error) {
	var done Swept
	errs := []error{s.expiries(ctx, &done)}
	for _, g := range s.dead {
		errs = append(errs, s.deadLetters(ctx, g, &done))
	}
	errs = append(errs, s.releases(ctx, &done), s.free(ctx, &done))
	for _, q := range s.Logs {
		errs = append(errs, accepted.Trim(ctx, s.fulfiller.rdb, q))
	}
	return done, errors.Join(errs...)
}

// Run sweeps immediately and then at every interval, until ctx ends.
func (s *Sweeper) Run(ctx context.Context, every time.Duration) {
	for {
		if _, err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.fulfiller.onError(fmt.Errorf("sweep: %w", err))
		}
		if !pause.For(ctx, every) {
			return
		}
	}
}

// maxSweepErrors bounds the errors that a sweep keeps: one cause may fail every order.
const maxSweepErrors = 10

// expiries expires the overdue orders, the oldest first. Each page starts after the
// previous one, so that orders which cannot be expired do not block those after them. If the
// database cannot write, the sweep ends with this page: it would fail on every other one, too.
func (s *Sweeper) expiries(ctx context.Context, done *Swept) error {
	before := s.fulfiller.store.Now().Add(-SweepGrace).UnixMilli()
	var at overdue
	var errs []error
	for ctx.Err() == nil {
		page, err := readOverdue(ctx, s.fulfiller.store, before, at)
		if err != nil || len(page) == 0 {
			return errors.Join(append(errs, err)...)
		}
		at = page[len(page)-1]
		ids := make([]string, len(page))
		for i := range page {
			ids[i] = page[i].ID
		}
		failed := 0
		var unwritable error
		s.fulfiller.expire(ctx, ids, func(i int, err error) {
			failed++
			if queue.Returned(err) {
				unwritable = err
			} else if len(errs) < maxSweepErrors {
				errs = append(errs, fmt.Errorf("expire order %s: %w", ids[i], err))
			}
		})
		done.Expired += len(ids) - failed
		if unwritable != nil {
			return errors.Join(append(errs, unwritable)...)
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// idlePages is how many consecutive pages a sweep reads of which no units could be
// released. The next sweep continues after them, so that many waiting units do not make
// every sweep expensive.
const idlePages = 4

// releases releases the units that are still pending.
func (s *Sweeper) releases(ctx context.Context, done *Swept) error {
	now := s.fulfiller.store.Now()
	before := now.Add(-SweepGrace).UnixMilli()
	unloadBefore := now.Add(-unloadAfter).UnixMilli()
	var errs []error
	for idle := 0; idle < idlePages && ctx.Err() == nil; {
		page, err := releasesBefore(ctx, s.fulfiller.store, before, s.releasesAfter)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(page) == 0 {
			s.releasesAfter = ""
			return errors.Join(errs...)
		}
		s.releasesAfter = page[len(page)-1].OrderID
		waiting, failed := s.fulfiller.Releaser.Release(ctx, page)
		left := len(waiting) + len(failed)
		if left < len(page) {
			idle = 0
		} else {
			idle++
		}
		done.Released += len(page) - left
		done.Waiting += left
		for _, err := range failed {
			if len(errs) < maxSweepErrors {
				errs = append(errs, err)
			}
		}
		if err := s.unload(ctx, waiting, unloadBefore); err != nil && len(errs) < maxSweepErrors {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// unload drops the sales that have not had an order for long. If such a sale is not loaded,
// this costs nothing; if it lacks the order, its next load will read it. A running load has
// read the order, and must be allowed to finish.
func (s *Sweeper) unload(ctx context.Context, waiting []store.Release, before int64) error {
	var items []string
	for i := range waiting {
		if w := &waiting[i]; w.CreatedAt < before && !slices.Contains(items, w.ItemID) {
			items = append(items, w.ItemID)
		}
	}
	for _, item := range items {
		if err := s.fulfiller.Releaser.Stock.Unload(ctx, item); err != nil {
			return err
		}
	}
	return nil
}

// overdue is the place of an order in the list of those that expire.
type overdue struct {
	ID        string
	ExpiresAt int64 // Unix milliseconds
}

// readOverdue reads a page of the unpaid orders that expired by then, those after a place, the
// oldest first, except those of stopped sales. The conditions on status and expires_at are
// written out, because SQLite chooses the partial index by them.
func readOverdue(ctx context.Context, s *store.Store, before int64, after overdue) ([]overdue, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var page []overdue
	err := s.Reader().WithContext(ctx).Raw(selectOverdue, before, after.ExpiresAt, after.ID, s.HighWater().StoppedList(), sweepPage).Scan(&page).Error
	if err != nil {
		return nil, database.Wrap("find overdue orders", err)
	}
	return page, nil
}

const selectOverdue = `SELECT id, expires_at FROM orders
	WHERE status = 'confirmed' AND expires_at > 0 AND expires_at <= ? AND (expires_at, id) > (?, ?)
		AND item_id NOT IN (SELECT value FROM json_each(?))
	ORDER BY expires_at, id LIMIT ?`

// releasesBefore reads a page of the releases that were recorded by then. After a failover that
// loses a cancellation, its order holds its units, so a synchronous standby must have it.
func releasesBefore(ctx context.Context, s *store.Store, before int64, after string) (page []store.Release, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err == nil {
		page, err = store.ReadReleases(ctx, db, selectReleases, before, after, sweepPage)
	}
	if err != nil {
		return nil, database.Wrap("find units to release", err)
	}
	return page, s.Replicated(ctx)
}

const selectReleases = `SELECT order_id, item_id, user_id, idempotency_key, quantity, created_at FROM releases
	WHERE created_at <= ?1 AND order_id > ?2 ORDER BY order_id LIMIT ?3`
