package items

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/lock"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// MaxStock is the maximum total of an item. It is far above any sale, and every sum of
// units stays exact, also in the numbers of Lua.
const MaxStock = 1_000_000_000

// The errors of a restock, in addition to those of any change. Nothing was changed.
var (
	// ErrStockRange means that the item would have more than MaxStock units.
	ErrStockRange = errors.New("order: total stock out of range")
	// ErrRestockReused means that the idempotency key was used for another restock
	// of the item.
	ErrRestockReused = errors.New("order: idempotency key reused for a different restock")
)

// Restock is a change of an item's total stock.
type Restock struct {
	// Quantity is the number of units to add; a negative number removes unsold units. It is
	// not 0, and at most MaxStock either way.
	Quantity int64
	Reason   string // for operators
	// IdempotencyKey identifies the restock among those of its item: another call with the
	// same key is a repeat.
	IdempotencyKey string
	Match          order.Match
}

// stockChangeRow is a row of the table stock_changes, the ledger of a total.
type stockChangeRow struct {
	ID             int64 `gorm:"primaryKey"`
	ItemID         string
	Quantity       int64
	Reason         string
	Actor          string
	IdempotencyKey string
	TotalAfter     int64
	At             int64
}

// TableName returns the name of the table to gorm.
func (stockChangeRow) TableName() string { return "stock_changes" }

// errRestocked says that the restock was made before.
var errRestocked = errors.New("order: restocked before")

// Restock adds units to an item on sale, or removes unsold ones. It changes the item's
// total, but not its initial stock. A repeat with the same key changes nothing, even if the
// answer to the first call was lost; replayed is then true, and the present item is
// returned.
//
// Errors: catalog.ErrItemNotFound; inventory.ErrStockBelowSold if it removes more units
// than are unsold, where queued orders count as sold; ErrStockRange, ErrRestockReused,
// ErrVersion, and those of ChangeItem. After an error with an unknown outcome, repeat the
// call.
func (s *Service) Restock(ctx context.Context, id string, r Restock, by order.By) (item catalog.Item, replayed bool, err error) {
	if r.Quantity == 0 || r.Quantity > MaxStock || r.Quantity < -MaxStock {
		return catalog.Item{}, false, fmt.Errorf("order: restock of %s", plural.Count(r.Quantity, "unit"))
	}
	err = findRestocked(ctx, s.Store, id, &r)
	if err == nil {
		item, err = s.restock(ctx, id, &r, by)
		if err == nil {
			return item, false, nil
		}
		// Another request with the same key may have been faster, and have caused this
		// refusal.
		known := findRestocked(ctx, s.Store, id, &r)
		if errors.Is(known, errRestocked) || errors.Is(known, ErrRestockReused) {
			err = known
		}
	}
	if !errors.Is(err, errRestocked) {
		return catalog.Item{}, false, err
	}
	item, err = s.Item(ctx, id)
	return item, true, err
}

// takeBackTries bounds the attempts to take units back from an item while refills move them.
const takeBackTries = 10

// restock makes the restock in bucket 0, and moves the units between it and the other buckets.
func (s *Service) restock(ctx context.Context, id string, r *Restock, by order.By) (catalog.Item, error) {
	rows, err := store.Buckets(ctx, s.Store, id)
	if err != nil {
		return catalog.Item{}, err
	}
	if store.ItemOfBuckets(rows).StockTotal+r.Quantity > MaxStock {
		return catalog.Item{}, ErrStockRange
	}
	ids := bucket.IDs(id, len(rows))
	row, err := s.alterBucket(ctx, id, inventory.Change{AddLeft: r.Quantity}, r.edit(id, by))
	for try := 1; len(ids) > 1 && errors.Is(err, inventory.ErrStockBelowSold) && try <= takeBackTries; try++ {
		enough, gatherErr := s.gather(ctx, id, -r.Quantity)
		switch {
		case gatherErr != nil && (try == takeBackTries || !errors.Is(gatherErr, lock.ErrWaitTimeout)):
			return catalog.Item{}, gatherErr
		case gatherErr == nil && !enough:
			return catalog.Item{}, inventory.ErrStockBelowSold
		}
		row, err = s.alterBucket(ctx, id, inventory.Change{AddLeft: r.Quantity}, r.edit(id, by))
	}
	if err != nil {
		return catalog.Item{}, err
	}
	s.spread(ctx, ids, r.Quantity)
	return s.show(ctx, &row), nil
}

// edit returns the restock as a change of the item's row.
func (r *Restock) edit(id string, by order.By) *edit {
	return &edit{
		action: order.ActionItemRestock, by: by, match: r.Match,
		apply: func(row *schema.Item) error {
			row.Total += r.Quantity
			switch {
			case row.Total > MaxStock:
				return ErrStockRange
			case row.Total < row.Sold:
				return inventory.ErrStockBelowSold
			}
			return nil
		},
		before: func(tx *gorm.DB) error { return restocked(tx, id, r) },
		also: func(tx *gorm.DB, row *schema.Item) error {
			err := tx.Create(&stockChangeRow{
				ItemID: id, Quantity: r.Quantity, Reason: r.Reason, Actor: by.Actor,
				IdempotencyKey: r.IdempotencyKey, TotalAfter: row.Total, At: row.UpdatedAt,
			}).Error
			if err != nil {
				return fmt.Errorf("record restock: %w", err)
			}
			return nil
		},
		note: map[string]any{"reason": r.Reason},
	}
}

// findRestocked is restocked without a transaction. It returns once the synchronous standbys have
// that restock.
func findRestocked(ctx context.Context, s *store.Store, id string, r *Restock) error {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	known := restocked(s.Reader().WithContext(ctx), id, r)
	if err := s.Replicated(ctx); err != nil {
		return err
	}
	return known
}

// restocked checks for a restock with the same key. Errors: errRestocked if it was the
// same, ErrRestockReused if it was different; nil if there is none.
func restocked(tx *gorm.DB, id string, r *Restock) error {
	var rows []stockChangeRow
	err := tx.Where("item_id = ? AND idempotency_key = ?", id, r.IdempotencyKey).Limit(1).Find(&rows).Error
	switch {
	case err != nil:
		return database.Wrap("find restock", err)
	case len(rows) == 0:
		return nil
	case rows[0].Quantity != r.Quantity || rows[0].Reason != r.Reason:
		return ErrRestockReused
	}
	return errRestocked
}
