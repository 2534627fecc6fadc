package reconcile

import (
	"errors"
	"testing"

	"flashsale/internal/bucket"
)

// TestReport_Buckets: a divided item counts once, whatever the order and the results of its buckets, also
// when it is remembered from an earlier round.
func TestReport_Buckets(t *testing.T) {
	t.Parallel()
	var r Report
	for _, id := range bucket.IDs("divided", 9) {
		item := ItemReport{ItemID: id, Drifts: []Drift{{Kind: DriftLeft}, {Kind: DriftSold, Repaired: true}}}
		if id == "divided.7" || id == "divided.8" {
			item = ItemReport{ItemID: id, Err: errors.New("away")}
		}
		r.add(&item)
	}
	r.add(&ItemReport{ItemID: "whole"})
	for _, id := range bucket.IDs("quiet", 3) {
		r.recall(id, &remembered{})
	}
	// Bucket 0 may be missing, or be examined after others.
	for _, id := range []string{"part.2", "part.1", "late.1", "late"} {
		r.add(&ItemReport{ItemID: id})
	}
	if r.Examined != 5 || r.Differing != 1 || r.Failed != 1 || r.Repaired != 7 || len(r.Items) != 14 {
		t.Errorf("examined %d, differing %d, failed %d, repaired %d, listed %d; want 5, 1, 1, 7, 14",
			r.Examined, r.Differing, r.Failed, r.Repaired, len(r.Items))
	}
}
