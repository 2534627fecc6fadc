package items

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// alignParallel is how many buckets of an item are changed at once.
const alignParallel = 8

// align gives the terms of an item to its buckets that have others. It tries all of them.
func (s *Service) align(ctx context.Context, first *schema.Item, by order.By) error {
	errs := make([]error, max(first.Buckets, 1))
	var g errgroup.Group
	g.SetLimit(alignParallel)
	for n := 1; n < len(errs); n++ {
		g.Go(func() error {
			errs[n] = s.follow(ctx, first.ID, bucket.ID(first.ID, n), by)
			return nil
		})
	}
	_ = g.Wait() //nolint:errcheck // the errors are joined below
	return errors.Join(errs...)
}

// errFollow says that an item has got other terms while they were given to a bucket.
var errFollow = errors.New("order: terms changed meanwhile")

// followTries bounds the attempts to give an item's terms to a bucket.
const followTries = 5

// follow gives the terms of an item to one of its buckets.
func (s *Service) follow(ctx context.Context, item, id string, by order.By) error {
	for try := 1; ; try++ {
		first, err := store.Item(ctx, s.Store, item)
		if err != nil {
			return err
		}
		opens, closes := order.FromMillis(first.OpensAt), order.FromMillis(first.ClosesAt)
		live := inventory.Change{PerUserLimit: &first.PerUserLimit, OpensAt: &opens, ClosesAt: &closes, Control: &first.Control}
		_, err = s.alterBucket(ctx, id, live, &edit{
			action: order.ActionItemChange, by: by,
			before: func(tx *gorm.DB) error {
				now, err := store.ReadItem(tx, item)
				if err == nil && withTerms(schema.Item{}, &now) != withTerms(schema.Item{}, &first) {
					err = errFollow
				}
				return err
			},
			apply: func(row *schema.Item) error {
				*row = withTerms(*row, &first)
				return nil
			},
		})
		if !errors.Is(err, errFollow) || try == followTries {
			return err
		}
	}
}

// withTerms returns a row with the terms of another one, which is what a change can change.
func withTerms(row schema.Item, of *schema.Item) schema.Item {
	row.Name, row.Description, row.ImageURL = of.Name, of.Description, of.ImageURL
	row.PriceMinor, row.PerUserLimit = of.PriceMinor, of.PerUserLimit
	row.OpensAt, row.ClosesAt = of.OpensAt, of.ClosesAt
	row.PaymentWindowSeconds, row.Control = of.PaymentWindowSeconds, of.Control
	return row
}

// Align gives the terms of every item that was changed since a time to its buckets that have others:
// the process that changed the item has died, or could not change all buckets. It is to be called
// every few seconds.
func (s *Service) Align(ctx context.Context, since time.Time) error {
	items, err := misaligned(ctx, s.Store, since)
	if err != nil {
		return err
	}
	for _, item := range items {
		first, err := store.Item(ctx, s.Store, item)
		if err != nil {
			return err
		}
		if err := s.align(ctx, &first, order.By{}); err != nil {
			s.OnError(fmt.Errorf("align the buckets of %s: %w", item, err))
		}
	}
	return nil
}

// termsDiffer selects the items that were changed since a time and have a bucket with other terms.
const termsDiffer = `SELECT a.id FROM items a WHERE a.buckets > 1 AND a.updated_at >= ? AND EXISTS (
	SELECT 1 FROM items b WHERE b.id > a.id || '.' AND b.id < a.id || '/'
	AND (b.name, b.description, b.image_url, b.price_minor, b.per_user_limit, b.opens_at, b.closes_at, b.payment_window_seconds, b.control)
	<> (a.name, a.description, a.image_url, a.price_minor, a.per_user_limit, a.opens_at, a.closes_at, a.payment_window_seconds, a.control)
) ORDER BY a.id`

// misaligned reads the ids of the items that were changed since a time and have a bucket with other
// terms than theirs.
func misaligned(ctx context.Context, s *store.Store, since time.Time) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var ids []string
	if err := s.Reader().WithContext(ctx).Raw(termsDiffer, max(order.ToMillis(since), 0)).Scan(&ids).Error; err != nil {
		return nil, database.Wrap("compare buckets", err)
	}
	return ids, nil
}
