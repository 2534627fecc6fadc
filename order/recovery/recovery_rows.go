package recovery

import (
	"context"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// progress is the sequence of an item's sale in the database.
type progress struct {
	ID       string
	Sequence int64
	Version  int64
}

// reached reads a page of items by id.
func reached(ctx context.Context, s *store.Store, after string, limit int) ([]progress, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []progress
	err := s.Reader().WithContext(ctx).Model(&schema.Item{}).Select("id", "sequence", "version").
		Where("id > ?", after).Order("id").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, database.Wrap("read sequences of sales", err)
	}
	return rows, nil
}

// onSale reads the items on sale now or later, those on sale now first.
func onSale(ctx context.Context, s *store.Store) ([]inventory.Loadable, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	now := s.Now().UnixMilli()
	var items []inventory.Loadable
	err := s.Reader().WithContext(ctx).Model(&schema.Item{}).Select("id AS item", "sold AS orders").
		Where("control <> 'closed' AND (closes_at = 0 OR closes_at > ?)", now).
		Order("opens_at, id").Find(&items).Error
	if err != nil {
		return nil, database.Wrap("read items on sale", err)
	}
	return items, nil
}

// expiring is an order that expires unless it is paid.
type expiring struct {
	ID        string
	ItemID    string
	ExpiresAt int64
}

// readExpiring reads a page of the orders that expire, by time of expiry, after the last.
func readExpiring(ctx context.Context, s *store.Store, last expiring, limit int) ([]expiring, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []expiring
	err := s.Reader().WithContext(ctx).Model(&schema.Order{}).Select("id", "item_id", "expires_at").
		Where("status = 'confirmed' AND expires_at > 0 AND (expires_at, id) > (?, ?)", last.ExpiresAt, last.ID).
		Order("expires_at, id").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, database.Wrap("read expiring orders", err)
	}
	return rows, nil
}

// byTask groups the rows of a page by the task from which the orders were committed.
func byTask(rows []expiring) (groups [][]expiring) {
	at := make(map[string]int)
	for _, row := range rows {
		task := accepted.TaskOf(row.ID)
		group, known := at[task]
		if !known {
			group = len(groups)
			at[task], groups = group, append(groups, nil)
		}
		groups[group] = append(groups[group], row)
	}
	return groups
}

// wholeTasks leaves out the last task of a full page, of which the next page may have more rows.
func wholeTasks(rows []expiring) []expiring {
	n := len(rows) - 1
	for task := accepted.TaskOf(rows[n].ID); n > 0 && accepted.TaskOf(rows[n-1].ID) == task; n-- {
	}
	if n == 0 {
		return rows
	}
	return rows[:n]
}

// raiseEpochTo raises the epoch above least, unless it no longer has the value from. It
// returns the current epoch: of several processes that detected the same loss, one raises
// it.
func raiseEpochTo(ctx context.Context, s *store.Store, from, least int64) (int64, error) {
	var epoch int64
	err := s.Change(ctx, "raise epoch", func(ctx context.Context, c database.Conn, _ int64) error {
		if _, err := c.ExecContext(ctx, raiseEpoch, least, from); err != nil {
			return err
		}
		return c.QueryRowContext(ctx, selectEpoch).Scan(&epoch)
	})
	if err != nil {
		return 0, err
	}
	return epoch, nil
}

const (
	raiseEpoch = `UPDATE meta SET value = CAST(MAX(CAST(value AS BIGINT), ?1) + 1 AS TEXT)
	WHERE key = 'epoch' AND value = CAST(CAST(?2 AS BIGINT) AS TEXT)`
	selectEpoch = `SELECT value FROM meta WHERE key = 'epoch'`
)
