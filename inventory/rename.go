package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/internal/faultpoint"
	"flashsale/lock"
)

const (
	// renameLimit bounds the renaming of one buyer of one item, the wait for its lock
	// included.
	renameLimit = 10 * time.Second
	// renamePage is how many orders one script renames.
	renamePage = 500
)

// Renaming is what is to be renamed of one item's orders.
type Renaming struct {
	Buyer, NewBuyer string
	Keys            []RenamedKey // of all the buyer's orders of the item
}

// RenamedKey is the idempotency key of one order, and what takes its place.
type RenamedKey struct{ Key, NewKey string }

// reversed undoes a renaming.
func (r Renaming) reversed() Renaming {
	back := Renaming{Buyer: r.NewBuyer, NewBuyer: r.Buyer, Keys: make([]RenamedKey, len(r.Keys))}
	for i, k := range r.Keys {
		back.Keys[i] = RenamedKey{Key: k.NewKey, NewKey: k.Key}
	}
	return back
}

// Rename gives a buyer of an item another name, in Redis and in the database. The item's
// lock is held throughout, so nothing of it is sold; it takes as long as a few scripts
// and commit. plan says what to rename; it runs first, and after its error, or without
// keys, nothing has happened. commit then changes the database. A sale that is not
// loaded stays so.
//
// Redis is changed first, and the sale is marked until the database has been: a marked
// sale sells nothing, and its next purchase loads it from the database, whatever has died
// in between. An error of commit that wraps [ErrUnchanged] takes the renaming back; any
// other one leaves the mark.
//
// Errors: [ErrUnavailable] when the lock or Redis is not available: the database may have
// been changed; [ErrStopped]; and those of plan and commit.
func (v *Inventory) Rename(ctx context.Context, item string, plan func(ctx context.Context) (Renaming, error), commit func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, renameLimit)
	defer cancel()
	return v.holding(ctx, item, func(ctx context.Context, l *lock.Lock) error {
		v.refresh(ctx) // under a raised epoch the sale would seem not to be loaded, and go on selling
		if err := v.mayLoad(ctx, item); err != nil {
			return err
		}
		r, err := plan(ctx)
		if err != nil || len(r.Keys) == 0 {
			return err
		}
		if err := v.renameAll(ctx, l, item, r, "begin"); err != nil {
			return err
		}
		faultpoint.Reach("inventory.renamed")
		// As in Change: after a stall others have found the mark, and loaded the sale.
		if !time.Now().Before(l.ValidUntil()) {
			return fmt.Errorf("rename a buyer of %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
		}
		err = commit(ctx)
		faultpoint.Reach("inventory.rename-committed")
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.cfg.settleLimit)
		defer cancel()
		switch {
		case errors.Is(err, ErrUnchanged):
			if err := v.renameAll(after, l, item, r.reversed(), "end"); err != nil {
				v.cfg.OnError(err) // the mark stays, and the next buyer's load lifts it
			}
			return err
		case err != nil:
			return err
		}
		err = v.renameAll(after, l, item, r, "end")
		if errors.Is(err, lock.ErrLost) {
			err = v.renameAll(after, l, item, r, "drop")
		}
		return err
	})
}

// renameAll runs the script for all orders, a page at a time. step is that of the last
// page, and the pages before it begin. Errors: ErrUnavailable, with lock.ErrLost when that is why; ErrStopped.
func (v *Inventory) renameAll(ctx context.Context, l *lock.Lock, item string, r Renaming, step string) error {
	lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(item))
	keys := []string{lockKey, waitersKey, v.keys.sale(item), v.keys.idempotency(item), v.keys.buyers(item)}
	for from := 0; from < len(r.Keys); from += renamePage {
		page := r.Keys[from:min(from+renamePage, len(r.Keys))]
		now := step
		if step == "end" && from+renamePage < len(r.Keys) {
			now = "begin"
		}
		args := make([]any, 0, 7+2*len(page))
		args = append(args, l.GuardValue(), v.epoch.Load(), now, stockChannel(v.keys.partition(item)), item, r.Buyer, r.NewBuyer)
		for _, k := range page {
			args = append(args, k.Key, k.NewKey)
		}
		err := insist(ctx, func() error {
			letter, err := renameScript.Run(ctx, v.rdb, keys, args...).Text()
			switch {
			case err != nil:
				return err
			case letter == "S":
				return ErrStopped
			default:
				return refusedChange(item, letter)
			}
		})
		switch {
		case errors.Is(err, ErrStopped):
			return fmt.Errorf("rename a buyer of %s: %w", item, err)
		case err != nil:
			return fmt.Errorf("rename a buyer of %s: %w: %w", item, ErrUnavailable, err)
		}
	}
	return nil
}
