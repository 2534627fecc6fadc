package lock

import "time"

// Observer is a set of callbacks for events, any of which may be nil. They suit counters
// and histograms. They run synchronously, so they must be quick, and they must not call
// the manager. Use a resource's name as a metric label only if there are few names.
type Observer struct {
	// Acquired reports an acquired lock and the time since Acquire was called. Nested
	// acquires of a held lock are not reported.
	Acquired func(resource string, waited time.Duration)
	// Waited reports the end of a wait, with the lock (err is nil) or without it.
	// Acquires that found the lock free did not wait.
	Waited func(resource string, waited time.Duration, err error)
	// HandedOver reports that a release passed the lock to a waiter directly.
	HandedOver func(resource string)
	// Released reports a released lock and how long it was held.
	Released func(resource string, held time.Duration)
	// Lost reports a lock that ended before it was released; cause is ErrLost or
	// ErrMaxHold.
	Lost func(resource string, cause error)
	// Repaired reports a lock key without TTL that got one.
	Repaired func(resource string)
	// ExtendedLate reports a renewal that succeeded more than a third of the TTL after it
	// was due, and how late it was. With twice that delay the lock would have been lost.
	ExtendedLate func(resource string, late time.Duration)
	// CannotListen reports that the Redis user has no permission for the channels by which
	// waiters are woken, so waiters poll. It is called once, and again after the permission
	// was granted and revoked.
	CannotListen func(err error)
}

// withDefaults sets missing callbacks to ones that do nothing.
func (o Observer) withDefaults() Observer {
	if o.Acquired == nil {
		o.Acquired = func(string, time.Duration) {}
	}
	if o.Waited == nil {
		o.Waited = func(string, time.Duration, error) {}
	}
	if o.HandedOver == nil {
		o.HandedOver = func(string) {}
	}
	if o.Released == nil {
		o.Released = func(string, time.Duration) {}
	}
	if o.Lost == nil {
		o.Lost = func(string, error) {}
	}
	if o.Repaired == nil {
		o.Repaired = func(string) {}
	}
	if o.ExtendedLate == nil {
		o.ExtendedLate = func(string, time.Duration) {}
	}
	if o.CannotListen == nil {
		o.CannotListen = func(error) {}
	}
	return o
}
