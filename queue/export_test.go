package queue

import (
	"context"
	"math"
	"time"
)

// Internals that the external tests of this package use.
var (
	AckHash      = ackScript.Hash()
	CompleteHash = completeScript.Hash()
	DequeueHash  = dequeueScript.Hash()
	PassHash     = passScript.Hash()
	RejectHash   = rejectScript.Hash()
)

// MaxUnsettled is maxUnsettled.
const MaxUnsettled = maxUnsettled

// WithPatience sets how long a fetch may hold up the other sources, and how long a
// prefetched task waits before it is handed back.
func WithPatience(c RunConfig, d time.Duration) RunConfig {
	c.patience = d
	return c
}

// Bound is the upper bound of a bucket of Waits.
func Bound(i int) time.Duration {
	if i == len(waitBounds) {
		return math.MaxInt64
	}
	return waitBounds[i]
}

// LeaseEnd is the earliest end of the task's lease.
func LeaseEnd(l Leased) time.Time { return *l.end }

// RaiseLimits lets commands take as long as a busy machine needs. Call it before any test.
func RaiseLimits() {
	recallLimit, fetchLimit, defaultPatience = time.Minute, time.Minute, time.Minute
	cancelGrace = 2 * time.Second // some tests wait for it
}

// SeekStrays checks for strays once, as after a fetch that counted one, and returns the
// number of reports.
func SeekStrays(ctx context.Context, q *Queue) (reports int) {
	(&strays{}).look(ctx, q, 1, func(error) { reports++ })
	return reports
}
