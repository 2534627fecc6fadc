// Package order bounds single calls of the packages under order. They are variables
// because the machine of a test may be busy.
package order

import "time"

// The database.
var (
	// readTimeout bounds a single read: a long one must not keep the few reading
	// connections from the purchases, which read the catalogue through them.
	readTimeout = 3 * time.Second
	// writeTimeout bounds the wait of a single write for its turn, and then the statements
	// of those that need a bound.
	writeTimeout = 6 * time.Second
	// groupTime bounds the time in which one transaction accepts changes, without a batch
	// of orders. A change that has begun is finished.
	groupTime = 4 * time.Millisecond
	// groupShare is the part of a batch's own time that changes get in its transaction.
	groupShare = 0.15
	// groupLeast is the least time that changes get in the transaction of a batch.
	groupLeast = 500 * time.Microsecond
)

// Redis.
var (
	// showTimeout bounds the read of what is left of an item that is shown.
	showTimeout = 250 * time.Millisecond
	// giveTimeout bounds the return of one batch of units: what is not returned by then
	// stays recorded and is tried again.
	giveTimeout = 2 * time.Second
	// tellTimeout bounds the publishing of a batch's notices: their loss delays an answer,
	// so it must not delay the next batch for long.
	tellTimeout = time.Second
	// ringTimeout bounds the publishing of changed orders: the loss of a message delays
	// a look, so it must not delay what has changed the orders for long.
	ringTimeout = time.Second
	// lookHold bounds how long an inspection blocks sales of an item once it has the lock.
	// It usually takes one or two milliseconds.
	lookHold = 20 * time.Millisecond
)
