package order

import "time"

// DriftKind names what two places say differently of an item.
type DriftKind string

// The kinds of drift. Those of the database contradict each other within one of
// its snapshots; those of the sale are in Redis, and the database is right.
const (
	// DriftTotal: items.total is not the initial stock and the recorded changes.
	DriftTotal DriftKind = "total"
	// DriftSold: items.sold is not what the item's orders hold, or items.awaiting not
	// what of that awaits payment.
	DriftSold DriftKind = "sold"
	// DriftBuyers: rows of buyers are not what these buyers' orders hold.
	DriftBuyers DriftKind = "buyers"
	// DriftOversold: orders, committed and accepted, hold more than the total. The
	// database confirms none beyond it; those that are queued will be rejected.
	DriftOversold DriftKind = "oversold"
	// DriftLeft: the sale's units left are not what the orders leave.
	DriftLeft DriftKind = "left"
	// DriftVersion: the sale has not the item's version, or not its terms.
	DriftVersion DriftKind = "version"
	// DriftHolds: the sale remembers an order or counts a buyer wrongly.
	DriftHolds DriftKind = "holds"
	// DriftDatabaseOld: the database is older than Redis, as after the restore of a
	// backup. Expected and Found are revisions. Nothing of the item is repaired.
	DriftDatabaseOld DriftKind = "database_old"
	// DriftDamaged: the sale cannot be read, and nothing is sold.
	DriftDamaged DriftKind = "damaged"
)

// DriftKinds are all kinds, in the order in which they are reported.
var DriftKinds = []DriftKind{DriftDatabaseOld, DriftTotal, DriftSold, DriftBuyers, DriftOversold, DriftDamaged, DriftLeft, DriftVersion, DriftHolds}

// ofSale reports whether a new build of the sale in Redis is the mend.
func (k DriftKind) ofSale() bool {
	return k == DriftLeft || k == DriftVersion || k == DriftHolds || k == DriftDamaged
}

// Drift is one difference that a reconciliation has found. What is under way between
// Redis and the database is none.
type Drift struct {
	Kind DriftKind
	// Expected and Found are units; of DriftVersion they are versions of the item, and
	// of DriftDatabaseOld revisions.
	Expected, Found int64
	// Units is how far off that is: of DriftBuyers the sum over all that is wrong,
	// which may be more than the difference of Expected and Found. DriftHolds only
	// counts records: Found, Units and Count are how many are wrong.
	Units int64
	// Count is how many rows or records are wrong, at least.
	Count    int
	Repaired bool
	// Note says what more there is to know, such as why it was not repaired.
	Note string
}

// ItemReport is what a reconciliation found of one item.
type ItemReport struct {
	ItemID string
	// Ledger is the conservation equation, after the repair if there was one. What
	// is left of a sale that is not loaded is what its next load will find.
	Ledger Ledger
	// Loaded says that the sale is in Redis. One that is not is no fault: its next
	// purchase loads it.
	Loaded bool
	Drifts []Drift
	// LateReturns is how many closed orders have waited for minutes to give their
	// units back; the sweeper sees to them.
	LateReturns int64
	// Partial says that not everything could be compared, since the item did not keep
	// still, or too much is queued: what was not seen may be wrong.
	Partial bool
	// Err says why the item could not be examined.
	Err error
}

// Mended reports whether the item was examined and no difference is left.
func (r *ItemReport) Mended() bool {
	for i := range r.Drifts {
		if !r.Drifts[i].Repaired {
			return false
		}
	}
	return r.Err == nil
}

// notable reports whether a report on many items must not leave this one out.
func (r *ItemReport) notable() bool {
	return len(r.Drifts) > 0 || r.Err != nil || r.Partial || r.LateReturns > 0
}

// ReconcileReport is what a reconciliation found.
type ReconcileReport struct {
	StartedAt time.Time
	Took      time.Duration
	Deep      bool
	Repair    Repair
	Examined  int // items, those that failed included
	Differing int // items with a difference, repaired or not
	Failed    int // items that could not be examined
	Repaired  int // differences
	// Balanced says that every item was examined and no difference is left.
	Balanced bool
	// Items are those with something to tell, and the first of the others.
	Items []ItemReport
	// Omitted is how many items are examined and not listed.
	Omitted int
}

// Bounds of a report: items that balance, and items with something to tell.
const (
	listedQuiet   = 1000
	listedNotable = 10_000
)

// add takes an item into the report.
func (r *ReconcileReport) add(item *ItemReport) {
	r.Examined++
	if len(item.Drifts) > 0 {
		r.Differing++
	}
	if item.Err != nil {
		r.Failed++
	}
	for i := range item.Drifts {
		if item.Drifts[i].Repaired {
			r.Repaired++
		}
	}
	r.Balanced = r.Balanced && item.Mended()
	bound := listedQuiet
	if item.notable() {
		bound = listedNotable
	}
	if len(r.Items) >= bound {
		r.Omitted++
		return
	}
	r.Items = append(r.Items, *item)
}
