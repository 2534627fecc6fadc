// Package timeouts bounds single calls of the packages under order. They are variables
// because the machine of a test may be busy.
package timeouts

import (
	"time"
)

// The database.
var (
	// Read bounds a single read: a long one must not keep the few reading
	// connections from the purchases, which read the catalogue through them.
	Read = 3 * time.Second
	// Write bounds the wait of a single write for its turn, and then the statements
	// of those that need a bound.
	Write = 6 * time.Second
	// Group bounds the time in which one transaction accepts changes, without a batch
	// of orders. A change that has begun is finished.
	Group = 4 * time.Millisecond
	// GroupShare is the part of a batch's own time that changes get in its transaction.
	GroupShare = 0.15
	// GroupLeast is the least time that changes get in the transaction of a batch.
	GroupLeast = 500 * time.Microsecond
)

// Redis.
var (
	// Show bounds the read of what is left of an item that is shown.
	Show = 200 * time.Millisecond
	// Release bounds the release of one batch of orders: what is not released by then
	// stays recorded and is tried again.
	Release = 2 * time.Second
	// Notify bounds the publishing of a batch's notices: their loss delays an answer,
	// so it must not delay the next batch for long.
	Notify = time.Second
	// Announce bounds the publishing of changed orders: a lost message only delays
	// an event, so publishing must not delay what has changed the orders for long.
	Announce = time.Second
	// Revisions bounds the recording of a transaction's revisions: without it, the next
	// transaction or check records them.
	Revisions = 700 * time.Millisecond
	// Refill bounds the refill of a bucket, which may wait for buckets that are being changed
	// or loaded. It also bounds how long a purchase is tried again after refills whose units
	// other buyers have taken.
	Refill = 1500 * time.Millisecond
	// Inspect bounds how long an inspection blocks sales of an item once it has the lock.
	// It usually takes one or two milliseconds.
	Inspect = 20 * time.Millisecond
)
