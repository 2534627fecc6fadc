// Package release returns the units of closed orders to their sales in Redis, exactly once.
package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/breaker"
	"flashsale/internal/faultpoint"
	"flashsale/internal/pause"
	"flashsale/internal/plural"
	"flashsale/inventory"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
)

// Stock is the live sales, to which units are released.
type Stock interface {
	// Release returns the units of an item's orders to stock, once for each order however
	// often it is called. It also returns the sale's sequence; see inventory.Release.
	Release(ctx context.Context, item string, orders []inventory.Released) (status []inventory.ReleaseStatus, sequence int64, err error)
	// Invalidate drops an item's sale; its next purchase loads it from the database.
	Invalidate(ctx context.Context, item string) error
	// Unload does so too, but does not disturb a running load.
	Unload(ctx context.Context, item string) error
}

// Releaser releases the units of closed orders to their sales. The database records a
// release together with the order's change, and deletes the record once Redis has the units
// back. So a process may die in between: another one repeats the release, and Redis
// recognizes repeated releases by the order's id.
type Releaser struct {
	store     *store.Store
	Stock     Stock
	onRelease func(item string)
	onError   func(error)
}

// New returns a Releaser for items in that number of partitions. onRelease is called
// after units of an item were released; a process that sells passes
// [inventory.Inventory.DropSoldOutMark], others nil. onError receives the errors of releases that
// are retried later.
func New(store *store.Store, rdb redis.UniversalClient, partitions int, onRelease func(item string), onError func(error)) *Releaser {
	if onRelease == nil {
		onRelease = func(string) {}
	}
	return &Releaser{store: store, Stock: liveStock{store, rdb, partitions}, onRelease: onRelease, onError: onError}
}

// liveStock is the inventory's part in Redis, also for processes without an Inventory.
type liveStock struct {
	store      *store.Store
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

func (l liveStock) Invalidate(ctx context.Context, item string) error {
	return inventory.Invalidate(ctx, l.rdb, l.partitions, []string{item})
}

func (l liveStock) Unload(ctx context.Context, item string) error {
	return inventory.Unload(ctx, l.rdb, l.partitions, item)
}

// Release releases the units of orders whose change is committed, and deletes the records of
// those that are released. waiting are orders whose sale is not loaded: their records stay,
// and the sweeper retries them after the sale's next load. failed has an error for each
// order whose release failed.
func (r *Releaser) Release(ctx context.Context, pending []store.Release) (waiting []store.Release, failed map[string]error) {
	if len(pending) == 0 {
		return nil, nil
	}
	faultpoint.Reach("order.closed")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Release)
	defer cancel()
	byItem := make(map[string][]store.Release, 1)
	for _, o := range pending {
		byItem[o.ItemID] = append(byItem[o.ItemID], o)
	}
	failed = make(map[string]error)
	var released []string
	reached := make(map[string]int64, len(byItem)) // by item: its sale's sequence
	for item, list := range byItem {
		status, sequence, err := r.ReleaseToSale(ctx, item, list)
		reached[item] = sequence
		if err != nil {
			r.onError(fmt.Errorf("release units of %s: %w", plural.Count(len(list), "order"), err))
		}
		for i := range list {
			switch {
			case status[i] == inventory.ReleaseUnknown:
				failed[list[i].OrderID] = errors.Join(ErrNotReleased, err)
			case settles(status[i]):
				released = append(released, list[i].OrderID)
			default:
				waiting = append(waiting, list[i])
			}
		}
	}
	faultpoint.Reach("order.released")
	// The items may have taken all of the time.
	writeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeouts.Write)
	defer cancel()
	if err := deleteReleases(writeCtx, r.store, released, reached); err != nil {
		r.onError(err) // the next attempt finds them released already
	}
	return waiting, failed
}

// ErrNotReleased means that it is unknown whether an order's units are released.
var ErrNotReleased = errors.New("order: units not released")

// settles reports whether an answer means that nothing remains to be done. After
// ReleaseForeign the sale has been dropped, because Redis had another order or quantity
// under the same key; its next load counts the order correctly.
func settles(s inventory.ReleaseStatus) bool { return s.Settled() || s == inventory.ReleaseForeign }

// repeatMin and repeatMax bound the pauses before a release is repeated, of which each is four times the one
// before it: other connections are often lost at the same time, and a Redis that is down is not waited for.
const (
	repeatMin = 2 * time.Millisecond
	repeatMax = 32 * time.Millisecond
	// repeatWithin bounds the time since the first try: a Redis that does not respond would take all of timeouts.Release.
	repeatWithin = 500 * time.Millisecond
)

// ReleaseToSale releases orders of one item. The statuses are valid even if there is an error.
func (r *Releaser) ReleaseToSale(ctx context.Context, item string, list []store.Release) ([]inventory.ReleaseStatus, int64, error) {
	orders := make([]inventory.Released, len(list))
	for i := range list {
		o := &list[i]
		orders[i] = inventory.Released{Buyer: o.UserID, IdempotencyKey: o.IdempotencyKey, OrderID: o.OrderID, Quantity: o.Quantity}
	}
	status, sequence, err := r.releaseRepeatedly(ctx, item, orders)
	r.onRelease(item)
	for i := range status {
		if status[i] != inventory.ReleaseForeign {
			continue
		}
		r.onError(fmt.Errorf("order %s: its key belongs to another order in the sale of %s, which is dropped", list[i].OrderID, item))
		if derr := r.Stock.Invalidate(ctx, item); derr != nil {
			err = errors.Join(err, derr)
			status[i] = inventory.ReleaseUnknown
		}
	}
	return status, sequence, err
}

// releaseRepeatedly releases orders, and repeats the call for those without a reply: Redis may respond on another
// connection, and recognizes what it has released. A Redis that is known to be down, or that does not
// respond, is not asked again.
func (r *Releaser) releaseRepeatedly(ctx context.Context, item string, orders []inventory.Released) (status []inventory.ReleaseStatus, sequence int64, err error) {
	began := time.Now()
	status, sequence, err = r.Stock.Release(ctx, item, orders)
	for wait := repeatMin; noReply(err) && time.Since(began) < repeatWithin && wait <= repeatMax && pause.For(ctx, wait); wait *= 4 {
		first := slices.IndexFunc(status, func(s inventory.ReleaseStatus) bool { return s == inventory.ReleaseUnknown })
		if first < 0 {
			break
		}
		// Orders are released in sequence, so those without a reply are the last.
		rest, reached, rerr := r.Stock.Release(ctx, item, orders[first:])
		copy(status[first:], rest)
		sequence, err = max(sequence, reached), rerr
	}
	return status, sequence, err
}

// noReply reports whether a release was sent and failed without a reply from Redis.
func noReply(err error) bool {
	var replied redis.Error
	return err != nil && !errors.As(err, &replied) && !errors.Is(err, breaker.ErrOpen)
}

// deleteReleases deletes the records of released orders, and records the sequences that
// their sales have reached: a sale with a lower sequence has lost the releases.
func deleteReleases(ctx context.Context, s *store.Store, ids []string, reached map[string]int64) error {
	if len(ids) == 0 {
		return nil
	}
	return s.Change(ctx, "delete "+plural.Count(len(ids), "release"), func(ctx context.Context, c database.Conn, _ int64) error {
		for item, sequence := range reached {
			if _, err := c.ExecContext(ctx, store.NoteSequence, sequence, item); err != nil {
				return err
			}
		}
		_, err := c.ExecContext(ctx, store.DeleteReleases, database.JSONList(ids...))
		return err
	})
}
