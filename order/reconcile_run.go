package order

import (
	"context"
	"maps"
	"time"
)

// deepEvery is after how many rounds the background looks at every record.
const deepEvery = 10

// doubt is what the background remembers of an item whose sale differed in the
// round before.
type doubt struct {
	deep  bool // only a deep look saw it
	tried bool // a new build did not help; another would not, either
}

// Run reconciles all items after every interval, until ctx ends; every tenth
// time, and again where something was found then, it looks at every record. A
// sale that differs in two rounds is built anew. What differs within the database is only
// told: to mend that is a person's decision. heard is called after every round.
func (r *Reconciler) Run(ctx context.Context, every time.Duration, heard func(ReconcileReport, error)) {
	doubts := make(map[string]doubt)
	for round := 1; pause(ctx, every); round++ {
		report, err := r.round(ctx, round%deepEvery == 0, doubts)
		if ctx.Err() != nil {
			return // it was cut off, and says nothing
		}
		heard(report, err)
	}
}

// round is one round; it brings doubts up to date.
func (r *Reconciler) round(ctx context.Context, deep bool, doubts map[string]doubt) (ReconcileReport, error) {
	report, err := r.reconcile(ctx, ReconcileOptions{Deep: deep, patient: true}, func(item string) (bool, Repair) {
		d, doubted := doubts[item]
		if doubted && !d.tried {
			return deep || d.deep, RepairSales
		}
		return deep || d.deep, RepairNothing
	})
	if err != nil {
		return report, err // half a round says nothing of the items behind it
	}
	before := maps.Clone(doubts)
	clear(doubts)
	for i := range report.Items {
		item := &report.Items[i]
		was, doubted := before[item.ItemID]
		if item.Err != nil || item.Partial && !anyOfSale(item.Drifts) {
			if doubted {
				doubts[item.ItemID] = was
			}
			continue
		}
		// From a count that is wrong no sale is built, so that was no try.
		tried := was.tried || doubted && !has(item.Drifts, DriftSold)
		for _, d := range item.Drifts {
			if d.Kind.ofSale() && !d.Repaired {
				was.deep = was.deep || d.Kind == DriftHolds
				doubts[item.ItemID] = doubt{deep: was.deep, tried: tried}
			}
		}
	}
	return report, nil
}
