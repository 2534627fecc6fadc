package reconcile

import (
	"context"
	"time"

	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/timeouts"
)

// itemOrders reads a page of an item's orders, those after an id, oldest first.
func itemOrders(ctx context.Context, s *store.Store, item, after string) ([]schema.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Order
	// See store.OrdersAfter.
	err := s.Reader().WithContext(ctx).Where("(item_id, id) > (?, ?) AND +item_id >= ? AND item_id <= ?", item, after, item, item).
		Order("item_id, id").Limit(recordsPage).Find(&rows).Error
	if err != nil {
		return nil, store.Wrap("read orders of "+item, err)
	}
	return rows, nil
}

// itemRows reads a page of the items, those after an id, except those whose sale ended
// before that time. It omits the columns that no inspection needs.
func itemRows(ctx context.Context, s *store.Store, after string, over time.Time) ([]schema.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Item
	ms := over.UnixMilli()
	err := s.Reader().WithContext(ctx).Where("id > ? AND (closes_at = 0 OR closes_at > ?) AND (control <> 'closed' OR updated_at > ?)", after, ms, ms).
		Order("id").Limit(itemsPage).Find(&rows).Error
	if err != nil {
		return nil, store.Wrap("read items", err)
	}
	for i := range rows {
		rows[i] = counts(rows[i])
	}
	return rows, nil
}

// counts returns the row without the columns that no inspection needs.
func counts(r schema.Item) schema.Item {
	r.Name, r.Description, r.ImageURL, r.Currency = "", "", "", ""
	r.PriceMinor, r.UpdatedAt = 0, 0
	return r
}

// figures returns the columns that books compare, and the revision that identifies their
// state.
func figures(r *schema.Item) schema.Item {
	return schema.Item{Initial: r.Initial, Total: r.Total, Sold: r.Sold, Awaiting: r.Awaiting, Revision: r.Revision}
}
