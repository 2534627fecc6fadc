package worker

import (
	"time"

	"flashsale/order/release"
)

// What only the external tests of this package use.

const (
	FreePage       = freePage
	IdlePages      = idlePages
	RetryPage      = retryPage
	SelectFreeable = selectFreeable
	UnloadAfter    = unloadAfter
	SweepPage      = sweepPage
)

var (
	ErrTaskType    = errTaskType
	Freeable       = freeable
	NoteFreedItems = noteFreedItems
)

// FreeableItem is freeableItem.
type FreeableItem = freeableItem

// NewFreeableItem returns an item as a page of them has it.
func NewFreeableItem(id string, version int64) FreeableItem {
	return FreeableItem{id: id, version: version}
}

// SetBulkTime sets how long a call of a bulk operation may take.
func (b *Backlog) SetBulkTime(d time.Duration) { b.bulkTime = d }

// SetGroupsTime sets how long Groups may take.
func (b *Backlog) SetGroupsTime(d time.Duration) { b.groupsTime = d }

// SetGiveUpAfter sets how long the writes of a batch may fail before it is given up.
func (f *Fulfiller) SetGiveUpAfter(d time.Duration) { f.giveUpAfter = d }

// BacklogReleaser returns what releases the units of discarded orders.
func (b *Backlog) BacklogReleaser() *release.Releaser { return b.releaser }
