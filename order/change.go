package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"flashsale/catalog"
	"flashsale/inventory"
)

// ItemStock is what creating and changing items needs of the inventory.
type ItemStock interface {
	Open(ctx context.Context, item string) error
	Left(ctx context.Context, items []string) ([]int64, error)
	// Change changes an item in the database and in its running sale, and neither without
	// the other; see inventory.Inventory.Change.
	Change(ctx context.Context, item string, c inventory.Change, commit func(ctx context.Context) (version int64, err error)) error
}

// ItemCatalog is what creating and changing items needs of the catalogue: both methods
// notify every process of what is committed.
type ItemCatalog interface {
	Created(ctx context.Context, id string)
	Changed(ctx context.Context, id string, version int64)
}

// ItemService creates and changes items. All fields are required.
type ItemService struct {
	Store   *Store
	Stock   ItemStock
	Catalog ItemCatalog
	// OnError receives errors that change no response.
	OnError func(error)
}

// CreateItem opens a sale. Errors: ErrItemExists.
func (s *ItemService) CreateItem(ctx context.Context, n NewItem) (catalog.Item, error) {
	item, err := s.Store.InsertItem(ctx, n)
	// Also when it failed: the outcome may be open, and who created the item in
	// vain, because it exists, may be repeating what was not told to everyone.
	s.Catalog.Created(ctx, n.ID)
	if err != nil {
		return catalog.Item{}, err
	}
	// The row decides; a sale that could not be loaded now is loaded by its
	// first buyer.
	if err := s.Stock.Open(ctx, n.ID); err != nil {
		s.OnError(fmt.Errorf("open item %s: %w", n.ID, err))
	}
	return item, nil
}

func (m Match) allows(version int64) bool { return m == nil || slices.Contains(m, version) }

// ItemChange states what of an item is to be another than it is; nil leaves a
// field as it is. Ranges are the caller's to check. What each means for orders
// that were accepted before:
//
//   - the price: none, they keep theirs;
//   - the limit: they stay, however much their buyer holds, who can buy more only
//     up to the new limit;
//   - the window: none;
//   - the time to pay: those that are committed keep their expires_at, those still
//     queued get the new one.
type ItemChange struct {
	Name         *string
	Description  *string
	PriceMinor   *int64
	PerUserLimit *int64
	OpensAt      *time.Time
	// ClosesAt is the end; a pointer to the zero time takes it away.
	ClosesAt      *time.Time
	PaymentWindow *time.Duration
	Match         Match
}

// ItemControl is an operator's word on a whole sale.
type ItemControl struct {
	// To is open to resume a paused sale, paused, or closed. A closed sale stays so.
	To    catalog.Control
	Match Match
}

// Item reads an item as the database has it now, with the live number of units
// left: what a change is decided on must not come from a memory, as that of the
// catalogue. Errors: catalog.ErrItemNotFound, ErrDatabase.
func (s *ItemService) Item(ctx context.Context, id string) (catalog.Item, error) {
	row, err := s.Store.item(ctx, id)
	if err != nil {
		return catalog.Item{}, err
	}
	return s.show(ctx, &row), nil
}

// ChangeItem changes an item while it is on sale: the next batch is sold under
// the new terms. A change that leaves everything as it is gets the item, and no
// new version. Errors: catalog.ErrItemNotFound, ErrVersion, ErrWindow, and those
// of inventory.Inventory.Change; after other errors a look at the item settles
// the outcome.
func (s *ItemService) ChangeItem(ctx context.Context, id string, c ItemChange, by By) (catalog.Item, error) {
	live := inventory.Change{PerUserLimit: c.PerUserLimit, OpensAt: c.OpensAt, ClosesAt: c.ClosesAt}
	return s.alter(ctx, id, live, &edit{action: actionItemChange, by: by, match: c.Match, apply: c.apply})
}

func (c *ItemChange) apply(r *itemRow) error {
	set(&r.Name, c.Name)
	set(&r.Description, c.Description)
	set(&r.PriceMinor, c.PriceMinor)
	set(&r.PerUserLimit, c.PerUserLimit)
	if c.OpensAt != nil {
		r.OpensAt = toMillis(*c.OpensAt)
	}
	if c.ClosesAt != nil {
		r.ClosesAt = toMillis(*c.ClosesAt)
	}
	if c.PaymentWindow != nil {
		r.PaymentWindowSeconds = int64(*c.PaymentWindow / time.Second)
	}
	if r.ClosesAt != 0 && r.ClosesAt <= r.OpensAt {
		return ErrWindow
	}
	return nil
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// ControlItem pauses, resumes or closes a sale. When it returns nothing more is
// accepted of a sale that is not open; what was accepted before goes on, and
// closing cancels no order. One that stands so already is left as it is.
// Errors: catalog.ErrItemNotFound, ErrVersion, ErrItemClosed, and as ChangeItem.
func (s *ItemService) ControlItem(ctx context.Context, id string, c ItemControl, by By) (catalog.Item, error) {
	var action string
	switch c.To {
	case catalog.ControlOpen:
		action = actionItemResume
	case catalog.ControlPaused:
		action = actionItemPause
	case catalog.ControlClosed:
		action = actionItemClose
	default:
		return catalog.Item{}, fmt.Errorf("order: control is %q, want open, paused or closed", c.To)
	}
	to := string(c.To)
	apply := func(r *itemRow) error {
		if r.Control == string(catalog.ControlClosed) && r.Control != to {
			return ErrItemClosed
		}
		r.Control = to
		return nil
	}
	return s.alter(ctx, id, inventory.Change{Control: &to}, &edit{action: action, by: by, match: c.Match, apply: apply})
}

// alter makes one change of an item in the database and in its sale. live is
// what the sale is told of it.
func (s *ItemService) alter(ctx context.Context, id string, live inventory.Change, e *edit) (catalog.Item, error) {
	row, err := s.Store.item(ctx, id)
	if err != nil {
		return catalog.Item{}, err
	}
	// Most refusals are known here already, and the sale need not stand still for
	// them. What counts is the look within the transaction.
	if _, err = e.on(row); err == nil {
		err = s.Stock.Change(ctx, id, live, func(ctx context.Context) (int64, error) {
			next := row.Version + 1
			row, err = s.Store.changeItem(ctx, id, e)
			switch {
			case err == nil:
				s.Catalog.Changed(ctx, id, row.Version)
			case errors.Is(err, ErrDatabase) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
				// The outcome is open: then the database is to be asked again.
				s.Catalog.Changed(ctx, id, next)
			}
			return row.Version, err
		})
	}
	if err != nil && !errors.Is(err, errSame) {
		return catalog.Item{}, fmt.Errorf("change item %s: %w", id, err)
	}
	return s.show(ctx, &row), nil
}

// show is an item with its live stock, or with what the database counts where
// Redis does not answer.
func (s *ItemService) show(ctx context.Context, row *itemRow) catalog.Item {
	item := row.item()
	// A change that was made is answered also to who is about to leave.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), showTimeout)
	defer cancel()
	left, err := s.Stock.Left(ctx, []string{item.ID})
	if err != nil {
		s.OnError(fmt.Errorf("show item %s: %w", item.ID, err))
		return item
	}
	if left[0] >= 0 {
		item.StockLeft = left[0]
	}
	return item
}
