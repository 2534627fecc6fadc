package reconcile

import (
	"context"
	"database/sql"
	"time"

	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
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
		return nil, database.Wrap("read orders of "+item, err)
	}
	return rows, nil
}

// unitsOfBuyers sums the units that each buyer of a JSON list holds of an item. The CROSS JOIN makes
// SQLite scan the list and find each buyer by the index.
const unitsOfBuyers = `SELECT o.user_id, SUM(o.quantity) FROM json_each(?1) j CROSS JOIN orders o
	ON o.user_id = j.value AND o.item_id = ?2 AND ` + store.OrdersHold + ` GROUP BY o.user_id`

// buyersUnits reads the units that each of these buyers holds of an item. Buyers without
// units are omitted.
func buyersUnits(ctx context.Context, s *store.Store, item string, buyers []string) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	out := make(map[string]int64, len(buyers))
	db, err := s.Reader().DB()
	if err == nil {
		err = database.Each(ctx, db, unitsOfBuyers, []any{database.JSONList(buyers...), item}, func(rows *sql.Rows) error {
			var buyer string
			var units int64
			err := rows.Scan(&buyer, &units)
			out[buyer] = units
			return err
		})
	}
	if err != nil {
		return nil, database.Wrap("sum orders of buyers of "+item, err)
	}
	return out, nil
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
		return nil, database.Wrap("read items", err)
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
