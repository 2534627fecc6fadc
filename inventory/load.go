package inventory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"flashsale/lock"
)

// Open loads a new item's sale, so that its first buyer need not wait. Whatever
// Redis holds under the item's name is older than the item, and is dropped.
func (v *Inventory) Open(ctx context.Context, item string) error {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.LookLimit)
	defer cancel()
	return v.holding(ctx, item, func(ctx context.Context, l *lock.Lock) error {
		return v.load(ctx, l, item)
	})
}

// loadPage is how many orders one load script carries. Redis is busy for about a
// millisecond with that many.
const loadPage = 1000

// loadAhead is how many pages may be read before the one that is being written.
const loadAhead = 4

// sequenceBlock is how far a build's numbers begin above the highest that is known
// of. What was handed out and is lost with Redis's data must not be handed out
// again, and it is less than this: a build's scripts are counted, not its orders.
const sequenceBlock = 1 << 20

// loadTries bounds the builds of a sale that is dropped while it is built: once for
// each batch of which the database refuses an order meanwhile.
const loadTries = 100

// errDropped says that a sale was dropped while it was built: the database has
// changed, maybe after the build had read it.
var errDropped = errors.New("inventory: sale dropped while it was loaded")

// loadError is what the failure of a load amounts to: ErrStopped, or ErrRebuilding.
func loadError(err error) error {
	if err == nil || errors.Is(err, ErrStopped) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRebuilding, err)
}

// load builds the item's sale from its source. The caller holds the lock l.
func (v *Inventory) load(ctx context.Context, l *lock.Lock, item string) (err error) {
	for range loadTries {
		if err = v.build(ctx, l, item); !errors.Is(err, errDropped) {
			break
		}
	}
	return err
}

// build is one try of load.
func (v *Inventory) build(ctx context.Context, l *lock.Lock, item string) error {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return err
	}
	v.epoch.Store(epoch)
	// Before the first step, which forgets what Redis knows of the sale.
	if err := v.cfg.MayLoad(ctx, item); err != nil {
		return err
	}
	if err := v.loadStep(ctx, l, item, "begin"); err != nil {
		return err
	}
	sale, err := v.loadOrders(ctx, l, item)
	if err != nil {
		return fmt.Errorf("load sale of %s: %w", item, err)
	}
	err = v.loadStep(ctx, l, item, "open", epoch, sale.Left, sale.PerUserLimit,
		sale.OpensAt.UnixMilli(), closesMS(sale.ClosesAt), sale.Control, sale.Version,
		max(sale.Sequence, v.floor(item))+sequenceBlock, stockChannel(v.keys.partition(item)), item)
	if err != nil {
		return err
	}
	v.dropMark(item) // the message may not have come back yet
	// All state may have been declared void while it was read.
	if now, err := v.source.Epoch(ctx); err != nil || now != epoch {
		return errors.Join(errDropped, err)
	}
	return nil
}

// loadOrders writes the item's orders page by page. The next pages are read while
// one is written: the database and Redis take about as long.
func (v *Inventory) loadOrders(ctx context.Context, l *lock.Lock, item string) (Sale, error) {
	pages := make(chan []any, loadAhead)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for page := range pages {
			if err := v.loadStep(ctx, l, item, "orders", withKeyHashes(page)...); err != nil {
				return err
			}
		}
		return nil
	})
	var sale Sale
	group.Go(func() error {
		defer close(pages)
		page := make([]any, 0, loadPage*5)
		send := func() error {
			select {
			case pages <- page:
				page = make([]any, 0, loadPage*5)
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		var err error
		sale, err = v.source.Sale(ctx, item, func(h Holding) error {
			counts := "0"
			if h.Counts {
				counts = "1"
			}
			page = append(page, h.Buyer, h.IdempotencyKey, h.Quantity, h.OrderID, counts)
			if len(page) < cap(page) {
				return nil
			}
			return send()
		})
		if err == nil && len(page) > 0 {
			err = send()
		}
		return err
	})
	return sale, group.Wait()
}

// withKeyHashes puts the hashes of a page's keys in front of it.
func withKeyHashes(page []any) []any {
	hashes := make([]byte, 0, len(page)/5*keyHashSize)
	for at := 0; at+1 < len(page); at += 5 {
		buyer, _ := page[at].(string)
		key, _ := page[at+1].(string)
		hashes = binary.BigEndian.AppendUint32(hashes, keyHashOf(buyer, key))
	}
	return append([]any{hashes}, page...)
}

func (v *Inventory) loadStep(ctx context.Context, l *lock.Lock, item, step string, more ...any) error {
	lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(item))
	keys := []string{lockKey, waitersKey, v.keys.sale(item), v.keys.idempotency(item), v.keys.buyers(item), v.keys.accepted(item)}
	args := append([]any{l.GuardValue(), l.Fence(), step}, more...)
	answer, err := loadScript.Run(ctx, v.rdb, keys, args...).Int()
	if err != nil {
		return fmt.Errorf("load sale of %s: %s: %w", item, step, err)
	}
	switch answer {
	case 0:
		return fmt.Errorf("load sale of %s: %w", item, lock.ErrLost)
	case 2:
		return fmt.Errorf("load sale of %s: %w", item, errDropped)
	}
	return nil
}
