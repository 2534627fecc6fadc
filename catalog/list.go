package catalog

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"flashsale/internal/bucket"
)

// ListView is all displayed items, by id. It is immutable; a new one replaces it.
type ListView struct {
	Items []Item
	// LoadedAt is when the database was queried.
	LoadedAt time.Time
	// Stale says that the list should have been reloaded and could not be.
	Stale bool
	Memo

	freshUntil   time.Time
	subscription uint64
	changed      bool
}

// list is the list of all items in memory. Each process reads it from the database, a few
// times a minute: in Redis it would be as large as all items, and each change of an item
// would invalidate it. Its size and the cost of a load grow with the number of items; a
// load takes Config.LoadTimeout at most, and the queries for the stock of all items
// Config.Wait.
type list struct {
	view      atomic.Pointer[ListView]
	retryAt   atomic.Int64 // Unix nanoseconds
	stockAsOf atomic.Int64 // Unix nanoseconds

	mu      sync.Mutex
	loading *listLoad        // which readers join; it waits while too many are under way
	loads   int              // under way
	asking  chan struct{}    // closed when the query for the stock that is under way has ended
	left    map[string]int64 // the live stock as it was read last
}

// maxListLoads bounds the loads under way: each change invalidates the load before it, and
// a series of changes must not load all items for each of them. It is more than one, so
// that a load that hangs does not delay newer ones.
const maxListLoads = 2

// listLoad is one load of the list, for all readers that wait for it.
type listLoad struct {
	done  chan struct{}
	err   error
	begun bool
	void  bool // an item has changed since the load began
}

// List reads all items. Their stock is at most a second old if Redis answers. While the
// list is reloaded, List returns the old one, unless an item is known to have changed.
// Errors: those of the source, the end of ctx, and context.DeadlineExceeded when the wait
// took too long.
func (c *Catalog) List(ctx context.Context) (*ListView, error) {
	now := time.Now()
	v := c.list.view.Load()
	switch {
	case v != nil && !v.changed && now.Before(v.freshUntil) && v.subscription == c.subscriptions.Load():
	case v != nil && !v.changed && c.on(Breakdown):
		c.counts.stale.Add(1)
		if now.UnixNano() >= c.list.retryAt.Load() {
			c.joinList()
		}
	default:
		if err := c.awaitList(ctx); err != nil {
			if v == nil || ctx.Err() != nil { // a caller that has left does not know whether the load failed
				return nil, err
			}
			c.listOutdated()
		}
	}
	c.withStocks(ctx, now)
	return c.list.view.Load(), nil
}

func (c *Catalog) awaitList(ctx context.Context) error {
	l := c.joinList()
	timer := time.NewTimer(c.cfg.Wait)
	defer timer.Stop()
	select {
	case <-l.done:
		return l.err
	case <-timer.C:
		return fmt.Errorf("catalog: items: not loaded within %v: %w", c.cfg.Wait, context.DeadlineExceeded)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Catalog) joinList() *listLoad {
	c.list.mu.Lock()
	defer c.list.mu.Unlock()
	if c.list.loading == nil {
		l := &listLoad{done: make(chan struct{})}
		if !c.begin() {
			l.err = errClosed
			close(l.done)
			return l
		}
		c.list.loading = l
		c.beginListLoad()
	}
	return c.list.loading
}

// beginListLoad begins the load for which readers wait, unless maxListLoads are under way.
// The caller holds the list's mutex.
func (c *Catalog) beginListLoad() {
	if l := c.list.loading; l != nil && !l.begun && c.list.loads < maxListLoads {
		l.begun = true
		c.list.loads++
		go c.loadList(l)
	}
}

func (c *Catalog) loadList(l *listLoad) {
	defer c.work.Done()
	ctx, cancel := context.WithTimeout(c.life, c.cfg.LoadTimeout)
	defer cancel()
	subscription, askedAt := c.subscriptions.Load(), time.Now()
	c.counts.queries.Add(1)
	items, err := c.source.Items(ctx)
	c.list.mu.Lock()
	if c.list.loading == l {
		c.list.loading = nil
	}
	c.list.loads--
	c.beginListLoad()
	switch {
	case err != nil:
		l.err = err
	default:
		c.showList(l, &ListView{
			Items: withoutBuckets(items), LoadedAt: askedAt, freshUntil: askedAt.Add(c.spread(c.cfg.Fresh)), subscription: subscription, changed: l.void,
		}, items)
	}
	c.list.mu.Unlock()
	if err != nil {
		c.cfg.OnError(fmt.Errorf("load items: %w", err))
		if v := c.list.view.Load(); v != nil && !v.changed {
			c.listOutdated()
		}
	}
	close(l.done)
}

// showList publishes a loaded list, with the known live stock. A list that was overtaken
// by a change is only for the readers that have waited for it; if a later load was
// quicker, they get its list instead. items also has the buckets.
func (c *Catalog) showList(l *listLoad, v *ListView, items []Item) {
	if now := c.list.view.Load(); l.void && now != nil && !now.LoadedAt.Before(v.LoadedAt) {
		return
	}
	for i := range v.Items {
		if left, ok := c.list.left[v.Items[i].ID]; ok {
			v.Items[i].StockLeft = left
		}
	}
	c.list.stockAsOf.Store(0)
	c.list.view.Store(v)
	c.list.retryAt.Store(0)
	if !l.void {
		c.learn(v, items)
	}
}

// withoutBuckets returns the items that are not buckets of another item.
func withoutBuckets(items []Item) []Item {
	isBucket := func(i Item) bool { return bucket.Item(i.ID) != i.ID }
	if !slices.ContainsFunc(items, isBucket) {
		return items
	}
	return slices.DeleteFunc(slices.Clone(items), isBucket)
}

// learn caches the items that were read with a list and that memory lacks, or has in an older
// version. When a process starts, one query then loads all items.
func (c *Catalog) learn(list *ListView, items []Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		item := &items[i]
		if r, ok := c.known.GetIfPresent(item.ID); ok {
			if v := r.view.Load(); v.changed || v.Item.Version > item.Version || !v.LoadedAt.Before(list.LoadedAt) {
				continue
			}
		} else if len(items) > c.cfg.MaxItems {
			continue // they would evict each other
		}
		v := c.newView(*item, list.LoadedAt)
		v.subscription = list.subscription
		c.remember(v)
	}
}

// listOutdated marks the old list as stale, so that it is shown, because it cannot be
// reloaded.
func (c *Catalog) listOutdated() {
	c.list.retryAt.Store(time.Now().Add(retryPause).UnixNano())
	c.list.mu.Lock()
	defer c.list.mu.Unlock()
	// Otherwise another load has succeeded meanwhile.
	if v := c.list.view.Load(); v != nil && (v.changed || !time.Now().Before(v.freshUntil)) {
		c.list.view.Store(&ListView{Items: v.Items, LoadedAt: v.LoadedAt, Stale: true, subscription: v.subscription})
	}
}

// forgetList makes the next reader wait for a list that is read from now on.
func (c *Catalog) forgetList() {
	c.list.mu.Lock()
	defer c.list.mu.Unlock()
	if c.list.loading != nil && c.list.loading.begun {
		c.list.loading.void = true
		c.list.loading = nil // a later reader must not join it
	}
	if v := c.list.view.Load(); v != nil && !v.changed {
		c.list.view.Store(&ListView{Items: v.Items, LoadedAt: v.LoadedAt, Stale: v.Stale, subscription: v.subscription, changed: true})
	}
}

// withStocks updates the live stock in the list, as withStock does for an item.
func (c *Catalog) withStocks(ctx context.Context, now time.Time) {
	age := time.Duration(now.UnixNano() - c.list.stockAsOf.Load())
	if age < stockSoon || now.UnixNano() < c.stocks.quiet.Load() {
		return
	}
	c.list.mu.Lock()
	done := c.list.asking
	if done == nil {
		if !c.begin() {
			c.list.mu.Unlock()
			return
		}
		done = make(chan struct{})
		c.list.asking = done
		go c.readListStock(done)
	}
	c.list.mu.Unlock()
	if age < stockMax {
		return
	}
	select {
	case <-done:
	case <-ctx.Done(): // the caller checks ctx itself
	}
}

func (c *Catalog) readListStock(done chan struct{}) {
	defer c.work.Done()
	defer close(done)
	items := c.list.view.Load().Items
	askedAt := time.Now()
	left, err := c.left(items)
	c.list.mu.Lock()
	defer c.list.mu.Unlock()
	c.list.asking = nil
	if err != nil {
		return
	}
	c.list.stockAsOf.Store(askedAt.UnixNano())
	if c.list.left == nil {
		c.list.left = make(map[string]int64, len(items))
	}
	for i := range items {
		id := items[i].ID
		if left[i] >= 0 {
			c.list.left[id] = left[i]
		} else { // see setLeft
			delete(c.list.left, id)
		}
	}
	v := c.list.view.Load() // which may have been replaced meanwhile
	var shown []Item
	for i := range v.Items {
		n, ok := c.list.left[v.Items[i].ID]
		if !ok || n == v.Items[i].StockLeft {
			continue
		}
		if shown == nil {
			shown = append([]Item(nil), v.Items...)
		}
		shown[i].StockLeft = n
	}
	if shown != nil {
		c.list.view.Store(&ListView{
			Items: shown, LoadedAt: v.LoadedAt, Stale: v.Stale, freshUntil: v.freshUntil, subscription: v.subscription, changed: v.changed,
		})
	}
}
