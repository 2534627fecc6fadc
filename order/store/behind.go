package store

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/bucket"
	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// Behind is an item whose database row is older than a revision that Redis has recorded.
type Behind struct {
	ItemID   string
	Database int64 // the item's revision in the database
	Redis    int64 // the highest committed revision that Redis has recorded
	// Lost means that the database does not have the item: it was created after the backup.
	Lost bool
}

// revisionPage is how many items one query compares.
const revisionPage = 500

// Compare compares items, and buckets as items of their own. It reads the marks first and then the
// rows: in between, the database can only advance. Items with a mark and no row are behind.
func (h *HighWater) Compare(ctx context.Context, ids []string) ([]Behind, error) {
	behind, _, err := h.compare(ctx, ids, h.Store.revisions)
	return behind, err
}

// revisionReader reads the revisions of those items that exist.
type revisionReader func(ctx context.Context, ids []string) (map[string]revisionRow, error)

// compare compares items. unmarked are the revisions of the rows without a mark.
func (h *HighWater) compare(ctx context.Context, ids []string, read revisionReader) (behind []Behind, unmarked map[string]int64, err error) {
	if len(ids) == 0 {
		return nil, nil, nil
	}
	marks, err := inventory.Revisions(ctx, h.Redis, h.Partitions, h.Lineage, ids)
	if err != nil {
		return nil, nil, err
	}
	rows, err := read(ctx, ids)
	if err != nil {
		return nil, nil, err
	}
	unmarked = make(map[string]int64)
	for i, id := range ids {
		row, known := rows[id]
		switch {
		case known && row.behindOf(marks[i]):
			behind = append(behind, Behind{ItemID: id, Database: row.Revision, Redis: max(marks[i], row.Behind)})
		case !known && marks[i] != inventory.Unmarked:
			behind = append(behind, Behind{ItemID: id, Redis: marks[i], Lost: true})
		case known && marks[i] == inventory.Unmarked:
			unmarked[id] = row.Revision
		}
	}
	return behind, unmarked, nil
}

// withBuckets returns items that are behind with all buckets of these items, ordered by id. Units
// move between the buckets of an item, so a bucket that is behind says nothing about the units of the
// others: their data in Redis may be lost.
func withBuckets(ctx context.Context, found []Behind, read revisionReader) ([]Behind, error) {
	all := make(map[string]Behind, len(found))
	firsts := make(map[string]bool, len(found))
	for _, b := range found {
		all[b.ItemID] = b
		firsts[bucket.Item(b.ItemID)] = true
	}
	for page := range slices.Chunk(slices.Sorted(maps.Keys(firsts)), revisionPage) {
		items, err := read(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, item := range page {
			if n := int(items[item].Buckets); n > 1 {
				if err := addBuckets(ctx, all, bucket.IDs(item, n), read); err != nil {
					return nil, err
				}
			}
		}
	}
	list := make([]Behind, 0, len(all))
	for _, id := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[id])
	}
	return list, nil
}

// addBuckets adds all buckets of an item to those that are behind, or removes them if none is any
// more: an operator may have decided since they were compared, so all of them are read at once.
func addBuckets(ctx context.Context, all map[string]Behind, ids []string, read revisionReader) error {
	rows, err := read(ctx, ids)
	if err != nil {
		return err
	}
	behind := false
	for id, row := range rows {
		behind = behind || row.behindOf(all[id].Redis)
	}
	for id, row := range rows {
		if !behind {
			delete(all, id)
		} else if _, known := all[id]; !known {
			all[id] = Behind{ItemID: id, Database: row.Revision, Redis: max(row.Behind, row.Revision+1)}
		}
	}
	return nil
}

// FindBehind compares all items and changes nothing: it stops no sale and records no
// revision. Errors: database.ErrUnavailable, inventory.ErrUnavailable.
func FindBehind(ctx context.Context, store *Store, rdb redis.UniversalClient, partitions int) ([]Behind, error) {
	lineage, err := Lineage(ctx, store)
	if err != nil {
		return nil, err
	}
	h := &HighWater{HighWaterConfig: HighWaterConfig{Store: store, Redis: rdb, Partitions: partitions}, Lineage: lineage}
	var found []Behind
	for after := ""; ; {
		ids, err := store.ItemIDs(ctx, after, revisionPage)
		if err != nil {
			return nil, err
		}
		behind, err := h.Compare(ctx, ids)
		if err != nil {
			return nil, err
		}
		found = append(found, behind...)
		if len(ids) < revisionPage {
			break
		}
		after = ids[len(ids)-1]
	}
	lost, err := h.lost(ctx, store.revisions)
	if err != nil {
		return nil, err
	}
	return withBuckets(ctx, append(found, lost...), store.revisions)
}

// lost finds the items that have a mark and no row, ordered by id.
func (h *HighWater) lost(ctx context.Context, read revisionReader) ([]Behind, error) {
	found := make(map[string]Behind)
	err := inventory.EachRevised(ctx, h.Redis, h.Partitions, h.Lineage, func(ids []string) error {
		behind, _, err := h.compare(ctx, ids, read)
		for _, b := range behind {
			if b.Lost {
				found[b.ItemID] = b
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	list := make([]Behind, 0, len(found))
	for _, id := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[id])
	}
	return list, nil
}

// revisionRow is an item's revision in the database.
type revisionRow struct {
	ID       string
	Revision int64
	Behind   int64 // the mark that its revision was below; 0: none
	Buckets  int64 // more than 1: the row is bucket 0 of a divided item
}

// behindOf reports whether the revision is below the mark, or was below one before.
func (r revisionRow) behindOf(mark int64) bool { return r.Behind > 0 || r.Revision < mark }

const selectRevisions = `SELECT id, revision, behind, buckets FROM items WHERE id IN (SELECT value FROM json_each(?1))`

// readRevisions reads the revisions of those items that exist, by their ids.
func readRevisions(ctx context.Context, c database.Conn, ids []string) (map[string]revisionRow, error) {
	found := make(map[string]revisionRow, len(ids))
	err := database.Each(ctx, c, selectRevisions, []any{database.JSONList(ids...)}, func(rows *sql.Rows) error {
		var r revisionRow
		err := rows.Scan(&r.ID, &r.Revision, &r.Behind, &r.Buckets)
		found[r.ID] = r
		return err
	})
	return found, err
}

// revisions is the revisionReader outside of transactions.
func (s *Store) revisions(ctx context.Context, ids []string) (map[string]revisionRow, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var found map[string]revisionRow
	db, err := s.Reader().DB()
	if err == nil {
		found, err = readRevisions(ctx, db, ids)
	}
	if err != nil {
		return nil, database.Wrap("read revisions", err)
	}
	return found, nil
}

// MarkBehind marks items as behind, until a recovery removes the mark. Items that the database does
// not have have no row for it: only Redis shows them.
func MarkBehind(ctx context.Context, s *Store, items []Behind) error {
	items = slices.DeleteFunc(slices.Clone(items), func(b Behind) bool { return b.Lost })
	ids := make([]string, len(items))
	for i := range items {
		ids[i] = items[i].ItemID
	}
	rows, err := s.revisions(ctx, ids)
	if err != nil {
		return err
	}
	items = slices.DeleteFunc(items, func(b Behind) bool { return rows[b.ItemID].Behind >= b.Redis })
	if len(items) == 0 {
		return nil
	}
	return s.Change(ctx, fmt.Sprintf("mark %s as behind", plural.Count(len(items), "item")), func(ctx context.Context, c database.Conn, _ int64) error {
		for _, b := range items {
			// Unless an operator has decided meanwhile: that raised the revision above the
			// mark.
			if _, err := c.ExecContext(ctx, setBehind, b.Redis, b.ItemID); err != nil {
				return err
			}
		}
		return nil
	})
}

const setBehind = `UPDATE items SET behind = MAX(behind, ?1) WHERE id = ?2 AND (behind > 0 OR revision < ?1)`
