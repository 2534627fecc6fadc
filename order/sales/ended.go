package sales

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"flashsale/inventory"
	"flashsale/inventory/accepted"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// BuyersTasks is the part of the queues that EndedSales uses.
type BuyersTasks interface {
	// OfBuyers is accepted.Index.OfBuyers.
	OfBuyers(ctx context.Context, place int, buyers []string, fn func(accepted.Order)) error
}

// EndedSales finds the orders of ended sales that are no longer in Redis, in the queue and
// in the database. It is inventory's Archive.
type EndedSales struct {
	store     *store.Store
	queued    BuyersTasks
	partition func(item string) int
	// one limits the reads to one at a time: purchases and pages need the other
	// connections. Each read serves a batch, so waiting requests join larger batches and do
	// not pile up.
	one chan struct{}
}

// NewEndedSales returns an EndedSales. partition returns the place of an item's queue in
// queued.
func NewEndedSales(store *store.Store, queued BuyersTasks, partition func(item string) int) *EndedSales {
	return &EndedSales{store: store, queued: queued, partition: partition, one: make(chan struct{}, 1)}
}

// begin waits until no other read runs, or ctx ends. end lets the next one run.
func (e *EndedSales) begin(ctx context.Context) (end func(), err error) {
	select {
	case e.one <- struct{}{}:
		return func() { <-e.one }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to read an ended sale: %w", context.Cause(ctx))
	}
}

// Ended reports whether an item's sale is closed or past its end.
func (e *EndedSales) Ended(ctx context.Context, item string) (bool, error) {
	end, err := e.begin(ctx)
	if err != nil {
		return false, err
	}
	defer end()
	return ended(ctx, e.store, item)
}

// Entries returns the orders of an item under these keys, in the order of the keys. The
// queue is read before the database, so an order that moves between the two is found. If a
// key has both a task and a row, the row wins, as it does at the commit.
func (e *EndedSales) Entries(ctx context.Context, item string, keys []inventory.EntryKey) ([]inventory.Entry, error) {
	known := make(map[inventory.EntryKey]inventory.Entry)
	buyers := make([]string, len(keys))
	for i := range keys {
		buyers[i] = keys[i].Buyer
	}
	err := e.queued.OfBuyers(ctx, e.partition(item), buyers, func(a accepted.Order) {
		t, err := order.ParseAccepted(a)
		if err != nil || t.ItemID != item {
			return // an unreadable task is not an order
		}
		key := inventory.EntryKey{Buyer: t.UserID, IdempotencyKey: t.IdempotencyKey}
		if first, ok := known[key]; !ok || t.ID < first.OrderID {
			known[key] = inventory.Entry{EntryKey: key, Known: true, OrderID: t.ID, Quantity: t.Quantity}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
	}
	end, err := e.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	if err := entries(ctx, e.store, item, keys, known); err != nil {
		return nil, err
	}
	entries := make([]inventory.Entry, len(keys))
	for i, key := range keys {
		entries[i] = known[key]
		entries[i].EntryKey = key
	}
	return entries, nil
}

// entriesByKey makes SQLite scan the list, and look up each of its keys in the unique
// index.
const entriesByKey = `SELECT o.user_id, o.idempotency_key, o.id, o.quantity FROM json_each(?2) k
	CROSS JOIN orders o ON o.item_id = ?1 AND o.user_id = json_extract(k.value, '$[0]')
		AND o.idempotency_key = json_extract(k.value, '$[1]')`

// entries adds an item's orders under these keys to known.
func entries(ctx context.Context, s *store.Store, item string, keys []inventory.EntryKey, known map[inventory.EntryKey]inventory.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	db, err := s.Reader().DB()
	if err != nil {
		return err
	}
	pairs := make([][2]string, len(keys))
	for i := range keys {
		pairs[i] = [2]string{keys[i].Buyer, keys[i].IdempotencyKey}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return fmt.Errorf("list keys: %w", err)
	}
	err = database.Each(ctx, db, entriesByKey, []any{item, string(list)}, func(rows *sql.Rows) error {
		found := inventory.Entry{Known: true}
		if err := rows.Scan(&found.Buyer, &found.IdempotencyKey, &found.OrderID, &found.Quantity); err != nil {
			return err
		}
		known[found.EntryKey] = found
		return nil
	})
	if err != nil {
		return database.Wrap("find orders of ended sale "+item, err)
	}
	return nil
}

// ended reports whether an item's sale is closed or past its end, by the clock of the
// purchase script. An item that does not exist has not ended.
func ended(ctx context.Context, s *store.Store, item string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []schema.Item
	if err := s.Reader().WithContext(ctx).Select("control", "closes_at").Where("id = ?", item).Limit(1).Find(&rows).Error; err != nil {
		return false, database.Wrap("read item "+item, err)
	}
	return len(rows) > 0 && rows[0].Ended(store.SaleTime(s, item)), nil
}
