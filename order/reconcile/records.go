package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"flashsale/inventory"
	"flashsale/order"
	"flashsale/order/schema"
	"flashsale/order/store"
)

// recordsPage is how many orders or records are read at a time.
const recordsPage = 1000

const (
	// wrongMax is how many wrong records a check counts. One is enough to rebuild the sale.
	wrongMax = 10_000
	// queuedBuyersMax bounds the buyers of queued orders that a check keeps.
	queuedBuyersMax = 50_000
)

// errReadEnough ends a check of the records early.
var errReadEnough = errors.New("order: enough records read")

// recordCheck compares each record of a sale with the database and the queue, page by page.
// It only counts wrong records: the repair is always a rebuild of the sale. The result is
// valid only if the item did not change meanwhile.
type recordCheck struct {
	wrong  map[inventory.EntryKey]bool // orders, and buyers with an empty key
	queued map[string]int64            // units of each buyer that are in the queue and in no row
	page   []order.Task                // queued orders to be searched for
	// crowded is set when too many buyers have queued orders to compare what each holds.
	crowded bool
	// incomplete is set when not every record was compared.
	incomplete bool
}

func newRecordCheck() *recordCheck {
	return &recordCheck{wrong: make(map[inventory.EntryKey]bool), queued: make(map[string]int64)}
}

func (r *recordCheck) size() int { return len(r.wrong) }

// queue adds a queued order whose units the sale should count.
func (r *recordCheck) queue(t *order.Task) {
	r.page = append(r.page, *t)
	if _, known := r.queued[t.UserID]; !known && len(r.queued) >= queuedBuyersMax {
		r.crowded, r.incomplete = true, true
		return
	}
	r.queued[t.UserID] += t.Quantity
}

func (r *recordCheck) add(keys ...inventory.EntryKey) error {
	for _, k := range keys {
		r.wrong[k] = true
	}
	if len(r.wrong) >= wrongMax {
		return errReadEnough
	}
	return nil
}

// checkTasks finds queued orders of a page that the sale does not have.
func (x *inspector) checkTasks(ctx context.Context, i *inspection) error {
	r := i.deep
	keys := make([]inventory.EntryKey, len(r.page))
	for n := range r.page {
		keys[n] = keyOf(&r.page[n])
	}
	entries, err := x.Records.Entries(ctx, i.item, keys)
	if err != nil {
		return err
	}
	for n := range r.page {
		if t := &r.page[n]; !remembers(&entries[n], t.ID, t.Quantity) && r.size() < wrongMax {
			r.wrong[keys[n]] = true
		}
	}
	r.page = r.page[:0]
	return nil
}

// remembers reports whether an entry counts the order with its units.
func remembers(e *inventory.Entry, order string, quantity int64) bool {
	return e.Known && e.OrderID == order && e.Quantity == quantity && !e.Returned
}

// check compares the records with the database, after the queue was read.
func (x *inspector) check(ctx context.Context, i *inspection) error {
	if !i.seen.live.Loaded || i.seen.live.Damaged {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, itemLimit)
	defer cancel()
	for _, step := range []func(context.Context, *inspection) error{x.checkQueued, x.checkEntries, x.checkOrders, x.checkCounts} {
		err := step(limited, i)
		if errors.Is(err, errReadEnough) {
			return nil
		}
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			i.deep.incomplete = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkQueued finds buyers of queued orders with a wrong count in the sale.
func (x *inspector) checkQueued(ctx context.Context, i *inspection) error {
	for users := range slices.Chunk(slices.Collect(maps.Keys(i.deep.queued)), recordsPage) {
		if err := x.checkBuyers(ctx, i, users, nil); err != nil {
			return err
		}
	}
	return nil
}

// checkEntries finds entries of the sale whose order exists nowhere else, closed orders
// that the sale counts, and open ones that it does not count.
func (x *inspector) checkEntries(ctx context.Context, i *inspection) error {
	q := x.tasksOf(i.item)
	return x.Records.EachEntry(ctx, i.item, func(page []inventory.Entry) error {
		ids := make([]string, len(page))
		for n := range page {
			ids[n] = page[n].OrderID
		}
		queued, err := q.Find(ctx, ids...)
		if err != nil {
			return fmt.Errorf("%w: %w", inventory.ErrUnavailable, err)
		}
		holds, err := store.Holding(ctx, x.Store, ids)
		if err != nil {
			return err
		}
		for n := range page {
			e := &page[n]
			held, committed := holds[e.OrderID]
			wrong := e.OrderID == ""
			switch {
			case wrong:
			case !committed:
				wrong = queued[n].OrderID == "" || e.Returned
			case held == e.Returned && queued[n].OrderID != "" && !held:
				t := order.Task{ID: e.OrderID, ItemID: i.item, UserID: e.Buyer, IdempotencyKey: e.IdempotencyKey}
				counts, err := x.stillCounted(ctx, q, &t)
				if err != nil {
					return err
				}
				wrong = !counts
			default:
				wrong = held == e.Returned
			}
			if !wrong {
				continue
			}
			if err := i.deep.add(e.EntryKey); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkOrders finds committed orders and their buyers that the sale does not have.
func (x *inspector) checkOrders(ctx context.Context, i *inspection) error {
	after := ""
	for {
		page, err := itemOrders(ctx, x.Store, i.item, after)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].ID
		page = slices.DeleteFunc(page, func(r schema.Order) bool { return !r.Holds() })
		keys := make([]inventory.EntryKey, len(page))
		users := make([]string, len(page))
		for n := range page {
			keys[n] = inventory.EntryKey{Buyer: page[n].UserID, IdempotencyKey: page[n].IdempotencyKey}
			users[n] = page[n].UserID
		}
		entries, err := x.Records.Entries(ctx, i.item, keys)
		if err != nil {
			return err
		}
		for n := range page {
			if remembers(&entries[n], page[n].ID, page[n].Quantity) {
				continue
			}
			if err := i.deep.add(keys[n]); err != nil {
				return err
			}
		}
		slices.Sort(users)
		if err := x.checkBuyers(ctx, i, slices.Compact(users), nil); err != nil {
			return err
		}
	}
}

// checkCounts finds buyers whose count in the sale differs from the units that they hold.
func (x *inspector) checkCounts(ctx context.Context, i *inspection) error {
	return x.Records.EachCount(ctx, i.item, func(page []inventory.BuyerCount) error {
		users := make([]string, len(page))
		counts := make([]int64, len(page))
		for n := range page {
			users[n], counts[n] = page[n].Buyer, page[n].Units
		}
		return x.checkBuyers(ctx, i, users, counts)
	})
}

// checkBuyers compares the sale's counts of some buyers, which it reads if counts is nil,
// with the units that they hold.
func (x *inspector) checkBuyers(ctx context.Context, i *inspection, users []string, counts []int64) (err error) {
	if len(users) == 0 || i.deep.crowded {
		return nil
	}
	if counts == nil {
		if counts, err = x.Records.Counts(ctx, i.item, users); err != nil {
			return err
		}
	}
	held, err := buyersUnits(ctx, x.Store, i.item, users)
	if err != nil {
		return err
	}
	for n, u := range users {
		if held[u]+i.deep.queued[u] == counts[n] {
			continue
		}
		if err := i.deep.add(inventory.EntryKey{Buyer: u}); err != nil {
			return err
		}
	}
	return nil
}
