package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"flashsale/internal/plural"
	"flashsale/order/store/database"
)

// ErrServerChanged means that a write was refused, and changed nothing, because it was the first
// one on another server of the database, which has lost committed data, or could not be compared
// with Redis. The sales concerned are stopped by then. The caller may repeat the write.
var ErrServerChanged = errors.New("order: first write on another database server refused")

// compareServer compares all items with the marks in Redis before the first write of this
// process on a server of Postgres, in that write's transaction. A standby that lagged may have
// taken over. The next transactions raise the revisions that show what it has lost, so a later
// comparison would find nothing, and every process compares before it writes. If items are
// behind, they are marked, and only the marks are committed. A restart of the same server is
// compared, too. Errors: see [transaction.Begun].
func (t *transaction) compareServer(ctx context.Context, batch bool) error {
	h := t.store.highWater
	if h == nil {
		return nil
	}
	life := t.tx.ServerLife()
	if known := t.store.comparedLife.Load(); known != nil && *known == life {
		return nil
	}
	behind, err := h.compareAll(ctx, t.tx)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrServerChanged, errors.Join(err, t.tx.End(false)))
	}
	if len(behind) == 0 {
		t.store.comparedLife.Store(&life)
		return nil
	}
	// Not by stopping them as a check does: that one may be waiting for the writer.
	h.addUrgent(behind)
	defer h.Nudge() // only a check of all items ends it, also if the marks cannot be committed
	for _, b := range behind {
		if _, err := t.tx.ExecContext(ctx, setBehind, b.Redis, b.ItemID); err != nil {
			return fmt.Errorf("%w: mark items as behind: %w", ErrServerChanged, errors.Join(err, t.tx.End(false)))
		}
	}
	if err := t.tx.End(true); err != nil {
		return fmt.Errorf("%w: mark items as behind: %w", ErrServerChanged, err)
	}
	t.store.comparedLife.Store(&life)
	if !batch {
		return database.ErrRunAgain
	}
	return fmt.Errorf("%w: the database is older than Redis for %s", ErrServerChanged, plural.Count(len(behind), "item"))
}

// addUrgent adds to the urgent items, which are those of a server before this one, or of the other
// writer.
func (h *HighWater) addUrgent(behind []Behind) {
	for {
		earlier := h.urgent.Load()
		urgent := make(map[string]bool, len(behind))
		if earlier != nil {
			maps.Copy(urgent, *earlier)
		}
		for _, b := range behind {
			urgent[b.ItemID] = true
		}
		if h.urgent.CompareAndSwap(earlier, &urgent) {
			return
		}
	}
}

const selectItemIDs = `SELECT id FROM items WHERE id > ?1 ORDER BY id LIMIT ?2`

// compareAll compares all items, as a check does, in a transaction. It returns those that are not
// marked yet, or that this process does not know as stopped because another one has marked them, with
// their other buckets, ordered by id. Items that the database does not have cannot be marked.
func (h *HighWater) compareAll(ctx context.Context, c database.Conn) ([]Behind, error) {
	marked := make(map[string]bool)
	read := func(ctx context.Context, ids []string) (map[string]revisionRow, error) {
		found, err := readRevisions(ctx, c, ids)
		for id, r := range found {
			marked[id] = r.Behind > 0
		}
		return found, err
	}
	var found []Behind
	for after := ""; ; {
		var ids []string
		err := database.Each(ctx, c, selectItemIDs, []any{after, revisionPage}, func(rows *sql.Rows) error {
			var id string
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(ids) == 0 {
			break
		}
		behind, _, err := h.compare(ctx, ids, read)
		if err != nil {
			return nil, err
		}
		for _, b := range behind {
			if !marked[b.ItemID] || !h.IsStopped(b.ItemID) {
				found = append(found, b)
			}
		}
		after = ids[len(ids)-1]
	}
	lost, err := h.lost(ctx, read)
	if err != nil {
		return nil, err
	}
	for _, b := range lost {
		if !h.IsStopped(b.ItemID) {
			found = append(found, b)
		}
	}
	return withBuckets(ctx, found, read)
}
