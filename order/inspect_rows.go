package order

import (
	"context"
	"time"
)

// itemOrders reads a page of an item's orders, those after one, oldest first.
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

// itemRows reads a page of the items, those after one, without those whose sale ended
// before that time, and without what no inspection looks at.
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

// counts is the row without what no inspection looks at.
func (r itemRow) counts() itemRow {
	r.Name, r.Description, r.Currency = "", "", ""
	r.PriceMinor, r.UpdatedAt = 0, 0
	return r
}

// figures are what books compare, and the revision that tells their states apart.
func (r *itemRow) figures() itemRow {
	return itemRow{Initial: r.Initial, Total: r.Total, Sold: r.Sold, Awaiting: r.Awaiting, Revision: r.Revision}
}
