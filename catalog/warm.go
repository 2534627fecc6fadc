package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flashsale/internal/bucket"
	"flashsale/internal/pause"
)

const (
	// warmAhead is how long before its opening an item is warmed.
	warmAhead = 2 * time.Minute
	// warmEvery is how often items that open soon are searched for.
	warmEvery = 20 * time.Second
	// warmRetry is the pause after an attempt that failed.
	warmRetry = 500 * time.Millisecond
	// warmParallel is how many items are warmed concurrently.
	warmParallel = 8
	// filterEvery is how often the set of ids is rebuilt, in case all announcements of a
	// new id have failed.
	filterEvery = time.Minute
)

// warmState records which items were warmed.
type warmState struct {
	mu    sync.Mutex
	done  map[string]int64 // by item, its version
	ready atomic.Bool
}

// errNotReady says that the catalogue is not ready yet.
var errNotReady = errors.New("catalog: items are not loaded yet")

// Ready returns nil once the set of ids is built and the items that are on sale, or open
// soon, are in memory. It does not wait for their sales. From then on it returns nil.
func (c *Catalog) Ready(context.Context) error {
	if !c.warm.ready.Load() {
		return errNotReady
	}
	return nil
}

// Run receives the changes of other processes, keeps the set of ids up to date and warms
// the items that open soon, until ctx ends.
func (c *Catalog) Run(ctx context.Context) error {
	var all sync.WaitGroup
	if c.remote != nil {
		all.Go(func() { c.listen(ctx) })
		all.Go(func() { c.keepAnnouncing(ctx) })
	}
	all.Go(func() { c.keepFilter(ctx) })
	all.Go(func() { c.keepWarm(ctx) })
	all.Wait()
	return nil
}

func (c *Catalog) keepFilter(ctx context.Context) {
	for {
		wait := c.spread(filterEvery)
		if err := c.buildFilterNow(ctx); err != nil && !errors.Is(err, errBuilding) {
			if ctx.Err() != nil {
				return
			}
			c.cfg.OnError(err)
			wait = warmRetry
		}
		for end := time.Now().Add(wait); time.Now().Before(end); {
			if !pause.For(ctx, min(warmRetry, time.Until(end))) {
				return
			}
			if c.filter.full() || !c.filter.built() {
				break
			}
		}
	}
}

func (c *Catalog) keepWarm(ctx context.Context) {
	for {
		wait := c.spread(warmEvery)
		soon, err := c.warmSoon(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.cfg.OnError(err)
			wait = warmRetry
		case !c.filter.built():
			wait = warmRetry / 10
		default:
			// A large sale takes long to load, and readiness does not wait for it.
			c.warm.ready.Store(true)
			c.openSales(ctx, soon)
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// warmSoon loads the items that are on sale or open soon into memory, and returns those
// whose sale was not opened for their present version.
func (c *Catalog) warmSoon(ctx context.Context) (soon []*Item, err error) {
	list, err := c.List(ctx)
	if err != nil {
		return nil, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(warmParallel)
	for i := range list.Items {
		item := &list.Items[i]
		now := c.cfg.Now(item.ID)
		if item.State(now.Add(warmAhead)) == StateClosed || item.State(now) == StateClosed ||
			now.Add(warmAhead).Before(item.OpensAt) || c.isWarm(item) {
			continue
		}
		soon = append(soon, item)
		g.Go(func() error {
			if _, ok := c.known.GetIfPresent(item.ID); ok && !list.Stale {
				c.storeRemote(ctx, item.ID, answer{item: *item, exists: true, loadedAt: list.LoadedAt})
			} else if _, err := c.fetch(ctx, item.ID, toRenew); err != nil && !errors.Is(err, ErrItemNotFound) {
				return fmt.Errorf("warm item %s: %w", item.ID, err)
			}
			return nil
		})
	}
	return soon, g.Wait()
}

// openSales loads the sales of items that are not loaded. A load that fails is repeated in
// the next round, or by the first buyer.
func (c *Catalog) openSales(ctx context.Context, items []*Item) {
	var g errgroup.Group
	g.SetLimit(warmParallel)
	for _, item := range items {
		g.Go(func() error {
			if err := c.openSale(ctx, item); err != nil {
				c.cfg.OnError(err)
				return nil
			}
			c.isWarmNow(item)
			return nil
		})
	}
	_ = g.Wait() //nolint:errcheck // failures are reported above
}

// openSale loads the sale of an item, or those of its buckets.
func (c *Catalog) openSale(ctx context.Context, item *Item) error {
	for _, id := range bucket.IDs(item.ID, item.Buckets) {
		if err := c.cfg.OpenSale(ctx, id); err != nil {
			return fmt.Errorf("warm item %s: %w", id, err)
		}
	}
	return nil
}

func (c *Catalog) isWarm(i *Item) bool {
	c.warm.mu.Lock()
	defer c.warm.mu.Unlock()
	version, ok := c.warm.done[i.ID]
	return ok && version == i.Version
}

func (c *Catalog) isWarmNow(i *Item) {
	c.warm.mu.Lock()
	defer c.warm.mu.Unlock()
	if len(c.warm.done) >= c.cfg.MaxItems {
		clear(c.warm.done)
	}
	c.warm.done[i.ID] = i.Version
}

// fetchBuckets loads an item and its buckets into memory.
func (c *Catalog) fetchBuckets(ctx context.Context, id string) (*View, error) {
	v, err := c.fetch(ctx, id, toRenew)
	if err != nil {
		return nil, err
	}
	for _, other := range bucket.IDs(id, v.Item.Buckets)[1:] {
		if _, err := c.fetch(ctx, other, toRenew); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Warm loads an item and its sale into every layer, and makes the other processes
// load it too. Errors: as Item, and what loading the sale returns.
func (c *Catalog) Warm(ctx context.Context, id string) (*View, error) {
	v, err := c.fetchBuckets(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := c.openSale(ctx, &v.Item); err != nil {
		return nil, err
	}
	if c.remote != nil {
		if err := c.remote.rdb.Publish(ctx, itemsChannel, "warm - "+id).Err(); err != nil {
			c.cfg.OnError(fmt.Errorf("warm item %s elsewhere: %w", id, err))
		}
	}
	return c.View(ctx, id)
}
