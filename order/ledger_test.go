package order

import (
	"flashsale/internal/testing/await"
)

// ledgerOf reads the ledger of a site's item.
func ledgerOf(s *site) Ledger {
	s.t.Helper()
	l, err := s.reconciler().Ledger(await.Context(s.t), s.item)
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}
