package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/inventory"
	"flashsale/queue"
)

// Examiner is what a reconciliation needs of the inventory.
type Examiner interface {
	Partition(item string) int
	Live(ctx context.Context, item string) (inventory.Live, error)
	Examine(ctx context.Context, item string, look func(ctx context.Context, x *inventory.Examined) (rebuild bool, err error)) error
}

// Records is what a sale remembers of its orders and buyers.
type Records interface {
	EachEntry(ctx context.Context, item string, fn func([]inventory.Entry) error) error
	EachCount(ctx context.Context, item string, fn func([]inventory.BuyerCount) error) error
	Entries(ctx context.Context, item string, keys []inventory.EntryKey) ([]inventory.Entry, error)
	Counts(ctx context.Context, item string, buyers []string) ([]int64, error)
}

// QueuedOrders is what a reconciliation needs of a task queue of orders.
type QueuedOrders interface {
	Tasks
	Known(ctx context.Context, ids []string) ([]bool, error)
	Stats(ctx context.Context) (queue.Stats, error)
}

// ReconcilerConfig configures a Reconciler. All but OnRepair are required.
type ReconcilerConfig struct {
	Store   *Store
	Stock   Examiner
	Records Records
	Tasks   []QueuedOrders // one per partition
	Returns *Returns
	// HighWater finds items of which the database is older than Redis. They are
	// reported and not repaired. Default nil: none is.
	HighWater *HighWater
	// OnRepair hears of every difference that was repaired. Default: nothing.
	OnRepair func(item string, d Drift)
}

// Reconciler compares what Redis, the queue and the database say of each item,
// and mends what a fault has left behind. It never touches an order or a task:
// what it changes are counts, which it makes anew from them. Any number of them
// may be at work.
type Reconciler struct {
	ReconcilerConfig
	// turn lets one reconciliation that was asked for run at a time, beside the
	// background's: each occupies a reading connection.
	turn chan struct{}
	// busy is from how many tasks in an item's queue on the background puts off
	// what it would have to read them for.
	busy int
}

// busyTasks is Reconciler's busy: a tenth of a second's reading, about.
const busyTasks = 20_000

// NewReconciler returns a Reconciler.
func NewReconciler(cfg ReconcilerConfig) *Reconciler {
	if cfg.OnRepair == nil {
		cfg.OnRepair = func(string, Drift) {}
	}
	return &Reconciler{ReconcilerConfig: cfg, turn: make(chan struct{}, 1), busy: busyTasks}
}

// Repair is what a reconciliation may change.
type Repair int

const (
	// RepairNothing changes nothing.
	RepairNothing Repair = iota
	// RepairSales builds sales that differ from the database anew.
	RepairSales
	// RepairAll also recomputes what the database counts of its own orders.
	RepairAll
)

// ReconcileOptions say what to reconcile.
type ReconcileOptions struct {
	ItemID string // empty: every item
	// Deep looks at every record of the sales as well, and not only at the sums.
	Deep   bool
	Repair Repair
	// Actor and RequestID stand in the record of what was repaired in the database.
	Actor     string
	RequestID string
	// patient puts off what keeps an item from selling while much is queued.
	patient bool
}

const (
	itemsPage = 256
	// itemLimit bounds what one item may take.
	itemLimit = 2 * time.Minute
)

// Reconcile examines one item or all. An item that cannot be examined does not
// keep it from the others; the report says so. Errors: catalog.ErrItemNotFound
// for an item that is asked for, ErrDatabase when the items cannot be listed,
// and the end of ctx before the first item.
func (r *Reconciler) Reconcile(ctx context.Context, o ReconcileOptions) (ReconcileReport, error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return ReconcileReport{}, fmt.Errorf("wait for another reconciliation: %w", context.Cause(ctx))
	}
	return r.reconcile(ctx, o, func(string) (bool, Repair) { return o.Deep, o.Repair })
}

// reconcile asks how for each item how to go about it.
func (r *Reconciler) reconcile(ctx context.Context, o ReconcileOptions, how func(item string) (deep bool, repair Repair)) (ReconcileReport, error) {
	began := time.Now()
	report := ReconcileReport{StartedAt: r.Store.now().UTC(), Deep: o.Deep, Repair: o.Repair, Balanced: true}
	one := func(item string) error {
		own := o
		own.ItemID = item
		own.Deep, own.Repair = how(item)
		rep := r.item(ctx, own)
		if errors.Is(rep.Err, catalog.ErrItemNotFound) {
			return rep.Err
		}
		report.add(&rep)
		return nil
	}
	var err error
	if o.ItemID != "" {
		err = one(o.ItemID)
	} else {
		err = r.eachItem(ctx, one)
	}
	report.Took = time.Since(began)
	return report, err
}

// eachItem calls fn for every item. Items that come meanwhile may be missed.
func (r *Reconciler) eachItem(ctx context.Context, fn func(item string) error) error {
	after := ""
	for {
		ids, err := r.Store.itemIDs(ctx, after, itemsPage)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := fn(id); err != nil {
				return err
			}
		}
		if len(ids) < itemsPage {
			return nil
		}
		after = ids[len(ids)-1]
	}
}

func (r *Reconciler) tasksOf(item string) QueuedOrders { return r.Tasks[r.Stock.Partition(item)] }

// item examines one item.
func (r *Reconciler) item(ctx context.Context, o ReconcileOptions) ItemReport {
	ctx, cancel := context.WithTimeout(ctx, itemLimit)
	defer cancel()
	e := &examination{Reconciler: r, options: o, report: ItemReport{ItemID: o.ItemID}}
	if err := e.run(ctx); err != nil {
		e.report.Err = fmt.Errorf("reconcile item %s: %w", o.ItemID, err)
	}
	for _, d := range e.report.Drifts {
		if d.Repaired {
			r.OnRepair(o.ItemID, d)
		}
	}
	return e.report
}

// examination is one item on its way through a reconciliation.
type examination struct {
	*Reconciler
	options ReconcileOptions
	report  ItemReport
	sums    sums
}

func (e *examination) run(ctx context.Context) (err error) {
	if behind, err := e.behind(ctx); err != nil || behind {
		return err
	}
	if e.sums, err = e.Store.sums(ctx, e.report.ItemID); err != nil {
		return err
	}
	e.report.LateReturns = e.sums.late
	e.report.Drifts = e.sums.drifts()
	if e.options.Repair == RepairAll {
		if err := e.mendDatabase(ctx); err != nil {
			return err
		}
	}
	if e.options.Deep && !e.options.patient {
		return e.deep(ctx)
	}
	enough, err := e.quick(ctx)
	if err != nil || enough && !e.options.Deep {
		return err
	}
	if e.report.Partial, err = e.putOff(ctx); err != nil || e.report.Partial {
		return err
	}
	if e.options.Deep {
		return e.deep(ctx)
	}
	return e.careful(ctx, newSuspects())
}

// behind reports whether the database is older than Redis, which is all there is to
// report of the item then: neither place shows what the other should have.
func (e *examination) behind(ctx context.Context) (bool, error) {
	if e.HighWater == nil {
		return false, nil
	}
	found, err := e.HighWater.compare(ctx, []string{e.report.ItemID})
	if err != nil || len(found) == 0 {
		return false, err
	}
	b := found[0]
	e.report.Drifts = []Drift{{
		Kind: DriftDatabaseOld, Expected: b.Redis, Found: b.Database, Count: 1,
		Note: "not repaired: the database is older than Redis, as after the restore of a backup; decide with flashsale recover --from redis|database",
	}}
	return true, nil
}

// putOff reports whether a closer look has to wait for a quieter time. Under the
// item's lock all that is queued has to be read, for a small sum that is under way
// in any burst; a later round looks again.
func (e *examination) putOff(ctx context.Context) (bool, error) {
	if !e.options.patient {
		return false, nil
	}
	st, err := e.tasksOf(e.report.ItemID).Stats(ctx)
	if err != nil {
		return false, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	return st.Ready+st.Leased >= e.busy, nil
}

// mendDatabase repairs what the database says differently of its own orders.
func (e *examination) mendDatabase(ctx context.Context) error {
	repairable := func(d *Drift) bool { return d.Kind == DriftSold || d.Kind == DriftBuyers }
	wanted := false
	for i := range e.report.Drifts {
		wanted = wanted || repairable(&e.report.Drifts[i])
	}
	if !wanted {
		return nil
	}
	mended := true
	err := e.Store.mend(ctx, e.report.ItemID, e.options.Actor, e.options.RequestID)
	if errors.Is(err, errNotRepairable) {
		mended, err = false, nil
	}
	if err != nil {
		return err
	}
	if e.sums, err = e.Store.sums(ctx, e.report.ItemID); err != nil {
		return err
	}
	still := e.sums.drifts()
	for i := range e.report.Drifts {
		if d := &e.report.Drifts[i]; repairable(d) {
			d.Repaired = mended && !has(still, d.Kind)
			if !mended {
				d.Note = "not repairable: the orders hold more than the item's total"
			}
		}
	}
	return nil
}

// quick looks without keeping the item from selling, and reports whether that is
// enough: mostly nothing is under way, and everything agrees. A fault that a
// queued order happens to make up for is seen when that is committed, and by a deep look.
func (e *examination) quick(ctx context.Context) (bool, error) {
	live, err := e.Stock.Live(ctx, e.report.ItemID)
	if err != nil {
		return false, err
	}
	units := e.sums.held + e.sums.sold
	e.report.Loaded = live.Loaded
	if !live.Loaded {
		e.report.Ledger = e.sums.ledger(&e.sums.row, e.sums.row.Total-units, units, 0)
		return true, nil
	}
	e.report.Ledger = e.sums.ledger(&e.sums.row, live.Left, units, 0)
	return !live.Damaged && e.report.Ledger.Balanced() && len(otherTerms(&e.sums.row, &live)) == 0, nil
}

// careful looks under the item's lock, adds what differs to the report, and has
// the sale built anew if it may. Then it looks again.
func (e *examination) careful(ctx context.Context, s *suspects) error {
	// A sale is built from the item's count. Where that is wrong the new one would be, too.
	rebuild := e.options.Repair != RepairNothing && !e.sums.torn()
	found, err := e.look(ctx, s, rebuild)
	if err != nil && !errors.Is(err, inventory.ErrRebuilding) {
		return err
	}
	if err == nil && rebuild && anyOfSale(found) {
		var still []Drift
		if still, err = e.look(ctx, s, false); err == nil {
			for i := range found {
				d := &found[i]
				d.Repaired = d.Kind.ofSale() && !has(still, d.Kind)
			}
			found = append(found, slices.DeleteFunc(still, func(d Drift) bool { return has(found, d.Kind) })...)
		}
	}
	if e.options.Repair != RepairNothing && !rebuild {
		for i := range found {
			if d := &found[i]; d.Kind.ofSale() {
				d.Note = joinNotes(d.Note, "not repaired: the sale would be built from a database that contradicts itself")
			}
		}
	}
	e.merge(found)
	return err
}

// look is one look under the lock. With ErrRebuilding what it found stands.
func (e *examination) look(ctx context.Context, s *suspects, rebuild bool) (found []Drift, err error) {
	err = e.Stock.Examine(ctx, e.report.ItemID, func(ctx context.Context, x *inventory.Examined) (bool, error) {
		seen, err := e.sight(ctx, x, &e.sums, s)
		if err != nil {
			return false, err
		}
		found = seen.drifts()
		e.report.Loaded = seen.live.Loaded
		left := seen.live.Left
		if !seen.live.Loaded || seen.live.Damaged {
			left = seen.left()
		}
		e.report.Ledger = e.sums.ledger(&seen.row, left, seen.units, seen.taken())
		return rebuild && anyOfSale(found), nil
	})
	return found, err
}

func joinNotes(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// merge adds differences to the report, each kind once. One that is found again
// after it was repaired was not.
func (e *examination) merge(drifts []Drift) {
	for _, d := range drifts {
		i := slices.IndexFunc(e.report.Drifts, func(have Drift) bool { return have.Kind == d.Kind })
		if i < 0 {
			e.report.Drifts = append(e.report.Drifts, d)
			continue
		}
		have := &e.report.Drifts[i]
		have.Repaired = have.Repaired && d.Repaired
	}
}

func anyOfSale(drifts []Drift) bool {
	return slices.ContainsFunc(drifts, func(d Drift) bool { return d.Kind.ofSale() })
}

func has(drifts []Drift, kind DriftKind) bool {
	return slices.ContainsFunc(drifts, func(d Drift) bool { return d.Kind == kind })
}
