package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
	"flashsale/queue"
)

// Examiner is the part of the inventory that an inspection uses.
type Examiner interface {
	Partition(item string) int
	Live(ctx context.Context, item string) (inventory.Live, error)
	Lives(ctx context.Context, items []string) ([]inventory.Live, error)
	Examine(ctx context.Context, item string, look func(ctx context.Context, x *inventory.Examined) (rebuild bool, err error)) error
}

// Records reads the orders and buyers that a sale has recorded.
type Records interface {
	EachEntry(ctx context.Context, item string, fn func([]inventory.Entry) error) error
	EachCount(ctx context.Context, item string, fn func([]inventory.BuyerCount) error) error
	Entries(ctx context.Context, item string, keys []inventory.EntryKey) ([]inventory.Entry, error)
	Counts(ctx context.Context, item string, buyers []string) ([]int64, error)
}

// inspector reads the counts of an item in Redis and in the database. The ledger and the
// reconciliation use nothing else. Both sides keep counters, so reading them costs the same
// however much was sold. Only the units of accepted orders that are not committed must be
// searched for in the queue, without the item's lock.
type inspector struct {
	Config
	hold   time.Duration // timeouts.Inspect, except in tests
	repeat time.Duration // repeatLimit, except in tests
}

func (x *inspector) tasksOf(item string) order.Queued { return x.Tasks[x.Stock.Partition(item)] }

const (
	// freeReads is how often an item is read without its lock.
	freeReads = 3
	// heldReads is how often it is then read under the lock.
	heldReads = 5
	// maxPending is the number of pending releases above which an item is not checked.
	maxPending = 256
	// lateMax bounds the count of late releases.
	lateMax = 1000
)

const (
	// holdTries is how often a read under the lock is tried: on a busy machine or disk the
	// process may wait longer than hold.
	holdTries = 8
	// holdPause is between two attempts. Sales continue meanwhile.
	holdPause = 50 * time.Millisecond
)

// lateReturn is the age from which a pending release is reported: the sweeper has retried
// it many times by then.
const lateReturn = 5 * time.Minute

// observation is the counts of an item in Redis and the database at one instant.
type observation struct {
	live inventory.Live
	row  schema.Item
	late int64 // late releases, lateMax at most
	// moving is set if Redis changed during every read. The two sides are then from
	// different instants, and their difference proves nothing.
	moving bool
}

// same reports whether the item did not change between two observations: each purchase and
// release increments the sale's sequence, each transaction the revision.
func (s *observation) same(o *observation) bool {
	return !s.moving && !o.moving && s.live == o.live && s.row == o.row
}

// observe reads an item, first without its lock. Errors: catalog.ErrItemNotFound, database.ErrUnavailable,
// inventory.ErrUnavailable.
func (x *inspector) observe(ctx context.Context, item string) (observation, error) {
	given := make(map[string]bool)
	var s observation
	for range freeReads {
		var err error
		if s, err = x.observeOnce(ctx, item, x.Stock.Live, given); err != nil || !s.moving {
			return s, err
		}
	}
	held, err := x.observeHeld(ctx, item, given, nil)
	if err != nil {
		return s, nil //nolint:nilerr // without the lock the last read is reported, as moving
	}
	return held, nil
}

// observeHeld reads an item while holding its lock. If rebuild returns true for the
// observation, the sale is then rebuilt under the same lock. A read that takes longer than
// hold is retried, after a pause in which the item can be sold.
func (x *inspector) observeHeld(ctx context.Context, item string, given map[string]bool, rebuild func(*observation) bool) (s observation, err error) {
	for try := 1; ; try++ {
		var cut bool
		if s, cut, err = x.observeHeldOnce(ctx, item, given, rebuild); !cut || try == holdTries || !pause.For(ctx, holdPause) {
			return s, err
		}
	}
}

// observeHeldOnce is one attempt; cut reports that hold ended it.
func (x *inspector) observeHeldOnce(ctx context.Context, item string, given map[string]bool, rebuild func(*observation) bool) (s observation, cut bool, err error) {
	err = x.Stock.Examine(ctx, item, func(held context.Context, ex *inventory.Examined) (_ bool, err error) {
		ctx, cancel := context.WithTimeout(held, x.hold)
		defer cancel()
		defer func() { cut = err != nil && ctx.Err() != nil && held.Err() == nil }()
		live := func(ctx context.Context, _ string) (inventory.Live, error) { return ex.Live(ctx) }
		for range heldReads {
			if s, err = x.observeOnce(ctx, item, live, given); err != nil {
				return false, err
			}
			if !s.moving {
				break
			}
		}
		return rebuild != nil && rebuild(&s), nil
	})
	return s, cut, err
}

// observeOnce reads Redis, a snapshot of the database, and Redis again, which must be unchanged.
// It releases the units of pending releases, so that the next call counts them; given holds
// the orders released so far. A released order that the loaded sale has no record of was
// not counted by it either.
func (x *inspector) observeOnce(ctx context.Context, item string, live func(context.Context, string) (inventory.Live, error), given map[string]bool) (s observation, err error) {
	if s.live, err = live(ctx, item); err != nil {
		return s, err
	}
	loaded := s.live.Loaded && !s.live.Damaged
	var pending []store.Release
	if s.row, s.late, pending, err = counted(ctx, x.Store, item, loaded); err != nil || !loaded {
		return s, err
	}
	after, err := live(ctx, item)
	if err != nil {
		return s, err
	}
	s.moving = s.live != after || len(pending) > maxPending
	s.live = after
	var missing []store.Release
	for i := range pending {
		if !given[pending[i].OrderID] {
			missing = append(missing, pending[i])
			given[pending[i].OrderID] = true
		}
	}
	if len(missing) == 0 {
		return s, nil
	}
	s.moving = true
	if _, _, err := x.Releaser.ReleaseToSale(ctx, item, missing); err != nil {
		return s, fmt.Errorf("release units of %s: %w: %w", item, inventory.ErrUnavailable, err)
	}
	return s, nil
}

const (
	countLate     = `SELECT COUNT(*) FROM (SELECT created_at FROM releases WHERE item_id = ?1 LIMIT ?3) pending WHERE created_at <= ?2`
	pendingOfItem = store.SelectReleasesOfItem + ` LIMIT ?2`
)

// counted reads an item's row, the number of its late releases and, if withPending, up to
// maxPending+1 pending releases, all in one snapshot. Errors: catalog.ErrItemNotFound, database.ErrUnavailable.
func counted(ctx context.Context, s *store.Store, item string, withPending bool) (row schema.Item, late int64, pending []store.Release, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	err = s.Snapshot(ctx, func(tx *gorm.DB) (err error) {
		if row, err = store.ReadItem(tx, item); err != nil {
			return err
		}
		c := tx.Statement.ConnPool
		before := s.Now().Add(-lateReturn).UnixMilli()
		err = database.One(ctx, c, countLate, []any{item, before, lateMax}, func(rows *sql.Rows) error { return rows.Scan(&late) })
		if err != nil {
			return database.Wrap("count returns of "+item, err)
		}
		if withPending {
			pending, err = store.ReadReleases(ctx, c, pendingOfItem, item, maxPending+1)
		}
		return err
	})
	return counts(row), late, pending, err
}

// inspection is the state of one item's inspection.
type inspection struct {
	item string
	seen observation
	// queued are the units of accepted orders that are not committed; -1 if the queue was
	// not read, or the item changed meanwhile.
	queued int64
	// off is the number of units that the row's count of sold units lacks, according to its
	// orders. Transactions do not change it.
	off  int64
	deep *recordCheck // the result of comparing every record; nil: not requested
	err  error
}

func (x *inspector) inspect(ctx context.Context, item string) *inspection {
	i := &inspection{item: item, queued: -1}
	i.seen, i.err = x.observe(ctx, item)
	return i
}

// again reads the item once more, and reports whether it is unchanged.
func (x *inspector) again(ctx context.Context, i *inspection) bool {
	seen, err := x.observe(ctx, i.item)
	same := err == nil && seen.same(&i.seen)
	i.seen, i.err = seen, err
	return same
}

// room is the number of units that no committed order holds.
func (i *inspection) room() int64 { return i.seen.row.Total - i.seen.row.Sold - i.off }

// open reports whether the queue must be read to check the item, because some units are
// neither left nor committed.
func (i *inspection) open() bool {
	return i.queued < 0 && i.seen.live.Loaded && i.room() != i.seen.live.Left
}

const (
	// maxQueueReads bounds the reads of a queue for items that change meanwhile, or differ.
	maxQueueReads = 3
	// repeatLimit bounds the reads of an item that are repeated because it has changed meanwhile.
	// A read that takes longer finds an item that is being sold changed every time.
	repeatLimit = 10 * time.Second
)

// countQueued reads the queued units of the items from the queues: once for all items, and again
// for those that differ, or have changed during a read shorter than repeatLimit. A queue with more
// than most tasks is not read, unless most is 0.
func (x *inspector) countQueued(ctx context.Context, list []*inspection, most int) error {
	list = slices.DeleteFunc(list, func(i *inspection) bool { return i.err != nil || i.seen.live.Damaged })
	for range maxQueueReads {
		byQueue := make(map[int]map[string]*inspection)
		for _, i := range list {
			p := x.Stock.Partition(i.item)
			if byQueue[p] == nil {
				byQueue[p] = make(map[string]*inspection)
			}
			byQueue[p][i.item] = i
		}
		list = nil
		for p, items := range byQueue {
			again, err := x.countQueue(ctx, x.Tasks[p], items, most)
			if err != nil {
				return err
			}
			list = append(list, again...)
		}
		if len(list) == 0 {
			break
		}
	}
	return nil
}

// countQueue reads one queue, and returns the items for which it must be read again.
func (x *inspector) countQueue(ctx context.Context, q order.Queued, items map[string]*inspection, most int) (again []*inspection, err error) {
	st, err := q.Stats(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	n := st.Entries
	if most > 0 && n > most {
		return nil, nil
	}
	for item, i := range items {
		if n == 0 && i.deep == nil && !i.open() {
			i.queued = 0
			delete(items, item)
		}
	}
	if len(items) == 0 {
		return nil, nil
	}
	before := make(map[string]int64, len(items))
	for item, i := range items {
		before[item] = i.queued
		i.queued = 0
		if i.deep != nil {
			i.deep = newRecordCheck()
		}
	}
	began := time.Now()
	err = x.scan(ctx, q, items)
	scan := time.Since(began)
	if err != nil {
		for _, i := range items {
			i.queued = -1
		}
		return nil, err
	}
	for item, i := range items {
		began = time.Now()
		if i.deep != nil {
			i.err = x.check(ctx, i)
		}
		if i.err != nil {
			continue
		}
		was := before[item]
		if !x.again(ctx, i) {
			i.queued = -1
			if i.err == nil && scan+time.Since(began) < x.repeat {
				again = append(again, i)
			}
			continue
		}
		// Redis may list a task twice while its table grows or shrinks, so a
		// difference counts only if it is found twice.
		if was != i.queued && len(i.drifts()) > 0 {
			again = append(again, i)
		}
	}
	return again, nil
}

// scan adds up the units of the items' queued orders.
func (x *inspector) scan(ctx context.Context, q order.Queued, items map[string]*inspection) error {
	page := make([]order.Task, 0, recordsPage)
	err := q.Scan(ctx, func(a accepted.Order) error {
		if strings.HasPrefix(a.OrderID, order.ExpiryPrefix) {
			return nil
		}
		t, err := order.ParseAccepted(a)
		if err != nil || items[t.ItemID] == nil {
			return nil //nolint:nilerr // an unreadable task holds no units
		}
		if page = append(page, t); len(page) < recordsPage {
			return nil
		}
		err = x.addTasks(ctx, q, page, items)
		page = page[:0]
		return err
	})
	if err != nil {
		return fmt.Errorf("read queued orders: %w: %w", inventory.ErrUnavailable, err)
	}
	return x.addTasks(ctx, q, page, items)
}

// addTasks adds a page of queued orders to their items. The units of a committed order are
// counted by its row.
func (x *inspector) addTasks(ctx context.Context, q order.Queued, page []order.Task, items map[string]*inspection) error {
	if len(page) == 0 {
		return nil
	}
	holds, err := store.Holding(ctx, x.Store, order.TaskIDs(page))
	if err != nil {
		return err
	}
	for n := range page {
		t := &page[n]
		i := items[t.ItemID]
		held, committed := holds[t.ID]
		counts := !committed
		if committed && !held {
			if counts, err = x.stillCounted(ctx, q, t); err != nil {
				return err
			}
		}
		if !counts {
			continue
		}
		i.queued += t.Quantity
		if i.deep != nil {
			i.deep.queue(t)
		}
	}
	for _, i := range items {
		if i.deep == nil || len(i.deep.page) == 0 {
			continue
		}
		if err := x.checkTasks(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// stillCounted reports whether the units of a closed order whose task is in the queue are
// rightly taken. If the database rejected the order, the worker drops the sale before it
// acknowledges the task. Until then the units are taken, except for dead letters, which no
// worker processes.
func (x *inspector) stillCounted(ctx context.Context, q order.Queued, t *order.Task) (bool, error) {
	entries, err := x.Records.Entries(ctx, t.ItemID, []inventory.EntryKey{keyOf(t)})
	if err != nil || entries[0].OrderID != t.ID || entries[0].Returned {
		return false, err
	}
	state, err := q.State(ctx, t.ID)
	if err != nil {
		return false, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	return state != "" && state != queue.StateDead, nil
}

func keyOf(t *order.Task) inventory.EntryKey {
	return inventory.EntryKey{Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey}
}

// drifts returns the differences. Work in progress is not a difference.
func (i *inspection) drifts() []Drift {
	s := &i.seen
	if i.err != nil || s.moving {
		return nil
	}
	// The units that the sale should have left; an upper bound if the queue was not read.
	want := i.room() - max(i.queued, 0)
	var out []Drift
	if i.queued >= 0 && want < 0 {
		out = append(out, Drift{
			Kind: DriftOversold, Expected: s.row.Total, Found: s.row.Total - want, Units: -want, Count: 1,
			Note: "not repairable: the database confirms no order beyond the total, and rejects those that are queued",
		})
	}
	want = max(want, 0)
	switch {
	case !s.live.Loaded:
		return out
	case s.live.Damaged:
		return append(out, Drift{Kind: DriftDamaged, Expected: want, Units: want, Count: 1})
	}
	if left := s.live.Left; left > want || i.queued >= 0 && left != want {
		out = append(out, Drift{Kind: DriftLeft, Expected: want, Found: left, Units: distance(want, left), Count: 1})
	}
	if terms := otherTerms(&s.row, &s.live); len(terms) > 0 {
		out = append(out, Drift{
			Kind: DriftVersion, Expected: s.row.Version, Found: s.live.Version, Count: len(terms),
			Note: "differs in " + strings.Join(terms, ", "),
		})
	}
	if i.deep != nil && i.queued >= 0 && i.deep.size() > 0 {
		n := i.deep.size()
		out = append(out, Drift{Kind: DriftHolds, Found: int64(n), Units: int64(n), Count: n})
	}
	return out
}

// otherTerms names the terms in which a sale differs from its item's row.
func otherTerms(row *schema.Item, live *inventory.Live) []string {
	var out []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"version", row.Version == live.Version},
		{"per_user_limit", row.PerUserLimit == live.PerUserLimit},
		{"opens_at", row.OpensAt == live.OpensAt.UnixMilli()},
		{"closes_at", row.ClosesAt == order.ToMillis(live.ClosesAt)},
		{"control", row.Control == live.Control},
	} {
		if !f.same {
			out = append(out, f.name)
		}
	}
	return out
}

// ledger returns the conservation equation. If the sale is not loaded, left is what its
// next load will compute. While the item is moving, held is the remainder, and the equation
// is not checked.
func (i *inspection) ledger() order.Ledger {
	s := &i.seen
	l := order.Ledger{Initial: s.row.Initial, Restocked: s.row.Total - s.row.Initial, Left: s.live.Left}
	queued := i.queued
	if !s.live.Loaded || s.live.Damaged {
		queued = max(queued, 0)
		l.Left = max(i.room()-queued, 0)
	}
	if queued < 0 {
		queued = i.room() - l.Left
		if !s.moving {
			queued = max(queued, 0)
		}
	}
	l.Held = s.row.Awaiting + queued
	l.Sold = s.row.Sold + i.off - s.row.Awaiting
	if l.Held < 0 {
		l.Held, l.Sold = 0, l.Sold+l.Held
	}
	if l.Sold < 0 {
		l.Held, l.Sold = l.Held+l.Sold, 0
	}
	return l
}

func distance(a, b int64) int64 { return max(a-b, b-a) }
