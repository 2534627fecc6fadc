package store

import (
	"time"
)

// Clock is the time by which sales open and close.
type Clock interface {
	// Now is the time for everything that belongs to no single item.
	Now() time.Time
	// ItemNow is the time by which the item's sale opens and closes.
	ItemNow(item string) time.Time
}

// WithClock makes the store write and compare times by this clock instead of the host's, so
// that all processes agree on when an order expires and whether a payment is late.
func WithClock(c Clock) Option {
	return func(s *Store) { s.now, s.itemNow = c.Now, c.ItemNow }
}

// OpenMargin puts the default opening of an item into the past. The item must be on sale at
// once, and the clock of Redis is known only to within half a round trip, which takes at
// most about a second.
const OpenMargin = time.Second

// defaultOpening is the opening of an item that is created without one.
func defaultOpening(s *Store, item string) time.Time {
	return SaleTime(s, item).Add(-OpenMargin)
}

// SaleTime is the time by which an item's sale opens and closes.
func SaleTime(s *Store, item string) time.Time {
	if s.itemNow != nil {
		return s.itemNow(item)
	}
	return s.now()
}
