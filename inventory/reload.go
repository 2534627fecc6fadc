package inventory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/plural"
	"flashsale/lock"
)

// claimPrefix begins the field "building" of a sale that a rebuild has claimed and not
// begun to load. claim.lua has it, too.
const claimPrefix = "rebuild:"

// Loadable is an item whose sale may have to be loaded.
type Loadable struct {
	Item string
	// Orders is about how many orders it has.
	Orders int64
}

const (
	// pageItems and pageOrders bound the items that are loaded together. Their locks
	// are held for as long as that takes.
	pageItems, pageOrders = 100, 5000
	// pagesAtOnce is how many pages are loaded concurrently.
	pagesAtOnce = 4
	// locksAtOnce is how many locks of a page are taken or released concurrently.
	locksAtOnce = 8
	// claimPage is how many sales are claimed with one call.
	claimPage = 500
	// reloadRounds bounds the reads of the queues in one ReloadAll. Each covers more
	// queued orders than a queue holds by default.
	reloadRounds = 100
	// reloadLeast and reloadPerOrder bound the load of one page or one sale. A load takes
	// about a tenth of that.
	reloadLeast, reloadPerOrder = time.Minute, 100 * time.Microsecond
)

// reloadLimit bounds the load of these sales.
func reloadLimit(sales ...Loadable) time.Duration {
	limit := reloadLeast
	for i := range sales {
		limit += time.Duration(sales[i].Orders) * reloadPerOrder
	}
	return limit
}

// ReloadAll loads the sales of these items that are not loaded under the current epoch,
// those with few orders first, and returns how many are loaded afterwards. It reads the
// task queues once for all of them, or more often if the queued orders exceed what
// [Source] returns at once. It first claims the sales, so that nothing of them is sold,
// and loads only those whose claim is still there. Sales that it could not claim, that
// other processes load, or that are dropped meanwhile are loaded one by one.
//
// Stopped sales stay stopped, which is not an error. err is the first error of a load; the
// next purchase of such an item loads it.
func (v *Inventory) ReloadAll(ctx context.Context, items []Loadable) (loaded int, err error) {
	v.refresh(ctx)
	r := &reload{v: v}
	rest := items
	for range reloadRounds {
		if rest = r.round(ctx, rest); len(rest) == 0 {
			break
		}
	}
	r.single(rest...)
	forAll(r.singles, pagesAtOnce, func(it Loadable) {
		ctx, cancel := context.WithTimeout(ctx, reloadLimit(it))
		defer cancel()
		r.count(it.Item, v.Reload(ctx, it.Item))
	})
	return r.loaded, r.err
}

// reload is one call of ReloadAll.
type reload struct {
	v *Inventory

	mu      sync.Mutex
	singles []Loadable // to be loaded one by one
	loaded  int
	err     error // the first
}

// count counts the result of an item's load.
func (r *reload) count(item string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.loaded++
	case !errors.Is(err, ErrStopped) && r.err == nil: // a stopped sale waits for a decision
		r.err = fmt.Errorf("load sale of %s: %w", item, err)
	}
}

// single adds items to those that are loaded one by one.
func (r *reload) single(items ...Loadable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.singles = append(r.singles, items...)
}

// round claims sales, reads the queues once, and loads the sales that this read has
// covered. It returns the others.
func (r *reload) round(ctx context.Context, items []Loadable) (rest []Loadable) {
	claim := claimPrefix + rand.Text()
	claimed, err := r.claim(ctx, claim, items)
	if err != nil {
		r.v.cfg.OnError(err)
		r.single(items...)
		return nil
	}
	if len(claimed) == 0 {
		return nil
	}
	ids := make([]string, len(claimed))
	for i := range claimed {
		ids[i] = claimed[i].Item
	}
	queued, err := r.v.source.Queued(ctx, ids)
	if err != nil {
		r.v.cfg.OnError(fmt.Errorf("read queued orders for a rebuild: %w", err))
		r.single(claimed...)
		return nil
	}
	covered := claimed[:0]
	for _, it := range claimed {
		if _, ok := queued[it.Item]; ok {
			covered = append(covered, it)
		} else {
			rest = append(rest, it)
		}
	}
	forAll(pagesOf(covered), pagesAtOnce, func(page []Loadable) { r.page(ctx, claim, page, queued) })
	return rest
}

// pagesOf cuts items into pages, those with few orders first.
func pagesOf(items []Loadable) [][]Loadable {
	var small, large [][]Loadable
	var page []Loadable
	orders := int64(0)
	for _, it := range items {
		if it.Orders >= pageOrders {
			large = append(large, []Loadable{it})
			continue
		}
		if len(page) == pageItems || orders+it.Orders > pageOrders {
			small, page, orders = append(small, page), nil, 0
		}
		page, orders = append(page, it), orders+it.Orders
	}
	if len(page) > 0 {
		small = append(small, page)
	}
	return append(small, large...)
}

// claim claims the missing sales and returns them. The others are checked one by one.
func (r *reload) claim(ctx context.Context, claim string, items []Loadable) (claimed []Loadable, err error) {
	for from := 0; from < len(items); from += claimPage {
		page := items[from:min(from+claimPage, len(items))]
		cmds := make([]*redis.Cmd, len(page))
		err := pipelined(ctx, r.v.rdb, func(p redis.Pipeliner) {
			for i, it := range page {
				cmds[i] = claimScript.EvalSha(ctx, p, []string{r.v.keys.sale(it.Item)}, claim)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("claim %s: %w", plural.Count(len(page), "sale"), err)
		}
		for i, it := range page {
			n, err := cmds[i].Int()
			if redis.HasErrorPrefix(err, "NOSCRIPT") {
				n, err = claimScript.Run(ctx, r.v.rdb, []string{r.v.keys.sale(it.Item)}, claim).Int()
			}
			switch {
			case otherType(err):
				r.single(it) // only its own load fails
			case err != nil:
				return nil, fmt.Errorf("claim sale of %s: %w: %w", it.Item, ErrUnavailable, err)
			case n == 1:
				claimed = append(claimed, it)
			default:
				r.single(it)
			}
		}
	}
	return claimed, nil
}

// page loads a page of claimed sales.
func (r *reload) page(ctx context.Context, claim string, page []Loadable, queued map[string]Queued) {
	ctx, cancel := context.WithTimeout(ctx, reloadLimit(page...))
	defer cancel()
	v := r.v
	epoch, err := v.source.Epoch(ctx)
	if err != nil {
		r.single(page...)
		return
	}
	ids := make([]string, len(page))
	for i := range page {
		ids[i] = page[i].Item
	}
	refused, err := v.cfg.MayLoad(ctx, ids)
	if err != nil {
		r.single(page...)
		return
	}
	locks := v.tryLocks(ctx, ids, refused)
	defer v.releaseLocks(ctx, locks)
	opened := v.loadClaimed(ctx, epoch, claim, ids, locks, queued)
	for _, it := range page {
		switch {
		case opened[it.Item]:
			v.DropSoldOutMark(it.Item) // the message may not have come back yet
			r.count(it.Item, nil)
		case refused[it.Item] != nil:
			r.count(it.Item, refused[it.Item])
		default:
			r.single(it)
		}
	}
}

// loadClaimed loads the claimed sales whose locks it is given, and returns those that it opened.
func (v *Inventory) loadClaimed(ctx context.Context, epoch int64, claim string, ids []string, locks map[string]*lock.Lock, queued map[string]Queued) map[string]bool {
	build, begins := newBuild(), make([]loadCall, 0, len(locks))
	for _, id := range ids {
		if locks[id] != nil {
			begins = append(begins, loadCall{id, "claimed", []any{build, claim}})
		}
	}
	failed := make(map[string]error)
	v.write(ctx, locks, begins, failed)
	begun := make([]string, 0, len(begins))
	for _, id := range ids {
		if locks[id] != nil && failed[id] == nil {
			begun = append(begun, id)
		}
	}
	if len(begun) == 0 {
		return nil
	}
	failed, err := v.fill(ctx, epoch, build, locks, begun, queued)
	// The epoch may have been raised while the sales were read.
	if now, eerr := v.source.Epoch(ctx); err != nil || eerr != nil || now != epoch {
		return nil
	}
	opened := make(map[string]bool, len(begun))
	for _, id := range begun {
		opened[id] = failed[id] == nil
	}
	return opened
}

// tryLocks takes the free locks of the items that are not refused. If a seller holds an
// item's lock, it loads the sale.
func (v *Inventory) tryLocks(ctx context.Context, items []string, refused map[string]error) map[string]*lock.Lock {
	var mu sync.Mutex
	locks := make(map[string]*lock.Lock, len(items))
	forAll(items, locksAtOnce, func(item string) {
		if refused[item] != nil {
			return
		}
		// The others are loaded one by one, which reports errors.
		if l, err := v.locks.TryAcquire(ctx, v.keys.lock(item)); err == nil {
			mu.Lock()
			defer mu.Unlock()
			locks[item] = l
		}
	})
	return locks
}

func (v *Inventory) releaseLocks(ctx context.Context, locks map[string]*lock.Lock) {
	forAll(slices.Collect(maps.Keys(locks)), locksAtOnce, func(item string) {
		if err := locks[item].Release(ctx); err != nil {
			v.cfg.OnError(fmt.Errorf("release the lock of item %s: %w", item, err))
		}
	})
}

// forAll calls fn for every element, atOnce of them concurrently.
func forAll[T any](list []T, atOnce int, fn func(T)) {
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, x := range list {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			fn(x)
		})
	}
	all.Wait()
}

// Reload loads an item's sale unless it is loaded under the current epoch, or has
// ended. While it does, purchases of the item answer ErrRebuilding once their patience is
// spent. Errors: [ErrUnavailable], [ErrStopped], [ErrRebuilding] when the load failed.
func (v *Inventory) Reload(ctx context.Context, item string) error {
	v.refresh(ctx)
	return v.underLock(ctx, item, func(held context.Context, l *lock.Lock) error {
		_, err := v.loadedLeft(held, item)
		if errors.Is(err, redis.Nil) {
			err = v.load(held, l, item)
		}
		if errors.Is(err, ErrEnded) {
			return nil
		}
		return loadError(err)
	})
}

// Warm loads an item's sale unless purchases find it loaded, and waits for it. If ctx ends first, the
// load goes on and Warm returns ErrRebuilding; further calls join the load.
// Errors: those of Reload.
func (v *Inventory) Warm(ctx context.Context, item string) error {
	v.refresh(ctx)
	_, err := v.loadedLeft(ctx, item)
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, redis.Nil):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	loaded := v.warming.DoChan(item, func() (any, error) { return nil, v.warm(item) })
	select {
	case r := <-loaded:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrRebuilding, context.Cause(ctx))
	}
}

// warmLimit bounds a load by Warm. A sale of a hundred million orders takes half of it.
const warmLimit = time.Hour

// warm is Reload for as long as the Inventory lives.
func (v *Inventory) warm(item string) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return fmt.Errorf("%w: closed", ErrUnavailable)
	}
	v.background.Add(1)
	v.mu.Unlock()
	defer v.background.Done()
	ctx, cancel := context.WithTimeout(v.life, warmLimit)
	defer cancel()
	return v.Reload(ctx, item)
}

// beingLoadedLimit bounds the check of a sale whose lock was not available.
const beingLoadedLimit = 200 * time.Millisecond

// beingLoaded reports whether an item has no sale, so that the holder of its lock is most
// likely loading it.
func (v *Inventory) beingLoaded(item string) bool {
	ctx, cancel := context.WithTimeout(v.life, beingLoadedLimit)
	defer cancel()
	_, err := v.loadedLeft(ctx, item)
	return errors.Is(err, redis.Nil)
}
