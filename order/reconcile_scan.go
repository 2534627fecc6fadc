package order

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"flashsale/inventory"
)

const (
	// suspectsMax is how many suspected records are looked at together under the
	// item's lock: some milliseconds' worth.
	suspectsMax = 1000
	// confirmMax bounds how often a scan takes the lock. While a crowd buys, much
	// looks wrong that is only under way.
	confirmMax = 8
)

// errSeenEnough ends a scan early.
var errSeenEnough = errors.New("order: seen enough")

// scanner compares every record of a sale with the database and the queue,
// without keeping the item from selling: page by page, in memory for one page
// and what is queued. What looks wrong is then looked at under the lock, where
// only what is still wrong counts. One record that is wrong is enough to have the sale built
// anew, so the scan ends with the first that are.
type scanner struct {
	*examination
	suspects *suspects
	confirms int
	queued   map[string]int64 // units that each buyer has in the queue and in no row
}

// deep looks at every record, and at the sums under the lock at least once.
func (e *examination) deep(ctx context.Context) error {
	live, err := e.Stock.Live(ctx, e.report.ItemID)
	if err != nil {
		return err
	}
	s := &scanner{examination: e, suspects: newSuspects()}
	if live.Loaded && !live.Damaged {
		for _, step := range []func(context.Context) error{s.tasks, s.queuers, s.entries, s.orders, s.counts, s.confirm} {
			err := step(ctx)
			if errors.Is(err, errSeenEnough) {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	if s.confirms > 0 {
		return nil
	}
	return e.careful(ctx, s.suspects)
}

// suspect takes a record to be looked at again.
func (s *scanner) suspect(ctx context.Context, keys []inventory.EntryKey, buyers []string) error {
	for _, k := range keys {
		s.suspects.keys[k] = true
	}
	for _, b := range buyers {
		s.suspects.buyers[b] = true
	}
	if s.suspects.size() < suspectsMax {
		return nil
	}
	return s.confirm(ctx)
}

// confirm looks at what is suspected under the item's lock.
func (s *scanner) confirm(ctx context.Context) error {
	if s.suspects.size() == 0 {
		return nil
	}
	if s.confirms++; s.confirms > confirmMax {
		s.report.Partial = true
		return errSeenEnough
	}
	if err := s.careful(ctx, s.suspects); err != nil {
		return err
	}
	s.suspects = newSuspects()
	if has(s.report.Drifts, DriftHolds) || !s.report.Loaded {
		return errSeenEnough
	}
	return nil
}

// tasks looks for accepted orders that the sale does not know. It has to be
// first: it tells the later steps what is queued.
func (s *scanner) tasks(ctx context.Context) error {
	pending, err := pendingTasks(ctx, s.tasksOf(s.report.ItemID), s.report.ItemID)
	if err != nil {
		return err
	}
	s.queued = make(map[string]int64, len(pending))
	page := make([]task, 0, salePage)
	for _, t := range pending {
		page = append(page, t)
		if len(page) == salePage {
			if err := s.tasksPage(ctx, page); err != nil {
				return err
			}
			page = page[:0]
		}
	}
	return s.tasksPage(ctx, page)
}

func (s *scanner) tasksPage(ctx context.Context, page []task) error {
	ids := make([]string, len(page))
	keys := make([]inventory.EntryKey, len(page))
	for i := range page {
		ids[i], keys[i] = page[i].ID, keyOf(&page[i])
	}
	committed, err := s.Store.holding(ctx, ids)
	if err != nil {
		return err
	}
	entries, err := s.Records.Entries(ctx, s.report.ItemID, keys)
	if err != nil {
		return err
	}
	var strange []inventory.EntryKey
	for i := range page {
		t := &page[i]
		if _, ok := committed[t.ID]; ok {
			continue
		}
		s.queued[t.UserID] += t.Quantity
		if !remembers(&entries[i], t.ID, t.Quantity) {
			strange = append(strange, keys[i])
		}
	}
	return s.suspect(ctx, strange, nil)
}

// queuers looks for buyers of queued orders whom the sale does not count.
func (s *scanner) queuers(ctx context.Context) error {
	users := slices.Collect(maps.Keys(s.queued))
	for page := range slices.Chunk(users, salePage) {
		if err := s.buyersPage(ctx, page, nil); err != nil {
			return err
		}
	}
	return nil
}

// buyersPage suspects those of the buyers who are miscounted, and these keys.
func (s *scanner) buyersPage(ctx context.Context, users []string, strange []inventory.EntryKey) error {
	counts, err := s.Records.Counts(ctx, s.report.ItemID, users)
	if err != nil {
		return err
	}
	buyers, err := s.miscounted(ctx, users, counts)
	if err != nil {
		return err
	}
	return s.suspect(ctx, strange, buyers)
}

// remembers reports whether an entry counts the order with its units.
func remembers(e *inventory.Entry, order string, quantity int64) bool {
	return e.Known && e.OrderID == order && e.Quantity == quantity && !e.Returned
}

// entries looks for orders that the sale counts and nobody else knows of, or
// counts although they are closed, or does not although they stand.
func (s *scanner) entries(ctx context.Context) error {
	return s.Records.EachEntry(ctx, s.report.ItemID, func(page []inventory.Entry) error {
		ids := make([]string, len(page))
		for i := range page {
			ids[i] = page[i].OrderID
		}
		// The queue first: an order leaves it for the database.
		known, err := s.tasksOf(s.report.ItemID).Known(ctx, ids)
		if err != nil {
			return fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
		}
		stands, err := s.Store.holding(ctx, ids)
		if err != nil {
			return err
		}
		var strange []inventory.EntryKey
		for i := range page {
			if e := &page[i]; !known[i] && stands[e.OrderID] == e.Returned || e.OrderID == "" {
				strange = append(strange, e.EntryKey)
			}
		}
		return s.suspect(ctx, strange, nil)
	})
}

// orders looks for committed orders and their buyers that the sale does not know.
func (s *scanner) orders(ctx context.Context) error {
	after := ""
	for {
		page, err := s.Store.itemOrders(ctx, s.report.ItemID, after)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return nil
		}
		after = page[len(page)-1].ID
		page = slices.DeleteFunc(page, func(r orderRow) bool { return !r.holds() })
		if err := s.ordersPage(ctx, page); err != nil {
			return err
		}
	}
}

func (s *scanner) ordersPage(ctx context.Context, page []orderRow) error {
	keys := make([]inventory.EntryKey, len(page))
	users := make([]string, len(page))
	for i := range page {
		keys[i] = inventory.EntryKey{Buyer: page[i].UserID, IdempotencyKey: page[i].IdempotencyKey}
		users[i] = page[i].UserID
	}
	entries, err := s.Records.Entries(ctx, s.report.ItemID, keys)
	if err != nil {
		return err
	}
	var strange []inventory.EntryKey
	for i := range page {
		if !remembers(&entries[i], page[i].ID, page[i].Quantity) {
			strange = append(strange, keys[i])
		}
	}
	slices.Sort(users)
	return s.buyersPage(ctx, slices.Compact(users), strange)
}

// counts looks for buyers whom the sale counts with other units than they hold.
func (s *scanner) counts(ctx context.Context) error {
	return s.Records.EachCount(ctx, s.report.ItemID, func(page []inventory.BuyerCount) error {
		users := make([]string, len(page))
		counts := make([]int64, len(page))
		for i := range page {
			users[i], counts[i] = page[i].Buyer, page[i].Units
		}
		buyers, err := s.miscounted(ctx, users, counts)
		if err != nil {
			return err
		}
		return s.suspect(ctx, nil, buyers)
	})
}

// miscounted are those of the users whose count is not what they hold.
func (s *scanner) miscounted(ctx context.Context, users []string, counts []int64) ([]string, error) {
	if len(users) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	db, err := s.Store.read.DB()
	if err != nil {
		return nil, err
	}
	held, err := buyersUnits(ctx, db, s.report.ItemID, users)
	if err != nil {
		return nil, err
	}
	var out []string
	for i, u := range users {
		if held[u]+s.queued[u] != counts[i] {
			out = append(out, u)
		}
	}
	return out, nil
}

// itemOrders reads a page of an item's orders, those after one, oldest first.
func (s *Store) itemOrders(ctx context.Context, item, after string) ([]orderRow, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var rows []orderRow
	err := s.read.WithContext(ctx).Where("item_id = ? AND id > ?", item, after).Order("id").Limit(salePage).Find(&rows).Error
	if err != nil {
		return nil, wrap("read orders of "+item, err)
	}
	return rows, nil
}
