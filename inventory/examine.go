package inventory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"flashsale/lock"
)

// Live is a sale as it stands in Redis.
type Live struct {
	// Loaded says that there is a sale under the present epoch, whole and not
	// being changed. Otherwise the next purchase loads it, and the rest is empty.
	Loaded bool
	// Damaged says that its values cannot be read, so that nothing is sold and no
	// purchase mends it. The rest is empty then.
	Damaged bool
	// Sale is what it sells and on what terms; its Version is the item's.
	Sale
}

// Live reads a sale without keeping it from selling.
func (v *Inventory) Live(ctx context.Context, item string) (Live, error) {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return Live{}, err
	}
	live, _, err := v.live(ctx, item, epoch)
	return live, err
}

// Examined is an item whose lock is held, so that nothing of it is sold.
type Examined struct {
	v     *Inventory
	item  string
	epoch int64
	fence int64
}

// Live reads the sale. One that every holder of the lock would be refused by,
// for it has seen a fencing token from the future, is damaged as well.
func (x *Examined) Live(ctx context.Context) (Live, error) {
	live, fence, err := x.v.live(ctx, x.item, x.epoch)
	if live.Loaded && fence > x.fence {
		live = Live{Loaded: true, Damaged: true}
	}
	return live, err
}

// Examine runs look while the item's lock is held, whether the sale is loaded or
// not; unlike [Inventory.Frozen] it loads nothing by itself. The wait for the
// lock and look together are given two seconds. If look asks for it, the sale is
// then built anew from its source, under the same lock: what look has seen
// cannot have changed for the better by a purchase meanwhile. A rebuild that
// fails leaves no sale, and the next purchase loads it.
//
// Errors: [ErrUnavailable] when Redis or the lock is not to be had or was lost,
// and what look found is void then; [ErrRebuilding] when the rebuild failed; look's.
func (v *Inventory) Examine(ctx context.Context, item string, look func(ctx context.Context, x *Examined) (rebuild bool, err error)) error {
	// Before the lock: look must not wait for a second connection while it holds one.
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(ctx, v.cfg.LookLimit)
	defer cancel()
	return v.holding(brief, item, func(held context.Context, l *lock.Lock) error {
		rebuild, err := look(held, &Examined{v, item, epoch, l.Fence()})
		if err != nil {
			return err
		}
		if l.Context().Err() != nil {
			return fmt.Errorf("item %s: %w: %w", item, ErrUnavailable, context.Cause(l.Context()))
		}
		if !rebuild {
			return nil
		}
		if err := v.loadWithin(ctx, l, item); !errors.Is(err, ErrEnded) {
			return err
		}
		return nil // the load has removed what look found
	})
}

// live reads a sale and the highest fencing token that it has seen.
func (v *Inventory) live(ctx context.Context, item string, epoch int64) (Live, int64, error) {
	found, err := v.rdb.HMGet(ctx, v.keys.sale(item),
		"epoch", "left", "limit", "opens_ms", "closes_ms", "version", "fence", "control", "changing").Result()
	if err != nil {
		return Live{}, 0, fmt.Errorf("read sale of %s: %w: %w", item, ErrUnavailable, err)
	}
	text := make([]string, len(found))
	for i, f := range found {
		s, there := f.(string)
		// What the purchase script takes for a missing sale: it asks for a load.
		if !there && i < 6 || there && i == 8 {
			return Live{}, 0, nil
		}
		text[i] = s
	}
	if text[0] != strconv.FormatInt(epoch, 10) {
		return Live{}, 0, nil
	}
	number := func(s string) int64 {
		n, perr := strconv.ParseInt(s, 10, 64)
		if perr != nil {
			err = perr
		}
		return n
	}
	version, build, _ := strings.Cut(text[5], ".")
	if build == "" {
		return Live{Loaded: true, Damaged: true}, 0, nil
	}
	opens, closes := number(text[3]), number(text[4])
	live := Live{Loaded: true, Sale: Sale{
		Left: number(text[1]), PerUserLimit: number(text[2]), OpensAt: time.UnixMilli(opens).UTC(),
		Control: text[7], Version: number(version),
	}}
	if closes != 0 {
		live.ClosesAt = time.UnixMilli(closes).UTC()
	}
	fence, ferr := strconv.ParseInt(text[6], 10, 64)
	if ferr != nil {
		fence = 0 // as the purchase script reads it
	}
	if err != nil {
		return Live{Loaded: true, Damaged: true}, 0, nil //nolint:nilerr // that it cannot be read is what was to be found out
	}
	return live, fence, nil
}
