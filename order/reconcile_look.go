package order

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"gorm.io/gorm"

	"flashsale/inventory"
	"flashsale/queue"
)

// suspects are records of a sale that looked wrong while everything moved: the
// keys of orders, and buyers.
type suspects struct {
	keys   map[inventory.EntryKey]bool
	buyers map[string]bool
}

func newSuspects() *suspects {
	return &suspects{make(map[inventory.EntryKey]bool), make(map[string]bool)}
}

func (s *suspects) size() int { return len(s.keys) + len(s.buyers) }

// redisView is what one read of Redis saw of an item. Two that are equal had
// nothing between them that matters.
type redisView struct {
	live    inventory.Live
	entries []inventory.Entry // of the suspected keys, in order
	counts  []int64           // of the suspected buyers, in order
}

// sight is Redis, the queue and the database of one item at one instant.
type sight struct {
	redisView
	keys    []inventory.EntryKey // the suspected ones
	buyers  []string             // the suspected ones
	row     itemRow
	units   int64           // that committed orders hold
	pending map[string]task // accepted, and not committed
	limbo   []task          // refused by the database, and the sale not dropped for it yet
	rows    map[inventory.EntryKey]orderRow
	held    map[string]int64 // units that committed orders of the suspected buyers hold
}

// looker is one careful look at an item whose lock is held.
type looker struct {
	*Reconciler
	x      *inventory.Examined
	item   string
	torn   bool // items.sold is not what the orders hold
	keys   []inventory.EntryKey
	buyers []string
	queued map[string]task // what was in the queue after the lock was taken
}

// sight looks until nothing moves meanwhile.
//
// The lock keeps buyers away: no task comes, and one leaves only after its commit,
// so the queue is read before the database. Units of closed orders come back without
// the lock. So what is noted of them is given back first, Redis is read before and
// after the database's state is taken, and both reads must be alike.
func (r *Reconciler) sight(ctx context.Context, x *inventory.Examined, before *sums, s *suspects) (*sight, error) {
	l := &looker{Reconciler: r, x: x, item: before.row.ID, torn: before.torn()}
	l.keys = slices.Collect(maps.Keys(s.keys))
	l.buyers = slices.Sorted(maps.Keys(s.buyers))
	var err error
	if l.queued, err = pendingTasks(ctx, r.tasksOf(l.item), l.item); err != nil {
		return nil, err
	}
	for range lookTries {
		if seen, err := l.try(ctx); seen != nil || err != nil {
			return seen, err
		}
	}
	return nil, fmt.Errorf("units of %s keep coming back: %w", l.item, inventory.ErrUnavailable)
}

// try is one try of sight; nil says that it was in vain.
func (l *looker) try(ctx context.Context) (seen *sight, err error) {
	given, err := l.Returns.giveAll(ctx, l.item)
	if err != nil {
		return nil, err
	}
	before, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	tx, err := l.Store.beginRead(ctx, l.item)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, undo(tx)) }()
	owed, err := readReturns(ctx, tx.Statement.ConnPool, returnsOfItem, l.item)
	if err != nil {
		return nil, wrap("look at item "+l.item, err)
	}
	after, err := l.read(ctx)
	if err != nil {
		return nil, err
	}
	moved := slices.ContainsFunc(owed, func(o returned) bool { return !given[o.orderID] })
	if moved || !reflect.DeepEqual(before, after) {
		return nil, nil
	}
	seen = &sight{redisView: after, keys: l.keys, buyers: l.buyers}
	if err := l.database(ctx, tx, seen); err != nil {
		return nil, err
	}
	if len(seen.limbo) == 0 {
		return seen, nil
	}
	// Whether these are still counted was read later than the rest.
	last, err := l.read(ctx)
	if err != nil || !reflect.DeepEqual(after, last) {
		return nil, err
	}
	return seen, nil
}

func (l *looker) read(ctx context.Context) (v redisView, err error) {
	if v.live, err = l.x.Live(ctx); err != nil {
		return v, err
	}
	if v.entries, err = l.Records.Entries(ctx, l.item, l.keys); err != nil {
		return v, err
	}
	v.counts, err = l.Records.Counts(ctx, l.item, l.buyers)
	return v, err
}

// database reads the rest in the database's snapshot.
func (l *looker) database(ctx context.Context, tx *gorm.DB, s *sight) (err error) {
	if s.row, err = readItem(tx, l.item); err != nil {
		return err
	}
	s.units = s.row.Sold
	if l.torn {
		// The count is wrong, and only the orders themselves tell.
		held, sold, err := unitsOf(tx, l.item)
		if err != nil {
			return err
		}
		s.units = held + sold
	}
	committed, err := committedOf(tx, l.item, l.queued)
	if err != nil {
		return err
	}
	s.pending = make(map[string]task, len(l.queued))
	var closed []task
	for id, t := range l.queued {
		switch holds, ok := committed[id]; {
		case !ok:
			s.pending[id] = t
		case !holds:
			closed = append(closed, t)
		}
	}
	if s.limbo, err = l.stillCounted(ctx, closed); err != nil {
		return err
	}
	c := tx.Statement.ConnPool
	if s.rows, err = ordersOf(ctx, c, l.item, s.keysToFind()); err != nil {
		return err
	}
	s.held, err = buyersUnits(ctx, c, l.item, l.buyers)
	return err
}

// keysToFind are the suspected keys, and those that the suspected buyers have in
// the queue.
func (s *sight) keysToFind() []inventory.EntryKey {
	out := slices.Clone(s.keys)
	for _, t := range s.pending {
		if _, suspected := slices.BinarySearch(s.buyers, t.UserID); suspected {
			out = append(out, keyOf(&t))
		}
	}
	return out
}

// stillCounted are those of the closed orders whose units the sale counts as
// taken. The worker that had an order refused drops the sale before it gives up
// the task, so while the task is there the units are on their way.
func (l *looker) stillCounted(ctx context.Context, closed []task) ([]task, error) {
	if len(closed) == 0 {
		return nil, nil
	}
	keys := make([]inventory.EntryKey, len(closed))
	for i := range closed {
		keys[i] = keyOf(&closed[i])
	}
	entries, err := l.Records.Entries(ctx, l.item, keys)
	if err != nil {
		return nil, err
	}
	var limbo []task
	for i := range closed {
		if e := &entries[i]; e.OrderID != closed[i].ID || e.Returned {
			continue
		}
		info, err := l.tasksOf(l.item).Get(ctx, closed[i].ID)
		if err != nil && !errors.Is(err, queue.ErrTaskNotFound) {
			return nil, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
		}
		// Nobody works on a dead letter, so nothing of it is under way.
		if info.State != queue.StateDead {
			limbo = append(limbo, closed[i])
		}
	}
	return limbo, nil
}

func keyOf(t *task) inventory.EntryKey {
	return inventory.EntryKey{Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey}
}

// ordersOf reads the orders of an item that these keys have made.
func ordersOf(ctx context.Context, c conn, item string, keys []inventory.EntryKey) (map[inventory.EntryKey]orderRow, error) {
	pairs := make([][2]string, len(keys))
	for i, k := range keys {
		pairs[i] = [2]string{k.Buyer, k.IdempotencyKey}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return nil, err
	}
	out := make(map[inventory.EntryKey]orderRow, len(keys))
	err = each(ctx, c, ordersOfKeys, []any{string(list), item}, func(rows *sql.Rows) error {
		var r orderRow
		err := rows.Scan(&r.ID, &r.UserID, &r.IdempotencyKey, &r.Quantity, &r.Status, &r.Restocked)
		out[inventory.EntryKey{Buyer: r.UserID, IdempotencyKey: r.IdempotencyKey}] = r
		return err
	})
	if err != nil {
		return nil, wrap("read orders of "+item, err)
	}
	return out, nil
}

func unitsOfTasks[S ~[]task](tasks S) (units int64) {
	for i := range tasks {
		units += tasks[i].Quantity
	}
	return units
}

// taken are the units of accepted orders that are in no row that holds them.
func (s *sight) taken() int64 {
	return unitsOfTasks(slices.Collect(maps.Values(s.pending))) + unitsOfTasks(s.limbo)
}

// left is what the sale should have left.
func (s *sight) left() int64 { return max(s.row.Total-s.units-s.taken(), 0) }

// drifts compares what was seen. Nothing in it is under way.
func (s *sight) drifts() []Drift {
	var out []Drift
	if n := s.units + s.taken(); n > s.row.Total {
		out = append(out, Drift{
			Kind: DriftOversold, Expected: s.row.Total, Found: n, Units: n - s.row.Total, Count: 1,
			Note: "not repairable: the database confirms no order beyond the total, and rejects those that are queued",
		})
	}
	switch {
	case !s.live.Loaded:
		return out
	case s.live.Damaged:
		return append(out, Drift{Kind: DriftDamaged, Expected: s.left(), Units: s.left(), Count: 1})
	}
	if want := s.left(); s.live.Left != want {
		out = append(out, Drift{Kind: DriftLeft, Expected: want, Found: s.live.Left, Units: distance(want, s.live.Left), Count: 1})
	}
	if terms := otherTerms(&s.row, &s.live); len(terms) > 0 {
		out = append(out, Drift{
			Kind: DriftVersion, Expected: s.row.Version, Found: s.live.Version, Count: len(terms),
			Note: "differs in " + strings.Join(terms, ", "),
		})
	}
	if d := s.wrongRecords(); d.Count > 0 {
		out = append(out, d)
	}
	return out
}

// otherTerms names what a sale has otherwise than its item's row.
func otherTerms(row *itemRow, live *inventory.Live) []string {
	var out []string
	for _, f := range []struct {
		name string
		same bool
	}{
		{"version", row.Version == live.Version},
		{"per_user_limit", row.PerUserLimit == live.PerUserLimit},
		{"opens_at", row.OpensAt == live.OpensAt.UnixMilli()},
		{"closes_at", row.ClosesAt == toMillis(live.ClosesAt)},
		{"control", row.Control == live.Control},
	} {
		if !f.same {
			out = append(out, f.name)
		}
	}
	return out
}

// wrongRecords judges the suspects.
func (s *sight) wrongRecords() Drift {
	d := Drift{Kind: DriftHolds}
	note := func(want, got int64) {
		d.Count++
		d.Expected += want
		d.Found += got
		d.Units += distance(want, got)
	}
	queued := make(map[inventory.EntryKey]*task, len(s.pending))
	for _, t := range s.pending {
		queued[keyOf(&t)] = &t
	}
	for i, k := range s.keys {
		got := int64(0)
		if e := &s.entries[i]; e.Known && !e.Returned {
			got = e.Quantity
		}
		if want, right := s.judge(k, &s.entries[i], queued[k]); !right {
			note(want, got)
		}
	}
	of := make(map[string]int64, len(s.buyers))
	for k, t := range queued {
		// The database will refuse what has another order's key, and a build of the
		// sale counts its buyer with the other.
		if _, taken := s.rows[k]; !taken {
			of[t.UserID] += t.Quantity
		}
	}
	for i := range s.limbo {
		of[s.limbo[i].UserID] += s.limbo[i].Quantity
	}
	for i, b := range s.buyers {
		if want := s.held[b] + of[b]; s.counts[i] != want {
			note(want, max(s.counts[i], 0))
		}
	}
	return d
}

// judge says whether a sale remembers rightly what a key has made, and how many
// units it should count for it.
func (s *sight) judge(key inventory.EntryKey, e *inventory.Entry, queued *task) (units int64, right bool) {
	if t, ok := s.pending[e.OrderID]; ok && e.Known && !e.Returned && keyOf(&t) == key && t.Quantity == e.Quantity {
		return t.Quantity, true
	}
	for i := range s.limbo {
		if s.limbo[i].ID == e.OrderID {
			return e.Quantity, true
		}
	}
	row, ok := s.rows[key]
	switch {
	case ok && queued != nil:
		return e.Quantity, true // one of the two is going to be refused for its key
	case ok && row.holds():
		return row.Quantity, e.OrderID == row.ID && e.Quantity == row.Quantity && !e.Returned
	case queued != nil:
		return queued.Quantity, false
	default:
		// Nothing holds units under this key: what is remembered must not, either.
		return 0, !e.Known || e.Returned
	}
}
