package order

import (
	"strings"
	"testing"
)

// TestPaymentFilter_Plans: an index leads to each page of a list of payments.
func TestPaymentFilter_Plans(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, outcome := range append([]PaymentOutcome{""}, PaymentOutcomes...) {
		for _, owed := range []bool{false, true} {
			query, args := PaymentFilter{Outcome: outcome, NeedsRefund: owed, Limit: 20}.statement()
			want := "id<?)"
			if outcome != "" {
				want = "(outcome=? AND id<?)"
			}
			plan := planOf(t, s, query, args)
			if !strings.Contains(plan, want) || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("plan of %s:\n%s\nwant %s", query, plan, want)
			}
		}
	}
}
