package reconcile

import (
	"flashsale/internal/testing/await"
	"flashsale/order"
	"flashsale/order/shoptest"
)

// ledgerOf reads the ledger of a shop's item.
func ledgerOf(s *shoptest.Shop) order.Ledger {
	s.T.Helper()
	l, err := ReconcilerOf(s).Ledger(await.Context(s.T), s.Item)
	if err != nil {
		s.T.Fatal(err)
	}
	return l
}
