package store

import (
	"context"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/order/schema"
	"flashsale/order/timeouts"
)

// Item reads an item's row. Errors: catalog.ErrItemNotFound.
func (s *Store) Item(ctx context.Context, id string) (schema.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return ReadItem(s.read.WithContext(ctx), id)
}

// Snapshot runs fn on one consistent view of the database. It is for long reads, and uses
// the connections for them.
func Snapshot(ctx context.Context, s *Store, fn func(tx *gorm.DB) error) error {
	return s.long.WithContext(ctx).Transaction(fn)
}

func ReadItem(tx *gorm.DB, id string) (schema.Item, error) {
	var rows []schema.Item
	if err := tx.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return schema.Item{}, Wrap("read item "+id, err)
	}
	if len(rows) == 0 {
		return schema.Item{}, catalog.ErrItemNotFound
	}
	return rows[0], nil
}
