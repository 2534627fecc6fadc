package checkout

import (
	"time"

	"flashsale/order"
)

// What only the external tests of this package use.

// Commit reports whether a commit ended the wait.
func (s settlement) Commit() bool { return s.commit }

// Notice returns what was committed.
func (s settlement) Notice() order.Notice { return s.notice }

// Settled returns the channel of what ends the wait.
func (t *ticket) Settled() chan settlement { return t.settled }

// SetVolatileWait sets the wait for a commit on an engine that keeps nothing.
func (s *Service) SetVolatileWait(d time.Duration) { s.volatileWait = d }

// IDs returns the orders that are waited for.
func (w *Waiters) IDs() []string { return w.ids() }
