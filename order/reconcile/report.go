package reconcile

import (
	"time"

	"flashsale/internal/bucket"
	"flashsale/order"
)

// DriftKind names a difference between two places that count an item.
type DriftKind string

// The kinds of drift. Those of the database are contradictions within one of its snapshots.
// Those of the sale are in Redis, and the database is right.
const (
	// DriftTotal: items.total differs from the initial stock plus the recorded changes.
	DriftTotal DriftKind = "total"
	// DriftSold: items.sold differs from the units that the item's orders hold, or
	// items.awaiting from those that await payment.
	DriftSold DriftKind = "sold"
	// DriftBuyers: rows of buyers differ from the units that these buyers' orders hold.
	DriftBuyers DriftKind = "buyers"
	// DriftOversold: committed and accepted orders hold more than the total. The database
	// confirms none beyond it; the queued ones will be rejected.
	DriftOversold DriftKind = "oversold"
	// DriftLeft: the sale's units left differ from the units that the orders leave.
	DriftLeft DriftKind = "left"
	// DriftVersion: the sale has another version than the item, or other terms.
	DriftVersion DriftKind = "version"
	// DriftHolds: the sale has a wrong record of an order or a wrong count of a buyer.
	DriftHolds DriftKind = "holds"
	// DriftDatabaseOld: the database is older than Redis, as after the restore of a backup.
	// Expected and Found are revisions. The item is not repaired.
	DriftDatabaseOld DriftKind = "database_old"
	// DriftDamaged: the sale cannot be read, and nothing is sold.
	DriftDamaged DriftKind = "damaged"
)

// DriftKinds are all kinds, in the order in which they are reported.
var DriftKinds = []DriftKind{DriftDatabaseOld, DriftTotal, DriftSold, DriftBuyers, DriftOversold, DriftDamaged, DriftLeft, DriftVersion, DriftHolds}

// ofSale reports whether rebuilding the sale in Redis repairs the drift.
func (k DriftKind) ofSale() bool {
	return k == DriftLeft || k == DriftVersion || k == DriftHolds || k == DriftDamaged
}

// Drift is one difference found by a reconciliation. Orders on their way from Redis to the
// database are no difference.
type Drift struct {
	Kind DriftKind
	// Expected and Found are units; for DriftVersion they are versions of the item, and for
	// DriftDatabaseOld revisions.
	Expected, Found int64
	// Units is the size of the difference. For DriftBuyers it is the sum over all wrong
	// rows, which may exceed the difference of Expected and Found. DriftHolds only counts
	// records: Found, Units and Count are the number of wrong ones.
	Units int64
	// Count is the minimum number of wrong rows or records.
	Count    int
	Repaired bool
	// Note has additional information, such as why the drift was not repaired.
	Note string
}

// ItemReport is the result for one item, or for one bucket of a divided item.
type ItemReport struct {
	ItemID string
	// Ledger is the conservation equation, after the repair if there was one. If the sale
	// is not loaded, Left is what its next load will compute.
	Ledger order.Ledger
	// Loaded means that the sale is in Redis. A sale that is not loaded is not a fault: its
	// next purchase loads it.
	Loaded bool
	Drifts []Drift
	// LateReleases is how many closed orders have waited for minutes for the release of
	// their units; the sweeper retries them.
	LateReleases int64
	// Partial means that not everything could be compared, because the item kept changing,
	// or too much is queued. The rest may be wrong.
	Partial bool
	// Err says why the item could not be examined.
	Err error
}

// Clean reports whether the item was examined and no difference remains.
func (r *ItemReport) Clean() bool {
	for i := range r.Drifts {
		if !r.Drifts[i].Repaired {
			return false
		}
	}
	return r.Err == nil
}

// notable reports whether a report on many items must list this one.
func (r *ItemReport) notable() bool {
	return len(r.Drifts) > 0 || r.Err != nil || r.Partial || r.LateReleases > 0
}

// Report is the result of a reconciliation. It counts a divided item once, and lists its buckets.
type Report struct {
	StartedAt time.Time
	Took      time.Duration
	Deep      bool
	Repair    Repair
	Examined  int // items, those that failed included
	Differing int // items with a difference, repaired or not
	Failed    int // items of which a bucket could not be examined
	Repaired  int // differences
	// Balanced means that every item was examined and no difference remains.
	Balanced bool
	// Items are the notable ones, and the first of the others.
	Items []ItemReport
	// Omitted is how many more items or buckets were examined and are not listed.
	Omitted int

	examined, differing, failed idSet
}

// idSet is a set of ids of items.
type idSet map[string]struct{}

// add adds an id, and reports whether it was not in the set.
func (s *idSet) add(id string) bool {
	if _, found := (*s)[id]; found {
		return false
	}
	if *s == nil {
		*s = make(idSet)
	}
	(*s)[id] = struct{}{}
	return true
}

// Bounds of the listed items: those that balance, and notable ones.
const (
	listedQuiet   = 1000
	listedNotable = 10_000
)

// add adds an item or a bucket to the report.
func (r *Report) add(item *ItemReport) {
	r.countExamined(item.ItemID)
	id := bucket.Item(item.ItemID)
	if len(item.Drifts) > 0 && r.differing.add(id) {
		r.Differing++
	}
	if item.Err != nil && r.failed.add(id) {
		r.Failed++
	}
	for i := range item.Drifts {
		if item.Drifts[i].Repaired {
			r.Repaired++
		}
	}
	r.Balanced = r.Balanced && item.Clean()
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

// countExamined counts an item once, with the first of its buckets.
func (r *Report) countExamined(id string) {
	if r.examined.add(bucket.Item(id)) {
		r.Examined++
	}
}
