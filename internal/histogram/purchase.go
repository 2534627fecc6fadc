package histogram

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The steps of a purchase, in their order. Together they cover the time from the request's
// headers to the end of its answer, except for the time between two steps.
const (
	// StepAdmission is from the request's headers until the purchase is submitted: its token,
	// limits and syntax are checked and its item is read.
	StepAdmission = "admission"
	// StepBatchWait is from there until its item's seller takes it into a batch.
	StepBatchWait = "batch_wait"
	// StepLockWait is the batch's wait for its item's lock; 0 while the process holds the lock.
	StepLockWait = "lock_wait"
	// StepScript is the round trip of the purchase script.
	StepScript = "script"
	// StepQueue is the time that the order's task was ready until a worker leased it.
	StepQueue = "queue"
	// StepCommit is from there until the order was committed.
	StepCommit = "commit"
	// StepNotice is from there until the end of the answer 201.
	StepNotice = "notice"
)

// StepBounds are the buckets of the steps.
var StepBounds = []time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 15 * time.Millisecond,
	30 * time.Millisecond, 60 * time.Millisecond, 125 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

// PurchaseStep returns the histogram of one step. Each part of the service registers those of
// its steps.
func PurchaseStep(step string) *Histogram {
	return New(Opts{
		Name:   "flashsale_purchase_step_duration_seconds",
		Help:   "Time of the steps of purchases; a step that a batch makes counts once for each of its purchases.",
		Labels: prometheus.Labels{"step": step}, Bounds: StepBounds,
	})
}
