package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"flashsale/lock"
)

// ErrEnded says that the sale has ended and is not loaded. It belongs to the
// database then: see [Archive].
var ErrEnded = errors.New("inventory: the sale has ended and is not loaded")

// Archive is the database's view of the sales that have ended. One that is not in
// Redis any more stays out of it: requests for it are answered from the Archive.
type Archive interface {
	// Ended reports whether an item's sale is closed or past its end, by the clock of
	// Redis. An item that does not exist has not ended.
	Ended(ctx context.Context, item string) (bool, error)
	// Entries returns the orders of an ended sale under these keys, in their order, the
	// queued ones too. There are at most as many keys as a batch has purchases.
	Entries(ctx context.Context, item string, keys []EntryKey) ([]Entry, error)
}

// ended reports whether an item's sale is the Archive's.
func (v *Inventory) ended(ctx context.Context, item string) (bool, error) {
	if v.cfg.Archive == nil {
		return false, nil
	}
	return v.cfg.Archive.Ended(ctx, item)
}

// refuseEnded returns ErrEnded for a sale that has ended, and removes what is left of
// it in Redis. The caller holds the lock l.
func (v *Inventory) refuseEnded(ctx context.Context, l *lock.Lock, item string) error {
	ended, err := v.ended(ctx, item)
	if err != nil || !ended {
		return err
	}
	if err := v.loadStep(ctx, l, item, "forget"); err != nil {
		return err
	}
	return fmt.Errorf("load sale of %s: %w", item, ErrEnded)
}

// loadOrAnswer deals with a batch whose sale is not loaded, or has to be loaded again:
// it loads the sale, or answers from the Archive if the sale has ended. rewound is as in
// Observers.OnLoss, waiting as in the script's reply.
func (s *seller) loadOrAnswer(ctx context.Context, batch []*Request, rewound, waiting int64) error {
	// Data that was rewound is looked into first. Of a sale that is merely missing, the
	// database decides whether it should be there.
	if s.loading == nil && rewound == 0 {
		ended, err := s.v.ended(ctx, s.item)
		if err != nil {
			return err
		}
		if ended {
			// The database of a stopped sale does not know all of its orders.
			if err := s.v.mayLoad(ctx, s.item); err != nil {
				if errors.Is(err, ErrStopped) {
					s.stopped = time.Now()
				}
				return err
			}
			return s.answerEnded(ctx, batch, waiting)
		}
	}
	err := s.loadAndWait(ctx, rewound)
	if errors.Is(err, ErrEnded) {
		return s.answerEnded(ctx, batch, waiting)
	}
	return err
}

// answerEnded answers a batch from the Archive, as the purchase script answers for a
// sale that is closed. One look answers the whole batch, so that a crowd costs the
// database little. waiting is the script's reply.
func (s *seller) answerEnded(ctx context.Context, batch []*Request, waiting int64) error {
	keys := make([]EntryKey, len(batch))
	for i, r := range batch {
		keys[i] = EntryKey{r.Buyer, r.IdempotencyKey}
	}
	known, err := s.v.cfg.Archive.Entries(ctx, s.item, keys)
	if err == nil && len(known) != len(batch) {
		err = fmt.Errorf("%d entries for %d keys", len(known), len(batch))
	}
	if err != nil {
		return fmt.Errorf("answer for ended sale of %s: %w", s.item, err)
	}
	for i, r := range batch {
		switch e := &known[i]; {
		case !e.Known:
			r.Done(Outcome{Err: ErrClosed})
		case e.Quantity != r.Quantity:
			r.Done(Outcome{Err: ErrKeyReused})
		case e.OrderID == r.OrderID: // an earlier run of the script took it
			r.Done(Outcome{})
		default:
			r.Done(Outcome{ReplayOf: e.OrderID})
		}
	}
	if waiting > 0 {
		s.letGo()
	}
	return nil
}

// takeFromEnded is a Change that takes units back from a sale that has ended and is not
// loaded: only the database has it. ctx ends with the item's lock l.
func (v *Inventory) takeFromEnded(ctx context.Context, l *lock.Lock, item string, c *Change, commit func(ctx context.Context) (int64, error)) error {
	// Queued orders count as sold, and the commit does not know them.
	left, err := v.leftInSource(ctx, item)
	if err != nil {
		return fmt.Errorf("change item %s: %w: %w", item, ErrUnavailable, err)
	}
	if left+c.AddLeft < 0 {
		return fmt.Errorf("change item %s: %w", item, ErrStockBelowSold)
	}
	if !time.Now().Before(l.ValidUntil()) {
		return fmt.Errorf("change item %s: %w: %w", item, ErrUnavailable, lock.ErrLost)
	}
	return v.changeUnloaded(ctx, item, c, commit)
}

// leftInSource reads how many units of an item are left by its source.
func (v *Inventory) leftInSource(ctx context.Context, item string) (left int64, err error) {
	items := []string{item}
	queued, err := v.source.Queued(ctx, items)
	if err != nil {
		return 0, err
	}
	err = v.source.Sales(ctx, items, queued,
		func(string, Holding) error { return nil },
		func(_ string, sale Sale) error { left = sale.Left; return nil })
	return left, err
}

// reopen loads the sale of an item that had ended, if it was changed so that it has not
// ended any more. It does not wait for the load. If it fails, the next purchase loads
// the sale.
func (v *Inventory) reopen(ctx context.Context, item string) {
	ended, err := v.ended(ctx, item)
	if err != nil {
		v.cfg.OnError(err) // the next purchase asks again
	}
	if err != nil || ended {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	v.background.Go(func() {
		ctx, cancel := context.WithTimeout(v.life, rebuildLimit)
		defer cancel()
		if err := v.Reload(ctx, item); err != nil && v.life.Err() == nil {
			v.cfg.OnError(fmt.Errorf("reopen: %w", err))
		}
	})
}

// batchLook bounds the orders that one call of OfBuyers looks at.
const batchLook = 16 * queuedLook

// errManyQueued says that the buyers of a batch have too many queued orders to look at.
var errManyQueued = errors.New("too many queued orders of these buyers")

// OfBuyers calls fn with the id and payload of every queued task of these buyers in the
// item's partition, in no order. Tasks of other items and other buyers may be among them:
// the payload decides. It has found every task that was added before the call and is in
// the queue still. Errors: ErrUnavailable, also where there are too many.
func (x *QueuedIndex) OfBuyers(ctx context.Context, item string, buyers []string, fn func(id string, payload []byte)) error {
	ctx, cancel := context.WithTimeout(ctx, queuedLimit)
	defer cancel()
	l := x.logs[PartitionOf(item, len(x.logs))]
	if err := l.current(ctx); err != nil {
		return fmt.Errorf("read log of queued orders: %w: %w", ErrUnavailable, err)
	}
	var found []queuedOrder
	seen := make(map[uint64]bool, len(buyers))
	for _, buyer := range buyers {
		if hash := buyerHash(buyer); !seen[hash] && len(found) <= batchLook {
			seen[hash] = true
			found = l.collect(found, hash, "")
		}
	}
	l.end()
	if len(found) > batchLook {
		return fmt.Errorf("%w: %w", ErrUnavailable, errManyQueued)
	}
	payloads, err := payloadsOf(ctx, found)
	if err != nil {
		return fmt.Errorf("read queued orders: %w: %w", ErrUnavailable, err)
	}
	for i := range found {
		if payloads[i] != nil {
			fn(found[i].id.text(), payloads[i])
		}
	}
	return nil
}
