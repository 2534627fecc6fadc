// Package reconcile compares Redis with the database, item by item, and repairs counts. Its
// inspection also answers with the ledger of an item.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/release"
	"flashsale/order/store"
	"flashsale/order/timeouts"
)

// Config configures a Reconciler. All fields but HighWater and OnRepair are
// required.
type Config struct {
	Store    *store.Store
	Stock    Examiner
	Records  Records
	Tasks    []order.Queued // one per partition
	Releaser *release.Releaser
	// HighWater finds items of which the database is older than Redis. They are reported
	// and not repaired. Default nil: not checked.
	HighWater *store.HighWater
	// OnRepair is called for every repaired difference. Default: nothing.
	OnRepair func(item string, d Drift)
}

// Reconciler inspects items, and repairs the effects of faults. It never changes an order
// or a task, only counts, which it recomputes from them. Any number of reconcilers may run
// concurrently.
type Reconciler struct {
	*inspector
	// turn lets one requested reconciliation run at a time, beside the background's: each
	// occupies a reading connection.
	turn chan struct{}
	// busy is the number of tasks from which the background does not read a queue.
	busy int
}

// busyTasks is the default of Reconciler.busy: reading them takes about a tenth of a
// second.
const busyTasks = 20_000

// NewReconciler returns a Reconciler.
func NewReconciler(cfg Config) *Reconciler {
	if cfg.OnRepair == nil {
		cfg.OnRepair = func(string, Drift) {}
	}
	x := &inspector{Config: cfg, hold: timeouts.Inspect, repeat: repeatLimit}
	return &Reconciler{inspector: x, turn: make(chan struct{}, 1), busy: busyTasks}
}

// Repair is what a reconciliation may change.
type Repair int

const (
	// RepairNothing changes nothing.
	RepairNothing Repair = iota
	// RepairSales rebuilds sales that differ from the database.
	RepairSales
	// RepairAll also recomputes the database's counts of its own orders.
	RepairAll
)

// Options select what to reconcile.
type Options struct {
	ItemID string // empty: every item
	// Deep also compares the database's counts with its orders, and every record of the
	// sales. It reads all of both.
	Deep   bool
	Repair Repair
	// Actor and RequestID are for the audit entries of repairs in the database.
	Actor     string
	RequestID string
}

// itemsPage is how many items are inspected together: the queues are read once for all of
// them.
const itemsPage = 1024

// itemLimit bounds the time for reading the orders or the records of one item.
const itemLimit = 2 * time.Minute

// Reconcile examines one item or all. If an item cannot be examined, the report contains
// its error, and the others are still examined. Errors: catalog.ErrItemNotFound for a
// requested item, database.ErrUnavailable if the items cannot be listed, inventory.ErrUnavailable if
// the queues cannot be read, and the end of ctx.
func (r *Reconciler) Reconcile(ctx context.Context, o Options) (Report, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return Report{}, fmt.Errorf("wait for another reconciliation: %w", context.Cause(ctx))
	}
	began := time.Now()
	report := Report{StartedAt: r.Store.Now().UTC(), Deep: o.Deep, Repair: o.Repair, Balanced: true}
	var ids []string
	if o.ItemID != "" {
		rows, err := store.Buckets(ctx, r.Store, o.ItemID)
		if err != nil {
			return report, err
		}
		ids = bucket.IDs(o.ItemID, len(rows))
	}
	for after := ""; ; {
		if o.ItemID == "" {
			var err error
			if ids, err = r.Store.ItemIDs(ctx, after, itemsPage); err != nil {
				return report, err
			}
			if len(ids) == 0 {
				break
			}
			after = ids[len(ids)-1]
		}
		page := make([]*examination, len(ids))
		for n, id := range ids {
			page[n] = r.examine(ctx, id, o, o.Deep)
			if err := page[n].err; o.ItemID != "" && errors.Is(err, catalog.ErrItemNotFound) {
				return report, err
			}
		}
		if err := r.conclude(ctx, page, 0); err != nil {
			return report, err
		}
		for _, e := range page {
			if !errors.Is(e.err, catalog.ErrItemNotFound) {
				report.add(e.report())
			}
		}
		if o.ItemID != "" {
			break
		}
	}
	report.Took = time.Since(began)
	return report, nil
}

// examination is the examination of one item during a reconciliation.
type examination struct {
	*inspection
	r        *Reconciler
	old      bool    // the database is older than Redis, and no other difference is reported
	database []Drift // differences within the database
	sale     []Drift
	repair   Repair
	partial  bool
}

// examine inspects an item, with held also under its lock, and compares the database's
// counts with its orders if that is requested.
func (r *Reconciler) examine(ctx context.Context, item string, o Options, held bool) *examination {
	e := &examination{inspection: &inspection{item: item, queued: -1}, r: r, repair: o.Repair}
	if old, err := e.behind(ctx); err != nil || old {
		e.old, e.err = old, err
		return e
	}
	e.inspection = r.inspect(ctx, item)
	if held && e.err == nil && e.seen.live.Loaded {
		// Only a holder of the lock can find out that the sale refuses it.
		if seen, err := r.observeHeld(ctx, item, make(map[string]bool), nil); err == nil {
			e.seen = seen
		}
	}
	if e.err == nil && o.Deep {
		e.err = e.checkBooks(ctx, o)
		e.deep = newRecordCheck()
	}
	return e
}

// behind reports whether the database is older than Redis. If it is, no other difference of
// the item is reported, because neither side is right.
func (e *examination) behind(ctx context.Context) (bool, error) {
	if e.r.HighWater == nil {
		return false, nil
	}
	found, err := e.r.HighWater.Compare(ctx, []string{e.item})
	if err != nil || len(found) == 0 {
		return false, err
	}
	b := found[0]
	e.database = []Drift{{
		Kind: DriftDatabaseOld, Expected: b.Redis, Found: b.Database, Count: 1,
		Note: "not repaired: the database is older than Redis, as after the restore of a backup; decide with flashsale recover --from redis|database",
	}}
	return true, nil
}

// booksTries is how many times the comparison of an item that changes meanwhile is started.
const booksTries = 3

// allPages is a number of pages larger than any item has.
const allPages = 1 << 40

// checkBooks compares the database's counts with its orders, and repairs them if that is
// requested.
func (e *examination) checkBooks(ctx context.Context, o Options) error {
	b, err := e.compareBooks(ctx)
	if err != nil || b == nil {
		return err
	}
	if o.Repair == RepairAll && (b.inconsistent() || has(e.database, DriftBuyers)) {
		return e.repairBooks(ctx, b, o)
	}
	return nil
}

// compareBooks compares all orders and buyers of an item; nil means that the item changed too
// often, or the comparison took too long.
func (e *examination) compareBooks(ctx context.Context) (*books, error) {
	ctx, cancel := context.WithTimeout(ctx, itemLimit)
	defer cancel()
	for range booksTries {
		var b books
		moved, err := readBooks(ctx, e.r.Store, e.item, &b, allPages)
		if errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		if moved {
			continue
		}
		e.database = b.drifts()
		e.off = b.held - b.row.Sold
		return &b, nil
	}
	e.partial = true
	return nil, nil
}

// repairBooks repairs the database's counts.
func (e *examination) repairBooks(ctx context.Context, b *books, o Options) error {
	found := e.database
	err := repairCounts(ctx, e.r.Store, e.item, b, o.Actor, o.RequestID)
	note := ""
	switch {
	case errors.Is(err, errNotRepairable):
		note = "not repairable: the orders hold more than the item's total"
	case errors.Is(err, errMoved):
		note = "not repaired: the item changes too often; pause the sale and repeat"
	case err != nil:
		return err
	default:
		if _, err := e.compareBooks(ctx); err != nil {
			return err
		}
		e.seen, e.err = e.r.observe(ctx, e.item)
	}
	still := e.database
	for n := range found {
		if d := &found[n]; d.Kind == DriftSold || d.Kind == DriftBuyers {
			d.Note = joinNotes(d.Note, note)
			d.Repaired = err == nil && !has(still, d.Kind)
		}
	}
	e.database = found
	return e.err
}

// conclude judges all items, reading the queues if necessary, and rebuilds the sales that
// differ if that is allowed. most is that of countQueued.
func (r *Reconciler) conclude(ctx context.Context, page []*examination, most int) error {
	if err := r.judge(ctx, page, most); err != nil {
		return err
	}
	var rebuilt []*examination
	found := make(map[*examination][]Drift)
	for _, e := range page {
		if e.repair == RepairNothing || !anyOfSale(e.sale) {
			continue
		}
		if e.mayRebuild(ctx) && e.rebuild(ctx) {
			rebuilt = append(rebuilt, e)
			found[e] = e.sale
			e.queued = -1
		}
	}
	if err := r.judge(ctx, rebuilt, most); err != nil {
		return err
	}
	for _, e := range rebuilt {
		still := e.sale
		e.sale = found[e]
		for n := range e.sale {
			d := &e.sale[n]
			d.Repaired = e.err == nil && d.Kind.ofSale() && !has(still, d.Kind)
		}
		e.sale = append(e.sale, slices.DeleteFunc(still, func(d Drift) bool { return has(e.sale, d.Kind) })...)
	}
	return nil
}

// judge determines the differences, reading the queues if necessary.
func (r *Reconciler) judge(ctx context.Context, page []*examination, most int) error {
	var open []*inspection
	for _, e := range page {
		if !e.old {
			open = append(open, e.inspection)
		}
	}
	if err := r.countQueued(ctx, open, most); err != nil {
		return err
	}
	for _, e := range page {
		if e.old {
			continue
		}
		e.sale = e.drifts()
		loaded := e.seen.live.Loaded && !e.seen.live.Damaged
		e.partial = e.partial || loaded && (e.seen.moving || e.open() || e.deep != nil && (e.queued < 0 || e.deep.incomplete))
	}
	return nil
}

// mayRebuild reports whether the database's own counts agree: a sale is built from them,
// and would otherwise be wrong again.
func (e *examination) mayRebuild(ctx context.Context) bool {
	if e.deep == nil {
		if b, err := e.compareBooks(ctx); err != nil || b == nil {
			e.err = err
			return false
		}
	}
	if e.off == 0 {
		return true
	}
	e.sale = e.drifts()
	for n := range e.sale {
		if d := &e.sale[n]; d.Kind.ofSale() {
			d.Note = joinNotes(d.Note, "not repaired: the sale would be built from a database that contradicts itself")
		}
	}
	return false
}

// rebuild rebuilds the sale if it is unchanged since it was judged, or if its counters
// under the lock show a fault.
func (e *examination) rebuild(ctx context.Context) bool {
	judged := e.seen
	_, err := e.r.observeHeld(ctx, e.item, make(map[string]bool), func(now *observation) bool {
		fresh := inspection{item: e.item, seen: *now, queued: -1, off: e.off}
		return now.same(&judged) || now.live.Damaged || anyOfSale(fresh.drifts())
	})
	if err != nil && !errors.Is(err, inventory.ErrRebuilding) {
		e.err = err
		return false
	}
	e.r.again(ctx, e.inspection)
	return e.err == nil
}

// report returns the item's report.
func (e *examination) report() *ItemReport {
	rep := &ItemReport{ItemID: e.item, Err: e.err, Drifts: slices.Concat(e.database, e.sale), Partial: e.partial}
	if rep.Err != nil {
		rep.Err = fmt.Errorf("reconcile item %s: %w", e.item, e.err)
	}
	if !e.old && e.err == nil {
		rep.Ledger, rep.Loaded, rep.LateReleases = e.ledger(), e.seen.live.Loaded, e.seen.late
	}
	for _, d := range rep.Drifts {
		if d.Repaired {
			e.r.OnRepair(e.item, d)
		}
	}
	return rep
}

func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

func anyOfSale(drifts []Drift) bool {
	return slices.ContainsFunc(drifts, func(d Drift) bool { return d.Kind.ofSale() })
}

func has(drifts []Drift, kind DriftKind) bool {
	return slices.ContainsFunc(drifts, func(d Drift) bool { return d.Kind == kind })
}
