package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/lock"
)

// Change is a change of an item on sale. A field at its zero value changes nothing.
type Change struct {
	// Version is the item's version in the database after the change. Each change
	// raises it by one, also one that changes no other field.
	Version int64
	// AddLeft is how many units are added to the stock; a negative number takes back
	// units that are not sold.
	AddLeft int64
	// SamePrice reports, once the change is committed, whether it left the price and the currency
	// as they were: the sale then also accepts purchases that were made from the item's version
	// before the change. Default nil: it did not.
	SamePrice func() bool
	// PerUserLimit is how many units one buyer may hold, 1 or more.
	PerUserLimit *int64
	OpensAt      *time.Time
	// ClosesAt is the end; a pointer to the zero time removes it.
	ClosesAt *time.Time
	// Control is "open", "paused" or "closed".
	Control *string
}

func (c *Change) validate() error {
	switch {
	case c.Version < 0:
		return fmt.Errorf("inventory: version is %d, want more than 0", c.Version)
	case c.PerUserLimit != nil && *c.PerUserLimit < 1:
		return fmt.Errorf("inventory: limit is %d, want 1 or more", *c.PerUserLimit)
	case c.Control != nil && *c.Control != "open" && *c.Control != "paused" && *c.Control != "closed":
		return fmt.Errorf("inventory: control is %q, want open, paused or closed", *c.Control)
	}
	return nil
}

// adjust applies a change that the database has committed to the item's sale, while it
// runs: the next batch is sold under it. A repeat has the same result, because the
// version shows whether the sale has the change, also when a load brought it. mark is
// the mark that suspend has set, or empty; a change of version 0 only removes the mark.
//
// Errors: [ErrNotLoaded]: repeat it after the load in progress, or once it is certain that
// there is none; [ErrBehind]: repeat it when the change before this one has arrived;
// [ErrStockBelowSold]; [lock.ErrLost]; Redis away, and then the outcome is unknown.
func adjust(ctx context.Context, rdb redis.UniversalClient, k keys, epoch int64, item, mark string, c *Change) error {
	same, limit, opens, closes, control := "", "", "", "", ""
	if c.SamePrice != nil && c.SamePrice() {
		same = "1"
	}
	if c.PerUserLimit != nil {
		limit = fmt.Sprint(*c.PerUserLimit)
	}
	if c.OpensAt != nil {
		opens = fmt.Sprint(c.OpensAt.UnixMilli())
	}
	if c.ClosesAt != nil {
		closes = fmt.Sprint(closesMS(*c.ClosesAt))
	}
	if c.Control != nil {
		control = *c.Control
	}
	letter, err := adjustScript.Run(ctx, rdb, []string{k.sale(item)},
		epoch, k.stockChannel(k.partition(item)), item, mark, c.Version, c.AddLeft, same, limit, opens, closes, control).Text()
	if err != nil {
		return fmt.Errorf("inventory: adjust sale of %s: %w", item, err)
	}
	return refusedChange(item, letter)
}

// refusedChange turns a letter of the scripts suspend and adjust into an error.
func refusedChange(item, letter string) error {
	var err error
	switch letter {
	case "K", "D":
		return nil
	case "B":
		err = ErrStockBelowSold
	case "M":
		err = ErrNotLoaded
	case "G":
		err = ErrBehind
	case "L":
		err = lock.ErrLost
	default:
		err = fmt.Errorf("inventory: the script answered %q", letter)
	}
	return fmt.Errorf("change sale of %s: %w", item, err)
}

// definiteChange reports whether a change's error is the script's answer, which
// a repeat would not change.
func definiteChange(err error) bool {
	var refused redis.Error
	return err == nil || errors.Is(err, ErrStockBelowSold) || errors.Is(err, ErrNotLoaded) || errors.Is(err, ErrBehind) ||
		errors.Is(err, lock.ErrLost) || errors.Is(err, ErrStopped) || errors.As(err, &refused)
}

// closesMS is a sale's end in the form that the scripts expect: 0 for none.
func closesMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Change changes an item in the database and in its sale. If a process dies in between,
// the next load of the sale brings the two into agreement. commit changes the database
// and returns the item's version after the change; c.Version is ignored. Change holds
// the item's lock, so nothing of the item is sold, for [Config].HoldLimit at the most,
// which also bounds ctx; a change that takes units back may load the sale before.
//
// The sale is marked before commit is called, and a marked sale sells nothing. A process
// that finds the mark of another process that has died loads the sale from the database,
// which has the change or not. The mark also stays when commit's error leaves the
// outcome open; an error that wraps [ErrUnchanged] removes it.
//
// An item whose sale is not loaded, or is being loaded, is changed in the database
// only, unless the change takes units back; see changeUnloaded.
//
// A change that takes no units back is refused when Redis has not responded within two fifths of
// HoldLimit, or the item's lock was not free, so that pausing a sale never takes longer than a second.
//
// Errors, with nothing changed: [ErrStockBelowSold] when fewer units are left
// than AddLeft takes back, queued orders included; commit's,
// if it wraps ErrUnchanged; [ErrUnavailable], [ErrRebuilding] and [ErrStopped] when
// the item cannot be changed now. commit's other errors leave the outcome open. After
// commit has succeeded there is no error. Callers should check the database for a repeat
// of a change before the call: a repeat that takes units back could fail, because the
// first call has already taken them.
func (v *Inventory) Change(ctx context.Context, item string, c Change, commit func(ctx context.Context) (version int64, err error)) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.AddLeft < 0 { // only a loaded sale has the number of units left
		return v.underLockLoaded(ctx, item, func(ctx context.Context, l *lock.Lock, left int64) error {
			if left == endedLeft {
				return v.takeFromEnded(ctx, l, item, &c, commit)
			}
			return v.changeLoaded(ctx, time.Now().Add(v.cfg.HoldLimit), l, item, &c, commit)
		})
	}
	commitBy := time.Now().Add(v.cfg.HoldLimit * 2 / 5)
	ctx, cancel := context.WithTimeout(ctx, v.cfg.HoldLimit)
	defer cancel()
	for {
		err := v.underLock(ctx, item, func(ctx context.Context, l *lock.Lock) error {
			look, cancel := context.WithDeadline(ctx, commitBy)
			defer cancel()
			_, err := v.loadedLeft(look, item)
			if errors.Is(err, redis.Nil) && v.refresh(look) { // it may have been loaded under a later epoch
				_, err = v.loadedLeft(look, item)
			}
			switch {
			case err == nil:
				return v.changeLoaded(ctx, commitBy, l, item, &c, commit)
			case errors.Is(err, redis.Nil):
				return v.changeUnloaded(ctx, item, &c, commit)
			}
			return fmt.Errorf("read stock of %s: %w: %w", item, ErrUnavailable, err)
		}, lock.WithWaitLimit(max(1, min(changeWait, time.Until(commitBy)))))
		if !errors.Is(err, lock.ErrWaitTimeout) || ctx.Err() != nil || !time.Now().Before(commitBy) {
			return err
		}
		// The lock's holder may be loading the sale, which can take long.
		loaded, lerr := v.hasSale(ctx, commitBy, item)
		if lerr != nil {
			return fmt.Errorf("%w: %w", err, lerr)
		}
		if !loaded {
			return v.changeUnloaded(ctx, item, &c, commit)
		}
	}
}

// changeWait is how long a change waits for the item's lock before it checks whether
// the sale is being loaded.
const changeWait = 250 * time.Millisecond

// hasSale reports whether there is a sale of the current epoch, also one that a change
// has marked.
func (v *Inventory) hasSale(ctx context.Context, by time.Time, item string) (bool, error) {
	ctx, cancel := context.WithDeadline(ctx, by)
	defer cancel()
	v.refresh(ctx)
	found, err := v.rdb.HMGet(ctx, v.keys.sale(item), "epoch", "left", "per_user_limit").Result()
	if err != nil {
		return false, err
	}
	return found[1] != nil && found[2] != nil && found[0] == strconv.FormatInt(v.epoch.Load(), 10), nil
}

// changeUnloaded changes an item whose sale is not loaded: in the database only. It
// needs no lock. A load in progress may have read the item before the commit. If that load
// has opened the sale, adjust adds the change if its version is missing. Otherwise
// the sale is dropped; the load notices that and reads the item again. When this
// function returns, the sale either has the change or is not open.
func (v *Inventory) changeUnloaded(ctx context.Context, item string, c *Change, commit func(ctx context.Context) (version int64, err error)) error {
	// A sale that must not be loaded must not be changed either.
	if err := v.mayLoad(ctx, item); err != nil {
		return loadError(err)
	}
	wasEnded, err := v.ended(ctx, item)
	if err != nil {
		return err
	}
	version, err := commit(ctx)
	faultpoint.Reach("inventory.changed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.cfg.SettleLimit)
	defer cancel()
	switch {
	case errors.Is(err, ErrUnchanged):
		return err
	case err != nil:
		v.drop(ctx, item) // the next load reads from the database whether the change was made
		return err
	case version < 1:
		return fmt.Errorf("inventory: change of %s was committed as version %d, want 1 or more", item, version)
	}
	c.Version = version
	v.settle(ctx, item, "", c)
	v.DropSoldOutMark(item)
	if wasEnded {
		v.reopen(item)
	}
	return nil
}

// changeLoaded changes an item and its sale, which is loaded and is suspended before commitBy. The
// caller holds the lock l.
func (v *Inventory) changeLoaded(ctx context.Context, commitBy time.Time, l *lock.Lock, item string, c *Change, commit func(ctx context.Context) (version int64, err error)) error {
	soon, cancel := context.WithDeadline(ctx, commitBy)
	err := untilKnown(soon, func() error { return v.suspend(soon, l, item, c.AddLeft) })
	cancel()
	if err != nil {
		if errors.Is(err, ErrStockBelowSold) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	faultpoint.Reach("inventory.suspended")
	// If this process stalled until the lock expired, others may have found the mark and
	// sell again. The lock's context ends too, but possibly a moment later.
	if !time.Now().Before(l.ValidUntil()) {
		return fmt.Errorf("change item %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
	}
	version, err := commit(ctx)
	faultpoint.Reach("inventory.changed")
	// A caller that has left must not interrupt the change from here on.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), v.cfg.SettleLimit)
	defer cancel()
	switch {
	case errors.Is(err, ErrUnchanged):
		if err := adjust(ctx, v.rdb, v.keys, v.epoch.Load(), item, l.GuardValue(), &Change{}); err != nil {
			v.cfg.OnError(err) // the mark stays until the next buyer's load removes it
		}
		return err
	case err != nil:
		return err
	case version < 1:
		return fmt.Errorf("inventory: change of %s was committed as version %d, want 1 or more", item, version)
	}
	c.Version = version
	v.settle(ctx, item, l.GuardValue(), c)
	v.DropSoldOutMark(item) // the message notifies the others, and may not have come back here yet
	faultpoint.Reach("inventory.adjusted")
	return nil
}

// defaultSettleLimit is the default of Config.SettleLimit.
const defaultSettleLimit = 650 * time.Millisecond

// settle applies a committed change to a sale that suspend has marked with mark, or,
// if mark is empty, that was not loaded.
func (v *Inventory) settle(ctx context.Context, item, mark string, c *Change) {
	err := untilKnown(ctx, func() error {
		return adjust(ctx, v.rdb, v.keys, v.epoch.Load(), item, mark, c)
	})
	if err == nil {
		return
	}
	if mark != "" || !errors.Is(err, ErrNotLoaded) {
		v.cfg.OnError(err)
	}
	// The sale was loaded meanwhile, possibly before the commit; or it is being loaded;
	// or Redis does not answer. The next load reads the change.
	v.drop(ctx, item)
}

// suspend marks the sale as being changed, if enough units are left to take back.
func (v *Inventory) suspend(ctx context.Context, l *lock.Lock, item string, add int64) error {
	lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(item))
	letter, err := suspendScript.Run(ctx, v.rdb, []string{lockKey, waitersKey, v.keys.sale(item)},
		l.GuardValue(), v.epoch.Load(), add).Text()
	if err != nil {
		return fmt.Errorf("inventory: suspend sale of %s: %w", item, err)
	}
	return refusedChange(item, letter)
}

// untilKnown repeats try until the outcome is known or ctx ends. try must be idempotent.
func untilKnown(ctx context.Context, try func() error) error {
	for wait := resendMin; ; wait = min(2*wait, resendMax) {
		err := try()
		if definiteChange(err) || !pause.For(ctx, wait) {
			return err
		}
	}
}

// takeFromEnded is Change for units that are taken back from a sale that has ended and is
// not loaded: only the database has it. ctx ends with the item's lock l.
func (v *Inventory) takeFromEnded(ctx context.Context, l *lock.Lock, item string, c *Change, commit func(ctx context.Context) (int64, error)) error {
	// Queued orders count as sold, and the database does not have them yet.
	left, err := v.leftInSource(ctx, item)
	if err != nil {
		return fmt.Errorf("change item %s: %w: %w", item, ErrUnavailable, err)
	}
	if left+c.AddLeft < 0 {
		return fmt.Errorf("change item %s: %w", item, ErrStockBelowSold)
	}
	if !time.Now().Before(l.ValidUntil()) {
		return fmt.Errorf("change item %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
	}
	return v.changeUnloaded(ctx, item, c, commit)
}

// leftInSource reads from the source how many units of an item are left.
func (v *Inventory) leftInSource(ctx context.Context, item string) (left int64, err error) {
	items := []string{item}
	queued, err := v.source.Queued(ctx, items)
	if err != nil {
		return 0, err
	}
	err = v.source.Sales(ctx, items, queued,
		func(string, Holding) error { return nil },
		func(_ string, sale Sale) error { left = sale.Left; return nil })
	return left, err
}

// reopen loads the sale of an item that had ended, if a change has moved its end into the
// future. It does not wait for the load, nor is the load bound to the short time that a change
// has after its commit. If the load fails, the next purchase loads the sale.
func (v *Inventory) reopen(item string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.background.Go(func() {
		ctx, cancel := context.WithTimeout(v.life, rebuildLimit)
		defer cancel()
		ended, err := v.ended(ctx, item)
		if err == nil && !ended {
			err = v.Reload(ctx, item)
		}
		if err != nil && v.life.Err() == nil {
			v.cfg.OnError(fmt.Errorf("reopen %s: %w", item, err))
		}
	})
}
