package order

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/inventory"
)

// MaxStock is the most units that an item can have in total. It is far beyond
// any sale and keeps every sum of units exact, in Lua's numbers as well.
const MaxStock = 1_000_000_000

// The refusals of a restock beside those of any change. Nothing was changed.
var (
	// ErrStockRange says that the item would have more than MaxStock units.
	ErrStockRange = errors.New("order: total stock out of range")
	// ErrRestockReused says that the idempotency key was used for another restock
	// of the item.
	ErrRestockReused = errors.New("order: idempotency key reused for a different restock")
)

// Restock is a change of an item's total stock.
type Restock struct {
	// Quantity is how many units come; a negative number takes back units that
	// are not sold. Not 0, and at most MaxStock either way.
	Quantity int64
	Reason   string // for people
	// IdempotencyKey names the restock among those of its item: another with the
	// same key is a repeat.
	IdempotencyKey string
	Match          Match
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

// TableName tells gorm the table.
func (stockChangeRow) TableName() string { return "stock_changes" }

// errRestocked says that the restock was made before.
var errRestocked = errors.New("order: restocked before")

// Restock adds units to an item on sale, or takes back unsold ones: its total
// changes, what it was created with does not. A repeat with the same key changes
// nothing, whatever became of the answer to the first; replayed says so, and the
// item is returned as it stands.
//
// Errors: catalog.ErrItemNotFound, inventory.ErrStockBelowSold when fewer units
// are unsold than it takes back, counting as sold what is only queued;
// ErrStockRange, ErrRestockReused, ErrVersion, and as ChangeItem: after those that
// leave the outcome open, a repeat settles it.
func (s *ItemService) Restock(ctx context.Context, id string, r Restock, by By) (item catalog.Item, replayed bool, err error) {
	if r.Quantity == 0 || r.Quantity > MaxStock || r.Quantity < -MaxStock {
		return catalog.Item{}, false, fmt.Errorf("order: restock of %d units", r.Quantity)
	}
	err = s.Store.lookRestocked(ctx, id, &r)
	if err == nil {
		item, err = s.alter(ctx, id, inventory.Change{AddLeft: r.Quantity}, r.edit(id, by))
		if err == nil {
			return item, false, nil
		}
		// Another request with the same key may have been quicker, and have changed
		// what this one was refused for.
		known := s.Store.lookRestocked(ctx, id, &r)
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

// edit is the restock as a change of the item's row.
func (r *Restock) edit(id string, by By) *edit {
	return &edit{
		action: actionItemRestock, by: by, match: r.Match,
		apply: func(row *itemRow) error {
			row.Total += r.Quantity
			switch {
			case row.Total > MaxStock:
				return ErrStockRange
			case row.Total < row.Sold:
				return inventory.ErrStockBelowSold
			}
			return nil
		},
		look: func(tx *gorm.DB) error { return restocked(tx, id, r) },
		also: func(tx *gorm.DB, row *itemRow) error {
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

// lookRestocked is restocked outside of a transaction.
func (s *Store) lookRestocked(ctx context.Context, id string, r *Restock) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return restocked(s.Reader().WithContext(ctx), id, r)
}

// restocked searches for a restock with the same key. Errors: errRestocked,
// ErrRestockReused when that was another; none when there is none.
func restocked(tx *gorm.DB, id string, r *Restock) error {
	var rows []stockChangeRow
	err := tx.Where("item_id = ? AND idempotency_key = ?", id, r.IdempotencyKey).Limit(1).Find(&rows).Error
	switch {
	case err != nil:
		return wrap("find restock", err)
	case len(rows) == 0:
		return nil
	case rows[0].Quantity != r.Quantity || rows[0].Reason != r.Reason:
		return ErrRestockReused
	}
	return errRestocked
}
