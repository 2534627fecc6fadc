package store

import (
	"context"
	"errors"
	"slices"
	"time"

	"gorm.io/gorm"

	"flashsale/catalog"
	"flashsale/internal/bucket"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// InsertItem adds an item. It returns ErrItemExists if the id is taken.
func (s *Store) InsertItem(ctx context.Context, n order.NewItem) (catalog.Item, error) {
	now := s.now()
	opens := n.OpensAt
	if opens.IsZero() {
		opens = defaultOpening(s, n.ID)
	}
	first := schema.Item{
		ID: n.ID, Name: n.Name, Description: n.Description, ImageURL: n.ImageURL, PriceMinor: n.PriceMinor, Currency: n.Currency,
		PerUserLimit: n.PerUserLimit,
		OpensAt:      order.ToMillis(opens), ClosesAt: order.ToMillis(n.ClosesAt),
		PaymentWindowSeconds: int64(n.PaymentWindow / time.Second),
		Control:              string(catalog.ControlOpen), Version: 1,
		CreatedAt: order.ToMillis(now), UpdatedAt: order.ToMillis(now),
	}
	facts := first.Facts()
	facts["stock_total"] = n.Stock
	if n.Buckets > 1 {
		facts["buckets"] = n.Buckets
	}
	rows := divided(first, n.Stock, n.Buckets)
	err := s.ChangeWithGORM(ctx, "insert item "+n.ID, func(tx *gorm.DB, _ int64) error {
		if err := tx.Create(&rows).Error; err != nil {
			return err
		}
		return WriteAudit(ctx, tx.Statement.ConnPool, &AuditRow{
			At: first.CreatedAt, Actor: n.By.Actor, Action: order.ActionItemCreate, ItemID: n.ID,
			After: FactsJSON(facts), RequestID: n.By.RequestID,
		})
	})
	if errors.Is(err, gorm.ErrDuplicatedKey) {
		return catalog.Item{}, order.ErrItemExists
	}
	if err != nil {
		return catalog.Item{}, err
	}
	return ItemOfBuckets(rows), nil
}

// OpenMargin puts the default opening of an item into the past. The item must be on sale at
// once, and the clock of Redis is known only to within half a round trip, which takes at
// most about a second.
const OpenMargin = time.Second

// defaultOpening is the opening of an item that is created without one.
func defaultOpening(s *Store, item string) time.Time {
	return SaleTime(s, item).Add(-OpenMargin)
}

// divided returns the rows of a new item: one for each bucket, with its part of the stock.
func divided(first schema.Item, stock int64, buckets int) []schema.Item {
	n := int64(max(buckets, 1))
	rows := make([]schema.Item, n)
	for i := range rows {
		rows[i] = first
		rows[i].ID, rows[i].Buckets = bucket.ID(first.ID, i), 1
		rows[i].Initial = stock / n
		if int64(i) < stock%n {
			rows[i].Initial++
		}
		rows[i].Total = rows[i].Initial
	}
	rows[0].Buckets = n
	return rows
}

// Item reads an item's row. Errors: catalog.ErrItemNotFound, database.ErrUnavailable.
func Item(ctx context.Context, s *Store, id string) (schema.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	return ReadItem(s.Reader().WithContext(ctx), id)
}

// ReadItem reads an item's row. Errors: catalog.ErrItemNotFound.
func ReadItem(tx *gorm.DB, id string) (schema.Item, error) {
	var rows []schema.Item
	if err := tx.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return schema.Item{}, database.Wrap("read item "+id, err)
	}
	if len(rows) == 0 {
		return schema.Item{}, catalog.ErrItemNotFound
	}
	return rows[0], nil
}

// Items reads every item, and the buckets of items as items of their own, by id.
func (s *Store) Items(ctx context.Context) ([]catalog.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Item
	if err := s.Reader().WithContext(ctx).Order("id").Find(&rows).Error; err != nil {
		return nil, database.Wrap("read items", err)
	}
	return itemsOf(rows), nil
}

// ItemsByID reads items, and buckets as items of their own, by id. Unknown ids are omitted.
func (s *Store) ItemsByID(ctx context.Context, ids []string) ([]catalog.Item, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Item
	if err := s.Reader().WithContext(ctx).Where("id IN ?", ids).Find(&rows).Error; err != nil {
		return nil, database.Wrap("read items", err)
	}
	all := make([]string, 0, len(rows))
	for i := range rows {
		all = bucket.AppendIDs(all, rows[i].ID, int(rows[i].Buckets))
	}
	if len(all) == len(rows) {
		return itemsOf(rows), nil
	}
	// All buckets are read at once, because units move between them.
	err := s.Reader().WithContext(ctx).Where("id IN (SELECT value FROM json_each(?))", database.JSONList(all...)).Find(&rows).Error
	if err != nil {
		return nil, database.Wrap("read buckets", err)
	}
	items := itemsOf(rows)
	return slices.DeleteFunc(items, func(i catalog.Item) bool { return !slices.Contains(ids, i.ID) }), nil
}

// Buckets reads the rows of an item's buckets, in their order: one row if the stock is not
// divided. Errors: catalog.ErrItemNotFound, database.ErrUnavailable.
func Buckets(ctx context.Context, s *Store, item string) ([]schema.Item, error) {
	first, err := Item(ctx, s, item)
	if err != nil || first.Buckets <= 1 {
		return []schema.Item{first}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	ids := bucket.IDs(item, int(first.Buckets))
	var rows []schema.Item
	if err := s.Reader().WithContext(ctx).Where("id IN ?", ids).Find(&rows).Error; err != nil {
		return nil, database.Wrap("read buckets of "+item, err)
	}
	slices.SortFunc(rows, func(a, b schema.Item) int { return slices.Index(ids, a.ID) - slices.Index(ids, b.ID) })
	return rows, nil
}

// itemsOf returns the items of rows. An item whose buckets are among the rows has their stock.
func itemsOf(rows []schema.Item) []catalog.Item {
	items := make([]catalog.Item, len(rows))
	divided := make(map[string]*catalog.Item)
	for i := range rows {
		items[i] = rows[i].Item()
		if rows[i].Buckets > 1 {
			divided[rows[i].ID] = &items[i]
		}
	}
	for i := range rows {
		if whole := divided[bucket.Item(rows[i].ID)]; whole != nil && whole != &items[i] {
			whole.StockInitial += items[i].StockInitial
			whole.StockTotal += items[i].StockTotal
			whole.StockLeft += items[i].StockLeft
		}
	}
	return items
}

// ItemOfBuckets returns the item of the rows of its buckets.
func ItemOfBuckets(rows []schema.Item) catalog.Item { return itemsOf(rows)[0] }

// ItemIDs reads up to limit ids of items and buckets after the given one, in order.
func (s *Store) ItemIDs(ctx context.Context, after string, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var ids []string
	err := s.Reader().WithContext(ctx).Model(&schema.Item{}).Where("id > ?", after).Order("id").Limit(limit).Pluck("id", &ids).Error
	if err != nil {
		return nil, database.Wrap("read ids of items", err)
	}
	return ids, nil
}
