package items

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/pause"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/store"
)

// refills are the refills of one item's buckets by this process.
type refills struct {
	ids []string // of the buckets
	// flights has one refill per bucket and quantity, for all purchases that wait for it.
	flights singleflight.Group
	turn    chan struct{} // is taken during a refill, so that they do not take each other's units
}

// refillsOf returns the refills of an item.
func (s *Service) refillsOf(item *catalog.Item) *refills {
	if r, ok := s.refills.Load(item.ID); ok {
		return r.(*refills) //nolint:forcetypeassert // nothing else is stored
	}
	r, _ := s.refills.LoadOrStore(item.ID, &refills{ids: bucket.IDs(item.ID, item.Buckets), turn: make(chan struct{}, 1)})
	return r.(*refills) //nolint:forcetypeassert // nothing else is stored
}

// refillLimit bounds a refill. It may wait for buckets that are being changed or loaded.
const refillLimit = 1500 * time.Millisecond

// Refill moves units of other buckets into one that has too few units for a purchase. It returns
// false if all buckets together have too few: the item is sold out. Another purchase may take
// the units before the caller's next one. Errors: inventory.ErrUnavailable.
func (s *Service) Refill(ctx context.Context, item *catalog.Item, id string, quantity int64) (bool, error) {
	r := s.refillsOf(item)
	if s.Stock.SoldOut(r.ids) {
		return false, nil
	}
	refilled := r.flights.DoChan(fmt.Sprint(id, " ", quantity), func() (any, error) {
		// It serves other purchases, too, so it does not end with this one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refillLimit)
		defer cancel()
		select {
		case r.turn <- struct{}{}:
			defer func() { <-r.turn }()
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		return s.fill(ctx, r.ids, id, quantity)
	})
	select {
	case f := <-refilled:
		if f.Err != nil {
			return false, fmt.Errorf("refill bucket %s: %w: %w", id, inventory.ErrUnavailable, f.Err)
		}
		return f.Val.(bool), nil //nolint:forcetypeassert // the function above returns it
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// Pauses while a bucket is being changed or loaded.
const fillPause = 2 * time.Millisecond

// fill moves units into a bucket until it has a quantity. It takes half of the fullest bucket, so
// that a bucket that sells faster is filled a few times, and not for each of its buyers. It
// returns false if all buckets together have less than the quantity.
func (s *Service) fill(ctx context.Context, ids []string, id string, quantity int64) (bool, error) {
	for {
		left, err := s.Stock.Left(ctx, ids)
		if err != nil {
			return false, err
		}
		l := looked(ids, left, id)
		switch {
		case l.own >= quantity:
			return true, nil
		case l.known >= quantity && l.own >= 0:
			units := min(l.most, max(quantity-l.own, (l.most+1)/2))
			err := s.move(ctx, l.from, id, units)
			if err != nil && !errors.Is(err, inventory.ErrStockBelowSold) {
				return false, err
			}
			if err == nil && l.own+units >= quantity {
				return true, nil
			}
			continue
		case l.unknown == "":
			return false, nil
		}
		if err := s.Stock.Warm(ctx, l.unknown); err != nil {
			return false, err
		}
		if !pause.For(ctx, fillPause) {
			return false, context.Cause(ctx)
		}
	}
}

// look is the stock of the buckets as a refill of one of them sees it.
type look struct {
	own     int64  // the units of the bucket; -1: not known
	from    string // the bucket that has most units, of the others
	most    int64  // its units
	known   int64  // the units of all buckets that are known
	unknown string // a bucket that is being changed, or not loaded; empty: none
}

func looked(ids []string, left []int64, id string) look {
	var l look
	for i, n := range left {
		switch {
		case n < 0:
			l.unknown = ids[i]
		case ids[i] != id && n > l.most:
			l.from, l.most = ids[i], n
		}
		if ids[i] == id {
			l.own = n
		}
		l.known += max(n, 0)
	}
	return l
}

// gatherTries bounds the attempts to gather units that are being sold meanwhile.
const gatherTries = 3

// gather moves units into bucket 0 until it has a quantity, or the others have none.
func (s *Service) gather(ctx context.Context, item string, quantity int64) error {
	for range gatherTries {
		rows, err := store.Buckets(ctx, s.Store, item)
		if err != nil {
			return err
		}
		ids := bucket.IDs(item, len(rows))
		left, err := s.Stock.Left(ctx, ids)
		if err != nil {
			return fmt.Errorf("read buckets of %s: %w: %w", item, inventory.ErrUnavailable, err)
		}
		for i := range left {
			if left[i] < 0 { // the sale may have ended
				left[i] = rows[i].Total - rows[i].Sold
			}
		}
		missing := quantity - left[0]
		for i := 1; i < len(ids) && missing > 0; i++ {
			units := min(missing, left[i])
			if units == 0 {
				continue
			}
			switch err := s.move(ctx, ids[i], ids[0], units); {
			case err == nil:
				missing -= units
			case !errors.Is(err, inventory.ErrStockBelowSold):
				return err
			}
		}
		if missing <= 0 {
			return nil
		}
	}
	return nil // too few are left, so bucket 0 refuses the change
}

// spread moves each bucket's part of a restock out of bucket 0. A part that cannot be moved stays
// there, and a refill moves it.
func (s *Service) spread(ctx context.Context, ids []string, quantity int64) {
	for _, id := range ids[1:] {
		part := quantity / int64(len(ids))
		if part <= 0 {
			return
		}
		if err := s.move(ctx, ids[0], id, part); err != nil {
			s.OnError(fmt.Errorf("spread a restock: %w", err))
			return
		}
	}
}

// move moves units that are not sold between two buckets of an item, in the database and in
// both sales. Neither sells meanwhile. The locks of two buckets are always taken in the order of
// their ids, so that no two moves wait for each other. Errors: inventory.ErrStockBelowSold, and
// those of inventory.Inventory.Change.
func (s *Service) move(ctx context.Context, from, to string, units int64) error {
	first, second := from, to
	if second < first {
		first, second = second, first
	}
	added := map[string]int64{from: -units, to: units}
	err := s.Stock.Change(ctx, first, inventory.Change{AddLeft: added[first]}, func(ctx context.Context) (int64, error) {
		begun := false
		var versions map[string]int64
		err := s.Stock.Change(ctx, second, inventory.Change{AddLeft: added[second]}, func(ctx context.Context) (int64, error) {
			begun = true
			var err error
			versions, err = s.commitMove(ctx, from, to, units)
			return versions[second], err
		})
		if err != nil && !begun {
			err = fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
		}
		return versions[first], err
	})
	if err != nil {
		return fmt.Errorf("move %d units from %s to %s: %w", units, from, to, err)
	}
	return nil
}

// commitMove moves units in the database, and returns the versions of both buckets. An error
// wraps inventory.ErrUnchanged if it is certain that nothing was changed.
func (s *Service) commitMove(ctx context.Context, from, to string, units int64) (versions map[string]int64, err error) {
	name := "move-" + uuid.NewString()
	var revisions map[string]int64
	committing := false
	err = s.Store.Changing(ctx, "move units from "+from, func(tx *gorm.DB, _ int64) error {
		committing = false
		versions, revisions = make(map[string]int64, 2), make(map[string]int64, 2)
		for _, one := range []struct {
			id, reason string
			units      int64
		}{{from, "moved to bucket " + to, -units}, {to, "moved from bucket " + from, units}} {
			r := Restock{Quantity: one.units, Reason: one.reason, IdempotencyKey: name}
			e := r.edit(one.id, order.By{})
			e.action = "" // it changes nothing of the item
			row, err := changeRow(ctx, s.Store, tx, one.id, e)
			if err != nil {
				return err
			}
			versions[one.id], revisions[one.id] = row.Version, row.Revision
		}
		committing = true
		return nil
	})
	if err != nil {
		if !committing {
			err = fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
		}
		return nil, err
	}
	s.Store.HighWater().Commit(revisions)
	s.Store.HighWater().Note(ctx)
	for id, version := range versions {
		s.Catalog.Changed(ctx, id, version)
	}
	return versions, nil
}
