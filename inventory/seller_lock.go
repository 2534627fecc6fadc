package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/lock"
)

// sellerLock is a seller's use of its item's lock.
type sellerLock struct {
	v             *Inventory
	item          string
	name          string // of the lock
	clock         *scriptClock
	beforeRelease func()

	held  *lock.Lock // nil: this process does not hold it
	since time.Time  // when it was acquired
	// value and fence belong to the next script: the lock's value and its fencing token. For an instant
	// batch, value is empty and fence is the script's end in ms of Redis's clock.
	value     string
	fence     int64
	queued    time.Duration // how long the last wait for the lock took; 0 after an instant batch
	shared    time.Time     // when another process was last seen to use the item
	refusedAt time.Time     // when the first of several instant batches in a row was refused; zero: none was
	nextPause time.Duration // after the next refusal
	mustHold  bool          // the next script waits for the lock
}

// release releases the lock, if this process holds it.
func (l *sellerLock) release() {
	if l.held == nil {
		return
	}
	l.beforeRelease()
	if err := l.held.Release(l.v.life); err != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrNotHeld) {
		l.v.cfg.OnError(fmt.Errorf("release item %s: %w", l.item, err))
	}
	l.held = nil
}

const (
	// instantAfter is how long the last reply must be ago before an instant batch.
	instantAfter = 5 * time.Millisecond
	// instantLife bounds how late the script of an instant batch may run, by Redis's clock. It is
	// not longer than the client waits for a reply, so a script that timed out cannot run after its
	// repeat. After a lost connection it can, within this time.
	instantLife = time.Second
)

// isShared reports whether another process sells the item too, or has used it just now.
func (l *sellerLock) isShared() bool { return time.Since(l.shared) <= sharedFor }

const (
	// sharedFor is how long after the last sign of another process an item counts as shared.
	sharedFor = 200 * time.Millisecond
	// retryLeast and retryMost bound how long the seller of a shared item tries instant batches
	// while another process holds the lock, before it waits in the lock's queue: twice as
	// long as its last wait there. Processes that have waited for a change take turns with the
	// lock. If they asked for it again before the last of them has had its turn, they would go on
	// taking turns.
	retryLeast = 32 * time.Millisecond
	retryMost  = 500 * time.Millisecond
	// retryFirst and retryPause are the first and the longest pause between two tries.
	retryFirst = time.Millisecond
	retryPause = 16 * time.Millisecond
)

// prepare makes sure that the next script may sell: it holds the item's lock, or the batch is
// instant. The script of an instant batch holds the lock only while it runs, if the lock is
// free. It is used for the first batch after a pause, so that an item with few purchases needs
// one call for each instead of three, and while several processes sell the item, so that none
// of them waits for another's turn. The only seller of an item keeps the lock. replied is when the
// last reply came, waited the time spent to acquire the lock.
func (l *sellerLock) prepare(ctx context.Context, replied time.Time) (waited time.Duration, err error) {
	now, known := l.clock.now()
	instant := l.isShared() || time.Since(replied) > instantAfter
	if l.held != nil || !known || !instant || l.mustHold {
		return l.hold(ctx)
	}
	l.value = ""
	l.fence = now + instantLife.Milliseconds()
	return 0, nil
}

// instantRefused decides how the batch is sent again after the script of an instant batch has
// refused: instant again after a pause if another process holds the lock of a shared item, else
// with the lock.
func (l *sellerLock) instantRefused(ctx context.Context, status string) error {
	now := time.Now()
	if l.refusedAt.IsZero() {
		l.refusedAt, l.nextPause = now, retryFirst
	}
	shared := l.isShared()
	switch status {
	case "held":
		l.shared = now
	case "late":
		l.v.cfg.OnError(fmt.Errorf("sell %s: purchase refused (late): the process was stopped, or Redis's clock was set back", l.item))
	}
	limit := min(max(2*l.queued, retryLeast), retryMost)
	if status != "held" || !shared || now.Add(l.nextPause).After(l.refusedAt.Add(limit)) {
		l.mustHold = true
		return errAgain
	}
	if !pause.For(ctx, l.nextPause) {
		return fmt.Errorf("%w: the item's lock is held: %w", ErrOverloaded, context.Cause(ctx))
	}
	l.nextPause = min(2*l.nextPause, retryPause)
	return errAgain
}

// instantDone ends a row of instant batches whose last one was not refused. It returns the time since
// the first refusal.
func (l *sellerLock) instantDone() time.Duration {
	l.queued = 0
	return l.sinceRefusal()
}

// sinceRefusal ends a row of refused instant batches. It returns the time since the first of
// them; 0 if there was none.
func (l *sellerLock) sinceRefusal() (d time.Duration) {
	if !l.refusedAt.IsZero() {
		d = time.Since(l.refusedAt)
	}
	l.refusedAt, l.mustHold = time.Time{}, false
	return d
}

// hold makes sure that this process holds the item's lock, and returns how long it waited.
func (l *sellerLock) hold(ctx context.Context) (waited time.Duration, err error) {
	if l.held != nil && l.held.Context().Err() == nil {
		l.value, l.fence = l.held.GuardValue(), l.held.Fence()
		return 0, nil
	}
	l.release()
	began := time.Now()
	faultpoint.Reach("inventory.locking")
	// ctx belongs to one batch, and the lock is kept for the next ones.
	until, _ := ctx.Deadline() // a batch always has one
	acquired, err := l.v.locks.Acquire(l.v.life, l.name, lock.WithWaitLimit(max(until.Sub(began), 1)))
	if err != nil {
		return 0, err
	}
	faultpoint.Reach("inventory.locked")
	l.held, l.since = acquired, time.Now()
	l.value, l.fence = acquired.GuardValue(), acquired.Fence()
	l.queued = l.since.Sub(began)
	return max(l.queued, l.sinceRefusal()), nil
}
