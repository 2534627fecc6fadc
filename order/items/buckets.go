package items

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/pause"
	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/timeouts"
)

// refills are the refills of one item's buckets by this process.
type refills struct {
	ids    []string       // of the buckets
	wanted []atomic.Int64 // how many units the purchases that wait for a refill of the bucket want
	// flights has one refill per bucket and quantity, for all purchases that wait for it.
	flights singleflight.Group
	turn    chan struct{} // is taken for a move, so that refills do not take each other's units
}

// refillsOf returns the refills of an item.
func (s *Service) refillsOf(item *catalog.Item) *refills {
	if kept, ok := s.refills.Load(item.ID); ok {
		r := kept.(*refills) //nolint:forcetypeassert // nothing else is stored
		if len(r.ids) == item.Buckets {
			return r
		}
		// The database lost the item, and it was created again.
		s.refills.CompareAndDelete(item.ID, kept)
	}
	r, _ := s.refills.LoadOrStore(item.ID, &refills{
		ids: bucket.IDs(item.ID, item.Buckets), wanted: make([]atomic.Int64, item.Buckets), turn: make(chan struct{}, 1),
	})
	return r.(*refills) //nolint:forcetypeassert // nothing else is stored
}

// Refill moves units of other buckets into one that has too few units for a purchase. It returns
// false if all buckets together have too few: the item is sold out. Another purchase may take
// the units before the caller's next one. Errors: inventory.ErrUnavailable.
func (s *Service) Refill(ctx context.Context, item *catalog.Item, id string, quantity int64) (bool, error) {
	r := s.refillsOf(item)
	if s.Stock.SoldOut(r.ids) {
		return false, nil
	}
	wanted := &r.wanted[slices.Index(r.ids, id)]
	wanted.Add(quantity)
	defer wanted.Add(-quantity)
	refilled := r.flights.DoChan(fmt.Sprint(id, " ", quantity), func() (any, error) {
		// It serves other purchases, too, so it does not end with this one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Refill)
		defer cancel()
		ok, err := s.fill(ctx, r, id, quantity)
		if ok {
			// The message that the bucket has units may not have come back yet.
			s.Stock.DropSoldOutMark(id)
		}
		return ok, err
	})
	wait, cancel := context.WithTimeout(ctx, timeouts.Refill+refillMargin)
	defer cancel()
	select {
	case f := <-refilled:
		if f.Err != nil {
			return false, fmt.Errorf("refill bucket %s: %w: %w", id, inventory.ErrUnavailable, f.Err)
		}
		return f.Val.(bool), nil //nolint:forcetypeassert // the function above returns it
	case <-wait.Done():
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return false, fmt.Errorf("refill bucket %s: %w: its transaction does not end", id, inventory.ErrUnavailable)
	}
}

// refillMargin is how much longer than a refill a purchase waits for it. A refill that is committing when its time is
// over goes on until the database answers.
const refillMargin = 500 * time.Millisecond

// The pauses while a bucket is being changed or loaded, or does not give its units.
const (
	fillPauseMin = 2 * time.Millisecond
	fillPauseMax = 100 * time.Millisecond
)

// fill moves units into a bucket until it has a quantity. It takes half of the fullest bucket, so
// that a bucket that sells faster is filled a few times, and not for each of its buyers; or
// more, if the purchases that wait for the refill want more: otherwise they take each other's units and
// wait again. It returns false if all buckets together have less than the quantity.
func (s *Service) fill(ctx context.Context, r *refills, id string, quantity int64) (bool, error) {
	for wait := fillPauseMin; ; wait = min(2*wait, fillPauseMax) {
		enough, unknown, err := s.fillOnce(ctx, r, id, quantity)
		switch {
		case err != nil:
			return false, err
		case enough:
			return true, nil
		case unknown == "":
			return false, nil
		}
		// Another bucket may be away for long, so an error is no reason to give up.
		if err := s.Stock.Warm(ctx, unknown); err != nil && !errors.Is(err, inventory.ErrUnavailable) && !errors.Is(err, inventory.ErrRebuilding) {
			return false, err
		}
		if !pause.For(ctx, wait) {
			return false, context.Cause(ctx)
		}
	}
}

// fillOnce is one attempt of fill, which moves units of one bucket after the other. If it cannot
// decide because of a bucket that is being changed, is not loaded or does not give its units, it
// returns the id of that one.
func (s *Service) fillOnce(ctx context.Context, r *refills, id string, quantity int64) (enough bool, unknown string, err error) {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return false, "", context.Cause(ctx)
	}
	without := make(map[string]bool) // buckets that did not give their units
	for {
		l := stockOf(r.ids, s.bucketsLeft(ctx, r.ids), id, without)
		switch {
		case l.own >= quantity:
			return true, "", nil
		case l.own < 0:
			return false, id, nil
		case l.known < quantity:
			return false, l.unknown, nil
		}
		wanted := max(quantity, r.wanted[slices.Index(r.ids, id)].Load())
		units := min(l.most, max(wanted-l.own, (l.most+1)/2))
		err := s.move(ctx, l.from, id, units)
		switch {
		case errors.Is(err, inventory.ErrStockBelowSold), errors.Is(err, inventory.ErrNotLoaded), errors.Is(err, lock.ErrWaitTimeout):
			without[l.from] = true
		case err != nil:
			return false, "", err
		case l.own+units >= quantity:
			return true, "", nil
		}
	}
}

// bucketsLeft reads the units of buckets; -1 for those that are not known. Buckets on a master that
// does not answer do not hide the others.
func (s *Service) bucketsLeft(ctx context.Context, ids []string) []int64 {
	left, err := s.Stock.Left(ctx, ids)
	if err == nil {
		return left
	}
	left = make([]int64, len(ids))
	for i := range ids {
		left[i] = -1
		if one, err := s.Stock.Left(ctx, ids[i:i+1]); err == nil {
			left[i] = one[0]
		}
	}
	return left
}

// bucketStock is the stock of the buckets as a refill of one of them sees it.
type bucketStock struct {
	own     int64  // the units of the bucket; -1: not known
	from    string // the bucket that has most units, of the others
	most    int64  // its units
	known   int64  // the units of all buckets that are known
	unknown string // a bucket that is being changed, or not loaded; empty: none
}

func stockOf(ids []string, left []int64, id string, without map[string]bool) bucketStock {
	var l bucketStock
	for i, n := range left {
		switch {
		case n < 0 || n > 0 && without[ids[i]]:
			l.unknown, n = ids[i], 0
		case ids[i] != id && n > l.most:
			l.from, l.most = ids[i], n
		}
		if ids[i] == id {
			l.own = left[i]
		}
		l.known += n
	}
	return l
}

// gather moves units into bucket 0 until it has a quantity. It returns false if all buckets
// together have fewer. With lock.ErrWaitTimeout a bucket was busy, so that a repeat may succeed.
func (s *Service) gather(ctx context.Context, item string, quantity int64) (bool, error) {
	rows, err := store.Buckets(ctx, s.Store, item)
	if err != nil {
		return false, err
	}
	ids := bucket.IDs(item, len(rows))
	left, err := s.Stock.Left(ctx, ids)
	if err != nil {
		return false, fmt.Errorf("read buckets of %s: %w: %w", item, inventory.ErrUnavailable, err)
	}
	var sum int64
	for i := range left {
		if left[i] < 0 { // the sale may have ended
			left[i] = rows[i].Total - rows[i].Sold
		}
		sum += left[i]
	}
	missing := quantity - left[0]
	var busy error
	for i := 1; i < len(ids) && missing > 0 && sum >= quantity; i++ {
		units := min(missing, left[i])
		if units == 0 {
			continue
		}
		err := s.move(ctx, ids[i], ids[0], units)
		if errors.Is(err, inventory.ErrNotLoaded) {
			err = s.moveEnded(ctx, ids[i], ids[0], units)
		}
		switch {
		case err == nil:
			missing -= units
		case errors.Is(err, lock.ErrWaitTimeout):
			busy = err
		case !errors.Is(err, inventory.ErrStockBelowSold):
			return false, err
		}
	}
	if missing > 0 && busy != nil {
		return true, busy
	}
	return sum >= quantity, nil
}

// spread moves each bucket's part of a restock out of bucket 0. A part that cannot be moved stays
// there, and a refill moves it, unless bucket 0 has sold it meanwhile: that, and a bucket whose lock is
// not free, are no failures.
func (s *Service) spread(ctx context.Context, ids []string, quantity int64) {
	for _, id := range ids[1:] {
		part := quantity / int64(len(ids))
		if part <= 0 {
			return
		}
		if err := s.move(ctx, ids[0], id, part); err != nil {
			if !errors.Is(err, inventory.ErrStockBelowSold) && !errors.Is(err, lock.ErrWaitTimeout) {
				s.OnError(fmt.Errorf("spread a restock: %w", err))
			}
			return
		}
	}
}

// move moves units that are not sold between two buckets of an item; see inventory.Inventory.Move.
func (s *Service) move(ctx context.Context, from, to string, units int64) error {
	err := s.Stock.Move(ctx, from, to, units, func(ctx context.Context) (fromVersion, toVersion int64, err error) {
		versions, err := s.commitMove(ctx, from, to, units)
		return versions[from], versions[to], err
	})
	if err != nil {
		return fmt.Errorf("move %s from %s to %s: %w", plural.Count(units, "unit"), from, to, err)
	}
	return nil
}

// moveEnded is move for an item whose sale has ended and is not loaded: nothing of it is sold.
func (s *Service) moveEnded(ctx context.Context, from, to string, units int64) error {
	return s.Stock.Change(ctx, from, inventory.Change{AddLeft: -units}, func(ctx context.Context) (int64, error) {
		begun := false
		var versions map[string]int64
		err := s.Stock.Change(ctx, to, inventory.Change{AddLeft: units}, func(ctx context.Context) (int64, error) {
			begun = true
			var err error
			versions, err = s.commitMove(ctx, from, to, units)
			return versions[to], err
		})
		if err != nil && !begun {
			err = fmt.Errorf("%w: %w", inventory.ErrUnchanged, err)
		}
		return versions[from], err
	})
}

// commitMove moves units in the database, and returns the versions of both buckets. An error
// wraps inventory.ErrUnchanged if it is certain that nothing was changed.
func (s *Service) commitMove(ctx context.Context, from, to string, units int64) (versions map[string]int64, err error) {
	name := "move-" + uuid.NewString()
	var revisions map[string]int64
	committing := false
	err = s.Store.ChangeWithGORM(ctx, "move units from "+from, func(tx *gorm.DB, _ int64) error {
		committing = false
		versions, revisions = make(map[string]int64, 2), make(map[string]int64, 2)
		for _, one := range []struct {
			id, reason string
			units      int64
		}{{from, "moved to bucket " + to, -units}, {to, "moved from bucket " + from, units}} {
			r := Restock{Quantity: one.units, Reason: one.reason, IdempotencyKey: name}
			e := r.edit(one.id, order.By{})
			e.action = "" // it changes nothing of the item
			count := e.apply
			e.apply = func(row *schema.Item) error {
				row.Moves++
				return count(row)
			}
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
	s.Store.HighWater().Committed(revisions)
	s.Store.HighWater().Note(ctx)
	for id, version := range versions {
		s.Catalog.Changed(ctx, id, version)
	}
	return versions, nil
}
