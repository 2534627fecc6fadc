package worker

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

const (
	// freePage is how many ended sales are removed from Redis together.
	freePage = 256
	// freePages bounds the pages of one sweep.
	freePages = 16
)

// free removes the ended sales that are due. An item is finished once Redis holds nothing
// of its sale. The next sweep checks the page a second time, so that a failover in between
// cannot restore a sale unnoticed. Sales that cannot be removed do not delay the ones after
// them.
func (s *Sweeper) free(ctx context.Context, done *Swept) error {
	if s.KeepEnded == 0 {
		return nil
	}
	before := s.fulfiller.store.Now().Add(-s.KeepEnded).UnixMilli()
	var kept error // the error of the first sale that Redis could not remove
	for range freePages {
		page, err := freeable(ctx, s.fulfiller.store, before, s.freeAfter)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			s.freeAfter = freeableItem{}
			return kept
		}
		ids := make([]string, len(page))
		for i := range page {
			ids[i] = page[i].id
		}
		status, err := inventory.Free(ctx, s.fulfiller.rdb, s.fulfiller.partitions, ids)
		if status == nil {
			return err
		}
		kept = cmp.Or(kept, err)
		s.freeAfter = page[len(page)-1]
		var gone []freeableItem
		for i := range page {
			switch status[i] {
			case inventory.FreeDone:
				done.Freed++
			case inventory.FreeNothing:
				gone = append(gone, page[i])
			case inventory.FreeKept:
			}
		}
		if err := noteFreedItems(ctx, s.fulfiller.store, gone); err != nil {
			return err
		}
	}
	return kept
}

// freeableItem is an item whose sale has ended.
type freeableItem struct {
	id      string
	version int64
	over    int64 // end of the last payment window, Unix milliseconds
}

// saleOver is when the last payment window of an item ends. The expression must equal that
// of the index.
const saleOver = `(CASE control WHEN 'closed' THEN updated_at ELSE closes_at END + payment_window_seconds * 1000)`

const (
	selectFreeable = `SELECT id, version, ` + saleOver + ` FROM items
	WHERE freed = 0 AND (control = 'closed' OR closes_at > 0)
		AND ` + saleOver + ` BETWEEN ?1 AND ?2 AND (` + saleOver + ` > ?1 OR id > ?3)
	ORDER BY ` + saleOver + `, id LIMIT ?4`
	noteFreed = `UPDATE items SET freed = 1 FROM json_each(?1) k
	WHERE items.id = json_extract(k.value, '$[0]') AND items.version = CAST(json_extract(k.value, '$[1]') AS BIGINT)`
)

// freeable reads a page of the sales that were over at that time and may still be in Redis,
// those after a place, oldest first.
func freeable(ctx context.Context, s *store.Store, before int64, after freeableItem) (page []freeableItem, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err == nil {
		err = database.Each(ctx, db, selectFreeable, []any{after.over, before, after.id, freePage}, func(rows *sql.Rows) error {
			var it freeableItem
			err := rows.Scan(&it.id, &it.version, &it.over)
			page = append(page, it)
			return err
		})
	}
	if err != nil {
		return nil, database.Wrap("find ended sales", err)
	}
	return page, nil
}

// noteFreedItems records that Redis holds nothing of these sales. Sales that were changed since
// they were read are skipped.
func noteFreedItems(ctx context.Context, s *store.Store, gone []freeableItem) error {
	if len(gone) == 0 {
		return nil
	}
	pairs := make([][2]any, len(gone))
	for i := range gone {
		pairs[i] = [2]any{gone[i].id, gone[i].version}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return errors.Join(errors.New("list ended sales"), err)
	}
	return s.Change(ctx, "note "+plural.Count(len(gone), "removed sale"), func(ctx context.Context, c database.Conn, _ int64) error {
		_, err := c.ExecContext(ctx, noteFreed, string(list))
		return err
	})
}
