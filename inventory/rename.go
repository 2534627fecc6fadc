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
	// renameLimit bounds the renaming of one buyer of one item, the wait for the item's
	// lock included.
	renameLimit = 10 * time.Second
	// renamePage is how many orders one script renames.
	renamePage = 500
)

// Renaming is a new name for a buyer of one item, and new keys for the buyer's orders.
type Renaming struct {
	Buyer, NewBuyer string
	Keys            []RenamedKey // of all the buyer's orders of the item
}

// RenamedKey is the idempotency key of one order, and the key that replaces it.
type RenamedKey struct{ Key, NewKey string }

// reversed returns the renaming that undoes r.
func (r Renaming) reversed() Renaming {
	back := Renaming{Buyer: r.NewBuyer, NewBuyer: r.Buyer, Keys: make([]RenamedKey, len(r.Keys))}
	for i, k := range r.Keys {
		back.Keys[i] = RenamedKey{Key: k.NewKey, NewKey: k.Key}
	}
	return back
}

// Rename renames a buyer of an item, in Redis and in the database. It holds the item's
// lock, so nothing of the item is sold; it takes as long as a few scripts and commit. plan
// returns the renaming; it runs first, and after its error, or without keys, nothing is
// changed. commit then changes the database. A sale that is not loaded stays so.
//
// Redis is changed first, and the sale is marked until the database is changed as well. A
// marked sale sells nothing. If a process dies in between, the sale's next purchase loads
// it from the database. An error of commit that wraps [ErrUnchanged] undoes the renaming;
// any other error leaves the mark.
//
// Errors: [ErrUnavailable] when the lock or Redis is not available: the database may have
// been changed; [ErrStopped]; and those of plan and commit.
func (v *Inventory) Rename(ctx context.Context, item string, plan func(ctx context.Context) (Renaming, error), commit func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, renameLimit)
	defer cancel()
	return v.underLock(ctx, item, func(ctx context.Context, l *lock.Lock) error {
		v.refresh(ctx) // with an outdated epoch the script would take the sale for one that is not loaded, and not mark it
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
		// As in Change: after a stall others may have found the mark and loaded the sale.
		if !time.Now().Before(l.ValidUntil()) {
			return fmt.Errorf("rename a buyer of %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
		}
		err = commit(ctx)
		faultpoint.Reach("inventory.rename-committed")
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.cfg.SettleLimit)
		defer cancel()
		switch {
		case errors.Is(err, ErrUnchanged):
			if err := v.renameAll(after, l, item, r.reversed(), "end"); err != nil {
				v.cfg.OnError(err) // the mark stays until the next buyer's load removes it
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

// renameAll runs the script for all orders, a page at a time. step is the step of the last
// page; if it is "end", the pages before it use "begin". Errors: ErrUnavailable, with
// lock.ErrLost if the lock was lost; ErrStopped.
func (v *Inventory) renameAll(ctx context.Context, l *lock.Lock, item string, r Renaming, step string) error {
	lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(item))
	keys := []string{lockKey, waitersKey, v.keys.sale(item), v.keys.idempotency(item), v.keys.buyers(item)}
	for from := 0; from < len(r.Keys); from += renamePage {
		page := r.Keys[from:min(from+renamePage, len(r.Keys))]
		now, last := step, "1"
		if from+renamePage < len(r.Keys) {
			last = "0"
			if step == "end" {
				now = "begin"
			}
		}
		args := make([]any, 0, 8+2*len(page))
		args = append(args, l.GuardValue(), v.epoch.Load(), now, v.keys.stockChannel(v.keys.partition(item)), item, r.Buyer, r.NewBuyer, last)
		for _, k := range page {
			args = append(args, k.Key, k.NewKey)
		}
		err := untilKnown(ctx, func() error {
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
