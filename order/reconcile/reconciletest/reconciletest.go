// Package reconciletest reconciles a shop in the tests of other packages.
package reconciletest

import (
	"flashsale/internal/testing/await"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/reconcile"
	"flashsale/order/shoptest"
)

// LedgerOf reads the ledger of a shop's item.
func LedgerOf(s *shoptest.Shop) order.Ledger {
	s.T.Helper()
	l, err := New(s).Ledger(await.Context(s.T), s.Item)
	if err != nil {
		s.T.Fatal(err)
	}
	return l
}

// New returns a reconciler of a shop.
func New(s *shoptest.Shop) *reconcile.Reconciler {
	return reconcile.NewReconciler(reconcile.Config{
		Store: s.Store, Stock: s.Stock, Records: s.Stock, Tasks: []order.Queued{accepted.NewOrders(s.Queue)}, Releaser: s.Service.Releaser,
	})
}

// Clean reconciles a shop's item, reports differences as errors, and returns its ledger.
func Clean(s *shoptest.Shop, when string, repair reconcile.Repair) order.Ledger {
	s.T.Helper()
	report, err := New(s).Reconcile(await.Context(s.T), reconcile.Options{ItemID: s.Item, Deep: true, Repair: repair, Actor: "root", RequestID: "r1"})
	if err != nil || len(report.Items) != 1 || len(report.Items[0].Drifts) > 0 || !report.Items[0].Ledger.Balanced() {
		s.T.Errorf("%s: %+v, %v, want no difference", when, report, err)
		return order.Ledger{}
	}
	return report.Items[0].Ledger
}
