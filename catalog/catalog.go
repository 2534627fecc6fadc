package catalog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// Catalog reads the items on sale: from the process's memory, else from Redis, else from
// the database. It is safe for concurrent use. Run keeps it up to date; without Run, the
// changes of other processes are seen when the cached items expire.
type Catalog struct {
	cfg    Config
	source Source
	stock  Stock
	remote *remote // nil: there is no Redis

	known       *otter.Cache[string, *record]
	unknown     *otter.Cache[string, struct{}]
	list        list
	filter      filter
	stocks      stocks
	loads       gather
	warm        warmState
	counts      counts
	slots       chan struct{}     // of queries to the source, where each reader sends its own
	unannounced chan announcement // announcements that wait for Redis

	// subscriptions counts the subscriptions so far. Items that were loaded before the
	// present one may have changed without a message.
	subscriptions atomic.Uint64

	mu      sync.Mutex
	flights map[flightKey]*flight
	closed  bool
	work    sync.WaitGroup
	// life is the context of loads, which serve more readers than the one that began
	// them; stop ends it.
	life context.Context
	stop context.CancelFunc
}

// errClosed says that the process is ending.
var errClosed = errors.New("catalog: closed")

// New returns a Catalog; Close ends it, and the end of ctx does not.
func New(ctx context.Context, source Source, stock Stock, cfg Config) (*Catalog, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Catalog{
		cfg: cfg, source: source, stock: stock,
		slots: make(chan struct{}, cfg.LoadLimit), flights: make(map[flightKey]*flight),
		unannounced: make(chan announcement, maxUnannounced),
	}
	c.loads = gather{limit: cfg.LoadLimit, ask: c.querySource}
	c.warm.done = make(map[string]int64)
	if cfg.Redis != nil {
		c.remote = newRemote(cfg)
	}
	c.known, err = otter.New(&otter.Options[string, *record]{
		MaximumSize: cfg.MaxItems,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(otter.Entry[string, *record]) time.Duration {
			return c.spread(cfg.Keep)
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	// In a cache of their own, since a flood of invented ids would push out the items.
	c.unknown, err = otter.New(&otter.Options[string, struct{}]{
		MaximumSize: cfg.MaxItems,
		ExpiryCalculator: otter.ExpiryWritingFunc(func(otter.Entry[string, struct{}]) time.Duration {
			return c.spread(cfg.Negative)
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	// Loads outlive the readers that began them, so they have a context of their own.
	c.life, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	return c, nil
}

// Item reads an item for a purchase: its price and limit are at most Life old, or were
// confirmed by its sale within Life and are at most Fresh and Life together old, or are
// unchanged since. Its StockLeft may be of any age. Errors: ErrItemNotFound, those of the
// source, the end of ctx, and context.DeadlineExceeded when the wait took too long.
func (c *Catalog) Item(ctx context.Context, id string) (Item, error) {
	if r, ok := c.known.GetIfPresent(id); ok {
		now := time.Now()
		if v := r.view.Load(); c.good(v, now, toBuy) {
			if !now.Before(v.renewAt) {
				c.renew(r, now, toBuy)
			}
			c.counts.memory.Add(1)
			return v.Item, nil
		}
	}
	v, err := c.fetch(ctx, id, toBuy)
	if err != nil {
		return Item{}, err
	}
	return v.Item, nil
}

// Confirm reports which version an item's sale had at the time at. If memory has the same
// version, purchases may use it as if it had been loaded then, so an item that is being
// bought need not be loaded again each time that its Life has passed. It is loaded again once it is
// older than Fresh: the sale itself may lack a change, if a process died while it made the change.
func (c *Catalog) Confirm(id string, version int64, at time.Time) {
	r, ok := c.known.GetIfPresent(id)
	if !ok {
		return
	}
	good := func(v *View) bool {
		// Not for every batch: each copies the view.
		return !v.changed && v.Item.Version == version && version >= v.least &&
			at.Add(c.cfg.Life*3/4).After(v.strictUntil) && v.strictUntil.Before(v.LoadedAt.Add(c.cfg.Fresh))
	}
	if !good(r.view.Load()) {
		return
	}
	r.swap(func(v *View) bool {
		if !good(v) {
			return false
		}
		c.boughtFrom(v, at)
		return true
	})
}

// View reads an item for display, with a stock that is at most a second old if Redis
// answers. While an item is reloaded, View returns the old one, unless it is known to have
// changed. Errors: as Item.
func (c *Catalog) View(ctx context.Context, id string) (*View, error) {
	now := time.Now()
	r, ok := c.known.GetIfPresent(id)
	if !ok {
		v, err := c.fetch(ctx, id, toShow)
		if err != nil {
			return nil, err
		}
		return c.loaded(ctx, v), nil
	}
	v := r.view.Load()
	if !c.good(v, now, toShow) {
		if v.changed || !c.on(Breakdown) {
			v, err := c.fetch(ctx, id, toShow)
			switch {
			case err == nil:
				return c.loaded(ctx, v), nil
			case ctx.Err() != nil:
				return nil, err // a caller that has left does not know whether the load failed
			case !c.showOld(id, r, err):
				return nil, err
			}
			return c.withStock(ctx, r, now), nil
		}
		c.counts.stale.Add(1)
		c.renew(r, now, toRenew)
	}
	c.counts.memory.Add(1)
	return c.withStock(ctx, r, now), nil
}

// loaded adds the stock to a view that was just loaded. If memory has no unchanged view of
// the item, because it has changed meanwhile, the loaded view is used.
func (c *Catalog) loaded(ctx context.Context, v *View) *View {
	r, ok := c.known.GetIfPresent(v.Item.ID)
	if !ok || r.view.Load().changed {
		r = &record{id: v.Item.ID}
		r.stock.left.Store(-1)
		r.view.Store(v)
	}
	return c.withStock(ctx, r, time.Now())
}

// showOld reports whether the old item is shown because it cannot be loaded again.
func (c *Catalog) showOld(id string, r *record, err error) bool {
	if errors.Is(err, ErrItemNotFound) || errors.Is(err, errClosed) {
		return false
	}
	// It may have been evicted while the load failed; this caller still has it.
	if _, ok := c.known.GetIfPresent(id); !ok {
		c.known.Set(id, r)
	}
	c.outdated(r)
	return true
}

// outdated marks an item that could not be reloaded as stale.
func (c *Catalog) outdated(r *record) {
	r.retryAt.Store(time.Now().Add(retryPause).UnixNano())
	r.swap(func(v *View) bool {
		if !v.changed && time.Now().Before(v.freshUntil) {
			return false // another load has succeeded meanwhile
		}
		was := v.Stale && !v.changed
		// It is not used for purchases: its price may be the one before the change.
		v.Stale, v.changed, v.strictUntil, v.freshUntil = true, false, time.Time{}, time.Time{}
		return !was
	})
}

// retryPause is the time between attempts to load an item that could not be loaded.
const retryPause = 250 * time.Millisecond

// renew reloads an item in the background, unless that is under way.
func (c *Catalog) renew(r *record, now time.Time, k kind) {
	if !c.on(Breakdown) || now.UnixNano() < r.retryAt.Load() || !r.renewing.CompareAndSwap(false, true) {
		return
	}
	c.join(r.id, k, r)
}

// on reports whether the defence is in use.
func (c *Catalog) on(d Defence) bool { return c.cfg.Off&d == 0 }

// Close ends all loads; waiting readers get an error. It returns when all goroutines have
// ended or ctx ends.
func (c *Catalog) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop()
	done := make(chan struct{})
	go func() {
		c.work.Wait()
		c.known.StopAllGoroutines()
		c.unknown.StopAllGoroutines()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("catalog: close: %w", context.Cause(ctx))
	}
}

// begin counts a goroutine for which Close waits; work.Done ends it.
func (c *Catalog) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.beginLocked()
}

func (c *Catalog) beginLocked() bool {
	if c.closed {
		return false
	}
	c.work.Add(1)
	return true
}

// counts counts where items come from.
type counts struct {
	memory, redis, database                    atomic.Int64
	stale, refused, negative, queries, invalid atomic.Int64
}

// Stats are the counts of a catalogue since its start. Readers that wait for the same load
// count once.
type Stats struct {
	Memory   int64 // items answered from memory, the stale ones included
	Redis    int64 // items and negative entries taken from Redis
	Database int64 // items read from the database
	Stale    int64 // items answered from memory although they had to be reloaded
	Refused  int64 // ids refused by the filter
	Negative int64 // ids refused because an earlier search found no item
	Queries  int64 // queries to the database, of any kind
	Changed  int64 // items invalidated because they have changed
}

// Stats returns the counts.
func (c *Catalog) Stats() Stats {
	n := &c.counts
	return Stats{
		Memory: n.memory.Load(), Redis: n.redis.Load(), Database: n.database.Load(), Stale: n.stale.Load(),
		Refused: n.refused.Load(), Negative: n.negative.Load(), Queries: n.queries.Load(), Changed: n.invalid.Load(),
	}
}
