package order

import (
	"time"

	"context"

	"gorm.io/gorm"

	"flashsale/catalog"
)

// item reads an item's row. Errors: catalog.ErrItemNotFound.
func (s *Store) item(ctx context.Context, id string) (itemRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return readItem(s.read.WithContext(ctx), id)
}

// facts are what the audit tells of an item, named as in the API.
func (r *itemRow) facts() map[string]any {
	return map[string]any{
		"name": r.Name, "description": r.Description, "price_minor": r.PriceMinor, "currency": r.Currency,
		"stock_total": r.Total, "per_user_limit": r.PerUserLimit,
		"opens_at": timeFact(r.OpensAt), "closes_at": timeFact(r.ClosesAt),
		"payment_window_seconds": r.PaymentWindowSeconds, "control": r.Control,
	}
}

// timeFact is a time as the API spells it, nil for none.
func timeFact(ms int64) any {
	if ms == 0 {
		return nil
	}
	return fromMillis(ms).Format("2006-01-02T15:04:05.000Z07:00")
}

// snapshot runs fn on one consistent view of the database. It is for what may take
// long, and uses the connections for that.
func (s *Store) snapshot(ctx context.Context, fn func(tx *gorm.DB) error) error {
	return s.long.WithContext(ctx).Transaction(fn)
}

func readItem(tx *gorm.DB, id string) (itemRow, error) {
	var rows []itemRow
	if err := tx.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return itemRow{}, wrap("read item "+id, err)
	}
	if len(rows) == 0 {
		return itemRow{}, catalog.ErrItemNotFound
	}
	return rows[0], nil
}

// ended reports whether the sale is over at that time.
func (r *itemRow) ended(at time.Time) bool {
	return r.Control == string(catalog.ControlClosed) || r.ClosesAt != 0 && r.ClosesAt <= at.UnixMilli()
}
