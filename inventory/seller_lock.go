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

// unlock releases the item's lock, if this process holds it.
func (s *seller) unlock() {
	if s.held == nil {
		return
	}
	s.endLoading()
	if err := s.held.Release(s.v.life); err != nil && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrNotHeld) {
		s.v.cfg.OnError(fmt.Errorf("let go of item %s: %w", s.item, err))
	}
	s.held = nil
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
func (s *seller) isShared() bool { return time.Since(s.shared) <= sharedFor }

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
// of them waits for another's turn. The only seller of an item keeps the lock. waited is the
// time spent to acquire it.
func (s *seller) prepare(ctx context.Context) (waited time.Duration, err error) {
	now, known := s.v.clocks[s.partition].now()
	instant := s.isShared() || time.Since(s.replied) > instantAfter
	if s.held != nil || !known || !instant || s.mustHold {
		return s.hold(ctx)
	}
	s.lockValue = ""
	s.fence = now + instantLife.Milliseconds()
	return 0, nil
}

// instantRefused decides how the batch is sent again after the script of an instant batch has
// refused: instant again after a pause if another process holds the lock of a shared item, else
// with the lock.
func (s *seller) instantRefused(ctx context.Context, status string) error {
	now := time.Now()
	if s.refusedAt.IsZero() {
		s.refusedAt, s.nextPause = now, retryFirst
	}
	shared := s.isShared()
	switch status {
	case "held":
		s.shared = now
	case "late":
		s.v.cfg.OnError(fmt.Errorf("sell %s: purchase refused (late): the process was stopped, or Redis's clock was set back", s.item))
	}
	limit := min(max(2*s.queued, retryLeast), retryMost)
	if status != "held" || !shared || now.Add(s.nextPause).After(s.refusedAt.Add(limit)) {
		s.mustHold = true
		return errAgain
	}
	if !pause.For(ctx, s.nextPause) {
		return fmt.Errorf("%w: the item's lock is held: %w", ErrOverloaded, context.Cause(ctx))
	}
	s.nextPause = min(2*s.nextPause, retryPause)
	return errAgain
}

// sinceRefusal ends a row of refused instant batches. It returns the time since the first of
// them; 0 if there was none.
func (s *seller) sinceRefusal() (d time.Duration) {
	if !s.refusedAt.IsZero() {
		d = time.Since(s.refusedAt)
	}
	s.refusedAt, s.mustHold = time.Time{}, false
	return d
}

// hold makes sure that this process holds the item's lock, and returns how long it waited.
func (s *seller) hold(ctx context.Context) (waited time.Duration, err error) {
	if s.held != nil && s.held.Context().Err() == nil {
		s.lockValue, s.fence = s.held.GuardValue(), s.held.Fence()
		return 0, nil
	}
	s.unlock()
	began := time.Now()
	faultpoint.Reach("inventory.locking")
	// ctx belongs to one batch, and the lock is kept for the next ones.
	until, _ := ctx.Deadline() // a batch always has one
	l, err := s.v.locks.Acquire(s.v.life, s.lockKey, lock.WithWaitLimit(max(until.Sub(began), 1)))
	if err != nil {
		return 0, err
	}
	faultpoint.Reach("inventory.locked")
	s.held, s.since = l, time.Now()
	s.lockValue, s.fence = l.GuardValue(), l.Fence()
	s.queued = s.since.Sub(began)
	return max(s.queued, s.sinceRefusal()), nil
}
