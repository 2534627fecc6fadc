package worker

import "flashsale/order/release"

// What only the external tests of this package use.

const (
	FreePage       = freePage
	IdlePages      = idlePages
	SelectFreeable = selectFreeable
	StrangeAfter   = strangeAfter
	SweepPage      = sweepPage
)

var (
	ErrTaskType = errTaskType
	Freeable    = freeable
)

// FreeableItem is freeableItem.
type FreeableItem = freeableItem

// ID returns the item's id.
func (i freeableItem) ID() string { return i.id }

// Version returns the item's version.
func (i freeableItem) Version() int64 { return i.version }

// BacklogReturns returns what releases the units of discarded orders.
func (b *Backlog) BacklogReturns() *release.Returns { return b.returns }
