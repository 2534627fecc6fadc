package payments

import (
	"strings"
	"testing"

	"flashsale/order"
	"flashsale/order/ordertest"
	"flashsale/order/store/storetest"
)

// TestPaymentFilter_Plans: an index leads to each page of a list of payments.
func TestPaymentFilter_Plans(t *testing.T) {
	t.Parallel()
	ordertest.NeedSQLite(t)
	s := storetest.New(t)
	for _, outcome := range append([]order.PaymentOutcome{""}, order.PaymentOutcomes...) {
		for _, needsRefund := range []bool{false, true} {
			byReference, refArgs := statement(order.PaymentFilter{Outcome: outcome, NeedsRefund: needsRefund, Reference: "psp-1", Limit: 20})
			if plan := ordertest.Plan(t, s, byReference, refArgs...); !strings.Contains(plan, "(reference=? AND rowid<?)") || strings.Contains(plan, "SCAN") {
				t.Errorf("plan of %s:\n%s", byReference, plan)
			}
			query, args := statement(order.PaymentFilter{Outcome: outcome, NeedsRefund: needsRefund, Limit: 20})
			want := "id<?)"
			if outcome != "" {
				want = "(outcome=? AND id<?)"
			}
			plan := ordertest.Plan(t, s, query, args...)
			if !strings.Contains(plan, want) || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("plan of %s:\n%s\nwant %s", query, plan, want)
			}
		}
	}
}
