package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/lock"
)

// rebuildWithin bounds a rebuild of one item, the wait for its lock included.
const rebuildWithin = 30 * time.Second

// Rebuild makes Redis forget an item, with its buyers and their keys, runs change
// meanwhile, which is to change what the database says of them, and loads the
// item again. The item's lock is held throughout, so nothing of it is sold. check
// runs first, under the lock: after its error nothing has happened.
//
// Redis forgets before the change and once more after it: whoever dies in between
// leaves no sale, which the next purchase loads from the database as it is then,
// and what another process has loaded in between, because the lock was lost, is
// forgotten as well. That the load at the end fails is only reported: the next
// purchase makes up for it.
//
// Errors: [ErrUnavailable] when the lock or Redis is not to be had, or the lock
// was lost: Redis may remember then what it was to forget, also after a change
// that was made; [ErrStopped]; and those of check and change.
func (v *Inventory) Rebuild(ctx context.Context, item string, check, change func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildWithin)
	defer cancel()
	return v.holding(ctx, item, func(ctx context.Context, l *lock.Lock) error {
		if err := check(ctx); err != nil {
			return err
		}
		if err := v.cfg.MayLoad(ctx, item); err != nil {
			return err
		}
		if err := v.loadStep(ctx, l, item, "forget"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		// As in Change: after a stall others have the lock, and have loaded the sale.
		if !time.Now().Before(l.ValidUntil()) {
			return fmt.Errorf("rebuild item %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
		}
		if err := change(ctx); err != nil {
			return err
		}
		if err := v.loadStep(ctx, l, item, "forget"); err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if err := v.load(ctx, l, item); err != nil && !errors.Is(err, ErrEnded) {
			v.cfg.OnError(fmt.Errorf("rebuild: %w", err))
		}
		return nil
	})
}
