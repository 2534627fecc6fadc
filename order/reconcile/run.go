package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order/schema"
)

const (
	// booksBudget is how many pages of orders and buyers a round of the background reads.
	booksBudget = 12
	// idleRounds is the number of idle rounds after which an item on sale is read under its
	// lock: a sale whose fencing token refuses every lock holder looks idle.
	idleRounds = 10
	// overAfter is how long after the end of its sale an item is still inspected.
	overAfter = 24 * time.Hour
)

// roundMemory is kept between the rounds of one Run. It has one entry per item that is on sale
// or ended less than overAfter ago.
type roundMemory struct {
	items map[string]*remembered
	// walk is the comparison in progress, and walked its item's id.
	walk   books
	walked string
}

// remembered is the result of the last round that examined an item.
type remembered struct {
	row    schema.Item
	live   inventory.Live
	report *ItemReport // nil: no difference
	idle   int         // rounds since the last change
	differ int         // consecutive rounds in which the sale differed
	tried  bool        // a rebuild that did not fail has not helped, so there is no second one
	unsure bool        // it could not be judged completely

	booked   schema.Item // the item when its orders were compared
	database []Drift     // the differences found then
	off      int64       // the number of units that the database's count of sold units lacks
}

// Run inspects items at intervals until ctx ends: those on sale, and those whose sale ended
// within a day. An item that has not changed since it agreed costs a share of a pipelined
// read of sales, and nothing once its sale has ended. A sale that differs in two rounds is
// rebuilt, once. Each round compares a few pages of the database's counts with its orders;
// differences there are only reported, because repairing them is an operator's decision.
// The callback gets the result of every round.
func (r *Reconciler) Run(ctx context.Context, every time.Duration, onReport func(Report, error)) {
	var b roundMemory
	for pause.For(ctx, every) {
		report, err := r.round(ctx, &b)
		if ctx.Err() != nil {
			return // the round was interrupted, and has no result
		}
		onReport(report, err)
	}
}

// round runs one round.
func (r *Reconciler) round(ctx context.Context, b *roundMemory) (Report, error) {
	began := time.Now()
	now := r.Store.Now()
	report := Report{StartedAt: now.UTC(), Balanced: true}
	if b.items == nil {
		b.items = make(map[string]*remembered)
	}
	met := make(map[string]bool)
	after := ""
	for {
		rows, err := itemRows(ctx, r.Store, after, now.Add(-overAfter))
		if err != nil {
			return report, err // an incomplete round has no result for the remaining items
		}
		if len(rows) == 0 {
			break
		}
		after = rows[len(rows)-1].ID
		for n := range rows {
			met[rows[n].ID] = true
		}
		if err := r.roundPage(ctx, b, rows, &report); err != nil {
			return report, err
		}
	}
	for item := range b.items {
		if !met[item] {
			delete(b.items, item)
		}
	}
	err := r.walkBooks(ctx, b)
	report.Took = time.Since(began)
	return report, err
}

// roundPage examines a page of items.
func (r *Reconciler) roundPage(ctx context.Context, b *roundMemory, rows []schema.Item, report *Report) error {
	now := r.Store.Now().UnixMilli()
	var ask []string
	for n := range rows {
		if row := &rows[n]; !b.items[row.ID].settled(row, now) {
			ask = append(ask, row.ID)
		}
	}
	lives, err := r.Stock.Lives(ctx, ask)
	if err != nil {
		lives = make([]inventory.Live, len(ask)) // then each item is read separately
	}
	var page []*examination
	for n := range rows {
		row := &rows[n]
		m := b.items[row.ID]
		asked := len(ask) > 0 && ask[0] == row.ID
		same := m != nil && m.row == *row && (!asked || m.live == lives[0])
		if asked {
			ask, lives = ask[1:], lives[1:]
		}
		if same && !m.unsure && (m.differ == 0 || m.tried) {
			m.idle++
			if !m.live.Loaded || over(row, now) || m.idle%idleRounds != 0 {
				report.recall(row.ID, m)
				continue
			}
		}
		held := m != nil && (same && m.idle > 0 || m.live.Damaged)
		page = append(page, r.examineAgain(ctx, row.ID, m, held))
	}
	if err := r.conclude(ctx, page, r.busy); err != nil {
		return err
	}
	for _, e := range page {
		if errors.Is(e.err, catalog.ErrItemNotFound) {
			continue
		}
		rep := e.report()
		b.remember(e, rep)
		report.add(rep)
	}
	return nil
}

// settled reports whether an item whose sale is over was fully examined in its present
// state.
func (m *remembered) settled(row *schema.Item, now int64) bool {
	return m != nil && over(row, now) && m.row == *row && !m.unsure && (m.differ == 0 || m.tried)
}

// over reports whether the item's sale has ended.
func over(r *schema.Item, now int64) bool {
	return r.Control == string(catalog.ControlClosed) || r.ClosesAt > 0 && r.ClosesAt <= now
}

// examineAgain examines an item for which an earlier result may exist.
func (r *Reconciler) examineAgain(ctx context.Context, item string, m *remembered, held bool) *examination {
	e := r.examine(ctx, item, Options{}, held)
	if m == nil || e.err != nil || e.old {
		return e
	}
	if row := figures(&e.seen.row); m.booked == row || m.booked.Revision != row.Revision {
		e.database, e.off = m.database, m.off // otherwise the counts were edited by hand
	}
	// A sale is not rebuilt from a wrong count, so that is not an attempt.
	if m.differ > 0 && !m.tried && e.off == 0 {
		e.repair = RepairSales
	}
	return e
}

// remember keeps a round's result.
func (b *roundMemory) remember(e *examination, rep *ItemReport) {
	m := b.items[e.item]
	if m == nil {
		m = &remembered{}
		b.items[e.item] = m
	}
	m.idle, m.report = 0, nil
	m.row, m.live = e.seen.row, e.seen.live
	if rep.notable() {
		m.report = rep
	}
	m.unsure = e.err != nil || e.partial || e.old
	if m.unsure && !anyOfSale(e.sale) {
		return // an earlier difference may still exist
	}
	m.tried = m.tried || e.err == nil && e.repair != RepairNothing && e.off == 0
	left := false
	for _, d := range e.sale {
		left = left || d.Kind.ofSale() && !d.Repaired
	}
	if !left {
		m.differ, m.tried = 0, false
		return
	}
	m.differ++
}

// recall adds the earlier result of an item to a report.
func (r *Report) recall(id string, m *remembered) {
	if m.report == nil {
		r.countExamined(id)
		return
	}
	rep := *m.report
	rep.Drifts = nil
	for _, d := range m.report.Drifts {
		if !d.Repaired {
			rep.Drifts = append(rep.Drifts, d)
		}
	}
	r.add(&rep)
}

// walkBooks compares the orders and buyers of items that have changed since their last
// comparison, in turn, up to booksBudget pages.
func (r *Reconciler) walkBooks(ctx context.Context, b *roundMemory) error {
	var due []string
	for item, m := range b.items {
		if m.booked != figures(&m.row) {
			due = append(due, item)
		}
	}
	slices.Sort(due)
	at, found := slices.BinarySearch(due, b.walked)
	if found && !b.walk.begun {
		at++ // it was compared, and has changed again: the others come first
	}
	left := booksBudget
	for _, item := range slices.Concat(due[at:], due[:at]) {
		if item != b.walked {
			b.walked, b.walk = item, books{}
		}
		for left > 0 && !b.walk.done() {
			moved, err := readBooks(ctx, r.Store, item, &b.walk, 1)
			if err != nil {
				return err
			}
			left--
			if moved {
				break // continue with the other items
			}
		}
		if b.walk.done() {
			b.items[item].close(&b.walk)
			b.walk = books{} // the item may change, and be the next one again
		} else if left <= 0 {
			return nil
		}
	}
	return nil
}

// close keeps the result of a comparison.
func (m *remembered) close(b *books) {
	m.booked, m.off = b.row, b.held-b.row.Sold
	before := m.database
	m.database = b.drifts()
	if !slices.Equal(before, m.database) {
		m.unsure = true // so that the next round reports it
	}
}
