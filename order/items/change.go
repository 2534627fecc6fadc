// Package items creates items, changes them while they are on sale, pauses and closes sales,
// and restocks.
package items

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// Stock is what creating and changing items needs of the inventory.
type Stock interface {
	Open(ctx context.Context, item string) error
	Left(ctx context.Context, items []string) ([]int64, error)
	// Change changes an item in the database and in its running sale, and neither without
	// the other; see inventory.Inventory.Change.
	Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (version int64, err error)) error
	// Warm loads an item's sale unless it is loaded; see inventory.Inventory.Warm.
	Warm(ctx context.Context, item string) error
	// Move moves units between two items; see inventory.Inventory.Move.
	Move(ctx context.Context, from, to string, units int64, commit func(ctx context.Context) (fromVersion, toVersion int64, err error)) error
	// DropSoldOutMark drops this process's sold-out mark of an item.
	DropSoldOutMark(item string)
	// SoldOut reports whether all of these items are known to be sold out; see
	// inventory.Inventory.SoldOut.
	SoldOut(items []string) bool
}

// Catalog is what creating and changing items needs of the catalogue: both methods
// notify every process of what is committed.
type Catalog interface {
	Created(ctx context.Context, id string)
	Changed(ctx context.Context, id string, version int64)
}

// Service creates and changes items. All fields are required.
type Service struct {
	Store   *store.Store
	Stock   Stock
	Catalog Catalog
	// OnError receives errors that change no response.
	OnError func(error)

	refills sync.Map // of *refills, by item
}

// CreateItem opens a sale. Errors: ErrItemExists, *order.BucketsError.
func (s *Service) CreateItem(ctx context.Context, n order.NewItem) (catalog.Item, error) {
	if err := s.checkBuckets(ctx, &n); err != nil {
		return catalog.Item{}, err
	}
	item, err := s.Store.InsertItem(ctx, n)
	// Also after an error: the outcome may be unknown. And if the item exists, this call
	// may be the repeat of one whose notification was lost.
	s.Catalog.Created(ctx, n.ID)
	if err != nil {
		return catalog.Item{}, err
	}
	// The item exists once its row does; if the sale cannot be loaded now, its first buyer
	// loads it.
	for _, id := range bucket.IDs(item.ID, item.Buckets) {
		if err := s.Stock.Open(ctx, id); err != nil {
			s.OnError(fmt.Errorf("open item %s: %w", id, err))
		}
	}
	return item, nil
}

// checkBuckets refuses an item that the database has lost, if it had more buckets. While Redis is
// away, items can be created, so this is not checked then.
func (s *Service) checkBuckets(ctx context.Context, n *order.NewItem) error {
	err := s.Store.HighWater().CheckBuckets(ctx, n.ID, n.Buckets)
	if more := (*order.BucketsError)(nil); errors.As(err, &more) {
		if _, known := store.Item(ctx, s.Store, n.ID); errors.Is(known, catalog.ErrItemNotFound) {
			return err
		}
		return nil // the insertion says that it exists
	}
	if err != nil {
		s.OnError(fmt.Errorf("check item %s for earlier buckets: %w", n.ID, err))
	}
	return nil
}

func allows(m order.Match, version int64) bool { return m == nil || slices.Contains(m, version) }

// Change holds the new values of an item's fields; nil leaves a field unchanged. The
// caller checks the ranges. Effects on orders that were accepted before:
//
//   - the price: none, they keep theirs;
//   - the limit: they stay, but their buyer can buy more only up to the new limit;
//   - the window: none;
//   - the time to pay: committed orders keep their expires_at, queued ones get the
//     new one.
type Change struct {
	Name        *string
	Description *string
	// ImageURL is the path of the image; a pointer to "" removes it.
	ImageURL     *string
	PriceMinor   *int64
	PerUserLimit *int64
	OpensAt      *time.Time
	// ClosesAt is the end; a pointer to the zero time removes it.
	ClosesAt      *time.Time
	PaymentWindow *time.Duration
	Match         order.Match
}

// Control is an operator's request to open, pause or close a sale.
type Control struct {
	// To is open to resume a paused sale, paused, or closed. A closed sale stays so.
	To    catalog.Control
	Match order.Match
}

// Item reads an item from the database, with the live number of units left. It does not use
// the catalogue's cache, because callers decide on a change by the result. Errors:
// catalog.ErrItemNotFound, database.ErrUnavailable.
func (s *Service) Item(ctx context.Context, id string) (catalog.Item, error) {
	row, err := store.Item(ctx, s.Store, id)
	if err != nil {
		return catalog.Item{}, err
	}
	return s.show(ctx, &row), nil
}

// ChangeItem changes an item while it is on sale: the next batch is sold under the new
// terms. A change that leaves every field as it is returns the item with its old version.
// Errors: catalog.ErrItemNotFound, ErrVersion, ErrWindow, and those of
// inventory.Inventory.Change. After any other error the outcome is unknown: read the item.
func (s *Service) ChangeItem(ctx context.Context, id string, c Change, by order.By) (catalog.Item, error) {
	live := inventory.Change{PerUserLimit: c.PerUserLimit, OpensAt: c.OpensAt, ClosesAt: c.ClosesAt}
	return s.alter(ctx, id, live, &edit{action: order.ActionItemChange, by: by, match: c.Match, apply: c.apply})
}

func (c *Change) apply(r *schema.Item) error {
	set(&r.Name, c.Name)
	set(&r.Description, c.Description)
	set(&r.ImageURL, c.ImageURL)
	set(&r.PriceMinor, c.PriceMinor)
	set(&r.PerUserLimit, c.PerUserLimit)
	if c.OpensAt != nil {
		r.OpensAt = order.ToMillis(*c.OpensAt)
	}
	if c.ClosesAt != nil {
		r.ClosesAt = order.ToMillis(*c.ClosesAt)
	}
	if c.PaymentWindow != nil {
		r.PaymentWindowSeconds = int64(*c.PaymentWindow / time.Second)
	}
	if r.ClosesAt != 0 && r.ClosesAt <= r.OpensAt {
		return order.ErrWindow
	}
	return nil
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// ControlItem pauses, resumes or closes a sale. When it returns, a sale that is not open
// accepts no more orders. Orders accepted before are processed as usual, and closing
// cancels none. If the sale is in the requested state already, nothing changes. Errors:
// catalog.ErrItemNotFound, ErrVersion, ErrItemClosed, and those of ChangeItem.
func (s *Service) ControlItem(ctx context.Context, id string, c Control, by order.By) (catalog.Item, error) {
	var action string
	switch c.To {
	case catalog.ControlOpen:
		action = order.ActionItemResume
	case catalog.ControlPaused:
		action = order.ActionItemPause
	case catalog.ControlClosed:
		action = order.ActionItemClose
	default:
		return catalog.Item{}, fmt.Errorf("order: control is %q, want open, paused or closed", c.To)
	}
	to := string(c.To)
	apply := func(r *schema.Item) error {
		if r.Control == string(catalog.ControlClosed) && r.Control != to {
			return order.ErrItemClosed
		}
		r.Control = to
		return nil
	}
	return s.alter(ctx, id, inventory.Change{Control: &to}, &edit{action: action, by: by, match: c.Match, apply: apply})
}

// alter makes one change of an item in the database and in its sale. live is the change of the
// sale. Bucket 0 decides; the other buckets then get its terms. If one of them cannot be changed
// now, the error is that of an unknown outcome, and Align changes it later.
func (s *Service) alter(ctx context.Context, id string, live inventory.Change, e *edit) (catalog.Item, error) {
	row, err := s.alterBucket(ctx, id, live, e)
	if err != nil {
		return catalog.Item{}, err
	}
	if err := s.align(ctx, &row, e.by); err != nil {
		return catalog.Item{}, err
	}
	return s.show(ctx, &row), nil
}

// alterBucket is alter for one bucket. It returns the row after the change.
func (s *Service) alterBucket(ctx context.Context, id string, live inventory.Change, e *edit) (schema.Item, error) {
	row, err := store.Item(ctx, s.Store, id)
	if err != nil {
		return schema.Item{}, err
	}
	// This refuses most invalid changes without stopping the sale. The check within the
	// transaction decides.
	if _, err = e.on(row); err == nil {
		// What follows the commit in Redis is done at the same time as the change of the sale: if Redis does
		// not respond, the caller waits for the longest of these calls, and not for one after the other.
		var beside sync.WaitGroup
		live.SamePrice = func() bool { return e.samePrice }
		err = s.Stock.Change(ctx, id, live, func(ctx context.Context) (int64, error) {
			version := row.Version + 1
			row, err = changeItem(ctx, s.Store, id, e)
			if err == nil {
				version = row.Version
				beside.Go(func() { s.Store.HighWater().Note(ctx) })
			}
			// If the outcome is unknown, the catalogue must read the item again.
			if err == nil || errors.Is(err, database.ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				beside.Go(func() { s.Catalog.Changed(ctx, id, version) })
			}
			return row.Version, err
		})
		beside.Wait()
	}
	if err != nil && !errors.Is(err, errSame) {
		return schema.Item{}, fmt.Errorf("change item %s: %w", id, err)
	}
	return row, nil
}

// show returns an item with its live stock, or with the database's count if Redis does not
// answer.
func (s *Service) show(ctx context.Context, row *schema.Item) catalog.Item {
	item := row.Item()
	// The change is made, so the answer is built even if the client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Show)
	defer cancel()
	if item.Buckets > 1 {
		rows, err := store.Buckets(ctx, s.Store, item.ID)
		if err != nil {
			s.OnError(fmt.Errorf("show item %s: %w", item.ID, err))
			return item
		}
		item = store.ItemOfBuckets(rows)
	}
	left, err := s.Stock.Left(ctx, bucket.IDs(item.ID, item.Buckets))
	if err != nil {
		s.OnError(fmt.Errorf("show item %s: %w", item.ID, err))
		return item
	}
	if units := bucket.Sum(left); units >= 0 {
		item.StockLeft = units
	}
	return item
}
