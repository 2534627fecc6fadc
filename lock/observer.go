package lock

import "time"

// Observer is a set of functions called as things happen, any of which may be
// nil. They suit counters and histograms: each tells one event, and times come
// as durations. They run on the path of the event, so they must be quick, and
// must not call the manager. A resource's name should not become a metric's
// label unless the names are few.
type Observer struct {
	// Acquired reports a lock taken, so long after it was asked for. Nested
	// acquires of a lock that is held are not reported.
	Acquired func(resource string, waited time.Duration)
	// Waited reports the end of a wait in line: with the lock (err is nil) or
	// without it. Acquires that found the lock free did not wait.
	Waited func(resource string, waited time.Duration, err error)
	// HandedOver reports that a release passed the lock to a waiter directly.
	HandedOver func(resource string)
	// Released reports a lock that its holder released, and how long it was held.
	Released func(resource string, held time.Duration)
	// Lost reports a lock that ended before it was released; cause is ErrLost,
	// perhaps with a reason, or ErrMaxHold.
	Lost func(resource string, cause error)
	// Repaired reports a lock key without TTL that was given one.
	Repaired func(resource string)
	// ExtendedLate reports a renewal that was answered so long after it was due.
	// It is called for those that came more than a third of the TTL late: with
	// as much delay again the lock would have been lost.
	ExtendedLate func(resource string, late time.Duration)
	// CannotListen reports that the Redis user may not use the channels by which
	// waiters are woken, so that waiters poll. It is called once, and again when
	// the permission was granted and taken away meanwhile.
	CannotListen func(err error)
}

func (o *Observer) acquired(resource string, waited time.Duration) {
	if o.Acquired != nil {
		o.Acquired(resource, waited)
	}
}

func (o *Observer) waited(resource string, waited time.Duration, err error) {
	if o.Waited != nil {
		o.Waited(resource, waited, err)
	}
}

func (o *Observer) handedOver(resource string) {
	if o.HandedOver != nil {
		o.HandedOver(resource)
	}
}

func (o *Observer) released(resource string, held time.Duration) {
	if o.Released != nil {
		o.Released(resource, held)
	}
}

func (o *Observer) lost(resource string, cause error) {
	if o.Lost != nil {
		o.Lost(resource, cause)
	}
}

func (o *Observer) repaired(resource string) {
	if o.Repaired != nil {
		o.Repaired(resource)
	}
}

func (o *Observer) extendedLate(resource string, late time.Duration) {
	if o.ExtendedLate != nil {
		o.ExtendedLate(resource, late)
	}
}

func (o *Observer) cannotListen(err error) {
	if o.CannotListen != nil {
		o.CannotListen(err)
	}
}
