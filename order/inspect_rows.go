package order

import (
	"context"
	"time"
)

// itemOrders reads a page of an item's orders, those after an id, oldest first.
func (s *Store) itemOrders(ctx context.Context, item, after string) ([]orderRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []orderRow
	err := s.Reader().WithContext(ctx).Where("item_id = ? AND id > ?", item, after).Order("id").Limit(recordsPage).Find(&rows).Error
	if err != nil {
		return nil, wrap("read orders of "+item, err)
	}
	return rows, nil
}

// itemRows reads a page of the items, those after an id, except those whose sale ended
// before that time. It omits the columns that no inspection needs.
func (s *Store) itemRows(ctx context.Context, after string, over time.Time) ([]itemRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []itemRow
	ms := over.UnixMilli()
	err := s.Reader().WithContext(ctx).Where("id > ? AND (closes_at = 0 OR closes_at > ?) AND (control <> 'closed' OR updated_at > ?)", after, ms, ms).
		Order("id").Limit(itemsPage).Find(&rows).Error
	if err != nil {
		return nil, wrap("read items", err)
	}
	for i := range rows {
		rows[i] = rows[i].counts()
	}
	return rows, nil
}

// counts returns the row without the columns that no inspection needs.
func (r itemRow) counts() itemRow {
	r.Name, r.Description, r.Currency = "", "", ""
	r.PriceMinor, r.UpdatedAt = 0, 0
	return r
}

// figures returns the columns that books compare, and the revision that identifies their
// state.
func (r *itemRow) figures() itemRow {
	return itemRow{Initial: r.Initial, Total: r.Total, Sold: r.Sold, Awaiting: r.Awaiting, Revision: r.Revision}
}
