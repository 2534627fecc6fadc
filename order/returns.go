package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/faultpoint"
	"flashsale/inventory"
)

// Releaser gives units back to the live sales.
type Releaser interface {
	// Release gives back the units of an item's orders, each order's once,
	// however often it is called, and says how far the sale has come; see
	// inventory.Release.
	Release(ctx context.Context, item string, orders []inventory.Released) (status []inventory.ReleaseStatus, sequence int64, err error)
	// Distrust drops an item's sale; its next purchase loads it from the database.
	Distrust(ctx context.Context, item string) error
	// Unload does so too, and spares a load under way.
	Unload(ctx context.Context, item string) error
}

// Returns gives the units of closed orders back to their sales. The database
// notes them with the order's change, and forgets them once they are back, so
// that a process may die in between: whoever finds the note gives them back, and
// Redis knows by the order's id whether they are back already.
type Returns struct {
	store    *Store
	stock    Releaser
	onReturn func(item string)
	onError  func(error)
}

// NewReturns returns a Returns for items that are spread over that number of
// partitions. onReturn is called after units of an item were given back; a process
// that sells passes [inventory.Inventory.Returned], others nil. onError learns of what
// was left for later.
func NewReturns(store *Store, rdb redis.UniversalClient, partitions int, onReturn func(item string), onError func(error)) *Returns {
	if onReturn == nil {
		onReturn = func(string) {}
	}
	return &Returns{store: store, stock: liveStock{store, rdb, partitions}, onReturn: onReturn, onError: onError}
}

// liveStock is the inventory's side in Redis, for processes with no Inventory too.
type liveStock struct {
	store      *Store
	rdb        redis.UniversalClient
	partitions int
}

func (l liveStock) Release(ctx context.Context, item string, orders []inventory.Released) ([]inventory.ReleaseStatus, int64, error) {
	epoch, err := l.store.Epoch(ctx)
	if err != nil {
		return make([]inventory.ReleaseStatus, len(orders)), 0, err
	}
	return inventory.Release(ctx, l.rdb, l.partitions, epoch, item, orders)
}

func (l liveStock) Distrust(ctx context.Context, item string) error {
	return inventory.Distrust(ctx, l.rdb, l.partitions, []string{item})
}

func (l liveStock) Unload(ctx context.Context, item string) error {
	return inventory.Unload(ctx, l.rdb, l.partitions, item)
}

// give gives back the units of orders whose change is committed, and forgets
// those that are back. Those whose sale is not loaded are waiting: they stay
// noted, for the sweeper to try after the sale's next load. It also returns an
// error for each order that could not be asked for.
func (r *Returns) give(ctx context.Context, owed []returned) (waiting []returned, failed map[string]error) {
	if len(owed) == 0 {
		return nil, nil
	}
	faultpoint.Reach("order.closed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTimeout)
	defer cancel()
	byItem := make(map[string][]returned, 1)
	for _, o := range owed {
		byItem[o.itemID] = append(byItem[o.itemID], o)
	}
	failed = make(map[string]error)
	var back []string
	reached := make(map[string]int64, len(byItem)) // by item: its sale's sequence
	for item, list := range byItem {
		status, sequence, err := r.ask(ctx, item, list)
		reached[item] = sequence
		if err != nil {
			r.onError(fmt.Errorf("release units of %d orders: %w", len(list), err))
		}
		for i := range list {
			switch {
			case status[i] == inventory.ReleaseUnknown:
				failed[list[i].orderID] = errors.Join(errNotGiven, err)
			case settles(status[i]):
				back = append(back, list[i].orderID)
			default:
				waiting = append(waiting, list[i])
			}
		}
	}
	faultpoint.Reach("order.released")
	if err := r.store.forgetReturns(ctx, back, reached); err != nil {
		r.onError(err) // another round finds them back already
	}
	return waiting, failed
}

// errNotGiven says that nobody knows whether an order's units are back.
var errNotGiven = errors.New("order: units not released")

// settles reports whether nothing is left to be done after an answer. Of an
// order that Redis takes for another, the sale has been dropped: its next load
// counts it rightly.
func settles(s inventory.ReleaseStatus) bool { return s.Settled() || s == inventory.ReleaseForeign }

// ask tells the sale of one item. The statuses that come with an error stand.
func (r *Returns) ask(ctx context.Context, item string, list []returned) ([]inventory.ReleaseStatus, int64, error) {
	orders := make([]inventory.Released, len(list))
	for i := range list {
		o := &list[i]
		orders[i] = inventory.Released{Buyer: o.userID, IdempotencyKey: o.idempotencyKey, OrderID: o.orderID, Quantity: o.quantity}
	}
	status, sequence, err := r.stock.Release(ctx, item, orders)
	r.onReturn(item)
	for i := range status {
		if status[i] != inventory.ReleaseForeign {
			continue
		}
		r.onError(fmt.Errorf("order %s: its key belongs to another order in the sale of %s, which is dropped", list[i].orderID, item))
		if derr := r.stock.Distrust(ctx, item); derr != nil {
			err = errors.Join(err, derr)
			status[i] = inventory.ReleaseUnknown
		}
	}
	return status, sequence, err
}

// forgetReturns deletes the notes of orders whose units are back, and notes how
// far the sales had come with that: one that is found to have come less far has
// lost them.
func (s *Store) forgetReturns(ctx context.Context, ids []string, reached map[string]int64) error {
	if len(ids) == 0 {
		return nil
	}
	return s.transition(ctx, fmt.Sprintf("forget %d returns", len(ids)), func(ctx context.Context, c conn, _ int64) error {
		for item, sequence := range reached {
			if _, err := c.ExecContext(ctx, noteSequence, sequence, item); err != nil {
				return err
			}
		}
		_, err := c.ExecContext(ctx, deleteReturns, jsonList(ids...))
		return err
	})
}
