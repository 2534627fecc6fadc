package order

import (
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

// snapshot runs fn on one consistent view of the database. It is for long reads, and uses
// the connections for them.
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
