package inventory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"flashsale/internal/pause"
	"flashsale/lock"
)

// Open loads a new item's sale, so that its first buyer need not wait. Anything that Redis
// holds under the item's id is older than the item, and is dropped.
func (v *Inventory) Open(ctx context.Context, item string) error {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.HoldLimit)
	defer cancel()
	err := v.underLock(ctx, item, func(ctx context.Context, l *lock.Lock) error {
		return v.load(ctx, l, item)
	})
	if errors.Is(err, ErrEnded) { // it was created with a window in the past
		return nil
	}
	return err
}

// loadPage is how many orders are written at once. They occupy Redis for about a
// millisecond; it serves other clients before the next page is sent.
const loadPage = 500

// loadCalls is how many small sales are written at once.
const loadCalls = 100

// loadAhead is how many pages may be read ahead of the one that is being written.
const loadAhead = 4

// loadYield bounds the pause between the pages of a large sale. The pause is as long as
// the page took, so that loads use no more than half of Redis's time.
const loadYield = 2 * time.Millisecond

// loadTries bounds the attempts to build a sale. The sale is dropped, and built again, for
// each batch in which the database refuses an order meanwhile.
const loadTries = 100

// errDropped says that a sale was dropped while it was built: the database has changed,
// possibly after the build had read it.
var errDropped = errors.New("inventory: sale dropped while it was loaded")

// loadError turns the error of a load into ErrStopped, ErrEnded or ErrRebuilding.
func loadError(err error) error {
	if err == nil || errors.Is(err, ErrStopped) || errors.Is(err, ErrEnded) {
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

// build is one attempt of load.
func (v *Inventory) build(ctx context.Context, l *lock.Lock, item string) error {
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		return err
	}
	v.epoch.Store(epoch)
	// Checked before the first step, which deletes what Redis has of the sale.
	if err := v.mayLoad(ctx, item); err != nil {
		return err
	}
	if err := v.refuseEnded(ctx, l, item); err != nil {
		return err
	}
	number := newBuild()
	if err := v.loadStep(ctx, l, item, "begin", number); err != nil {
		return err
	}
	// From here on no holder of the lock sells the item, so no order of it is added to
	// the queue.
	queued, err := v.source.Queued(ctx, []string{item})
	if err != nil {
		return fmt.Errorf("load sale of %s: %w", item, err)
	}
	failed, err := v.fill(ctx, epoch, number, map[string]*lock.Lock{item: l}, []string{item}, queued)
	if err != nil {
		return fmt.Errorf("load sale of %s: %w", item, err)
	}
	if err := failed[item]; err != nil {
		return err
	}
	v.DropSoldOutMark(item) // the message may not have come back yet
	// The epoch may have been raised while the sale was read.
	if now, err := v.source.Epoch(ctx); err != nil || now != epoch {
		return errors.Join(errDropped, err)
	}
	return nil
}

// newBuild returns a number that identifies a build of sales.
func newBuild() string { return strconv.FormatUint(rand.Uint64(), 10) }

// mayLoad calls Config.MayLoad for one item.
func (v *Inventory) mayLoad(ctx context.Context, item string) error {
	refused, err := v.cfg.MayLoad(ctx, []string{item})
	if err != nil {
		return err
	}
	return refused[item]
}

// loadCall is one step of a load of one item.
type loadCall struct {
	item, step string
	args       []any
}

// loadBatch is pages of orders, and the sales to open after them.
type loadBatch struct{ orders, opens []loadCall }

// fill writes the sales of items whose load has begun, under their locks, and opens each
// as soon as its orders are written. It reads the next orders while it writes others,
// since the database and Redis take about as long. failed has the errors that affect only
// one item; after err, the items that are not opened stay closed.
func (v *Inventory) fill(ctx context.Context, epoch int64, build string, locks map[string]*lock.Lock, items []string, queued map[string]Queued) (failed map[string]error, err error) {
	batches := make(chan loadBatch, loadAhead)
	failed = make(map[string]error)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		for b := range batches {
			sent := time.Now()
			v.write(ctx, locks, b.orders, failed)
			v.write(ctx, locks, b.opens, failed)
			if len(failed) == len(items) {
				return failed[items[0]] // the rest is not needed
			}
			if len(b.opens) == 0 && !pause.For(ctx, min(time.Since(sent), loadYield)) { // more of a large sale follows
				return context.Cause(ctx)
			}
		}
		return nil
	})
	group.Go(func() error {
		defer close(batches)
		p := &loadPages{v: v, epoch: epoch, build: build, send: func(b loadBatch) error {
			select {
			case batches <- b:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}}
		if err := v.source.Sales(ctx, items, queued, p.order, p.sale); err != nil {
			return err
		}
		return p.flush()
	})
	err = group.Wait()
	return failed, err
}

// write sends load steps, those of an item in order; once one has failed, the item's
// others are not sent. A step that opens a sale is sent only after the replies to its
// orders.
func (v *Inventory) write(ctx context.Context, locks map[string]*lock.Lock, calls []loadCall, failed map[string]error) {
	calls = slices.DeleteFunc(calls, func(c loadCall) bool { return failed[c.item] != nil })
	if len(calls) == 1 {
		c := calls[0]
		if err := v.loadStep(ctx, locks[c.item], c.item, c.step, c.args...); err != nil {
			failed[c.item] = err
		}
		return
	}
	cmds := make([]*redis.Cmd, len(calls))
	_, _ = v.rdb.Pipelined(ctx, func(p redis.Pipeliner) error { //nolint:errcheck // each command has its own error
		for i, c := range calls {
			keys, args := v.loadArgs(locks[c.item], c.item, c.step, c.args)
			cmds[i] = loadScript.EvalSha(ctx, p, keys, args...)
		}
		return nil
	})
	for i, c := range calls {
		if failed[c.item] != nil {
			continue
		}
		answer, err := cmds[i].Int()
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			err = v.loadStep(ctx, locks[c.item], c.item, c.step, c.args...)
		} else {
			err = loadRefused(c.item, c.step, answer, err)
		}
		if err != nil {
			failed[c.item] = err
		}
	}
}

// loadPages cuts what a Source reads into batches of a bounded size.
type loadPages struct {
	v     *Inventory
	epoch int64
	build string
	send  func(loadBatch) error

	batch  loadBatch
	page   []any // orders of the present item
	orders int   // in batch and page
}

func (p *loadPages) order(item string, h Holding) error {
	counts := "0"
	if h.Counts {
		counts = "1"
	}
	p.page = append(p.page, h.Buyer, h.IdempotencyKey, h.Quantity, h.OrderID, counts)
	if p.orders++; p.orders < loadPage {
		return nil
	}
	p.cut(item)
	return p.flush()
}

func (p *loadPages) cut(item string) {
	if len(p.page) > 0 {
		p.batch.orders = append(p.batch.orders, loadCall{item, "orders", append([]any{p.build}, withKeyHashes(p.page)...)})
		p.page = nil
	}
}

func (p *loadPages) sale(item string, s Sale) error {
	p.cut(item)
	p.batch.opens = append(p.batch.opens, loadCall{item, "open", []any{
		p.build, p.epoch, s.Left, s.PerUserLimit, s.OpensAt.UnixMilli(), closesMS(s.ClosesAt), s.Control, s.Version,
		max(s.Sequence, p.v.floor(item)), p.v.keys.stockChannel(p.v.keys.partition(item)), item,
	}})
	if len(p.batch.opens) < loadCalls {
		return nil
	}
	return p.flush()
}

func (p *loadPages) flush() error {
	b := p.batch
	p.batch, p.orders = loadBatch{}, 0
	if len(b.orders)+len(b.opens) == 0 {
		return nil
	}
	return p.send(b)
}

func (v *Inventory) loadArgs(l *lock.Lock, item, step string, more []any) (keys []string, args []any) {
	lockKey, waitersKey := v.locks.GuardKeys(v.keys.lock(item))
	return []string{lockKey, waitersKey, v.keys.sale(item), v.keys.idempotency(item), v.keys.buyers(item), v.keys.accepted(item)},
		append([]any{l.GuardValue(), l.Fence(), step}, more...)
}

// withKeyHashes prepends the hashes of a page's keys.
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
	keys, args := v.loadArgs(l, item, step, more)
	answer, err := loadScript.Run(ctx, v.rdb, keys, args...).Int()
	return loadRefused(item, step, answer, err)
}

// loadRefused turns the load script's answer into an error.
func loadRefused(item, step string, answer int, err error) error {
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

// ended reports whether the Archive answers for an item's sale.
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

// rebuildLimit bounds a load that no purchase has caused. The sale is not loaded, so
// nothing could be sold meanwhile anyway.
const rebuildLimit = 30 * time.Second

// endedLeft is passed by underLockLoaded as the units left of a sale that has ended and is
// not loaded.
const endedLeft = -1

// underLockLoaded runs fn under the item's lock, with the units left. It loads a sale that
// is not loaded, unless it has ended. The load has its own limit: otherwise a sale that
// takes longer to load than HoldLimit could not be changed before a purchase had loaded it.
func (v *Inventory) underLockLoaded(ctx context.Context, item string, fn func(ctx context.Context, l *lock.Lock, left int64) error) error {
	until := time.Now().Add(v.cfg.HoldLimit) // for the wait and fn together
	return v.underLock(ctx, item, func(held context.Context, l *lock.Lock) error {
		look, cancel := context.WithDeadline(held, until)
		defer cancel()
		left, err := v.loadedLeft(look, item)
		if errors.Is(err, redis.Nil) {
			err = v.loadWithin(held, l, item)
			if errors.Is(err, ErrEnded) {
				return fn(look, l, endedLeft)
			}
			if err != nil {
				return err
			}
			after, cancel := context.WithTimeout(held, v.cfg.HoldLimit)
			defer cancel()
			look = after
			left, err = v.loadedLeft(look, item)
		}
		if err != nil {
			return fmt.Errorf("read stock of %s: %w: %w", item, ErrUnavailable, err)
		}
		return fn(look, l, left)
	}, lock.WithWaitLimit(v.cfg.HoldLimit))
}

// loadWithin loads a sale within rebuildLimit. ctx ends with the lock l.
// Errors: ErrRebuilding, ErrEnded, ErrStopped.
func (v *Inventory) loadWithin(ctx context.Context, l *lock.Lock, item string) error {
	limited, cancel := context.WithTimeout(ctx, rebuildLimit)
	defer cancel()
	return loadError(v.load(limited, l, item))
}

// loadedLeft reads the units left of a sale that was loaded under the current epoch and is
// not marked by a change. The error is redis.Nil if there is none.
func (v *Inventory) loadedLeft(ctx context.Context, item string) (int64, error) {
	found, err := v.rdb.HMGet(ctx, v.keys.sale(item), "epoch", "left", "changing", "per_user_limit").Result()
	if err != nil {
		return 0, err
	}
	epoch, ok1 := found[0].(string)
	left, ok2 := found[1].(string)
	if !ok1 || !ok2 || found[2] != nil || found[3] == nil || epoch != strconv.FormatInt(v.epoch.Load(), 10) {
		return 0, redis.Nil
	}
	return strconv.ParseInt(left, 10, 64)
}
