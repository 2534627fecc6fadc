package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/lock"
)

// Move moves units that are not sold from one item's sale to another's, in both sales and in the
// database, and in none without the others. commit changes the database and returns the versions
// of both items. Nothing of either item is sold meanwhile. The locks are taken in the order of the
// ids, so that no two moves wait for each other. A process that dies, the marks and commit's errors have
// the same effects as in Change, on both items.
//
// Errors, with nothing changed: [ErrStockBelowSold], with the id of an item that has fewer units
// left; [ErrNotLoaded]; [ErrUnavailable]; and commit's, if it wraps ErrUnchanged.
func (v *Inventory) Move(ctx context.Context, from, to string, units int64, commit func(ctx context.Context) (fromVersion, toVersion int64, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.HoldLimit)
	defer cancel()
	first, second := from, to
	if second < first {
		first, second = second, first
	}
	return v.underLock(ctx, first, func(ctx context.Context, l1 *lock.Lock) error {
		return v.underLock(ctx, second, func(ctx context.Context, l2 *lock.Lock) error {
			if first != from {
				l1, l2 = l2, l1
			}
			for _, item := range []string{from, to} {
				_, err := v.loadedLeft(ctx, item)
				switch {
				case errors.Is(err, redis.Nil):
					return fmt.Errorf("move units of %s: %w", item, ErrNotLoaded)
				case err != nil:
					return fmt.Errorf("read stock of %s: %w: %w", item, ErrUnavailable, err)
				}
			}
			return v.moveLocked(ctx, move{from, to, units, l1, l2}, commit)
		}, lock.WithWaitLimit(v.cfg.MoveWait))
	}, lock.WithWaitLimit(v.cfg.MoveWait))
}

// move is a move under both locks.
type move struct {
	from, to         string
	units            int64
	fromLock, toLock *lock.Lock
}

// always is the SamePrice of a change of the stock alone.
func always() bool { return true }

func (v *Inventory) moveLocked(ctx context.Context, m move, commit func(ctx context.Context) (fromVersion, toVersion int64, err error)) error {
	until := time.Now().Add(v.cfg.HoldLimit)
	return v.changeLoaded(ctx, until, m.fromLock, m.from, &Change{AddLeft: -m.units, SamePrice: always}, func(ctx context.Context) (int64, error) {
		begun := false
		var fromVersion int64
		err := v.changeLoaded(ctx, until, m.toLock, m.to, &Change{AddLeft: m.units, SamePrice: always}, func(ctx context.Context) (toVersion int64, err error) {
			if !time.Now().Before(m.fromLock.ValidUntil()) {
				return 0, fmt.Errorf("%w: %w", ErrUnavailable, lock.ErrLost)
			}
			begun = true
			fromVersion, toVersion, err = commit(ctx)
			return toVersion, err
		})
		if err != nil && !begun {
			err = fmt.Errorf("%w: %w", ErrUnchanged, err)
		}
		return fromVersion, err
	})
}
